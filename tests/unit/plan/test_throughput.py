"""plan/throughput.py: the speed with several users."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.plan.tasks import LLAMA, of_config, one_file, task_for

from edgekit.bill.types import Load, MemoryEstimate, Moment, Placement, Speed, Start, Task, Verdict
from edgekit.engines import engine_named
from edgekit.engines.vllm.types import VllmSetup
from edgekit.machine.what_if import requested_machine
from edgekit.plan.choice import judge
from edgekit.plan.throughput import shared_speed

CARD = requested_machine(devices=("H100 80GB",), ram="64G")


def with_slots(count: int, tokens: int = 2048, **load: Any) -> Verdict:
    """llama.cpp with this many slots of `tokens` each."""
    task = one_file(LLAMA, CARD)
    return judge(replace(task, load=Load(context_tokens=count * tokens, sequences=count, **load)))


def on_vllm(load: Load, **setup: Any) -> Verdict:
    start = Start(setup=VllmSetup(**setup), fixed_flags=frozenset(setup))
    return judge(task_for(of_config("llama-3.1-8b"), CARD, "vllm", load=load, start=start))


@settings(deadline=None, max_examples=15)
@given(users=st.integers(2, 64))
def test_each_user_gets_less_than_one_alone_and_all_together_more(users: int) -> None:
    result = with_slots(users)
    shared = shared_speed(result)
    assert shared is not None
    assert result.speed is not None
    assert shared.users == users
    assert shared.together == pytest.approx(users * shared.each.typical)
    assert shared.each.typical < result.speed.typical < shared.together


def test_one_user_has_no_shared_speed() -> None:
    assert shared_speed(with_slots(1)) is None
    assert shared_speed(judge(one_file(LLAMA, CARD))) is None  # 4 slots, but nobody asked for them


def test_slots_share_the_context_whether_or_not_they_share_the_cache() -> None:
    apart, together = (with_slots(64, tokens=256, unified=shared) for shared in (False, True))
    speeds = [shared_speed(result) for result in (apart, together)]
    for shared in speeds:
        assert shared is not None
        assert "(256 tokens)" in shared.each.because
    full = shared_speed(with_slots(64, tokens=1024))
    assert full is not None
    assert speeds[0] is not None
    assert full.each.typical < speeds[0].each.typical


def test_users_of_vllm_are_those_asked_for_not_its_default_limit() -> None:
    asked = Load(context_tokens=8192, sequences=8)
    alone = Load(context_tokens=8192)
    assert shared_speed(on_vllm(alone)) is None
    counts = [
        shared.users
        for result in (on_vllm(asked), on_vllm(alone, max_num_seqs=16))
        if (shared := shared_speed(result)) is not None
    ]
    assert counts == [8, 16]


def test_nothing_is_shared_if_the_speed_is_unknown_or_it_does_not_load() -> None:
    result = with_slots(8)
    assert shared_speed(replace(result, speed_at=None)) is None
    small = replace(one_file(LLAMA, requested_machine(ram="2G")), load=Load(sequences=8))
    assert shared_speed(judge(small)) is None


def test_speed_with_users_is_only_computed_when_it_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, users = type(engine_named("llama.cpp")), []
    compute = engine_named("llama.cpp").speed

    def speed(
        _self: object, task: Task, placement: Placement, bill: MemoryEstimate, moment: Moment
    ) -> Speed | None:
        users.append(moment.users)
        return compute(task, placement, bill, moment)

    monkeypatch.setattr(engine, "speed", speed)
    result = with_slots(8)
    assert set(users) == {1}
    assert shared_speed(result) is not None
    assert users[-1] == 8
