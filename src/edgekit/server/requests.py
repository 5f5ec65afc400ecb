"""A request as ASGI describes it, and responses that need no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from starlette.types import Scope

Header = tuple[bytes, bytes]
CLOSE: Header = (b"connection", b"close")
MAX_HEAD_BYTES = 32 * 1024  # the longest query and the headers of a browser


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """A request without its body."""

    method: str
    path: str
    query: bytes
    headers: Mapping[bytes, bytes]
    head_bytes: int  # length of the address and the headers as they were received
    client: str

    @classmethod
    def from_scope(cls, scope: Scope) -> Self:
        """From the description of a request in ASGI."""
        client, query = scope.get("client"), scope.get("query_string", b"")
        lines = sum(len(name) + len(value) + len(b": \r\n") for name, value in scope["headers"])
        return cls(
            method=scope["method"],
            path=scope["path"],
            query=query,
            headers=dict(scope["headers"]),
            head_bytes=len(scope.get("raw_path") or b"") + len(query) + lines,
            client=client[0] if client else "",
        )

    @property
    def bearer(self) -> bytes | None:
        """The secret of `Authorization: Bearer`; None without one."""
        authorization = self.headers.get(b"authorization", b"")
        if not authorization.lower().startswith(b"bearer "):
            return None
        return authorization[len(b"bearer ") :].strip()


def content_headers(kind: bytes, body: bytes) -> tuple[Header, ...]:
    """The headers that describe a body."""
    return ((b"content-type", kind), (b"content-length", str(len(body)).encode()))
