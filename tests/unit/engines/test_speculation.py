"""engines/speculation.py: the speed with a draft model, or with a model's own prediction layers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import LONG
from tests.unit.plan.tasks import gguf, one_file

from edgekit.bill.types import Drafter, Moment, PricedLoad, Speculation, Speed, Task
from edgekit.engines import engine_named
from edgekit.engines.entries import open_entry
from edgekit.engines.llamacpp.speed import prediction_run, run_of, speed
from edgekit.engines.speculation import expected_speculation
from edgekit.engines.speed import expected_speed
from edgekit.engines.speed_formula import constants, decode_s
from edgekit.engines.speed_places import places_of
from edgekit.index.names import find_entry
from edgekit.machine.what_if import what_if_machine
from edgekit.plan.choice import choose
from edgekit.plan.plan import own_drafter

BIG, SMALL, MOE = "llama-3.1-70b", "llama-3.2-1b", "qwen3-30b-a3b"
WINDOWED = "gemma-3-27b"  # a sliding cache, next to a model without one
OWN = "qwen3.6-27b"  # has one prediction layer
MACHINE = what_if_machine(devices=("H200",), ram="64G")
ACCEPTANCES = st.floats(0, 1)
law = settings(deadline=None, max_examples=40 if LONG else 10)


@cache
def drafted(name: str = BIG, small: str = SMALL, drafts: int = 3) -> tuple[Task, PricedLoad]:
    """llama.cpp with a draft model, or with `small` OWN, its own prediction layers."""
    task = one_file(name, MACHINE, 8192) if name != OWN else with_own_layers()
    drafter = own_drafter(task.model)[0] if small == OWN else Drafter(name=small, model=gguf(small))
    task = engine_named("llama.cpp").with_drafter(task, drafter.model, None)
    assert task.start.setup is not None
    start = replace(task.start, setup=task.start.setup.changed(draft_max=drafts))
    task = replace(task, drafter=drafter, start=start)
    return task, choose(task).candidate.priced


def with_own_layers() -> Task:
    model = open_entry(find_entry(OWN), "llama.cpp").model
    return replace(one_file(SMALL, MACHINE, 8192), model=model, variants=())


def speculation(acceptance: float, name: str = BIG, small: str = SMALL, drafts: int = 3) -> Speed:
    task, priced = drafted(name, small, drafts)
    found = expected_speculation(replace(task, acceptance=acceptance), priced)
    assert found is not None
    assert (found.acceptance, found.draft_tokens) == (acceptance, drafts)
    return found.speed


def plain(name: str = BIG, small: str = SMALL) -> Speed:
    speed = expected_speed(*drafted(name, small))
    assert speed is not None
    return speed


# -- laws ------------------------------------------------------------------------------------

PAIRS = st.sampled_from(((BIG, SMALL), (MOE, SMALL), (OWN, OWN)))


@pytest.mark.parametrize(
    ("name", "small"), [(BIG, SMALL), (BIG, WINDOWED), (MOE, SMALL), (OWN, OWN)]
)
def test_nothing_accepted_is_slower_than_without_and_everything_less_than_k_plus_1_times_as_fast(
    name: str, small: str
) -> None:
    alone = plain(name, small).typical
    assert speculation(0, name, small, drafts=4).typical < alone
    assert speculation(1, name, small, drafts=4).typical < 5 * alone


def test_a_small_drafter_of_a_big_model_makes_it_faster_if_most_is_accepted() -> None:
    assert plain().typical * 1.5 < speculation(0.8).typical < plain().typical * 3


@law
@given(pair=PAIRS, acceptance=ACCEPTANCES, more=ACCEPTANCES)
def test_more_accepted_is_never_slower(
    pair: tuple[str, str], acceptance: float, more: float
) -> None:
    low, high = sorted((acceptance, more))
    assert speculation(low, *pair).typical <= speculation(high, *pair).typical


@law
@given(drafts=st.integers(1, 16))
def test_drafting_more_than_is_accepted_is_slower(drafts: int) -> None:
    assert speculation(0, drafts=drafts + 1).typical < speculation(0, drafts=drafts).typical


@law
@given(drafts=st.integers(1, 16), acceptance=st.floats(0, 0.99))
def test_tokens_of_a_round_are_a_geometric_sum(drafts: int, acceptance: float) -> None:
    # the rounds take the same time, so the speeds are as the tokens
    tokens = (1 - acceptance ** (drafts + 1)) / (1 - acceptance)
    ratio = speculation(acceptance, drafts=drafts).typical / speculation(0, drafts=drafts).typical
    assert ratio == pytest.approx(tokens)


def test_round_takes_the_drafter_k_times_and_the_model_once() -> None:
    task, priced = drafted(drafts=3)
    run = run_of(task, priced.placement, priced.estimate)
    places = places_of(run)
    assert places is not None
    checked_s = decode_s(run, places, Moment(1024, drafted_tokens=3), constants())
    small_task = one_file(SMALL, MACHINE, 8192)
    small = expected_speed(small_task, choose(small_task).candidate.priced)
    assert small is not None
    round_s = 1 / speculation(0, drafts=3).typical
    assert round_s == pytest.approx(checked_s + 3 / small.typical, rel=0.02)


def test_checked_tokens_of_one_sequence_read_its_cache_once() -> None:
    task, priced = drafted()
    run = run_of(task, priced.placement, priced.estimate)
    places = places_of(run)
    assert places is not None

    def added_s(moment: Moment) -> float:
        """What a context of 8,192 tokens adds to a pass."""
        full, empty = (moment._replace(filled_tokens=tokens) for tokens in (8192, 0))
        return decode_s(run, places or (), full, constants()) - decode_s(
            run, places or (), empty, constants()
        )

    single = added_s(Moment())
    assert single < added_s(Moment(drafted_tokens=3)) < 4 * single
    assert added_s(Moment(users=4)) == pytest.approx(4 * single)


def test_own_prediction_layer_reads_itself_and_the_output_head() -> None:
    task, priced = drafted(OWN, OWN)
    run = run_of(task, priced.placement, priced.estimate)
    reads = prediction_run(run, priced.estimate).reads
    first = len(run.reads.weights.layers)
    lines = [line for line in priced.estimate.lines if line.layer == first]
    block_bytes = sum(line.size_bytes for line in lines if not line.part)
    cache_bytes = sum(line.size_bytes for line in lines if line.part)
    assert block_bytes > 200 * 2**20  # 27 billion parameters / 65 layers * 4.9 bits are 243 MiB
    read_bytes = block_bytes + run.reads.weights.outside_read
    assert sum(pool.weights_bytes for pool in reads.pools) == pytest.approx(read_bytes, rel=0.01)
    assert sum(pool.cache_bytes(10**9) for pool in reads.pools) == cache_bytes
    assert sum(pool.layers for pool in reads.pools) == 2  # the head counts as one


# -- what has to be known --------------------------------------------------------------------


def test_nothing_is_claimed_without_an_acceptance_or_a_drafter() -> None:
    task, priced = drafted()
    found: list[Speculation | None] = [
        expected_speculation(task, priced),
        expected_speculation(replace(task, acceptance=0.7, drafter=None), priced),
    ]
    alone = one_file(BIG, MACHINE, 8192, acceptance=0.7)
    found.append(expected_speculation(alone, choose(alone).candidate.priced))
    assert found == [None] * 3


def test_nothing_is_claimed_if_the_bandwidth_is_unknown() -> None:
    task, priced = drafted()
    unknown = what_if_machine(vram="141G", ram="64G")
    placement = replace(priced.placement, cards=unknown.devices)
    moment = Moment(1024, drafted_tokens=3)
    asked = replace(task, acceptance=0.7, machine=unknown)
    assert speed(asked, placement, priced.estimate, moment) is None
    assert expected_speculation(asked, replace(priced, placement=placement)) is None


def test_speculation_has_the_interval_of_several_tokens_at_once() -> None:
    slow, fast = speculation(0.7).decode
    assert fast / slow == pytest.approx(constants()["spread.decode.users"] ** 2)
