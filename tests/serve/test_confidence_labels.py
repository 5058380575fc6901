"""Confidence through a real service and the page, with the packaged model and its calibration."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chromium import BROWSER, Running, Watched, keep, wait_until
from PIL import Image

from eaglenet.cli.demo import CLIPS
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.search.engine import Engine
from eaglenet.search.hit import label
from eaglenet.serve.settings import Settings

PHOTOGRAPHS = ("coffee.jpg", "astronaut.jpg", "tent.jpg", "bay_at_dusk.jpg", "cat_on_patio.mp4")
COLOURS = [
    "red",
    "green",
    "blue",
    "yellow",
    "black",
    "white",
    "grey",
    "orange",
    "purple",
    "pink",
    "brown",
    "navy",
    "olive",
    "teal",
]
SURE, ABSENT = "a cup of coffee on a saucer", "a wedding in a church"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Photographs, and plain images: fewer than ten clips have no confidence."""
    folder = tmp_path_factory.mktemp("measured")
    files = folder / "files"
    files.mkdir()
    for name in PHOTOGRAPHS:
        shutil.copy(CLIPS / name, files)
    for colour in COLOURS:
        Image.new("RGB", (160, 120), colour).save(files / f"plain {colour}.png")
    options = IndexOptions(workers=0, device="cpu", precision="fp32")
    assert not index_videos([files], folder / "store", "small", options=options).problems
    return Engine.open(folder / "store")


@pytest.fixture(scope="module")
def address(measured: Engine) -> Iterator[str]:
    with Running(measured, Settings(allow_uploads=True)) as url:
        yield url


