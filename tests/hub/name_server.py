"""A name server that is asked and never answers: the one thing here that is not real, as there may be none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def never_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Inside, who looks up a name waits until we leave. The event is set when somebody does."""
    request, over = threading.Event(), threading.Event()

    def wait(*_: object, **__: object) -> None:
        request.set()
        over.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", wait)
        try:
            yield request
        finally:
            over.set()
