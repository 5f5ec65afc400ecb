"""Turns errors into a status and `{"error": {"type", "message", "about"}}`, for every call and every job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel
from starlette.responses import JSONResponse

from edgekit.errors import (
    CancelledError,
    DeadlineError,
    EdgekitError,
    NotAllowedError,
    NotFoundError,
    PrivateAddressError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    RemoteTimeoutError,
    UsageError,
)
from edgekit.web.types import Json

UNEXPECTED = "internal error in EdgeKit; see the terminal that runs edgekit web"


class TooManyError(EdgekitError):
    """The server is busy: it has reached a limit on what it does at once."""


# The first row that matches counts. The last one is for all other errors: the request was understood but cannot be
# fulfilled.
STATUSES: tuple[tuple[type[EdgekitError], int], ...] = (
    (NotAllowedError, 403),
    (TooManyError, 429),
    (UsageError, 400),
    (NotFoundError, 404),
    (RemoteNotFoundError, 404),
    (RemoteAccessError, 403),
    (PrivateAddressError, 403),
    (RemoteTimeoutError, 504),
    (RemoteInspectError, 502),
    (CancelledError, 409),
    (DeadlineError, 504),
    (EdgekitError, 422),
)
# The part of the request that a field belongs to; all others are settings.
_PARTS = {
    "model": "model",
    "engine": "engine",
    "device": "machine",
    "ram": "machine",
    "vram": "machine",
    "cpu": "machine",
}
# pydantic's error types that our fields can raise -> our message; {ge} and the like are the limits.
_MESSAGES = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "number out of range",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "finite_number": "must be a whole number",
    "list_type": "must be one value or a list",
}

Responses = dict[int | str, dict[str, Any]]  # OpenAPI's, by status
Fault = Mapping[str, Any]  # one of pydantic's errors


class Problem(BaseModel):
    """What went wrong, in plain words."""

    type: str
    message: str
    about: str | None = None  # model, engine, machine, ram, settings, cache_types


class Failure(BaseModel):
    """The answer of every call that failed."""

    error: Problem


def failure_json(kind: str, message: str, part: str = "") -> Json:
    return {"error": {"type": kind, "message": message, "about": part or None}}


def error_json(error: EdgekitError) -> Json:
    """A plain UsageError is about the settings, unless it names another part."""
    part = error.about or ("settings" if type(error) is UsageError else "")
    return failure_json(type(error).__name__, str(error), part)


@contextmanager
def about(part: str) -> Iterator[None]:
    """Sets `about` of errors raised in the block to this part of a request, unless they name one themselves."""
    try:
        yield
    except EdgekitError as error:
        error.about = error.about or part
        raise


def status_of(error: EdgekitError, *, network: bool = True) -> int:
    """The HTTP status of an error. Without a network it is 404 instead of 502: no remote server was asked."""
    status = next(status for kind, status in STATUSES if isinstance(error, kind))
    return 404 if status == 502 and not network else status


def fault_words(faults: Sequence[Fault]) -> str:
    """The name of each invalid field, and what is wrong with it."""
    return "; ".join(_message(fault) for fault in faults[:5]) or "invalid request"


def unreadable_answer(faults: Sequence[Fault]) -> JSONResponse:
    """The response to an invalid request."""
    parts = {_PARTS.get(_name(fault).partition(".")[0], "settings") for fault in faults}
    part = parts.pop() if len(parts) == 1 else ""
    return JSONResponse(failure_json("UsageError", fault_words(faults), part), 400)


def _name(fault: Fault) -> str:
    """The field, without pydantic's prefix for where in the request it is."""
    parts = [str(part) for part in fault.get("loc", ()) if part not in {"body", "query", "path"}]
    return ".".join(parts)[:80]


def _message(fault: Fault) -> str:
    """One of pydantic's errors in our words."""
    name, kind = _name(fault), str(fault.get("type"))
    match kind:
        case "json_invalid":
            return "the body is not JSON"
        case "model_attributes_type" | "model_type" | "dict_type" if not name:
            return "the body must be a JSON object, sent with Content-Type: application/json"
        case "extra_forbidden":
            return f"{name}: unknown field"
        case "missing":
            return f"{name}: required" if name else "the body is missing: send a JSON object"
    if kind in _MESSAGES:
        problem = _MESSAGES[kind].format_map(fault.get("ctx") or {})
    else:
        problem = str(fault.get("msg", "invalid")).removeprefix("Value error, ")[:200]
    return f"{name}: {problem}" if name else problem
