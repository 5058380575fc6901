"""A store on object storage behind the commands and the service, its endpoint by option."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from eaglenet.cli.main import main
from eaglenet.cluster import bucket
from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.maintenance import remove
from eaglenet.indexing.report import IndexReport
from eaglenet.search.engine import Engine
from eaglenet.serve.app import create_app
from eaglenet.serve.settings import Settings
from eaglenet.store.object_storage import ENDPOINT, ObjectFolder
from object_storage import Gate, MemoryGate
from small_videos import colour_video
from synthetic_store import BagMethod

pytest.importorskip("obstore")
pytestmark = pytest.mark.filterwarnings("ignore")
STORE, FILMS = "s3://bucket/store", "s3://bucket/films"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """Object storage on this machine with two films, and a store of them beside."""
    gate = MemoryGate().open()
    folder = tmp_path_factory.mktemp("films")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "x")
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("EAGLENET_CACHE", str(folder / "cache"))
        patch.setenv(ENDPOINT, gate.url)
        for number, colours in enumerate((["red", "green"], ["blue"])):
            path = colour_video(folder / f"{number}.mp4", colours)
            ObjectFolder(FILMS).write(path.name, path.read_bytes())
        assert index_films().problems == ()
        yield gate
    gate.close()


def index_films(store: str = STORE) -> IndexReport:
    options = IndexOptions(splitting=Splitting(3.0, 1.0), workers=0)
    return index_videos([FILMS], store, "bag", method=BagMethod(), options=options)


@pytest.mark.parametrize("command", ["info", "recall", "verify"])
def test_the_endpoint_of_the_option_is_enough(
    command: str,
    storage: Gate,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv(ENDPOINT)
    words = ["--store-endpoint", storage.url, "store", command, "--store", STORE]
    monkeypatch.setattr(sys, "argv", ["eaglenet", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    assert capsys.readouterr().out.strip()


def test_the_service_answers_from_object_storage(storage: Gate) -> None:
    app = create_app(Engine.open(STORE, BagMethod()), Settings())
    with TestClient(app, base_url="http://localhost") as client:
        answer = client.get("/api/search", params={"q": "blue", "k": 1})
        assert answer.status_code == 200
        assert answer.json()["hits"][0]["path"] == f"{FILMS}/1.mp4"


def test_hits_are_those_of_a_local_store(
    storage: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of frames and of transcripts, while files are added, removed and corrected for hubness."""
    monkeypatch.setattr(bucket, "FRESH_SECONDS", 0.0)
    method, videos = BagMethod(), tmp_path / "videos"
    videos.mkdir()
    locations = (f"{STORE}-compared", str(tmp_path / "store"))
    engines: list[Engine] = []

    def index(**changes: Any) -> None:
        options = IndexOptions(splitting=Splitting(3.0, 1.0), workers=0, **changes)
        for location in locations:
            report = index_videos([videos], location, "bag", method=method, options=options)
            assert report.problems == ()
        engines[:] = engines or [Engine.open(location, method) for location in locations]

    def hits() -> list[Any]:
        results = []
        for engine in engines:
            found = {}
            for query in ("red", "a blue car"):
                for hit in engine.search(query, 20, keep_duplicates=True):
                    found[query, hit.clip_id] = (hit.score, hit.coarse_score, hit.moment)
                    assert engine.thumbnail(hit.clip_id)
            spoken = engine.search("walrus", 5, modalities="speech")
            results.append((found, str([hit.to_dict() for hit in spoken])))
        assert results[0] == results[1]
        return [len(results[0][0]), "walrus" in results[0][1]]

    colour_video(videos / "0.mp4", ["red", "green", "blue"])
    (videos / "0.srt").write_text("1\n00:00:01,000 --> 00:00:03,000\na walrus says hello\n")
    index()
    first = hits()
    assert first[1]
    colour_video(videos / "1.mp4", ["blue"] * 4)
    index()
    assert hits()[0] > first[0]
    index(hubness=["red", "a blue car", "green ball"])
    assert hits()[0] > first[0]
    assert all(engine.info()["hubness"] != "off" for engine in engines)
    (videos / "0.mp4").unlink()
    index(drop_missing=True)
    last = hits()
    assert last[0] > 0
    assert not last[1]


def test_objects_that_a_run_has_listed_are_not_asked_for_again(storage: Gate) -> None:
    asked: list[str] = []

    def note(method: str, path: str) -> None:
        if method == "HEAD" and "/films/" in path:
            asked.append(path)

    storage.choose = note
    report = index_films()
    storage.choose = lambda method, path: None
    assert report.unchanged == 2
    assert asked == []


def test_files_of_object_storage_are_forgotten_by_their_address(storage: Gate) -> None:
    store = f"{STORE}-of-its-own"
    index_films(store)
    assert remove(store, [f"{FILMS}/1.mp4"]) == [f"{FILMS}/1.mp4"]
    assert remove(store, [f"{FILMS}/"]) == [f"{FILMS}/0.mp4"]
