"""The values of the gateway: the engines behind it, the models that it serves, and its settings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from edgekit.engines.request_rules import RequestLimits
from edgekit.server.clients import CONNECTIONS_EACH, MAX_CONNECTIONS
from edgekit.units import MIB

DEFAULT_PORT = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """An engine that is ready."""

    address: str  # "http://127.0.0.1:41234"
    api_key: str | None = field(default=None, repr=False)
    model: str  # the name that the engine knows the model by, and puts into its responses


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A row of /v1/models."""

    name: str
    created_s: int = 0  # when it was added, in seconds since 1970
    window_tokens: int
    problem: str = ""  # why it cannot answer now
    is_loading: bool = False


class Models(Protocol):
    """The models behind the gateway. Used from the gateway's event loop only."""

    async def begin(self) -> None:
        """Called once, when the gateway starts. Does not wait for models."""

    def listed(self) -> Sequence[ServedModel]: ...

    def answers(self, path: str) -> bool:
        """Whether any model may have this endpoint. Decided without loading one."""

    def limits(self, name: str) -> RequestLimits:
        """Known before the model is loaded, so that nothing is loaded for a request that is refused.

        Raises GatewayError for an unknown name.
        """

    def using(self, name: str) -> AbstractAsyncContextManager[Upstream]:
        """A loaded engine that is in use until the end of the block.

        Waits until it is loaded. Raises GatewayError for an unknown name, and for an engine that cannot answer.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Where the gateway listens, who may use it, and how much one client may take."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT  # 0: any free one
    api_keys: tuple[str, ...] = field(default=(), repr=False)  # none: no key is needed
    allowed_hosts: tuple[str, ...] = ()  # names in addition to those of the machine itself
    # Sites whose pages may use the server: "https://chat.example"; "*": all, which needs a key.
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 32 * MIB  # an image from a camera has 2 to 10 MB
    body_timeout_s: float = 60.0
    read_timeout_s: float = (
        10.0  # after which an engine has read a request that it has not answered
    )
    max_connections: int = MAX_CONNECTIONS
    connections_each: int = CONNECTIONS_EACH
    max_requests: int = 128  # running or waiting
