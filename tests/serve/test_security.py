import pytest
from demo_store import DemoStore
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from eaglenet.errors import UsageError
from eaglenet.search.engine import Engine
from eaglenet.serve.app import create_app
from eaglenet.serve.security import CONTENT_SECURITY_POLICY, COOKIE, local_host_name
from eaglenet.serve.settings import Settings, is_local_host

TOKEN = "a-token-that-is-long-enough"


@pytest.fixture
def guarded(engine: Engine) -> TestClient:
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
    assert {local_host_name(name) for name in names} == {"localhost", "127.0.0.1", "[::1]"}


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


@pytest.mark.parametrize("form", [True, False])
def test_a_browser_exchanges_the_token_for_a_cookie(guarded: TestClient, form: bool) -> None:
    answer = (
        guarded.post("/login", data={"token": TOKEN})
        if form
        else guarded.get("/", params={"token": TOKEN})
    )
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
    assert right.status_code == 200


def test_only_local_addresses_go_without_a_token() -> None:
    assert is_local_host("127.0.0.1")
    assert is_local_host("localhost")
    assert is_local_host("::1")
    assert not is_local_host("0.0.0.0")
    assert not is_local_host("::")
    with pytest.raises(UsageError, match="--token"):
        Settings(local=False)
    with pytest.raises(UsageError, match="visible ASCII"):
        Settings(local=False, token="")
    with pytest.raises(UsageError, match="no address"):
        is_local_host("no such host .")


def test_the_command_refuses_to_be_open_to_the_network(
    demo: DemoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglenet.cli.main import app

    monkeypatch.delenv("EAGLENET_TOKEN", raising=False)
    command = ["serve", "--store", str(demo.folder), "--host", "0.0.0.0"]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, UsageError)
    assert "--token" in str(result.exception)


def test_elsewhere_paths_begin_at_the_indexed_folder(engine: Engine) -> None:
    app = create_app(engine, Settings(token=TOKEN, local=False))
    headers = {"authorization": f"Bearer {TOKEN}"}
    with TestClient(app, base_url="http://media.example", headers=headers) as client:
        hits = client.get("/api/search?q=red&k=50").json()["hits"]
    assert all(hit["path"].startswith("videos/") for hit in hits)
