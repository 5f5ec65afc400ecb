"""Engine.settle: flags that, read again, are the bill that was judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.report.plans import cards, cpu, gguf, mac, planned, qwen

from edgekit.bill.types import Load, Verdict, cache_type
from edgekit.cli import main
from edgekit.engines import engine_named
from edgekit.engines.llamacpp.commands import repacking
from edgekit.engines.llamacpp.types import Cpu, LlamaCppSetup, Override
from edgekit.plan.commands import commands_of

Q8 = cache_type("q8_0")
SMALL, MOE = "qwen3-0.6b", "qwen3-30b-a3b"


def settled(verdict: Verdict, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return engine_named(verdict.engine).settle(verdict, given or {})


@pytest.mark.parametrize(
    ("verdict", "keys"),
    [
        (lambda: planned(gguf(SMALL), cpu(8)).result, {"context"}),
        (lambda: planned(gguf(SMALL), cards(24), load=Load(context_tokens=8192, cache_k=Q8, cache_v=Q8)).result, {"context", "type_k", "type_v", "n_gpu_layers"}),
        (lambda: planned(gguf("llama-3.1-70b"), cards(24), load=Load(context_tokens=16_384)).result, {"context", "n_gpu_layers", "repack"}),
        (lambda: planned(qwen(), cards(24), engine="vllm", load=Load(context_tokens=8192)).result, {"context"}),
        (lambda: planned(qwen(), mac(32), engine="mlx", kv_bits=8, quantized_kv_start=0).result, {"context", "kv_bits", "quantized_kv_start"}),
    ],
)  # fmt: skip
def test_settle_is_the_judged_bill_when_read_again(verdict: Any, keys: set[str]) -> None:
    result = verdict()
    values = settled(result)
    assert values.keys() - {"cache_ram", "ctx_checkpoints"} <= keys
    load, setup = engine_named(result.engine).setup(values)
    same = {
        name: getattr(result.way.setup, name)
        for name in ("devices", "gpu", "backend", "cpu", "overhead")
        if hasattr(result.way.setup, name)
    }
    again = engine_named(result.engine).estimate(result.variant.model, load, replace(setup, **same))
    assert again.total_bytes == result.estimate.total_bytes


def test_settle_never_replaces_a_flag_that_was_given() -> None:
    verdict = planned(
        gguf("gemma-3-27b"), cards(24, ram=16), load=Load(context_tokens=16_384)
    ).result
    assert settled(verdict)["cache_ram"] < 8192
    assert settled(verdict, {"cache_ram": 8192})["cache_ram"] == 8192


def test_settle_turns_the_devices_off_for_a_model_on_the_cpu() -> None:
    on_card = planned(gguf(SMALL), cards(24)).result
    assert "backend" not in settled(on_card)
    alone = replace(planned(gguf(SMALL), cpu(16)).result, machine=cards(24))
    assert settled(alone)["backend"] == "cpu"


def test_repacked_weights_that_do_not_fit_are_turned_off_once_for_flags_and_command() -> None:
    verdict = planned(gguf(SMALL), cpu(64)).result
    on_arm = replace(verdict.way, setup=verdict.way.setup.changed(cpu=Cpu.ARM))
    verdict = replace(verdict, way=on_arm)
    size, _ = repacking(verdict)
    assert size > 0
    for left, words in ((size, False), (size - 1, True)):
        used = tuple(
            replace(use, budget=replace(use.budget, total_bytes=use.required_bytes + left, free_bytes=use.required_bytes + left, reserve_bytes=0, has_default_reserve=False))
            for use in verdict.uses
        )  # fmt: skip
        tight = replace(verdict, uses=used)
        assert repacking(tight) == (size, not words)
        assert (settled(tight).get("repack") is False) is words
        server = commands_of(tight, label="m")[0]
        assert (" -nr" in server.text) is words


def test_no_advice_to_turn_repacking_off_where_it_is_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = ["check", "qwen3-4b", "--device", "phone-8", "--llama-version", "0.6", "--why"]
    for more, advised in (([], True), (["-nr"], False)):
        main([*line, *more])
        assert ("-nr turns it off" in " ".join(capsys.readouterr().out.split())) is advised


def test_describe_of_vllm_tells_of_the_pool_it_takes() -> None:
    verdict = planned(qwen(), cards(24), engine="vllm", load=Load(context_tokens=8192)).result
    vllm = engine_named("vllm")
    assert "such requests at once" in vllm.describe(verdict.load, vllm.taken(verdict))


def test_offload_of_engines_that_divide_nothing_is_empty() -> None:
    verdict = planned(qwen(), cards(24), engine="vllm", load=Load(context_tokens=8192)).result
    assert not any(engine_named("vllm").offload(verdict))


def test_offload_counts_the_layers_on_the_cards() -> None:
    verdict = planned(gguf("llama-3.1-70b"), cards(24), load=Load(context_tokens=16_384)).result
    layers = LlamaCppSetup.of(verdict.way.setup).n_gpu_layers
    assert engine_named("llama.cpp").offload(verdict).layers == f"{layers} of 81 layers"


def test_flags_are_in_the_order_in_which_they_were_shown_before() -> None:
    """Those that were given stay in their place; the experts of whole layers come before parts of them."""
    load = Load(context_tokens=8192, microbatch_tokens=128)
    verdict = planned(gguf(SMALL), cards(24), load=load).result
    given = {"context": 8192, "ubatch": 128}
    assert list(settled(verdict, given)) == ["context", "ubatch", "n_gpu_layers"]
    parts = (Override(pattern="blk.7.ffn_down_exps", buffer="CPU"),)
    setup = verdict.way.setup.changed(n_cpu_moe=7, overrides=parts)
    moe = replace(verdict, way=replace(verdict.way, setup=setup))
    assert list(settled(moe, given))[2:] == ["n_gpu_layers", "n_cpu_moe", "override_tensor"]
