"""`edgekit serve` in a process of its own, for tests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.patience import PATIENCE_S


class Served:
    """A running `edgekit serve --json`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.ready = self.event()

    @property
    def base_url(self) -> str:
        return str(self.ready["openai_base_url"])

    @property
    def address(self) -> str:
        return str(self.ready["address"])

    def event(self) -> dict[str, Any]:
        """The next line of JSON."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=PATIENCE_S)
        event: dict[str, Any] = json.loads(line)
        return event


@contextmanager
def serving(*words: str, environment: Mapping[str, str] | None = None) -> Iterator[Served]:
    """The server, once it is ready."""
    command = [sys.executable, "-m", "edgekit", "serve", *words, "--json", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield Served(process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
