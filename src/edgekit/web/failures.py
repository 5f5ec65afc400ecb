"""What went wrong -> a status and `{"error": {"type", "message", "about"}}`, the same for every call and every job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
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

UNEXPECTED = "internal error in EdgeKit; see the terminal that runs edgekit web"
RETRY_AFTER_S = 2


class TooManyError(EdgekitError):
    """More at once than this server takes on."""


# The most specific first. What is not named here was read and understood, and cannot be done: 422.
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
)
_OTHERWISE = 422
_ANOTHER_FAILED, _NOT_HERE = 502, 404


class Problem(BaseModel):
    """What went wrong, in plain words."""

    type: str
    message: str
    about: str | None = None  # model, engine, machine, settings, cache_types


class Failure(BaseModel):
    """The answer of every call that failed."""

    error: Problem


def status_of(error: EdgekitError, *, network: bool = True) -> int:
    """Without a network no other server failed: what is asked for is not on this machine."""
    found = next((status for kind, status in STATUSES if isinstance(error, kind)), _OTHERWISE)
    return _NOT_HERE if found == _ANOTHER_FAILED and not network else found


@contextmanager
def about(part: str) -> Iterator[None]:
    """Errors raised inside are about this part of a request, unless they already name another."""
    try:
        yield
    except EdgekitError as error:
        error.about = error.about or part
        raise


def error_json(error: EdgekitError) -> dict[str, Any]:
    """A request that makes no sense is about the settings, unless the error names another part."""
    part = error.about or ("settings" if type(error) is UsageError else "")
    return failure_json(type(error).__name__, str(error), part)


def failure_json(kind: str, message: str, part: str = "") -> dict[str, Any]:
    return {"error": {"type": kind, "message": message, "about": part or None}}


def error_answer(error: EdgekitError, told: dict[str, Any], *, network: bool) -> JSONResponse:
    """`told` is what whoever asked may know of it; `network`, whether other servers are asked at all."""
    status = status_of(error, network=network)
    again = {"Retry-After": str(RETRY_AFTER_S)} if status == 429 else None
    return JSONResponse(told, status, again)


def unreadable_answer(faults: Sequence[Mapping[str, Any]]) -> JSONResponse:
    """From pydantic's list of errors: each field by name, and what is wrong with it."""
    told = "; ".join(_fault(fault) for fault in faults[:5])
    parts = {_PARTS.get(_name(fault).partition(".")[0], "settings") for fault in faults}
    part = parts.pop() if len(parts) == 1 else ""
    return JSONResponse(failure_json("UsageError", told or "invalid request", part), 400)


# What a field is about; all others are settings.
_PARTS = {"model": "model", "engine": "engine"} | dict.fromkeys(
    ("device", "ram", "vram"), "machine"
)
# Not shown: where in the request the field is.
_PLACES = frozenset({"body", "query", "path"})


def _name(fault: Mapping[str, Any]) -> str:
    place = [str(part) for part in fault.get("loc", ()) if part not in _PLACES]
    return ".".join(place)[:80]


def _fault(fault: Mapping[str, Any]) -> str:
    name = _name(fault)
    match fault.get("type"):
        case "json_invalid":
            return "the body is not JSON"
        case "model_attributes_type" | "model_type" | "dict_type" if not name:
            return "the body must be a JSON object, sent with Content-Type: application/json"
        case "extra_forbidden":
            return f"{name}: unknown field"
        case "missing":
            return f"{name}: required" if name else "the body is missing: send a JSON object"
    what = _in_words(fault)
    return f"{name}: {what}" if name else what


# pydantic's error types that our fields can raise -> our message; {ge} and the like are the limits.
_WORDS = {
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
    "finite_number": "must be a whole number",
    "list_type": "must be one value or a list",
}


def _in_words(fault: Mapping[str, Any]) -> str:
    words = _WORDS.get(str(fault.get("type")))
    if words is not None:
        return words.format_map(fault.get("ctx") or {})
    return str(fault.get("msg", "invalid")).removeprefix("Value error, ")[:200]


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title} - EdgeKit</title></head>
<body><main><h1>{title}</h1><p>{text}</p><p><a href="{link}">{link_text}</a></p></main></body>
</html>
"""


def small_page(
    title: str, text: str, *, link: str = "/", link_text: str = "Back to EdgeKit"
) -> str:
    return _PAGE.format(
        title=escape(title), text=escape(text), link=escape(link), link_text=escape(link_text)
    )
