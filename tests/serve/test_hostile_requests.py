"""Requests made up by machines: never a crash, never anything but the documented answers."""

import json
import string

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.schemas import BaseSchema

from eaglenet.search.engine import Engine
from eaglenet.serve.app import create_app
from eaglenet.serve.settings import Settings

UNLIMITED = Settings(search_rate=1e9, media_rate=1e9, max_searches=1000)
NASTY = [
    "",
    " ",
    "\x00",
    "\u202e\u2066evil",
    "\U0001f984" * 400,
    "\u0645\u0631\u062d\u0628\u0627",
    "' OR 1=1; DROP TABLE clips --",
    "${jndi:ldap://x}",
    "{{7*7}}",
    "../../etc/passwd",
    "%s%n%x",
    "<script>alert(1)</script>",
    "a" * 5000,
    "[",
    "*" * 300,
    "[!a-z]*?" * 30,
    "NaN",
    "1e999",
    "-1",
    "9" * 100,
]
texts = st.one_of(
    st.sampled_from(NASTY),
    st.text(max_size=60),
    st.text(alphabet=string.printable, max_size=60),
)
FIELDS = "k path after before min_duration max_duration tag group negative shortlist __proto__"
fields = st.sampled_from(FIELDS.split())
parameters = st.dictionaries(fields, texts | st.integers() | st.floats() | st.booleans())
bodies = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
paths = st.builds(
    lambda start, rest: start + rest,
    st.sampled_from(
        ["/api/clips/", "/api/similar/", "/static/", "/", "/api/", "/api/clips/../", "/login"]
    ),
    st.text(alphabet=string.ascii_letters + string.digits + "%./\\-_~:@!$&'()*+,;=", max_size=40),
)
DOCUMENTED = {200, 303, 400, 401, 403, 404, 405, 413, 422}


@pytest.fixture(scope="module")
def busy(engine: Engine) -> TestClient:
    """A client that may ask as often as it likes."""
    app = create_app(engine, UNLIMITED)
    with TestClient(app, base_url="http://localhost") as client:
        yield client


JSON = {"content-type": "application/json"}


def check(answer: object) -> None:
    assert answer.status_code in DOCUMENTED, answer.text  # type: ignore[attr-defined]
    if answer.status_code >= 400 and answer.status_code != 401:  # type: ignore[attr-defined]
        assert set(answer.json()["error"]) == {"code", "message", "hint"}  # type: ignore[attr-defined]


def ask(busy: TestClient, query: str, options: dict[str, object], body: object, path: str) -> None:
    check(busy.get("/api/search", params={"q": query, **options}))
    check(busy.post("/api/search", content=encoded(body), headers=JSON))
    wanted = {"queries": [query, "red"], **options} if query.isascii() else {"queries": [query]}
    check(busy.post("/api/search", content=encoded(wanted), headers=JSON))
    # Whole: a path that begins with // would name another host.
    check(busy.get(f"http://localhost{path}"))


def encoded(body: object) -> bytes:
    """JSON as a careless client writes it: NaN and lone surrogates included."""
    return json.dumps(body).encode()


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts, parameters, bodies, paths)
def test_made_up_requests_get_documented_answers(
    busy: TestClient, query: str, options: dict[str, object], body: object, path: str
) -> None:
    ask(busy, query, options, body, path)


@pytest.mark.slow
@settings(max_examples=2500, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts, parameters, bodies, paths)
def test_ten_thousand_made_up_requests_get_documented_answers(
    busy: TestClient, query: str, options: dict[str, object], body: object, path: str
) -> None:
    ask(busy, query, options, body, path)


@pytest.fixture(scope="module")
def document(engine: Engine) -> BaseSchema:
    """The OpenAPI document of the service."""
    app = create_app(engine, UNLIMITED)
    return schemathesis.openapi.from_asgi("/openapi.json", app, headers=HOST)


HOST = {"Host": "localhost"}
OPERATIONS = [
    ("GET", "/api/search"),
    ("POST", "/api/search"),
    ("GET", "/api/similar/{clip_id}"),
    ("GET", "/api/clips/{clip_id}"),
    ("GET", "/api/clips/{clip_id}/thumbnail"),
    ("GET", "/api/clips/{clip_id}/frame"),
    ("GET", "/api/clips/{clip_id}/video"),
    ("GET", "/api/clips/{clip_id}/stream"),
    ("GET", "/api/clips/{clip_id}/timeline"),
    ("POST", "/api/export"),
    ("GET", "/api/files"),
    ("GET", "/api/info"),
    ("GET", "/health"),
    ("GET", "/metrics"),
]
REPEATABLE = ("tag", "negative", "in")
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]


def explore(
    document: BaseSchema, method: str, path: str, mode: GenerationMode, known: str, examples: int
) -> None:
    """Call one operation with cases made from its description; half of them of a known clip."""
    operation = document[path][method]
    if mode is GenerationMode.NEGATIVE and not (operation.query or operation.body):
        return
    cases = operation.as_strategy(generation_mode=mode)
    if "{clip_id}" in path and mode is GenerationMode.POSITIVE:
        cases |= operation.as_strategy(path_parameters={"clip_id": known})

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases)
    def check_case(case: schemathesis.Case) -> None:
        if mode is GenerationMode.NEGATIVE and not all(
            isinstance(case.query.get(name, []), list) for name in REPEATABLE
        ):
            return  # In a URL, one value is a list of one, so the request may be valid.
        answer = case.call(headers=HOST)
        if answer.status_code == 413:
            return  # Nor can a schema limit the whole body, whose parts are all allowed.
        # A schema cannot say that one bound must lie below the other, or that one needs the other.
        # Nor does it know what the model of the store lacks.
        reasons = (
            "swap the",
            "within needs a place",
            "confidence was not measured",
            "every part is subtracted",
            "'negative' is for texts",
            "searches frames only",
            "the query is empty",
        )
        if answer.status_code != 422 or not any(reason in answer.text for reason in reasons):
            case.validate_response(answer)

    check_case()


def test_every_operation_is_explored(document: BaseSchema) -> None:
    described = [found.ok() for found in document.get_all_operations()]
    assert {(each.method.upper(), each.path) for each in described} == set(OPERATIONS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_openapi_document_tells_the_truth(
    document: BaseSchema, method: str, path: str, mode: GenerationMode, clip_id: str
) -> None:
    explore(document, method, path, mode, clip_id, examples=4)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_openapi_document_tells_the_truth_at_length(
    document: BaseSchema, method: str, path: str, mode: GenerationMode, clip_id: str
) -> None:
    explore(document, method, path, mode, clip_id, examples=300)
