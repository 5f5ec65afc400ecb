"""Errors that a client of the gateway gets, in OpenAI's format."""

from __future__ import annotations

import json

from edgekit.errors import EdgekitError
from edgekit.server.requests import Header, content_headers

RETRY_AFTER_S = 5


class GatewayError(EdgekitError):
    """The response to a request that is not passed on, or that the engine did not answer."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: tuple[Header, ...] = (),
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.code, self.param = status, kind, code, param
        self.headers = headers

    def response(self) -> tuple[tuple[Header, ...], bytes]:
        """All headers and the body."""
        return (
            (*content_headers(b"application/json", self.body), *self.headers),
            self.body,
        )

    @property
    def body(self) -> bytes:
        error = {
            "message": str(self),
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": error}).encode()


def refused_field(field: str, problem: str) -> GatewayError:
    """The error for a field that an engine must not get: 400, with its name."""
    return GatewayError(f"{field}: {problem}", status=400, param=field, code="refused_field")


def unavailable(
    reason: str, *, retry_after_s: int = RETRY_AFTER_S, headers: tuple[Header, ...] = ()
) -> GatewayError:
    """503: no engine can answer now."""
    retry_after = (b"retry-after", str(retry_after_s).encode())
    return GatewayError(
        reason,
        status=503,
        kind="server_error",
        code="engine_unavailable",
        headers=(retry_after, *headers),
    )


def too_many(reason: str) -> GatewayError:
    """429: the gateway has as much to do as it takes on."""
    return GatewayError(
        f"{reason}; try again in a moment",
        status=429,
        kind="rate_limit_error",
        headers=((b"retry-after", str(RETRY_AFTER_S).encode()),),
    )


def unknown_model(name: str, known: tuple[str, ...]) -> GatewayError:
    """404: no model of this name is served."""
    served = ", ".join(known) or "none"
    return GatewayError(
        f"no model {name!r} is served; served: {served}",
        status=404,
        param="model",
        code="model_not_found",
    )
