"""What the service tells whom: headers, hosts, origins, tokens."""

from pathlib import Path

import pytest
from demo_store import DemoStore
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from eaglenet.core.errors import UsageError
from eaglenet.search.engine import Engine
from eaglenet.serve.app import create_app
from eaglenet.serve.limits import TokenBuckets, client_of
from eaglenet.serve.security import CONTENT_SECURITY_POLICY, COOKIE, TokenCheck, is_local_name
from eaglenet.serve.settings import Settings, is_local_host

TOKEN = "a-token-that-is-long-enough"


@pytest.fixture
def guarded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A client of a service that asks for a token, at one moment: a guess is free every 2 s."""

    def stopped(rate: float, burst: float, clock: object) -> TokenBuckets:
        return TokenBuckets(rate, burst, clock=lambda: 0.0)

    monkeypatch.setattr("eaglenet.serve.security.TokenBuckets", stopped)
    app = create_app(engine, Settings(token=TOKEN))
    return TestClient(app, base_url="http://localhost", follow_redirects=False)


def test_every_answer_carries_the_security_headers(client: TestClient, clip_id: str) -> None:
    for path in ("/", "/static/app.js", "/api/info", f"/api/clips/{clip_id}/video", "/nowhere"):
        headers = client.get(path).headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
    assert "unsafe" not in CONTENT_SECURITY_POLICY


def test_the_page_names_no_outside_resource_and_no_inline_code(client: TestClient) -> None:
    page = client.get("/").text
    assert "http://" not in page
    assert "https://" not in page
    assert " style=" not in page
    assert "<style" not in page
    assert " onclick" not in page
    for name in ("app.js", "view.js", "player.js", "style.css", "icon.svg"):
        text = client.get(f"/static/{name}").text
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        assert "https://" not in text
    assert client.get("/static/..%2fapp.py").status_code == 404
    assert client.get("/static/login.html").status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "10.0.0.7:8000"])
def test_other_host_names_are_refused_on_a_local_service(client: TestClient, host: str) -> None:
    answer = client.get("/api/info", headers={"host": host})
    assert answer.status_code == 421
    assert answer.json()["error"]["code"] == "wrong_host"


def test_local_host_names_are_known() -> None:
    names = ["localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:8000", "localhost."]
    assert all(map(is_local_name, names))


def test_another_site_cannot_make_a_browser_ask(client: TestClient, clip_id: str) -> None:
    headers = {"sec-fetch-site": "cross-site"}
    assert client.get("/api/search?q=red", headers=headers).status_code == 403
    assert client.get(f"/api/clips/{clip_id}/video", headers=headers).status_code == 403
    assert client.get("/", headers=headers).status_code == 200
    assert client.get("/api/info", headers={"sec-fetch-site": "same-origin"}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1234", "https://localhost.evil", ""]
)
def test_pages_of_another_origin_are_refused(engine: Engine, origin: str) -> None:
    app = create_app(engine, Settings(allow_uploads=True))
    headers = {"origin": origin}
    with TestClient(app, base_url="http://localhost:8000", headers=headers) as client:
        answers = [
            client.get("/api/search?q=red"),
            client.post("/api/search", json={"queries": ["red"]}),
            client.post("/api/search/image", content=b"picture"),
        ]
    assert [answer.status_code for answer in answers] == [403] * 3
    assert answers[0].json()["error"]["code"] == "forbidden"


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "localhost"])
def test_the_services_own_page_may_ask(client: TestClient, host: str) -> None:
    for scheme in ("http", "https"):
        headers = {"host": host, "origin": f"{scheme}://{host}"}
        body = {"queries": ["red"]}
        assert client.post("/api/search", json=body, headers=headers).status_code == 200


def test_the_login_form_of_our_own_page_names_no_origin(guarded: TestClient) -> None:
    answer = guarded.post("/login", data={"token": TOKEN}, headers={"origin": "null"})
    assert answer.status_code == 303


def test_nothing_is_given_without_the_token(guarded: TestClient, clip_id: str) -> None:
    addresses = ["/api/search?q=red", "/api/info", f"/api/clips/{clip_id}", "/metrics"]
    addresses += [f"/api/clips/{clip_id}/video", f"/api/clips/{clip_id}/thumbnail"]
    addresses += ["/openapi.json", "/nowhere"]
    with guarded:
        for address in addresses:
            answer = guarded.get(address)
            assert answer.status_code == 401, address
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert answer.json()["error"]["code"] == "unauthorized"
        assert guarded.get("/health").status_code == 200
        page = guarded.get("/")
        assert page.status_code == 401
        assert "password" in page.text


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN} {TOKEN}",
        "Bearer \xe9",
    ],
)
def test_wrong_tokens_are_refused(guarded: TestClient, header: str) -> None:
    headers = {"authorization": header.encode("latin-1")}
    assert guarded.get("/api/info", headers=headers).status_code == 401
    cookie = {"cookie": f"{COOKIE}={TOKEN}"}
    assert guarded.get("/api/info", headers=cookie).status_code == 401


def test_the_right_token_opens_everything(guarded: TestClient, clip_id: str) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    with guarded:
        assert guarded.get("/api/search?q=red", headers=headers).status_code == 200
        assert guarded.get(f"/api/clips/{clip_id}/video", headers=headers).status_code == 200


def test_a_browser_exchanges_the_token_for_a_cookie(guarded: TestClient) -> None:
    answer = guarded.post("/login", data={"token": TOKEN})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie
    assert guarded.get("/api/info").status_code == 200  # The client keeps the cookie.
    assert "query" in guarded.get("/").text


def test_the_login_says_when_a_token_was_wrong(guarded: TestClient) -> None:
    assert 'role="alert"' not in guarded.get("/").text
    answer = guarded.post("/login", data={"token": "guess"})
    assert answer.status_code == 401
    assert answer.text.count('role="alert"') == 1


def test_guessing_tokens_is_slowed_down(guarded: TestClient) -> None:
    statuses = [guarded.post("/login", data={"token": f"guess{n}"}).status_code for n in range(12)]
    assert statuses[:10] == [401] * 10
    assert statuses[10:] == [429] * 2
    answer = guarded.get("/api/info", headers={"authorization": "Bearer guess"})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    right = guarded.get("/api/info", headers={"authorization": f"Bearer {TOKEN}"})
    assert right.status_code == 429


def test_only_local_addresses_go_without_a_token() -> None:
    assert is_local_host("127.0.0.1")
    assert is_local_host("localhost")
    assert is_local_host("::1")
    assert not is_local_host("0.0.0.0")
    assert not is_local_host("::")
    with pytest.raises(UsageError, match="EAGLENET_TOKEN"):
        Settings(local=False)
    with pytest.raises(UsageError, match="visible ASCII"):
        Settings(local=False, token="")
    with pytest.raises(UsageError, match="not an address"):
        is_local_host("no such host .")


def test_the_command_refuses_to_be_open_to_the_network(
    demo: DemoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglenet.cli.main import app

    monkeypatch.delenv("EAGLENET_TOKEN", raising=False)
    command = ["serve", "--store", str(demo.folder), "--host", "0.0.0.0"]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, UsageError)
    assert "EAGLENET_TOKEN" in str(result.exception)
    monkeypatch.setenv("EAGLENET_SESSION", "guessed")
    result = CliRunner().invoke(app, command[:3])
    assert isinstance(result.exception, UsageError)
    assert "EAGLENET_SESSION must be 32 or more" in str(result.exception)


def test_elsewhere_paths_begin_at_the_indexed_folder(engine: Engine) -> None:
    app = create_app(engine, Settings(token=TOKEN, local=False))
    headers = {"authorization": f"Bearer {TOKEN}"}
    with TestClient(app, base_url="http://media.example", headers=headers) as client:
        hits = client.get("/api/search?q=red&k=50").json()["hits"]
    assert all(hit["path"].startswith("videos/") for hit in hits)


@pytest.mark.parametrize(
    "host",
    [
        "[::1].evil.com",
        "[::1]evil",
        "localhost:evil.com",
        "localhost:",
        "localhost:80:80",
        "localhost:123456",
        "127.0.0.1.evil.com",
        "user@localhost",
        "localhost/evil",
        "[::1",
        "localhost..",
        "localhost, evil.com",
    ],
)
def test_a_host_that_only_looks_local_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/api/info", headers={"host": host}).status_code == 421


@pytest.mark.parametrize(
    "origin",
    ["ftp://localhost", "://localhost", "localhost", "http://localhost/", "http://a@localhost"],
)
def test_an_origin_that_is_none_of_a_page_is_refused(client: TestClient, origin: str) -> None:
    headers = {"host": "localhost", "origin": origin}
    assert client.get("/api/info", headers=headers).status_code == 403


def test_the_right_token_is_not_told_apart_while_a_client_must_wait() -> None:
    now = 0.0
    tokens = TokenCheck(TOKEN, clock=lambda: now)
    assert [tokens.seconds_to_wait("a", f"guess {n}") for n in range(10)] == [0.0] * 10
    assert tokens.seconds_to_wait("a", "another guess") == pytest.approx(2.0)
    assert tokens.seconds_to_wait("a", TOKEN) == pytest.approx(2.0)
    assert tokens.seconds_to_wait("b", TOKEN) is None
    now = 2.0
    assert tokens.seconds_to_wait("a", TOKEN) is None


def test_a_wrong_token_that_is_sent_again_is_one_guess() -> None:
    tokens = TokenCheck(TOKEN)
    assert [tokens.seconds_to_wait("a", "stale") for _ in range(50)] == [0.0] * 50
    assert tokens.seconds_to_wait("a", TOKEN) is None


def test_guesses_in_cookies_are_slowed_down_too(guarded: TestClient) -> None:
    for path in ("/api/info", "/"):
        guarded.cookies.clear()
        statuses = [
            guarded.get(path, headers={"cookie": f"{COOKIE}={path}{n}"}).status_code
            for n in range(12)
        ]
        assert statuses[-1] == 429, path
    right = guarded.get("/api/info", headers={"authorization": f"Bearer {TOKEN}"})
    assert right.status_code == 429


def test_who_is_logged_in_stays_so_while_someone_beside_them_guesses(guarded: TestClient) -> None:
    assert guarded.post("/login", data={"token": TOKEN}).status_code == 303
    for number in range(30):
        guarded.get("/api/info", headers={"authorization": f"Bearer guess{number}"})
    assert guarded.get("/api/info").status_code == 200


def test_a_cookie_cannot_be_computed_from_the_token() -> None:
    assert TokenCheck(TOKEN).session != TokenCheck(TOKEN).session


def test_copies_of_a_service_take_each_others_cookies_where_they_share_a_secret(
    engine: Engine,
) -> None:
    """Behind one address, any copy may get the next request of a page."""
    session = "random-bits-that-all-copies-share-0123456789"
    shared, alone = Settings(token=TOKEN, session=session), Settings(token=TOKEN)
    for settings, status in ((shared, 200), (alone, 401)):
        first, second = (
            TestClient(create_app(engine, settings), base_url="http://localhost") for _ in range(2)
        )
        given = first.post("/login", data={"token": TOKEN}, follow_redirects=False)
        assert first.get("/api/info").status_code == 200
        headers = {"cookie": f"{COOKIE}={given.cookies[COOKIE]}"}
        assert second.get("/api/info", headers=headers).status_code == status
    for text in ("short", "a" * 31, "with a space in it, and long enough for all"):
        with pytest.raises(UsageError, match="EAGLENET_SESSION must be 32 or more"):
            Settings(token=TOKEN, session=text)


def test_no_token_is_taken_from_an_address(guarded: TestClient) -> None:
    for address in (f"/?token={TOKEN}", f"/api/info?token={TOKEN}"):
        answer = guarded.get(address)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers


def test_neighbours_in_one_network_of_version_six_are_one_client() -> None:
    hosts = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:1::1"]
    first, second, other = (client_of({"client": (host, 1)}) for host in hosts)
    assert first == second != other


def test_the_token_is_read_from_a_file_and_never_from_the_command_line(
    demo: DemoStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglenet.cli.serve import read_token

    monkeypatch.delenv("EAGLENET_TOKEN", raising=False)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN
    assert read_token(None) is None
    monkeypatch.setenv("EAGLENET_TOKEN", "from-the-environment")
    assert read_token(None) == "from-the-environment"
    with pytest.raises(UsageError, match="cannot be read"):
        read_token(tmp_path / "none")
    (tmp_path / "large").write_bytes(b"a" * 100_000)
    with pytest.raises(UsageError, match="one line"):
        read_token(tmp_path / "large")
    from eaglenet.cli.main import app

    result = CliRunner().invoke(app, ["serve", "--token", TOKEN])
    assert result.exit_code == 2
