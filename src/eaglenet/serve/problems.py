"""Error responses in one JSON format, each with a hint on what to do."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match, Route

from eaglenet.core.errors import (
    EagleNetError,
    StoreError,
    UnknownClipError,
    UnreachableError,
    UsageError,
    VideoDecodeError,
)
from eaglenet.core.text import without_surrogates
from eaglenet.store.object_storage import ObjectError

logger = logging.getLogger(__name__)


class ErrorDetail(BaseModel):
    code: str = Field(description="Short name for programs, e.g. not_found")
    message: str = Field(description="What is wrong, for people")
    hint: str = Field(description="What to do about it")


class ErrorBody(BaseModel):
    error: ErrorDetail


CODES: Mapping[int, tuple[str, str]] = {
    400: ("bad_request", "see /openapi.json for valid requests"),
    401: ("unauthorized", "send 'Authorization: Bearer TOKEN', or log in on the page"),
    403: ("forbidden", "send the request from the page of this service"),
    404: ("not_found", "clip ids come from search results; see /openapi.json for addresses"),
    405: ("method_not_allowed", "see /openapi.json for the methods of each address"),
    408: ("too_slow", "send the whole body at once"),
    409: ("file_changed", "index the folder again, then search again"),
    410: ("file_gone", "index the folder again with --drop-missing"),
    413: ("too_large", "send less, or several requests"),
    415: ("unsupported_type", "send what /openapi.json lists for this address"),
    416: ("range_not_satisfiable", "request bytes within the file"),
    421: ("wrong_host", "open the service as http://127.0.0.1 or http://localhost"),
    422: ("invalid", "see /openapi.json for valid values"),
    429: ("rate_limited", "wait for the seconds in Retry-After, then try again"),
    431: ("too_many_headers", "send fewer and shorter headers"),
    500: ("internal", "see the log of the service"),
    503: ("overloaded", "wait for the seconds in Retry-After, then try again"),
    504: ("timeout", "request fewer results or queries, or try again later"),
}


class Problem(HTTPException):
    """Exception that becomes an error response; ``CODES`` has the default code and hint."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code
        self.hint = hint


