"""Calls stop soon after they are cancelled, and cache nothing."""

from __future__ import annotations

import threading

import pytest

from edgekit.app import recommend
from edgekit.app.check import check_named
from edgekit.app.open import open_named
from edgekit.app.plan import plan_named
from edgekit.errors import CancelledError
from edgekit.index.types import ModelPurpose
from edgekit.request import Request, Session
from edgekit.sources.types import Reach


class SetAfterChecks(threading.Event):
    """An event that is set after `is_set` was called a number of times."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.checks, self.count = 0, count

    def is_set(self) -> bool:
        self.checks += 1
        return self.checks > self.count


@pytest.mark.parametrize("checks", [0, 2])
@pytest.mark.parametrize("call", ["check", "plan"])
def test_cancelled_check_or_plan_stops_before_the_next_estimate(call: str, checks: int) -> None:
    model = open_named("sample:qwen3-30b-a3b")
    request = Request(vram="12G,8G", ram="60G", users=3 if call == "plan" else None)
    cancelled = SetAfterChecks(checks)
    session = Session(reach=Reach(network=False, cancelled=cancelled))
    run = check_named if call == "check" else plan_named
    with pytest.raises(CancelledError):
        run(model, request, session)
    assert cancelled.checks == checks + 1


def test_cancelled_recommendation_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommend, "store", lambda *_: pytest.fail("it was stored"))
    lines: list[str] = []

    def cancel_at_third_line(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            raise CancelledError("cancelled")

    request = Request(devices=("RTX 3060",), ram="31G", purpose=ModelPurpose.CODE)
    with pytest.raises(CancelledError):
        recommend.recommend(request, Session(reach=Reach(progress=cancel_at_third_line)))
    assert len(lines) == 3
