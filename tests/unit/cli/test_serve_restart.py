"""How often `serve --restart` starts an engine again, by how long it was up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgekit.cli import serve
from edgekit.cli.launch import StderrNotices
from edgekit.engines.program import Address, Ended
from edgekit.errors import EngineError


class DyingEngine:
    """A clock, and an engine on it that dies a while after it was ready."""

    def __init__(self, *, loading_s: float, uptimes_s: list[float]) -> None:
        self.now_s, self.starts = 0.0, 0
        self.loading_s, self.uptimes_s = loading_s, uptimes_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    @contextmanager
    def serve(self, *_: object) -> Iterator[Any]:
        self.sleep(self.loading_s)
        self.starts += 1
        server = SimpleNamespace(pid=1, address="http://127.0.0.1:1", wait=self.wait)
        yield SimpleNamespace(server=server, guard=SimpleNamespace(reason="", starved=False))

    def wait(self) -> Ended:
        self.sleep(self.uptimes_s.pop(0))
        return Ended(exit_code=1, signal=None, why="it exited", last_words="")


@pytest.mark.parametrize(
    ("uptimes_s", "starts"),
    [
        ([1.0] * 9, 3),
        ([1.0, 301.0, 1.0, 1.0, 1.0], 4),  # after five minutes of uptime counting begins anew
    ],
    ids=["dies at once", "was up for long"],
)
def test_loading_is_not_uptime(
    monkeypatch: pytest.MonkeyPatch, uptimes_s: list[float], starts: int
) -> None:
    engine = DyingEngine(loading_s=400.0, uptimes_s=uptimes_s)
    monkeypatch.setattr(serve, "time", engine)
    monkeypatch.setattr("edgekit.cli.serve.run.serve", engine.serve)
    serving = serve._Serving(
        judged=cast("Any", None),
        weights=cast("Any", None),
        front=serve._Front(engine_at=Address()),
        notices=StderrNotices(quiet=True),
        as_json=False,
    )
    with pytest.raises(EngineError, match="it exited"):
        serving.until_end(restarts=2)
    assert engine.starts == starts
