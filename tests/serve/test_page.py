"""The page in a real browser, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import BROWSER, Running, Watched, keep, wait_until
from demo_store import HOSTILE_NAME, SCENES, DemoStore

from eaglenet.encoders.catalogue import CARDS
from eaglenet.search.engine import Engine
from eaglenet.serve.settings import Settings

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium on this machine; install one with: make browser"
)


@pytest.fixture(scope="module")
def address(engine: Engine) -> Iterator[str]:
    """Where a running service shows the page."""
    with Running(engine, Settings()) as found:
        yield found


def test_a_moment_is_found_previewed_and_played(
    browser: object, address: str, tmp_path: Path
) -> None:
    tab = Watched(browser, address, viewport={"width": 1280, "height": 860})
    page = tab.page
    page.goto("/")
    page.wait_for_selector("#welcome:not([hidden])")
    keep(page, "page_welcome.png", tmp_path)
    page.fill("#query", "a red ball moves to the left")
    page.press("#query", "Enter")
    page.wait_for_selector("button.card")
    cards = page.locator("button.card")
    assert cards.count() == SCENES
    wait_until(
        page,
        # Lazy images of the hidden file grid are never loaded.
        "[...document.querySelectorAll('.frame img')]"
        ".every(i => !i.offsetParent || i.naturalWidth)",
    )
    keep(page, "page_results.png", tmp_path)
    assert "q=a+red+ball" in page.url

    cards.nth(1).hover()
    page.wait_for_selector(".frame video.live")
    assert page.evaluate("document.querySelector('.frame video').muted")

    moment = page.evaluate(
        "fetch('/api/search?q=a+red+ball+moves+to+the+left').then(r => r.json())"
        ".then(b => b.hits[1].moment)"
    )
    cards.nth(1).click()
    page.wait_for_selector("dialog[open]")
    wait_until(page, "document.querySelector('#video').readyState >= 2")
    assert page.evaluate("document.querySelector('#video').currentTime") >= moment["start"] - 0.1
    keep(page, "page_player.png", tmp_path)
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog:not([open])", state="attached")
    wait_until(page, "document.querySelector('#video').getAttribute('src') === null")
    assert tab.problems == []
    assert tab.outside == []
    tab.context.close()


def test_everything_can_be_done_with_keys(browser: object, address: str) -> None:
    tab = Watched(browser, address)
    page = tab.page
    page.goto("/")
    page.wait_for_selector("#welcome:not([hidden])")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    wait_until(page, "document.activeElement.id === 'query'")
    page.keyboard.type("a blue square")
    page.keyboard.press("Enter")
    page.wait_for_selector("button.card")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    rank = "document.activeElement.querySelector('.rank')?.textContent"
    wait_until(page, f"{rank} === '2'")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("n")
    wait_until(page, "!document.querySelector('#previous').disabled")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog:not([open])", state="attached")
    wait_until(page, f"{rank} === '3'")  # the page gives the focus back after the dialog closed
    page.keyboard.press("s")
    wait_until(page, "document.querySelector('#status').textContent.includes('similar')")
    assert "similar=" in page.url
    page.go_back()
    wait_until(page, "document.querySelector('#status').textContent.includes(' ms')")
    assert page.input_value("#query") == "a blue square"
    assert tab.problems == []
    tab.context.close()


def test_going_back_closes_the_player(browser: object, address: str) -> None:
    tab = Watched(browser, address)
    page = tab.page
    page.goto("/?q=red")
    page.wait_for_selector("button.card")
    page.fill("#query", "blue")
    page.press("#query", "Enter")
    wait_until(page, "document.querySelector('#heading').textContent === 'blue'")
    wait_until(page, "document.querySelector('#status').textContent.includes(' ms')")
    page.click("button.card")
    page.wait_for_selector("#player[open]")
    moment = page.url
    page.go_back()
    page.wait_for_selector("#player:not([open])", state="attached")
    wait_until(page, "document.querySelector('#heading').textContent === 'red'")
    assert "clip=" in moment
    assert page.url.endswith("/?q=red")
    page.go_forward()  # To the search, with the moment that was playing.
    wait_until(page, "document.querySelector('#heading').textContent === 'blue'")
    page.wait_for_selector("#player[open]")
    assert page.url == moment
    assert tab.problems == []
    tab.context.close()


@pytest.mark.slow
def test_parts_and_steps_are_built_without_syntax(
    browser: object, address: str, tmp_path: Path
) -> None:
    tab = Watched(browser, address)
    page = tab.page
    page.goto("/")
    page.fill("#query", "a red ball")
    page.click("#add-part")
    page.keyboard.type("a blue square")  # The new row has the focus.
    page.select_option("#query-parts select", "-")
    page.get_by_role("button", name="Add another part").click()
    page.get_by_label("Part 3", exact=True).fill('a "green" ball')
    page.get_by_label("How part 3 belongs to the query").select_option("then")
    page.select_option("#within-steps", "30")
    keep(page, "page_parts.png", tmp_path)
    page.press("#query", "Enter")
    page.wait_for_selector("button.card")
    expected = '"a red ball" - "a blue square" then "a  green  ball" within 30s'
    assert page.text_content("#heading") == expected
    assert page.evaluate("new URLSearchParams(location.search).get('q')") == expected
    page.reload()
    page.wait_for_selector("button.card")
    assert page.input_value("#query") == "a red ball"
    assert page.locator("#query-parts li").count() == 2
    assert page.input_value("#within-steps") == "30"
    page.get_by_role("button", name="Remove part 3").click()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Part 2"
    page.keyboard.press("Enter")
    wait_until(page, "document.querySelector('#heading').textContent.endsWith('square\"')")
    page.go_back()
    wait_until(page, "document.querySelectorAll('#query-parts li').length === 2")
    page.goto("/?q=%22a+red+ball%22+then")
    page.wait_for_selector("#status.bad")
    assert "nothing follows 'then'" in page.text_content("#status")
    assert page.input_value("#query") == '"a red ball" then'
    tab.context.close()


@pytest.mark.slow
def test_a_date_in_the_text_is_told_and_can_be_taken_literally(
    browser: object, address: str
) -> None:
    tab = Watched(browser, address)
    page = tab.page
    page.goto("/?q=a+red+ball,+November+2023")
    page.wait_for_selector("button.card")
    assert "only recordings from 2023-11-01 to 2023-11-30" in page.text_content("#notice")
    page.fill("#query", "a red ball in 1999")
    page.press("#query", "Enter")
    wait_until(page, "document.querySelector('#status').textContent.includes('No moment')")
    page.click("#take-literally")
    page.wait_for_selector("button.card")
    assert page.is_hidden("#notice")
    assert "literal=true" in page.url
    assert tab.problems == []
    tab.context.close()


@pytest.mark.slow
def test_moments_are_selected_saved_and_kept(browser: object, address: str, tmp_path: Path) -> None:
    tab = Watched(browser, address)
    page = tab.page
    page.goto("/?q=a+red+ball")
    page.wait_for_selector("button.card")
    path = page.evaluate("document.querySelectorAll('button.card')[1].title")
    for number in (0, 1):
        page.locator(".tick input").nth(number).check()
    assert page.text_content("#selected-count") == "2 selected"
    keep(page, "page_selection.png", tmp_path)
    page.fill("#query", "")  # The list is still that of the query above it.
    for kind, num_lines, part in (("csv", 3, path), ("edl", 0, "TITLE: a red ball")):
        page.select_option("#save-format", kind)
        with page.expect_download() as download:
            page.click("#save-list")
        assert download.value.suggested_filename == f"moments.{kind}"
        text = Path(download.value.path()).read_text(encoding="utf-8")
        assert part in text
        assert not num_lines or len(text.splitlines()) == num_lines
    page.route("**/api/export", lambda route: route.abort())
    page.click("#save-list")
    wait_until(
        page, "document.querySelector('#selected-count').textContent.startsWith('Not saved')"
    )
    page.unroute("**/api/export")
    tab.problems.clear()  # The browser logs the aborted request.
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#share-selected")
    wait_until(page, "document.querySelector('#selected-count').textContent === 'Link copied'")
    other = Watched(browser, address)
    link = page.evaluate("navigator.clipboard.readText()")
    other.page.goto(link)
    wait_until(other.page, "document.querySelectorAll('button.card').length === 2")
    assert other.page.text_content("#heading") == "Shared moments"
    assert other.page.locator("button.card").nth(1).get_attribute("title") == path
    other.page.goto(f"{link},0000000000000000-0@0-1")
    wait_until(other.page, "document.querySelector('#status').textContent.startsWith('1 of')")
    assert other.page.locator("button.card").count() == 2
    other.page.goto("/?moments=0000000000000000-0@0-1,<b>,@@")
    wait_until(other.page, "document.querySelector('#status').classList.contains('bad')")
    other.page.fill("#query", "a red ball")
    other.page.press("#query", "Enter")
    other.page.wait_for_selector("button.card")
    assert "moments=" not in other.page.url
    other.context.close()
    page.click("#select-all")
    count = page.locator(".tick input:checked").count()
    assert count == page.locator(".tick input").count() > 2
    page.click("#unselect")
    for number in (0, 1):
        page.locator(".tick input").nth(number).check()
    page.click("#favour")
    page.goto("/")
    page.wait_for_selector("#favourites:not([hidden])")
    assert page.locator("#favourites li").count() == 2
    page.locator("#favourites .drop").first.click()
    assert page.locator("#favourites li").count() == 1
    page.locator("#favourites .tile").click()
    page.wait_for_selector("#player[open]")
    assert tab.problems == []
    tab.context.close()


def test_a_negation_becomes_a_part_to_avoid(browser: object, address: str) -> None:
    tab = Watched(browser, address)
    page = tab.page
    page.goto("/?q=a+red+ball")
    page.wait_for_selector("button.card")
    assert page.locator("#negation").is_hidden()
    page.fill("#query", "a red ball but no girl and no dog")
    page.press("#query", "Enter")
    page.wait_for_selector("#negation:not([hidden])")
    assert page.text_content("#exclude") == 'Search for "a red ball" without "girl" and "dog"'
    page.click("#exclude")
    page.wait_for_selector("#negation", state="hidden")
    assert page.input_value("#query") == "a red ball"
    rows = page.locator("#query-parts li")
    assert rows.locator("select").evaluate_all("all => all.map(s => s.value)") == ["-", "-"]
    assert rows.locator("input").evaluate_all("all => all.map(i => i.value)") == ["girl", "dog"]
    assert tab.problems == []
    tab.context.close()


@pytest.mark.slow
def test_names_are_searched_and_another_language_is_told(
    browser: object, address: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CARDS, engine.manifest.model, CARDS["small"])
    tab = Watched(browser, address)
    page = tab.page
    page.goto("/?q=beach")
    page.wait_for_selector("#named:not([hidden])")
    assert page.locator("#named .tile").count() == 5
    assert page.locator("#language").is_hidden()
    page.fill("#query", "ein Hund und eine Katze")
    page.press("#query", "Enter")
    page.wait_for_selector("#language:not([hidden])")
    assert "German" in page.text_content("#language")
    page.wait_for_selector("#named", state="hidden")
    monkeypatch.setattr(Engine, "few_clips_notice", lambda *_: "so few clips (4; it needs 10)")
    page.goto("/?q=beach&path=town")
    page.wait_for_selector("button.card")
    assert page.locator("#named").is_hidden()
    assert page.text_content("#status").endswith("; so few clips (4; it needs 10)")
    assert tab.problems == []
    tab.context.close()


@pytest.mark.slow
def test_filters_empty_results_and_errors_are_told(
    browser: object, address: str, tmp_path: Path
) -> None:
    tab = Watched(browser, address)
    page = tab.page
    page.goto("/?q=red&tag=odd&path=beach")
    page.wait_for_selector("button.card")
    assert page.text_content("#filter-count") == "2"
    keep(page, "page_filters.png", tmp_path)
    page.fill("[name=path]", "nowhere")
    page.press("[name=path]", "Tab")
    wait_until(page, "document.querySelector('#status').textContent.includes('No moment')")
    assert "nowhere" in page.text_content("#status")  # which filter left nothing
    page.goto("/?q=red&near=91,0")
    page.wait_for_selector("#status.bad")
    assert page.text_content("#status").endswith("write degrees north and east, like 48.1,11.6")
    tab.problems.clear()  # The browser logs the refused request.
    page.click("#clear")
    page.wait_for_selector("button.card")
    assert tab.problems == []
    refusal = '{"error": {"code": "overloaded", "message": "too many", "hint": "wait"}}'
    page.route(
        "**/api/search*",
        lambda route: route.fulfill(status=503, body=refusal, content_type="application/json"),
    )
    page.fill("#query", "green")
    page.press("#query", "Enter")
    page.wait_for_selector("#status.bad")
    assert "too many" in page.text_content("#status")
    tab.context.close()


def test_a_file_that_cannot_be_played_says_so(browser: object, address: str) -> None:
    tab = Watched(browser, address)
    page = tab.page
    for address_of_file in ("**/video", "**/stream?*"):
        page.route(
            address_of_file,
            lambda route: route.fulfill(status=200, body=b"not a video", content_type="video/mp4"),
        )
    page.goto("/?q=red")
    page.locator("button.card").first.click()
    page.wait_for_selector("#cannot-play:not([hidden])")
    assert "codec" in page.text_content("#cannot-play")
    assert page.get_attribute("#cannot-play a", "href").startswith("/api/clips/")
    tab.context.close()


def test_no_download_is_offered_for_a_deleted_file(browser: object, own_demo: DemoStore) -> None:
    """The next hit, whose file is there, can be downloaded again."""
    with own_demo.open() as engine, Running(engine, Settings()) as address:
        first, second = (Path(hit.path) for hit in engine.search("red", k=2))
        content = second.read_bytes()
        first.unlink()
        second.write_bytes(content[:-1])
        tab = Watched(browser, address)
        page = tab.page
        page.goto("/?q=red")
        page.locator("button.card").first.click()
        for reason in ("no longer in the indexed folders", "has changed"):
            wait_until(
                page, f"document.querySelector('#cannot-play').textContent.includes({reason!r})"
            )
            assert page.locator("#cannot-play a").count() == 0
            assert page.locator("#download").is_hidden()
            page.click("#next")
        wait_until(page, "document.querySelector('#video').readyState >= 1")
        assert page.locator("#download").is_visible()
        tab.context.close()


def test_a_file_name_cannot_hide_or_reverse_its_characters(browser: object, address: str) -> None:
    """Joiners in emoji and in Persian stay. A copied path is the real one."""
    name = "a\u202egpj\u200d.\u06cc\u200c\u06cc \U0001f468\u200d\U0001f469.mp4"
    shown = "a\\u202egpj\\u200d.\u06cc\u200c\u06cc \U0001f468\u200d\U0001f469.mp4"
    tab = Watched(browser, address)
    page = tab.page

    def rename(route: object) -> None:
        answer = route.fetch()  # type: ignore[attr-defined]
        body = answer.json()
        body["hits"][0] |= {"name": name, "path": f"/videos/{name}"}
        route.fulfill(response=answer, body=json.dumps(body))  # type: ignore[attr-defined]

    page.route("**/api/search?*", rename)
    page.goto("/?q=red")
    page.wait_for_selector("button.card")
    card = page.locator("button.card").first
    assert card.locator(".name").text_content() == shown
    assert card.get_attribute("title") == f"/videos/{shown}"
    card.click()
    page.wait_for_selector("dialog[open]")
    assert page.text_content("#player-title") == shown
    assert page.text_content("#player-path code") == f"/videos/{shown}"
    page.evaluate("document.querySelector('#player-path').open = true")
    copied = page.evaluate(
        """() => {
          let text = "";
          document.addEventListener("copy", (event) => {
            text = event.clipboardData.getData("text/plain");
          });
          getSelection().selectAllChildren(document.querySelector("#player-path code"));
          document.execCommand("copy");
          return text;
        }"""
    )
    assert copied == f"/videos/{name}"
    assert tab.problems == []
    tab.context.close()


def test_a_file_name_cannot_become_markup(browser: object, address: str, demo: DemoStore) -> None:
    tab = Watched(browser, address)
    page = tab.page
    page.goto("/?q=red")
    page.wait_for_selector("button.card")
    names = page.locator(".name").all_text_contents()
    assert HOSTILE_NAME in names
    page.locator("button.card").nth(names.index(HOSTILE_NAME)).click()
    page.wait_for_selector("dialog[open]")
    assert page.text_content("#player-title") == HOSTILE_NAME
    assert page.locator("img[onerror]").count() == 0
    assert page.evaluate("document.querySelectorAll('img[src=x]').length") == 0
    assert tab.problems == []
    tab.context.close()


@pytest.mark.slow
def test_the_page_works_on_a_phone_in_the_dark(
    browser: object, address: str, tmp_path: Path
) -> None:
    tab = Watched(
        browser,
        address,
        viewport={"width": 390, "height": 844},
        color_scheme="dark",
        has_touch=True,
        is_mobile=True,
    )
    page = tab.page
    page.goto("/?q=a+yellow+triangle")
    page.wait_for_selector("button.card")
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert page.evaluate(wide)
    keep(page, "page_phone.png", tmp_path)
    page.locator("button.card").first.tap()
    page.wait_for_selector("dialog[open]")
    wait_until(page, "document.querySelector('#video').readyState >= 2")
    assert page.evaluate(wide)
    keep(page, "page_phone_player.png", tmp_path)
    assert tab.problems == []
    tab.context.close()


def test_the_token_is_asked_for_once(browser: object, engine: Engine, tmp_path: Path) -> None:
    with Running(engine, Settings(token="right-token")) as address:
        tab = Watched(browser, address)
        page = tab.page
        page.goto("/")
        keep(page, "page_login.png", tmp_path)
        page.fill("[name=token]", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=alert]")
        page.fill("[name=token]", "right-token")
        page.keyboard.press("Enter")
        page.wait_for_selector("#query")
        page.fill("#query", "red")
        page.keyboard.press("Enter")
        page.wait_for_selector("button.card")
        page.locator("button.card").first.click()
        wait_until(page, "document.querySelector('#video').readyState >= 2")
        assert page.evaluate("document.cookie") == ""
        assert "right-token" not in page.url
        tab.context.close()
