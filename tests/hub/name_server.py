"""A name server that never answers. It is the only fake here: a test machine may have no name server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def never_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Every lookup inside the block waits until the block ends. The event is set at the first lookup."""
    looked_up, released = threading.Event(), threading.Event()

    def wait(*_: object, **__: object) -> None:
        looked_up.set()
        released.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", wait)
        try:
            yield looked_up
        finally:
            released.set()
