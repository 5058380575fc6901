"""Every view of the page: looking around, pictures, similar moments, words, links, keys, axe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from chromium import BROWSER, Running, Watched, keep, wait_until
from demo_store import SCENES, DemoStore, save_model
from odd_files import write_odd
from PIL import Image

from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.search.engine import Engine
from eaglenet.serve.settings import Settings

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium on this machine; install one with: make browser"
)
WIDE = {"viewport": {"width": 1280, "height": 860}}
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
}
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def address(engine: Engine) -> Iterator[str]:
    """Where a running service shows the page, with uploads."""
    with Running(engine, Settings(allow_uploads=True)) as found:
        yield found


def violations(page: object) -> list[str]:
    """What axe finds, best practices and the experimental rule of names included."""
    source = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
    page.evaluate(source)  # type: ignore[attr-defined]
    found = page.evaluate(  # type: ignore[attr-defined]
        "axe.run(document, {rules: {'label-content-name-mismatch': {enabled: true}}})"
    )
    return [
        f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]} "
        f"({each['nodes'][0]['failureSummary']})"
        for each in found["violations"]
    ]


def test_files_and_folders_can_be_looked_at_before_searching(
    browser: object, address: str, tmp_path: Path
) -> None:
    tab = Watched(browser, address, **WIDE)
    page = tab.page
    page.goto("/")
    page.wait_for_selector("button.tile")
    assert page.locator("button.tile").count() == SCENES
    days = page.evaluate("fetch('/api/files').then(r => r.json()).then(b => b.files)")
    assert [day["modified"] for day in days] == sorted((d["modified"] for d in days), reverse=True)
    assert page.locator("button.tile .name").all_text_contents() == [day["name"] for day in days]
    # A modification time is not shown as the date of a recording.
    assert all(day["recorded"] is None for day in days)
    dates = page.locator("button.tile .facts > :last-child").all_text_contents()
    assert all(text.startswith("modified ") for text in dates)
    assert page.locator(".folder-button").all_text_contents() == ["beach5", "town6"]
    assert violations(page) == []
    keep(page, "page_start.png", tmp_path)
    page.locator(".folder-button", has_text="beach").click()
    wait_until(page, "document.querySelectorAll('button.tile').length === 5")
    assert "folder=videos%2Fbeach" in page.url
    assert violations(page) == []
    keep(page, "page_folder.png", tmp_path)
    page.select_option("#order", "name")
    names = "[...document.querySelectorAll('button.tile .name')].map(n => n.textContent)"
    wait_until(page, f"JSON.stringify({names}) === JSON.stringify({names}.toSorted())")
    page.locator("button.tile").first.click()
    wait_until(page, "document.querySelector('#video').readyState >= 2")
    page.keyboard.press("n")
    wait_until(page, "!document.querySelector('#previous').disabled")
    page.keyboard.press("Escape")
    page.go_back()
    wait_until(page, f"document.querySelectorAll('button.tile').length === {SCENES}")
    assert tab.problems == []
    tab.context.close()


@pytest.mark.slow
def test_a_picture_is_searched_with_by_choosing_dropping_and_pasting(
    browser: object, address: str, engine: Engine, tmp_path: Path
) -> None:
    hit = engine.search("red", k=1)[0]
    picture = tmp_path / "seen.jpg"
    picture.write_bytes(engine.thumbnail(hit.clip_id))
    tab = Watched(browser, address, **WIDE)
    page = tab.page
    page.goto("/")
    page.wait_for_selector("#choose-image:not([hidden])")
    page.set_input_files("#image-file", picture)
    page.wait_for_selector("button.card")
    assert page.text_content("#heading") == "Moments like an image"
    assert "seen.jpg" in page.text_content("#chosen")
    wait_until(page, "document.querySelector('#chosen img').naturalWidth > 0")
    first = page.get_attribute("button.card img", "src")
    assert hit.clip_id in first
    assert violations(page) == []
    keep(page, "page_picture.png", tmp_path)
    for kind, field in (("drop", "dataTransfer"), ("paste", "clipboardData")):
        page.goto("/?q=blue")
        page.wait_for_selector("button.card")
        page.evaluate(
            """async ([source, kind, field]) => {
                const transfer = new DataTransfer();
                const picture = await (await fetch(source)).blob();
                transfer.items.add(new File([picture], `${kind}.jpg`, { type: "image/jpeg" }));
                const options = { bubbles: true, cancelable: true, [field]: transfer };
                const made = kind === "drop" ? new DragEvent(kind, options)
                  : new ClipboardEvent(kind, options);
                document.body.dispatchEvent(made);
            }""",
            [first, kind, field],
        )
        wait_until(page, f"document.querySelector('#chosen').textContent.includes('{kind}.jpg')")
        wait_until(page, "document.querySelector('#status').textContent.includes(' ms')")
        assert page.get_attribute("button.card img", "src") == first
    page.evaluate(
        """() => {
            const transfer = new DataTransfer();
            transfer.items.add(new File(["text"], "notes.txt", { type: "text/plain" }));
            const options = { bubbles: true, cancelable: true, dataTransfer: transfer };
            document.body.dispatchEvent(new DragEvent("drop", options));
        }"""
    )
    wait_until(page, "document.querySelector('#status').textContent.includes('not an image')")
    page.click("#chosen button")
    wait_until(page, "document.querySelector('#heading').textContent === 'blue'")
    assert page.input_value("#query") == "blue"
    assert tab.problems == []
    tab.context.close()


@pytest.mark.slow
def test_similar_moments_show_the_chosen_one(browser: object, address: str, tmp_path: Path) -> None:
    tab = Watched(browser, address, **WIDE)
    page = tab.page
    page.goto("/?q=a+red+ball")
    page.wait_for_selector("button.card")
    name = page.locator("button.card .name").nth(1).text_content()
    page.locator("button.card").nth(1).click()
    page.wait_for_selector("#player[open]")
    page.click("#similar")
    page.wait_for_selector("#chosen:not([hidden])")
    assert page.text_content("#heading") == "Similar moments"
    assert name in page.text_content("#chosen")
    assert page.input_value("#query") == ""
    wait_until(page, "document.querySelector('#status').textContent.includes('similar')")
    assert name not in page.locator("button.card .name").all_text_contents()
    assert violations(page) == []
    keep(page, "page_similar.png", tmp_path)
    page.reload()
    page.click("#chosen button:text('Back to the search')")
    wait_until(page, "document.querySelector('#heading').textContent === 'a red ball'")
    assert page.input_value("#query") == "a red ball"
    assert tab.problems == []
    tab.context.close()


def test_old_results_do_not_stay_under_a_new_heading(
    browser: object, address: str, engine: Engine, tmp_path: Path
) -> None:
    """An upload may take seconds; the cards before it answer another query."""
    picture = tmp_path / "seen.jpg"
    picture.write_bytes(engine.thumbnail(engine.search("red", k=1)[0].clip_id))
    tab = Watched(browser, address, **WIDE)
    page = tab.page
    page.goto("/?q=blue")
    page.wait_for_selector("button.card")
    held: list[Any] = []
    page.route("**/api/search/image*", lambda route: held.append(route))
    page.set_input_files("#image-file", picture)
    wait_until(page, "document.querySelector('#heading').textContent.includes('like an image')")
    wait_until(page, "!document.querySelector('button.card')")
    assert page.locator("#results .waiting").count() > 0
    assert page.locator("#results").get_attribute("aria-busy") == "true"
    keep(page, "page_waiting.png", tmp_path)
    held[0].continue_()
    page.wait_for_selector("button.card")
    assert page.locator("#results .waiting").count() == 0
    # More of the same results does not take away those that are shown.
    page.evaluate("document.querySelector('#more').hidden = false")
    page.click("#more")
    wait_until(page, "document.querySelector('#status').textContent.startsWith('Searching')")
    page.wait_for_timeout(600)
    assert page.locator("button.card").count() > 0
    page.unroute_all()
    assert tab.problems == []
    tab.context.close()


def test_a_moment_that_is_the_whole_file_has_no_mark(browser: object, address: str) -> None:
    """Beside the slider it looked like a second slider."""
    tab = Watched(browser, address, **WIDE)
    page = tab.page
    page.route("**/api/search?*", lambda route: _answer_with_moment(route, 0.0, 1.0))
    page.goto("/?q=a+red+ball")
    page.locator("button.card").first.click()
    page.wait_for_selector("#strip button[aria-current]")
    assert page.locator("#place").is_visible()
    assert page.locator("#marks").is_hidden()
    page.unroute_all()
    page.route("**/api/search?*", lambda route: _answer_with_moment(route, 0.2, 0.6))
    page.goto("/?q=a+red+ball")
    page.locator("button.card").first.click()
    page.wait_for_selector("#strip button[aria-current]")
    assert page.locator("#marks").is_visible()
    page.unroute_all()
    tab.context.close()


def _answer_with_moment(route: Any, start: float, end: float) -> None:
    """Pass a search on, and move the moment of its first hit; in shares of its duration."""
    answer = route.fetch()
    body = answer.json()
    body["hits"] = [next(hit for hit in body["hits"] if hit["duration"])]
    hit = body["hits"][0]
    hit["moment"] |= {"start": start * hit["duration"], "end": end * hit["duration"]}
    route.fulfill(response=answer, json=body)


@pytest.mark.slow
def test_a_link_leads_to_a_moment_and_the_timeline_through_the_file(
    browser: object, address: str, tmp_path: Path
) -> None:
    tab = Watched(browser, address, **WIDE)
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = tab.page
    page.goto("/?q=a+red+ball")
    page.locator("button.card").nth(1).click()
    wait_until(page, "document.querySelector('#video').readyState >= 2")
    page.wait_for_selector("#strip button[aria-current]")
    wait_until(page, "document.querySelectorAll('#marks i').length >= 1")
    assert violations(page) == []
    page.evaluate("document.querySelector('#video').pause()")
    page.evaluate("document.querySelector('#place').value = 1.2")
    page.dispatch_event("#place", "change")
    wait_until(page, "Math.abs(document.querySelector('#video').currentTime - 1.2) < 0.5")
    page.evaluate("document.querySelector('#video').pause()")
    keep(page, "page_timeline.png", tmp_path)
    page.keyboard.press("l")
    wait_until(page, "document.querySelector('#shared').textContent.includes('copied')")
    link = page.evaluate("navigator.clipboard.readText()")
    seconds = float(link.rsplit("t=", 1)[1])
    assert seconds == pytest.approx(1.4, abs=0.4)
    title = page.text_content("#player-title")
    page.keyboard.press("Escape")
    wait_until(page, "!location.search.includes('clip=')")
    assert tab.problems == []
    tab.context.close()

    other = Watched(browser, address, **WIDE)
    other.page.goto(link)
    other.page.wait_for_selector("#player[open]")
    assert other.page.text_content("#player-title") == title
    assert other.page.input_value("#query") == "a red ball"
    wait_until(other.page, "document.querySelector('#video').readyState >= 2")
    assert other.page.evaluate("document.querySelector('#video').currentTime") >= seconds - 0.2
    other.page.goto("/?clip=0000000000000000-7&t=3")
    other.page.wait_for_selector("button.tile")
    wait_until(
        other.page, "document.querySelector('#status').textContent.includes('no longer indexed')"
    )
    assert other.page.locator("#player[open]").count() == 0
    assert "clip=" not in other.page.url
    other.context.close()


@pytest.mark.slow
def test_the_keys_are_told(browser: object, address: str, tmp_path: Path) -> None:
    tab = Watched(browser, address, **WIDE)
    page = tab.page
    page.goto("/")
    page.wait_for_selector("button.tile")
    page.fill("#query", "who?")
    assert page.locator("#help[open]").count() == 0
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    page.wait_for_selector("#help[open]")
    assert violations(page) == []
    keep(page, "page_keys.png", tmp_path)
    page.keyboard.press("Escape")
    page.wait_for_selector("#help:not([open])", state="attached")
    assert tab.problems == []
    tab.context.close()


LINES = [
    {
        "text": "\U0001f600 She sells sea shells & <b>more</b>",
        "start": 0.5,
        "end": 1.5,
        "kind": "subtitle",
        "language": "en",
        "highlights": [[6, 11], [12, 15]],
    },
    {
        "text": "SEA FRONT",
        "start": 1.0,
        "end": 2.0,
        "kind": "text",
        "language": "",
        "highlights": [[0, 3]],
    },
]


@pytest.mark.slow
def test_words_that_were_found_are_shown_and_lead_to_their_moment(
    browser: object, address: str, tmp_path: Path
) -> None:
    tab = Watched(browser, address, **WIDE)
    page = tab.page

    def with_words(route: object) -> None:
        answer = route.fetch()  # type: ignore[attr-defined]
        body = answer.json()
        body["hits"][0] |= {"matched_in": ["speech", "screen-text"], "transcript": LINES}
        route.fulfill(response=answer, body=json.dumps(body))  # type: ignore[attr-defined]

    page.route("**/api/search?*", with_words)
    page.goto("/?q=sells+sea")
    page.wait_for_selector("button.card mark")
    assert page.locator("button.card mark").all_text_contents() == ["sells", "sea"]
    assert "<b>more</b>" in page.locator("button.card .line").text_content()
    assert violations(page) == []
    keep(page, "page_words.png", tmp_path)
    page.locator("button.card").first.click()
    page.wait_for_selector("#player-words:not([hidden])")
    assert page.locator("#player-words mark").all_text_contents() == ["sells", "sea", "SEA"]
    wait_until(page, "document.querySelector('#video').readyState >= 2")
    page.evaluate("document.querySelector('#video').pause()")
    page.locator("#player-words button").nth(1).click()
    wait_until(page, "document.querySelector('#video').currentTime >= 0.99")
    assert violations(page) == []
    assert tab.problems == []
    tab.context.close()


SUBTITLES = """1
00:00:00,500 --> 00:00:01,500
She sells sea shells
"""


@pytest.mark.slow
def test_what_is_said_is_found_and_can_be_all_that_is_searched(
    browser: object, own_demo: DemoStore, tmp_path: Path
) -> None:
    """Subtitles beside a file, indexed, searched and chosen on the page."""
    film = own_demo.videos / "town" / "scene 04.mp4"
    film.with_suffix(".srt").write_text(SUBTITLES)
    options = IndexOptions(workers=0)
    index_videos([own_demo.videos], own_demo.folder, str(own_demo.model), options=options)
    with Running(own_demo.open(), Settings()) as address:
        tab = Watched(browser, address, **WIDE)
        page = tab.page
        page.goto("/?q=sea+shells")
        page.wait_for_selector("button.card mark")
        page.click("#filters summary")
        page.wait_for_selector("#parts:not([hidden])")
        page.check("[name=in][value=speech]")
        wait_until(page, "document.querySelectorAll('button.card').length === 1")
        assert "in=speech" in page.url
        assert page.text_content("button.card .name") == film.name
        assert " ".join(page.locator("button.card mark").all_text_contents()) == "sea shells"
        assert violations(page) == []
        keep(page, "page_speech.png", tmp_path)
        assert tab.problems == []
        tab.context.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_wide_and_on_a_phone(
    browser: object, address: str, tmp_path: Path, scheme: str
) -> None:
    for shape, options in (("wide", WIDE), ("phone", PHONE)):
        tab = Watched(browser, address, color_scheme=scheme, **options)
        page = tab.page
        page.goto("/")
        page.wait_for_selector("button.tile")
        assert violations(page) == []
        assert page.evaluate(FITS)
        page.goto("/?q=red&tag=odd")
        page.wait_for_selector("button.card")
        assert violations(page) == []
        assert page.evaluate(FITS)
        keep(page, f"page_{scheme}_{shape}.png", tmp_path)
        page.locator("button.card").first.click()
        wait_until(page, "document.querySelector('#video').readyState >= 2")
        page.wait_for_selector("#strip button")
        assert violations(page) == []
        assert page.evaluate(FITS)
        keep(page, f"page_{scheme}_{shape}_player.png", tmp_path)
        page.goto("/?q=%22red%22+then+%22blue%22+within+10s")
        page.wait_for_selector("button.card")
        assert page.locator("#query-parts input").input_value() == "blue"
        assert violations(page) == []
        assert page.evaluate(FITS)
        page.goto("/?q=red&path=nowhere")
        wait_until(page, "document.querySelector('#status').textContent.includes('No moment')")
        assert violations(page) == []
        assert tab.problems == []
        tab.context.close()


TOO_SMALL = """() => [...document.querySelectorAll("button, a, select, summary, label.tick")]
  .filter((each) => each.checkVisibility() && (!document.querySelector("#player[open]")
    || each.closest("#player")))
  .map((each) => [each.id || each.className || each.tagName, each.getBoundingClientRect()])
  .filter(([name, box]) => name !== "brand"
    && (box.height < 38 || box.left < 0 || box.right > innerWidth))
  .map(([name, box]) => `${name} ${box.width}x${box.height} at ${box.left}`)"""


@pytest.mark.slow
def test_a_phone_shows_every_control_whole_and_large_enough(
    browser: object, address: str, tmp_path: Path
) -> None:
    tab = Watched(browser, address, **PHONE, device_scale_factor=2)
    page = tab.page
    page.goto("/?q=%22red%22+then+%22blue%22+within+60s")
    page.wait_for_selector("button.card")
    assert page.text_content("#heading").endswith("within 1 min")
    for number in range(2):
        page.locator(".tick input").nth(number).check()
    assert page.evaluate(TOO_SMALL) == []
    assert page.locator("#save-list").is_visible()
    assert violations(page) == []
    keep(page, "page_phone_selected.png", tmp_path)
    page.click("#unselect")
    assert page.locator(".card .score").first.text_content() == ""  # No bare number of a sequence.
    page.click("#filters summary")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert page.evaluate("document.querySelector('header').getBoundingClientRect().bottom") < 422
    page.locator("button.card").first.click()
    wait_until(page, "document.querySelector('#video').readyState >= 2")
    steps = page.locator("#player-words .line").all_text_contents()
    assert [step.split()[:3] for step in steps] == [["step", "1", '"red"'], ["step", "2", '"blue"']]
    assert page.evaluate(TOO_SMALL) == []
    assert violations(page) == []
    black = "getComputedStyle(document.querySelector('.stage')).backgroundColor === 'rgb(0, 0, 0)'"
    assert not page.evaluate(black)
    keep(page, "page_phone_steps.png", tmp_path)
    page.set_viewport_size({"width": 844, "height": 390})  # Held sideways.
    close = page.locator("#close").bounding_box()
    assert close["y"] >= 0
    page.click("#close")
    page.goto("/")
    page.wait_for_selector("button.tile")
    past_the_edge = """() => {
      document.querySelector(".tile .folder").textContent = "a long name ".repeat(9);
      const tile = document.querySelector(".tile").getBoundingClientRect();
      return document.querySelector(".tile .facts").getBoundingClientRect().right - tile.right;
    }"""
    assert page.evaluate(past_the_edge) < 0
    assert tab.problems == []
    tab.context.close()


def test_the_login_is_as_good(browser: object, engine: Engine) -> None:
    with Running(engine, Settings(token="right-token")) as address:
        tab = Watched(browser, address)
        tab.page.goto("/")
        tab.page.wait_for_selector("[name=token]")
        assert violations(tab.page) == []
        tab.context.close()


@pytest.mark.slow
def test_files_that_a_browser_cannot_play_are_played(
    browser: object, demo: object, tmp_path: Path
) -> None:
    """An AVI and an HEVC, converted, from the moment on; moving back asks for another stream."""
    videos = tmp_path / "videos"
    videos.mkdir()
    write_odd(videos / "old.avi", "mpeg4", "libmp3lame")
    write_odd(videos / "phone.mp4", "libx265")
    model = save_model(tmp_path / "model")
    index_videos([videos], tmp_path / "store", str(model), options=IndexOptions(workers=0))
    with Running(Engine.open(tmp_path / "store"), Settings()) as address:
        tab = Watched(browser, address, **WIDE)
        page = tab.page
        for name in ("old.avi", "phone.mp4"):
            page.goto("/")
            page.wait_for_selector("button.tile")
            clip = page.evaluate(
                "name => fetch('/api/files').then(r => r.json())"
                ".then(b => b.files.find(f => f.name === name).clip_id)",
                name,
            )
            page.goto(f"/?clip={clip}&t=2.0")
            wait_until(page, "document.querySelector('#video').readyState >= 2")
            assert page.evaluate("document.querySelector('#video').videoWidth") == 160
            assert "/stream?start=2.00" in page.evaluate("document.querySelector('#video').src")
            # The stream begins at 2 s; the timeline still tells the place in the file.
            wait_until(page, "Number(document.querySelector('#place').value) >= 2")
            page.locator("#strip button").first.click()
            wait_until(page, "document.querySelector('#video').src.includes('start=0.00')")
            wait_until(page, "document.querySelector('#video').readyState >= 2")
            keep(page, f"page_converted_{name[:3]}.png", tmp_path)
        tab.context.close()


@pytest.mark.slow
def test_a_photograph_is_shown_whole_in_the_place_of_the_player(
    browser: object, tmp_path: Path
) -> None:
    """A tall JPEG and a TIFF, which browsers do not show, beside a film; keys go on working."""
    photographs = tmp_path / "album"
    photographs.mkdir()
    for number, name in enumerate(("tall.jpg", "scan.tif")):
        Image.new("RGB", (300, 500), (200, 80 * number, 30)).save(photographs / name)
    write_odd(photographs / "film.mp4", "libx264")
    model = save_model(tmp_path / "model")
    index_videos([photographs], tmp_path / "store", str(model), options=IndexOptions(workers=0))
    with Running(Engine.open(tmp_path / "store"), Settings()) as address:
        tab = Watched(browser, address, **WIDE)
        page = tab.page
        page.goto("/?q=red")
        page.wait_for_selector("button.card")
        page.locator("button.card", has_text="tall.jpg").click()
        wait_until(page, "document.querySelector('#still').naturalHeight === 500")
        assert page.locator("#video, .timeline, #again").evaluate_all(
            "all => all.every(e => e.hidden)"
        )
        assert page.text_content("#player-detail").startswith("image")
        assert violations(page) == []
        keep(page, "page_photograph.png", tmp_path)
        page.keyboard.press("Escape")
        page.locator("button.card", has_text="scan.tif").click()
        # Its thumbnail stands in until a JPEG of the whole image is decoded.
        wait_until(page, "document.querySelector('#still').src.endsWith('frame?side=1600')")
        wait_until(page, "document.querySelector('#still').naturalHeight === 500")
        page.keyboard.press("Escape")
        page.locator("button.card", has_text="film.mp4").click()
        wait_until(page, "document.querySelector('#video').readyState >= 2")
        assert page.locator("#still").is_hidden()
        assert page.locator(".card .span").all_text_contents().count("image") == 2
        page.goto("/")
        page.wait_for_selector("button.tile")
        assert page.locator(".tile .span").all_text_contents().count("image") == 2
        tab.context.close()
