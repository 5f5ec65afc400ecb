"""The settings of `edgekit web`, and the watch over one call. Nothing here needs the `web` extra."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgekit.errors import CancelledError
from edgekit.sources.types import Reach

DEFAULT_PORT = 8421
MAX_BODY_BYTES = 64 * 1024  # a request is a few names and numbers: the longest seen has 2 KB
LOOPBACK = "127.0.0.1"
EVENTS = "/events"  # the path of every event stream ends with it

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """The flags of `edgekit web`."""

    host: str = LOOPBACK
    port: int = DEFAULT_PORT
    # Required if other machines can reach the port.
    token: str | None = field(default=None, repr=False)
    models_dirs: tuple[Path, ...] = ()  # only files in these folders may be opened
    allow_private: bool = False  # allow URLs on this machine and on private networks
    network: bool = True
    cache: bool = True
    timeout_s: float = 60.0  # to open one model, including all requests to its server
    requests_per_s: float = 400.0  # per client; dragging a slider sends 60 a second

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWatch:
    """Progress and cancellation of one call."""

    client: str = ""  # its address
    progress: Callable[[str], None] | None = field(default=None, repr=False)
    cancelled: threading.Event = field(default_factory=threading.Event, repr=False)

    def check(self) -> None:
        """Raises CancelledError if the call was cancelled."""
        if self.cancelled.is_set():
            raise CancelledError("cancelled")


@lru_cache(maxsize=8)
def resolved_folders(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """The folders with links followed. Cached, because every call needs them."""
    return tuple(folder.resolve() for folder in folders)


def reach_of(settings: WebSettings, watch: CallWatch) -> Reach:
    """What one call may open and fetch."""
    return Reach(
        network=settings.network,
        cache=settings.cache,
        total_timeout_s=settings.timeout_s,
        public_only=not settings.allow_private,
        within=resolved_folders(settings.models_dirs),
        progress=watch.progress,
        cancelled=watch.cancelled,
    )
