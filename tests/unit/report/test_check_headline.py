"""report/check.py: the headline, one sentence for every verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.report.plans import gguf
from tests.unit.report.verdicts import (
    LINES,
    MACHINE,
    RECORDED,
    TOO_LARGE,
    card,
    check_from_lines,
    line,
    machine,
    recorded,
)

from edgekit.bill.types import Component, Load, Placement, Speed, Variant, Verdict
from edgekit.engines import engine_named
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.engines.vllm.types import VllmSetup
from edgekit.machine.types import DEVICE, HOST, System
from edgekit.report.check import (
    card_names,
    concurrency,
    context_words,
    headline,
    rounded_context_words,
)
from edgekit.units import GIB

ALONE = machine(card("RTX 4090", 24), ram_gib=None)
SPEED = Speed(decode=(24.0, 60.0), prefill=None, because="")  # the geometric mean is 37.9
VARIANT = Variant(name="IQ4_XS", model=gguf("qwen3-30b-a3b"), accuracy=425, changes={"mix": "IQ4_XS"})  # fmt: skip


def verdict_with(lines: tuple[Any, ...] = LINES, on: Any = ALONE, **more: Any) -> Verdict:
    return check_from_lines(lines, on, **more).result


def verdict_with_setup(**setup: Any) -> Verdict:
    """A model of 48 layers and the output with these flags: 11.5 of 23 GiB on the card and 1.5 of 15 in RAM."""
    verdict = verdict_with(on=MACHINE, variant=replace(VARIANT, changes={}))
    placement = replace(
        verdict.way, setup=LlamaCppSetup(mode=LlamaMode.SERVER, **setup), whole=False
    )
    return replace(verdict, way=placement)


def weights(gib: float) -> tuple[Any, ...]:
    return (line(Component.WEIGHTS, int(gib * GIB)),)


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        (verdict_with(), "Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 32K"),
        (verdict_with(speed=SPEED), "Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 32K, about 38 tokens/s (24-60)"),
        (verdict_with(weights(20)), "Runs on your RTX 4090, just: 20.0 of 23.0 GiB at 32K"),
        (verdict_with(cache="q8_0"), "Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 32K with an 8-bit cache"),
        (verdict_with(cache="8 bit"), "Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 32K with an 8-bit cache"),
        (verdict_with(cache="q8_0 + q4_0"), "Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 32K with a q8_0 + q4_0 cache"),
        (verdict_with(weights(1), cache="q8_0"), "Runs fully on your RTX 4090: 1.0 of 23.0 GiB at 32K"),  # no cache
        (verdict_with(variant=VARIANT, quantization="IQ4_XS"), "Runs fully on your RTX 4090 at IQ4_XS: 11.5 of 23.0 GiB at 32K"),
        (verdict_with(variant=replace(VARIANT, changes={}), quantization="IQ4_XS"), "Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 32K"),
        (verdict_with(context_tokens=12_345), "Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 12,345 tokens"),
        (verdict_with(streams=4), "Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 8K for each of 4 users"),
        (verdict_with(context_tokens=262_144), "Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 256K (beyond the model's native 128K)"),
        (verdict_with(on=machine(card("T4", 24), card("T4", 24), ram_gib=None)), "Runs fully on your 2x T4: 11.5 of 23.0 GiB on the fuller card at 32K"),
        (verdict_with((*LINES, line(Component.WEIGHTS, 12 * GIB, HOST)), MACHINE), "Runs on your RTX 4090, just: 11.5 of 23.0 GiB VRAM and 13.5 of 15.0 GiB RAM at 32K"),
        (verdict_with_setup(n_cpu_moe=28), "Runs with the experts of 28 layers in RAM: 11.5 of 23.0 GiB VRAM and 1.5 of 15.0 GiB RAM at 32K"),
        (verdict_with_setup(cpu_moe=True), "Runs with all experts in RAM: 11.5 of 23.0 GiB VRAM and 1.5 of 15.0 GiB RAM at 32K"),
        (verdict_with_setup(n_gpu_layers=40), "Runs with 40 of 49 layers on your RTX 4090: 11.5 of 23.0 GiB VRAM and 1.5 of 15.0 GiB RAM at 32K"),
        (verdict_with_setup(n_gpu_layers=40, cpu_moe=True), "Runs with 40 of 49 layers on your RTX 4090, all experts in RAM: 11.5 of 23.0 GiB VRAM and 1.5 of 15.0 GiB RAM at 32K"),
        (verdict_with_setup(n_gpu_layers=99), "Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 32K"),
        (verdict_with_setup(offload_kqv=False), "Runs on your RTX 4090 with the cache in RAM: 11.5 of 23.0 GiB at 32K"),
        (verdict_with_setup(embeddings=True), "Embeds fully on your RTX 4090: 11.5 of 23.0 GiB at 32K"),
    ],
)  # fmt: skip
def test_headline_if_it_fits(verdict: Verdict, sentence: str) -> None:
    assert headline(verdict) == sentence


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        (TOO_LARGE.result, "Does not fit your RAM at 32K: needs 24.0 GiB, 15.0 usable"),
        (verdict_with(weights(41), max_context=0), "Does not fit your RTX 4090 at 32K: needs 41.0 GiB, 23.0 usable"),
        (verdict_with(weights(41), max_context=22_784), "Does not fit your RTX 4090 at 32K: needs 41.0 GiB, 23.0 usable; fits up to 22,784 tokens"),
        (verdict_with((*weights(41), LINES[1]), max_context=0, cache="q8_0"), "Does not fit your RTX 4090 at 32K, even with an 8-bit cache: needs 43.0 GiB, 23.0 usable"),
        (verdict_with((*weights(41), LINES[1]), max_context=0, cache="q8_0", asked=False), "Does not fit your RTX 4090, even at 32K with an 8-bit cache: needs 43.0 GiB, 23.0 usable"),
        (verdict_with((*weights(41), LINES[1]), max_context=0, cache="q8_0", cache_asked=True), "Does not fit your RTX 4090 at 32K with an 8-bit cache: needs 43.0 GiB, 23.0 usable"),
        (verdict_with((*weights(41), LINES[1]), max_context=0, cache="f32", cache_asked=True, asked=False), "Does not fit your RTX 4090 with an f32 cache, even at 32K: needs 43.0 GiB, 23.0 usable"),
        (verdict_with(weights(41), max_context=0, variant=VARIANT, quantization="IQ4_XS"), "Does not fit your RTX 4090 at IQ4_XS and 32K: needs 41.0 GiB, 23.0 usable"),
        # 39 of 38 GiB in both memories together, and 25 of 23 on the card with enough RAM for the rest
        (verdict_with((*weights(37), line(Component.WEIGHTS, 2 * GIB, HOST)), MACHINE, max_context=0), "Does not fit your RTX 4090 at 32K: needs 39.0 GiB, 38.0 usable in all"),
        (verdict_with(weights(25), MACHINE, max_context=0), "Does not fit your RTX 4090 at 32K: needs 25.0 GiB, 23.0 usable"),
        (verdict_with(weights(23.01), max_context=0), "Does not fit your RTX 4090 at 32K: needs 23.01 GiB, 23.00 usable"),
    ],
)  # fmt: skip
def test_headline_if_it_does_not_fit(verdict: Verdict, sentence: str) -> None:
    assert verdict.failed
    assert headline(verdict) == sentence


def verdict_with_limit(**more: Any) -> Verdict:
    """20 of 23 GiB with a further limit."""
    verdict = verdict_with(weights(20))
    uses = tuple(replace(use, **more) for use in verdict.uses)
    return replace(verdict, uses=uses, status=max((use.status for use in uses), key=_order), max_context=0)  # fmt: skip


def _order(status: Any) -> int:
    return ("passed", "warning", "failed").index(status.value)


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"max_use": 0.5}, "needs 20.0 GiB, 11.5 allowed by --max-use"),
        ({"assumed": True}, "needs about 20.0 GiB, 23.0 usable, and an estimate may take 85 % of that (rough estimate)"),
        ({"bound_bytes": 5 * GIB}, "may need 25.0 GiB, 24.0 free"),
    ],
)  # fmt: skip
def test_headline_names_the_rule_if_less_than_usable_does_not_fit(
    rule: dict[str, Any], sentence: str
) -> None:
    assert headline(verdict_with_limit(**rule)) == f"Does not fit your RTX 4090 at 32K: {sentence}"


def test_headline_says_that_a_job_was_cut_to_the_models_context() -> None:
    window = (
        "prompt 60,000 + 800 new tokens + 64 spare, cut to the model's context length of 32,768"
    )
    assert headline(verdict_with(window=window)).endswith("at 32K (the model's limit, shorter than the job)")  # fmt: skip


def test_headline_of_a_bare_name_says_that_it_is_an_estimate() -> None:
    assert headline(verdict_with(), from_name=True).endswith("at 32K (rough estimate from the name alone)")  # fmt: skip


def test_headline_names_an_unknown_architecture() -> None:
    verdict = verdict_with(doubt="unknown architecture 'brandnew7'")
    assert headline(verdict).endswith("at 32K (rough estimate: unknown architecture 'brandnew7')")


def test_headline_of_the_cpu_and_of_a_phone() -> None:
    on = machine(ram_gib=16)
    verdict = verdict_with((line(Component.WEIGHTS, 9 * GIB, HOST),), on)
    assert headline(verdict) == "Runs on the CPU: 9.0 of 15.0 GiB at 32K"
    phone = replace(on, name="iPhone 16", system=System.OTHER, what_if=True)
    assert headline(replace(verdict, machine=phone)) == "Runs on your iPhone 16: 9.0 of 15.0 GiB at 32K"  # fmt: skip


def test_headline_names_the_fuller_of_different_cards() -> None:
    on = machine(card("RTX 4090", 24), card("RTX 3060", 12), ram_gib=None)
    lines = (line(Component.WEIGHTS, 4 * GIB), line(Component.WEIGHTS, 9 * GIB, replace(DEVICE, index=1)))  # fmt: skip
    assert headline(verdict_with(lines, on)) == "Runs fully on your RTX 4090 + RTX 3060: 9.0 of 11.0 GiB on the RTX 3060 at 32K"  # fmt: skip


def test_headline_of_unified_memory_has_experts_on_the_cpu() -> None:
    verdict = verdict_with(on=machine(card("Orin", 24, unified=True), ram_gib=24), variant=VARIANT)
    placement = replace(verdict.way, setup=LlamaCppSetup(mode=LlamaMode.SERVER, n_cpu_moe=3))
    assert headline(replace(verdict, way=placement)).startswith("Runs with the experts of 3 layers on the CPU")  # fmt: skip


def test_headline_of_the_built_in_engine_says_how_weights_are_read() -> None:
    on = machine(ram_gib=16)
    verdict = verdict_with((line(Component.WEIGHTS, GIB, HOST),), on, engine="stream")
    placement = Placement(
        setup=StreamSetup(), budgets=(), because="weights read from the file for every token"
    )
    sentence = "Runs on the built-in engine (weights read from the file for every token): 1.0 of 15.0 GiB at 32K"
    assert headline(replace(verdict, way=placement)) == sentence


def test_headline_for_several_users_has_the_speed_of_one() -> None:
    verdict = replace(
        recorded("vllm").result, speed=Speed(decode=(20.0, 80.0), prefill=None, because="")
    )
    assert headline(verdict).endswith(", about 40 tokens/s (20-80)")
    users = replace(verdict, load=Load(context_tokens=32_768, sequences=8))
    assert headline(users).endswith(", about 40 tokens/s (20-80) for one user at a time")


def test_headline_of_vllm_says_how_many_requests_fit() -> None:
    verdict = recorded("vllm").result
    times = concurrency(verdict)
    assert times is not None
    assert 1.0 <= times < 1.2
    assert headline(verdict).startswith(
        "Starts on your RTX 4090: room for one request of 36K tokens at a time"
    )
    users = replace(verdict, load=Load(context_tokens=32_768, sequences=8))
    assert headline(users).startswith(
        "Starts on your RTX 4090 for 8 users: room for one request of 36K tokens at a time"
    )


def test_concurrency_is_what_vllm_would_print() -> None:
    verdict = recorded("vllm").result
    assert verdict.variant is not None
    setup = VllmSetup.of(verdict.way.setup)
    gpu = replace(setup.gpu, memory_bytes=verdict.way.budgets[0].total_bytes)
    pool = replace(setup, gpu=gpu)
    facts = dict(engine_named("vllm").estimate(verdict.variant.model, verdict.load, pool).facts)
    assert concurrency(verdict) == pytest.approx(facts["max_concurrency"], rel=0.001)


def test_headline_of_a_blocked_vllm_has_the_reason() -> None:
    sentence = headline(recorded("vllm blocked").result)
    assert sentence.startswith("Does not start on your RTX 4090: it reserves 22.08 GiB of RTX 4090")


def test_headline_without_a_full_memory_has_the_reason() -> None:
    verdict = replace(
        verdict_with(), status=TOO_LARGE.result.status, reasons=("its context is 4,096",)
    )
    assert headline(verdict) == "Does not fit your RTX 4090: its context is 4,096"


@pytest.mark.parametrize("name", RECORDED)
def test_headline_has_one_form_for_every_verdict(name: str) -> None:
    verdict = recorded(name).result
    sentence = headline(verdict)
    assert sentence.startswith(
        ("Does not fit ", "Does not start ") if verdict.failed else ("Runs ", "Starts ", "Embeds ")
    )
    assert (", just:" in sentence) is verdict.warning
    assert "\n" not in sentence


def test_headline_figures_are_those_of_the_fuller_of_equal_cards() -> None:
    second = replace(DEVICE, index=1)
    lines = (line(Component.WEIGHTS, 4 * GIB), line(Component.WEIGHTS, 9 * GIB, second))
    verdict = verdict_with(lines, machine(card("T4", 16), card("T4", 16), ram_gib=None))
    assert (
        headline(verdict) == "Runs fully on your 2x T4: 9.0 of 15.0 GiB on the fuller card at 32K"
    )


@pytest.mark.parametrize(
    ("tokens", "exact", "rounded"),
    [
        (512, "512 tokens", "512 tokens"),
        (8192, "8K", "8K"),
        (12_345, "12,345 tokens", "12K"),
        (40_960, "40K", "40K"),
        (131_072, "128K", "128K"),
        (1_048_576, "1M", "1M"),
        (1_536 * 1024, "1,536K", "1,536K"),
    ],
)
def test_context_words(tokens: int, exact: str, rounded: str) -> None:
    assert context_words(tokens) == exact
    assert rounded_context_words(tokens) == rounded


def test_card_names_counts_equal_cards() -> None:
    cards = (card("RTX 3090", 24), card("RTX 3060", 12), card("RTX 3090", 24))
    assert card_names(cards) == "2x RTX 3090 + RTX 3060"