def search(address: str, query: str, **parameters: Any) -> dict[str, Any]:
    answer = httpx.get(
        f"{address}/api/search", params={"q": query, "k": 12, **parameters}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_hits_over_http_have_their_confidence_and_its_label(address: str, measured: Engine) -> None:
    assert httpx.get(f"{address}/api/info", timeout=60).json()["confidence_measured"] is True
    body = search(address, SURE)
    hits = body["hits"]
    assert (hits[0]["name"], hits[0]["match"]) == ("coffee.jpg", "sure")
    expected = [hit.confidence for hit in measured.search(SURE, 12)]
    assert [hit["confidence"] for hit in hits] == pytest.approx(expected)
    assert [hit["match"] for hit in hits] == [label(hit["confidence"]) for hit in hits]
    assert {hit["match"] for hit in hits} >= {"sure", "unlikely"}
    assert body["note"] == ""


def test_a_least_confidence_leaves_out_the_others_or_says_why_nothing_is_left(
    address: str,
) -> None:
    every = search(address, SURE)["hits"]
    sure = search(address, SURE, min_confidence=0.7)["hits"]
    assert sure == [hit for hit in every if hit["confidence"] >= 0.7]
    nothing = search(address, ABSENT, min_confidence=0.7)
    assert (nothing["hits"], nothing["note"]) == ([], "no moment has a confidence of 70% or more")
    for query, parameters in ((SURE, {"negative": "tea"}), ('"coffee" + "a saucer"', {})):
        body = search(address, query, **parameters)
        assert {(hit["confidence"], hit["match"]) for hit in body["hits"]} == {
            (None, "not measured")
        }
        body = search(address, query, min_confidence=0.3, **parameters)
        assert body["hits"] == []
        assert "have no confidence; search without a least confidence" in body["note"]
    few = search(address, SURE, path="*.jpg")
    assert {hit["match"] for hit in few["hits"]} == {"not measured"}
    assert few["note"] == "confidence was not measured for so few clips (4; it needs 10)"


def test_images_and_similar_clips_have_no_confidence(address: str) -> None:
    content = (CLIPS / "coffee.jpg").read_bytes()
    url = f"{address}/api/search/image"
    hits = httpx.post(url, content=content, timeout=60).json()["hits"]
    assert hits[0]["name"] == "coffee.jpg"
    similar = httpx.get(f"{address}/api/similar/{hits[0]['clip_id']}", timeout=60).json()["hits"]
    assert {hit["match"] for hit in (*hits, *similar)} == {"not measured"}
    refused = httpx.post(url, content=content, params={"min_confidence": 0.3}, timeout=60)
    assert (refused.status_code, "min_confidence" in refused.text) == (422, True)


def test_assistants_are_told_the_labels_and_that_nothing_fits(measured: Engine) -> None:
    pytest.importorskip("mcp")
    from test_mcp import TOKEN, call, over_http, service

    async def ask(client: Any) -> None:
        moments = (await call(client, "search_moments", query=SURE, k=12))["moments"]
        assert (moments[0]["match"], moments[-1]["match"]) == ("sure", "unlikely")
        best = await call(client, "search_moments", query=SURE, min_confidence=0.7)
        assert [moment["clip_id"] for moment in best["moments"]] == [moments[0]["clip_id"]]
        absent = await call(client, "search_moments", query=ABSENT)
        assert absent["moments"]
        assert absent["note"].startswith("no moment is likely to show this")
        nothing = await call(client, "search_moments", query=ABSENT, min_confidence=0.7)
        assert nothing["moments"] == []
        assert "no moment has a confidence of 70% or more" in nothing["note"]

    with service(measured, token=TOKEN) as url:
        over_http(url, ask)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_the_page_shows_labels_and_filters_by_them(
    browser: object, address: str, tmp_path: Path
) -> None:
    tab = Watched(browser, address, viewport={"width": 1280, "height": 860})
    page = tab.page
    page.goto(f"/?q={SURE}")
    page.wait_for_selector("button.card")
    assert page.text_content("button.card .facts .sure") == "sure"
    assert page.text_content("#results .less") == "Less likely"
    # The mark stands before the first of the unlikely ones.
    order = "[...document.querySelectorAll('#results > li')].map(item => item.className || "
    order += "item.querySelector('.facts').lastChild.textContent)"
    shown = page.evaluate(order)
    assert shown.index("less") == len(shown) - 1 - shown.count("unlikely")
    assert "likely to show" not in page.text_content("#status")
    keep(page, "page_labels.png", tmp_path)
    page.locator("button.card").first.click()
    page.wait_for_selector("#player[open]")
    assert "sure (9" in page.text_content("#player-detail")
    page.keyboard.press("Escape")

    page.click("#filters summary")
    page.select_option("[name=min_confidence]", "0.7")
    wait_until(page, "document.querySelectorAll('button.card').length === 1")
    assert "min_confidence=0.7" in page.url
    assert page.locator("#results .less").count() == 0
    page.fill("#query", '"coffee" + "a saucer"')
    page.press("#query", "Enter")
    wait_until(page, "document.querySelector('#status').textContent.includes('no confidence')")
    assert page.locator("button.card").count() == 0

    page.goto(f"/?q={ABSENT}")
    page.wait_for_selector("button.card")
    assert page.text_content("#status").endswith("; no moment is likely to show this")
    assert page.locator("#results .less").count() == 0
    keep(page, "page_nothing.png", tmp_path)
    page.goto(f"/?q={SURE}&path=.jpg")
    page.wait_for_selector("button.card")
    assert "not measured for so few clips (4" in page.text_content("#status")
    assert page.locator("button.card .sure, button.card .unlikely").count() == 0
    assert tab.problems == []
    tab.context.close()


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_the_page_of_a_model_that_was_not_measured_shows_scores(
    browser: object, engine: Engine
) -> None:
    with Running(engine, Settings()) as url:
        tab = Watched(browser, url)
        page = tab.page
        page.goto("/?q=red")
        page.wait_for_selector("button.card")
        page.click("#filters summary")
        assert page.locator("#sureness").is_hidden()
        assert page.locator("#results .less").count() == 0
        scores = page.locator(".card .score").all_text_contents()
        # Negative scores, as of these random weights, are not shown.
        assert all(re.fullmatch(r"(0\.\d{3})?", score) for score in scores), scores
        assert "likely" not in page.text_content("#status")
        # A link from another service.
        page.goto("/?q=red&min_confidence=0.7")
        wait_until(page, "document.querySelector('#status').classList.contains('bad')")
        assert "not measured" in page.text_content("#status")
        tab.context.close()
