"""Nouns of the page: how it is served, and who watches a call."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from edgekit.errors import CancelledError
from edgekit.sources.types import Reach

DEFAULT_PORT = 8421
MAX_BODY_BYTES = 64 * 1024  # a request is some names and numbers: the longest seen has 2 KB
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """What `edgekit web` was told."""

    host: str = LOOPBACK
    port: int = DEFAULT_PORT
    token: str | None = field(default=None, repr=False)  # needed wherever others can reach the port
    models_dirs: tuple[Path, ...] = ()  # the only folders whose files may be named
    allow_private: bool = False  # addresses of this machine and of its own network may be asked for
    network: bool = True
    cache: bool = True
    timeout_s: float = 60.0  # of one model, all requests to its server together
    requests_per_s: float = 400.0  # of one client; a slider that is dragged asks 60 times a second

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWatch:
    """Who waits for a call: told how far it is, and able to call it off."""

    client: str = ""  # the address that asked
    progress: Callable[[str], None] | None = field(default=None, repr=False)
    cancelled: threading.Event = field(default_factory=threading.Event, repr=False)

    def check(self) -> None:
        """Raises CancelledError where nobody waits any more."""
        if self.cancelled.is_set():
            raise CancelledError("cancelled")


@lru_cache(maxsize=8)
def resolved(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """Without links: asked for with every call."""
    return tuple(folder.resolve() for folder in folders)


def reach_of(settings: WebSettings, watch: CallWatch) -> Reach:
    """How far one call may go."""
    return Reach(
        network=settings.network,
        cache=settings.cache,
        total_timeout_s=settings.timeout_s,
        public_only=not settings.allow_private,
        within=resolved(settings.models_dirs),
        progress=watch.progress,
        cancelled=watch.cancelled,
    )
