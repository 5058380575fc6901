"""Looking around over HTTP: folders, files, and the clips of a file."""

from __future__ import annotations

from demo_store import HOSTILE_NAME, SCENES
from fastapi.testclient import TestClient

from eaglenet.search.engine import Engine
from eaglenet.search.reranking import spaced_indices
from eaglenet.serve.app import create_app
from eaglenet.serve.settings import Settings


def test_files_come_newest_first_and_by_folder(client: TestClient) -> None:
    body = client.get("/api/files").json()
    assert (body["total"], len(body["files"])) == (SCENES, SCENES)
    times = [file["modified"] for file in body["files"]]
    assert times == sorted(times, reverse=True)
    assert body["folders"] == [{"name": "videos", "folder": "videos", "files": SCENES}]
    inside = client.get("/api/files", params={"folder": "videos"}).json()
    assert [(each["folder"], each["files"]) for each in inside["folders"]] == [
        ("videos/beach", 5),
        ("videos/town", 6),
    ]
    town = client.get("/api/files", params={"folder": "videos/town", "order": "name"}).json()
    names = [file["name"] for file in town["files"]]
    assert names == sorted(names)
    assert HOSTILE_NAME in names
    assert {file["folder"] for file in town["files"]} == {"videos/town"}
    assert (town["total"], town["folders"]) == (6, [])
    # A part of a name is no folder.
    assert client.get("/api/files", params={"folder": "videos/to"}).status_code == 404


def test_files_are_found_by_words_of_their_path(client: TestClient) -> None:
    beach = client.get("/api/files", params={"name": "BEACH"}).json()
    assert (beach["total"], beach["folders"]) == (5, [])
    assert {file["folder"] for file in beach["files"]} == {"videos/beach"}
    assert client.get("/api/files", params={"name": "the beach"}).json()["total"] == beach["total"]
    name = beach["files"][0]["name"]
    both = client.get("/api/files", params={"name": f"b\u00e9ach {name}"}).json()
    assert [file["name"] for file in both["files"]] == [name]
    assert client.get("/api/files", params={"name": "beach town"}).json()["total"] == 0
    assert client.get("/api/files", params={"name": "  "}).json()["total"] == 0


def test_a_folder_without_indexed_files_is_named(client: TestClient) -> None:
    for folder in ("nope", "../..", "videos/nope"):
        for name in ("", "beach"):
            answer = client.get("/api/files", params={"folder": folder, "name": name})
            assert answer.status_code == 404
            message = answer.json()["error"]["message"]
            assert message == f"no indexed file is in {folder!r}; indexed folders: videos"
    assert client.get("/api/files?folder=videos&name=nope").json()["total"] == 0
    assert client.get("/api/files?folder=%ED%A0%80").status_code == 404


def test_files_come_in_pages(client: TestClient) -> None:
    whole = client.get("/api/files", params={"order": "oldest"}).json()["files"]
    part = client.get("/api/files", params={"order": "oldest", "first": 4, "k": 3}).json()
    assert part["files"] == whole[4:7]
    assert part["total"] == SCENES
    assert client.get("/api/files", params={"first": 99}).json()["files"] == []
    longest = client.get("/api/files", params={"order": "longest"}).json()["files"]
    durations = [file["duration"] for file in longest]
    assert durations == sorted(durations, reverse=True)


def test_a_file_leads_to_its_clips(client: TestClient) -> None:
    file = client.get("/api/files", params={"k": 1}).json()["files"][0]
    body = client.get(f"/api/clips/{file['clip_id']}/timeline").json()
    assert body["name"] == file["name"]
    assert body["duration"] == file["duration"]
    assert len(body["clips"]) == file["clips"]
    starts = [clip["start"] for clip in body["clips"]]
    assert starts == sorted(starts)
    assert client.get(body["clips"][0]["thumbnail"]).status_code == 200
    assert spaced_indices(9, 3).tolist() == [0, 4, 8]
    assert spaced_indices(2, 9).tolist() == [0, 1]


def test_nonsense_is_refused(client: TestClient) -> None:
    for query in ("order=best", "k=0", "k=201", "first=-1", "folder=" + "a" * 1300, "colour=red"):
        assert client.get(f"/api/files?{query}").status_code == 422, query
    assert client.get("/api/clips/0000000000000000-1/timeline").status_code == 404


def test_others_learn_no_more_than_the_indexed_folder(engine: Engine) -> None:
    settings = Settings(token="right-token-of-some-length", local=False)
    with TestClient(create_app(engine, settings), base_url="http://elsewhere") as client:
        headers = {"Authorization": "Bearer right-token-of-some-length"}
        body = client.get("/api/files", headers=headers).json()
        assert all(file["path"].startswith("videos/") for file in body["files"])
        assert client.get("/api/files").status_code == 401
