"""Laws of the verdict: more memory is never worse, and a smaller load never fails where a larger one fits."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorded import engine_models
from tests.thoroughness import LONG
from tests.unit.plan.machines import cards, cpu

from edgekit.bill.types import Load, Task, Verdict
from edgekit.plan.choice import judge
from edgekit.plan.fit import Fitting

EXAMPLES = 200 if LONG else 7  # of each law
MODELS = (
    ("llama-3.1-8b", "Q4_K_M"),
    ("gemma-3-27b", "Q4_K_M"),
    ("qwen3-30b-a3b", "Q4_K_M"),
    ("phi-3-mini-128k", "F16"),
    ("falcon-h1-1.5b", "F16"),
    ("deepseek-v2-lite", "Q8_0"),
)
models = st.sampled_from(MODELS)
gib = st.integers(2, 40)
more = st.integers(1, 24)


def judged(model: tuple[str, str], vram: int, ram: int, context: int | None = None) -> Verdict:
    task = Task(
        model=engine_models()[model],
        engine="llama.cpp",
        machine=cards(vram, ram=ram) if vram else cpu(ram),
        load=Load(context_tokens=context),
    )
    return judge(task)


@settings(max_examples=EXAMPLES, deadline=None)
@given(model=models, vram=gib, ram=gib, extra=more)
def test_larger_card_is_never_worse(
    model: tuple[str, str], vram: int, ram: int, extra: int
) -> None:
    small, large = judged(model, vram, ram), judged(model, vram + extra, ram)
    assert large.can_load or small.failed
    assert small.failed or large.step <= small.step


@settings(max_examples=EXAMPLES, deadline=None)
@given(model=models, vram=st.integers(0, 24), ram=gib, extra=more)
def test_more_ram_is_never_worse(model: tuple[str, str], vram: int, ram: int, extra: int) -> None:
    small, large = judged(model, vram, ram), judged(model, vram, ram + extra)
    assert large.can_load or small.failed
    assert small.failed or large.step <= small.step


@settings(max_examples=EXAMPLES, deadline=None)
@given(model=models, vram=gib, ram=gib, context=st.integers(256, 140_000), less=st.integers(1, 99))
def test_shorter_context_never_fails_where_a_longer_one_fits(
    model: tuple[str, str], vram: int, ram: int, context: int, less: int
) -> None:
    long = judged(model, vram, ram, context)
    short = judged(model, vram, ram, min(context, context * less // 100 + 256))
    assert short.can_load or long.failed


@settings(max_examples=EXAMPLES, deadline=None)
@given(model=models, vram=st.integers(0, 24), ram=gib)
def test_longest_context_fits_and_the_next_one_does_not(
    model: tuple[str, str], vram: int, ram: int
) -> None:
    result = judged(model, vram, ram)
    task = Task(
        model=engine_models()[model],
        engine="llama.cpp",
        machine=result.machine,
    )
    longest, native = result.max_context, result.native_context
    if longest:
        assert judge(replace(task, load=Load(context_tokens=longest))).can_load
    if result.can_load and native is not None and longest + 256 <= native:
        placed = Fitting(replace(task, load=result.load), result.way)
        assert placed.fits(longest)
        assert not placed.fits(longest + 256)
