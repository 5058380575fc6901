"""The examples of the page on queries, through every interface: the same hits."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from demo_store import DemoStore
from fastapi.testclient import TestClient
from test_mcp import TOKEN, call, over_http, refusal, service
from typer.testing import CliRunner

pytest.importorskip("mcp")
from eaglenet.cli.main import app
from eaglenet.core.errors import UsageError
from eaglenet.search.engine import Engine
from eaglenet.search.grammar import ComposedQuery, Part, parse
from eaglenet.search.query import Query
from eaglenet.serve.app import create_app
from eaglenet.serve.settings import Settings
from query_json import to_json

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "queries.md"
Moments = list[tuple[str, float, float]]


def moments_of(hits: list[dict[str, Any]]) -> Moments:
    """Clip and span of each hit, in order; MCP returns the span without ``moment``."""
    spans = [(hit["clip_id"], hit.get("moment", hit)) for hit in hits]
    return [(clip, round(span["start"], 2), round(span["end"], 2)) for clip, span in spans]


@pytest.fixture
def examples(clip_id: str, engine: Engine, tmp_path: Path) -> list[str]:
    """The queries of the table, about a clip and images that exist, and a month that has files."""
    table = PAGE.read_text("utf-8").split("| query | finds |")[1].split("\n\n")[0]
    queries = re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)
    assert len(queries) == 11
    for name in ("pool.jpg", "my dog.jpg"):
        (tmp_path / name).write_bytes(engine.thumbnail(clip_id))
    real = [query.replace("clip:3f9c-0", f"clip:{clip_id}") for query in queries]
    return [*real, real[-1].replace("July", "November")]


def test_the_examples_find_the_same_everywhere(
    examples: list[str],
    demo: DemoStore,
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queries.txt").write_text("\n".join(examples))
    command = ["search", "--store", str(demo.folder), "--queries", "queries.txt", "--json"]
    result = CliRunner().invoke(app, [*command, "-k", "5"])
    assert result.exit_code == 0, result.output
    expected = [moments_of(each["hits"]) for each in json.loads(result.stdout)]
    assert [len(each) for each in expected] == [5] * 10 + [0, 5]
    assert len(set(map(str, expected))) == len(examples)
    texts = [text for text in examples if ".jpg" not in text]
    typed = [own for text, own in zip(examples, expected, strict=True) if ".jpg" not in text]
    in_python = engine.search_many(texts, k=5)
    assert [moments_of([hit.to_dict() for hit in hits]) for hits in in_python] == typed

    async def ask(client: Any) -> list[Moments]:
        for text in ('"a retriever" + pool.jpg', "clip:upload + pool.jpg"):
            assert "files cannot be named" in await refusal(client, "search_moments", query=text)
        answers = [await call(client, "search_moments", query=text, k=5) for text in texts]
        return [moments_of(answer["moments"]) for answer in answers]

    with service(engine, token=TOKEN) as url:
        assert over_http(url, ask) == typed
    with TestClient(
        create_app(engine, Settings(allow_uploads=True)), base_url="http://localhost"
    ) as http:
        for text, own in zip(texts, typed, strict=True):
            answer = http.get("/api/search", params={"q": text, "k": 5}).json()
            assert moments_of(answer["hits"]) == own, text
        objects = [to_json(parse(text)) for text in texts[3:8]]
        answers = http.post("/api/search", json={"queries": objects, "k": 5}).json()["results"]
        assert [moments_of(answer["hits"]) for answer in answers] == typed[3:8]
        for text, own in zip(examples, expected, strict=True):
            if ".jpg" in text:
                query = re.sub(r'pool\.jpg|"my dog\.jpg"', "clip:upload", text)
                content = (tmp_path / "pool.jpg").read_bytes()
                answer = http.post(
                    "/api/search/image", params={"q": query, "k": 5}, content=content
                )
                assert moments_of(answer.json()["hits"]) == own, text
    parts = (Part(Query("a retriever")), Part(Query(image="pool.jpg")))
    hits = engine.search(ComposedQuery(parts), k=5)
    assert moments_of([hit.to_dict() for hit in hits]) == expected[5]


def test_objects_and_uploads_that_mean_nothing_are_refused(engine: Engine, clip_id: str) -> None:
    deep: dict[str, Any] = {"text": "a"}
    for _ in range(300):
        deep = {"steps": [deep, {"text": "b"}]}
    objects: list[Any] = [
        {}, {"text": 7}, {"text": " "}, {"txt": "a"}, {"parts": []}, {"parts": [{"weight": 1}]},
        {"parts": [{"text": "a", "weight": 0}]}, {"parts": [{"text": "a", "weight": "2"}]},
        {"parts": [{"text": "a", "weight": -1}]}, {"steps": [{"text": "a"}]}, deep,
        {"steps": [{"text": "a"}, {"text": "b"}], "within": -1}, {"clip_id": "../etc"},
        {"parts": [{"text": "a" * 4001}]}, {"image": "/etc/passwd"},
    ]  # fmt: skip
    settings = Settings(allow_uploads=True)
    with TestClient(create_app(engine, settings), base_url="http://localhost") as http:
        for value in objects:
            answer = http.post("/api/search", json={"queries": [value]})
            status = 404 if "clip_id" in value else 422
            assert answer.status_code == status, (str(value)[:80], answer.text)
        assert http.post("/api/search", json={"queries": [7]}).status_code == 422
        both = {"queries": [{"text": "a"}], "negative": ["b"]}
        assert "negative weight" in http.post("/api/search", json=both).text
        image = engine.thumbnail(clip_id)
        for query in ('"a" + "b"', "a dog", f'clip:{clip_id} + "a"', "clip:upload", '"a" + x.jpg'):
            answer = http.post("/api/search/image", params={"q": query}, content=image)
            assert answer.status_code == 422, (query, answer.text)
        step = {"q": 'clip:upload then "red"', "k": 1}
        steps = http.post("/api/search/image", params=step, content=image).json()["hits"][0][
            "steps"
        ]
        assert len(steps) == 2


def test_a_clip_id_without_another_part_is_told(
    demo: DemoStore, engine: Engine, clip_id: str
) -> None:
    alone = f"clip:{clip_id}"
    notice = f"'{alone}' was read as a text: clip: needs another part beside it"
    found = engine.search(alone, k=1)
    assert notice in found.notice
    assert engine.search(alone, k=1, literal=True).notice == ""
    assert "was read as a text" not in engine.search(f'{alone} + "at night"', k=1).notice
    stderr = CliRunner().invoke(app, ["search", "--store", str(demo.folder), alone]).stderr
    assert f"find moments like this clip: --similar {clip_id}" in stderr


def test_a_name_of_no_file_is_told_everywhere(
    demo: DemoStore, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a part of a query it is refused; alone it is a text, which may be written on a screen."""
    monkeypatch.chdir(tmp_path)
    part, alone = '"a fox" + "my nofile.jpg"', '"my nofile.jpg"'
    notice = "'my nofile.jpg' was read as a text: no file of this name is indexed"
    command = ["search", "--store", str(demo.folder)]
    refused = CliRunner().invoke(app, [*command, part])
    assert "'my nofile.jpg': no such file" in str(refused.exception)
    assert notice in CliRunner().invoke(app, [*command, alone]).stderr
    (tmp_path / "my nofile.jpg").touch()
    advice = f"{notice}; search with this file: --image 'my nofile.jpg'"
    assert advice in CliRunner().invoke(app, [*command, alone]).stderr
    (tmp_path / "nofile.mp3").touch()
    assert "search with this file" not in CliRunner().invoke(app, [*command, "nofile.mp3"]).stderr
    result = CliRunner().invoke(app, [*command, f"{'a' * 300}.jpg"])
    assert (result.exit_code, "was read as a text" in result.stderr) == (0, True)
    with pytest.raises(UsageError, match=r"Query\(image=...\)"):
        engine.search(part)
    assert engine.search(alone).notice == notice
    assert engine.search(alone, literal=True).notice == ""
    indexed = Path(engine.search("a ball", k=1)[0].path).name
    assert engine.search(f"~/videos/{indexed}").notice == ""

    async def ask(client: Any) -> None:
        assert "files cannot be named" in await refusal(client, "search_moments", query=part)
        assert notice in (await call(client, "search_moments", query=alone))["note"]

    with service(engine, token=TOKEN) as url:
        over_http(url, ask)
    with TestClient(create_app(engine, Settings()), base_url="http://localhost") as http:
        answer = http.get("/api/search", params={"q": part})
        assert answer.status_code == 422
        assert "files cannot be named" in answer.text
        assert http.get("/api/search", params={"q": alone}).json()["note"] == notice
    name = Path(engine.search("a dog", k=1)[0].path).name
    assert engine.search(name).notice == ""