def error_response(
    status: int,
    message: str,
    *,
    code: str | None = None,
    hint: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    default_code, default_hint = CODES.get(status, (f"http_{status}", "see /openapi.json"))
    content = {"code": code or default_code, "message": message, "hint": hint or default_hint}
    return JSONResponse({"error": content}, status, headers)


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a route for the OpenAPI document."""
    return {
        status: {"model": ErrorBody, "description": CODES[status][0].replace("_", " ")}
        for status in statuses
    }


def add_handlers(app: FastAPI) -> None:
    """Return every error of ``app`` as an :class:`ErrorBody`."""
    app.exception_handler(HTTPException)(_http_problem)
    app.exception_handler(RequestValidationError)(_invalid_request)
    app.exception_handler(EagleNetError)(_eaglenet_error)
    app.exception_handler(ObjectError)(_unreachable)
    app.exception_handler(ClientDisconnect)(_disconnected)


async def _disconnected(request: Request, error: Exception) -> Response:
    """Answer a client that left while it was sending; the status is for the metrics only."""
    return Response(status_code=499)


async def _http_problem(request: Request, error: HTTPException) -> JSONResponse:
    if isinstance(error, Problem):
        options = {"code": error.code, "hint": error.hint}
        return error_response(error.status_code, error.detail, headers=error.headers, **options)
    message = {404: "no such address"}.get(error.status_code, HTTPStatus(error.status_code).phrase)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        # The router lists the methods of the first matching route only.
        matching = (
            route
            for route in request.app.state.routes
            if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        )
        headers["Allow"] = ", ".join(sorted({m for route in matching for m in route.methods or ()}))
    return error_response(error.status_code, message, headers=headers)


ALTERNATIVES = ("constrained-str", "dict[str,any]")
"""Names that pydantic adds to the place of a query, which is a text or an object."""
PATTERNS = {
    "clip_id": "a clip id from search results",
    "within": "a distance, like 5km, 800m or 3mi",
}
"""Meaning of the patterns of fields; that of a text is that something can be seen."""


def explain_fields(problems: Sequence[Mapping[str, Any]]) -> list[str]:
    """Explain the first problems of a pydantic ``ValidationError``, one sentence per field."""
    sentences: dict[tuple[str | int, ...], str] = {}
    for problem in problems[:5]:
        place = tuple(name for name in problem["loc"] if name not in ALTERNATIVES)
        if place != problem["loc"] and problem["type"] in ("string_type", "dict_type"):
            field = ".".join(map(str, place))[:100]
            sentences.setdefault(place, f"{field} should be a text or an object")
        else:
            sentences[place] = explain_field({**problem, "loc": place})
    return list(sentences.values())


def explain_field(problem: Mapping[str, Any]) -> str:
    """Explain one problem of a pydantic ``ValidationError``, without the value.

    >>> explain_field({"loc": ("body", "k"), "type": "int_type", "msg": "Input should be 1"})
    'body.k should be 1'
    """
    field = ".".join(str(name) for name in problem["loc"])[:100]
    if problem["type"] == "missing":
        return f"{field} is missing"
    if problem["type"] == "extra_forbidden":
        return f"{field} is unknown"
    if problem["type"] == "string_pattern_mismatch":
        meaning = PATTERNS.get(field.rpartition(".")[2], "a text with a visible character")
        return f"{field} should be {meaning}"
    text = str(problem["msg"]).removeprefix("Value error, ")
    explanation, count = re.subn(r"^(Input|String|List) should ", f"{field} should ", text)
    return (explanation if count else f"{field}: {text}")[:300]


async def _invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
    """List the invalid fields, without their values."""
    messages = explain_fields(error.errors())
    # Names of unknown fields may contain lone surrogates.
    message = without_surrogates("; ".join(messages))
    if any(problem["type"] == "json_invalid" for problem in error.errors()):
        return error_response(400, message, hint="send the body as JSON")
    if isinstance(error.body, bytes) and error.body:
        # Bodies of another type are not parsed, such as forms, the default of `curl -d`.
        hint = "send the body as JSON, with the header Content-Type: application/json"
        return error_response(400, "the body was not sent as JSON", hint=hint)
    if any(problem["type"] == "extra_forbidden" for problem in error.errors()):
        names = _known_fields(request)
        return error_response(422, message, hint=f"known: {', '.join(names)}" if names else None)
    return error_response(422, message)


def _known_fields(request: Request) -> list[str]:
    """Return the names of the parameters of a path, or of the fields of its JSON body."""
    document = request.app.openapi()
    path = getattr(request.scope.get("route"), "path", "")
    operation = document["paths"].get(path, {}).get(request.method.lower(), {})
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    fields = document["components"]["schemas"].get(schema, {}).get("properties", {})
    parameters = operation.get("parameters", ())
    return sorted([*fields, *(each["name"] for each in parameters if each["in"] == "query")])


async def _eaglenet_error(request: Request, error: EagleNetError) -> JSONResponse:
    message = without_surrogates(str(error))
    if isinstance(error, UnknownClipError):
        return error_response(404, message)
    if isinstance(error, UsageError | VideoDecodeError):
        return error_response(422, message)
    if isinstance(error, UnreachableError):
        return await _unreachable(request, error)
    logger.error("%s: %s", type(error).__name__, message)
    if isinstance(error, StoreError):
        hint = "repair the store on its machine: eaglenet store repair"
        return error_response(
            503, "the store cannot be read", code="store", hint=hint, headers={"Retry-After": "30"}
        )
    return error_response(500, "the search failed")


async def _unreachable(request: Request, error: Exception) -> JSONResponse:
    logger.error("%s: %s", type(error).__name__, without_surrogates(str(error)))
    return error_response(
        503,
        "the store cannot be reached: its storage, or every shard, does not answer",
        code="unreachable",
        hint="try again later; see the log of the service for what does not answer",
        headers={"Retry-After": "5"},
    )
