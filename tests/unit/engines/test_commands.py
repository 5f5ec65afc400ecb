"""Engines' commands modules: the flags of a verdict (settle), and what they say about its pool and its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def settle(verdict: Verdict, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The flags that make the engine run as judged."""
    return engine_named(verdict.engine).settle(verdict, given or {})


@pytest.mark.parametrize(
    ("make_verdict", "keys"),
    [
        (lambda: planned(gguf(SMALL), cpu(8)).result, {"context"}),
        (lambda: planned(gguf(SMALL), cards(24), load=Load(context_tokens=8192, cache_k=Q8, cache_v=Q8)).result, {"context", "type_k", "type_v", "n_gpu_layers"}),
        (lambda: planned(gguf("llama-3.1-70b"), cards(24), load=Load(context_tokens=16_384)).result, {"context", "n_gpu_layers", "repack"}),
        (lambda: planned(qwen(), cards(24), engine="vllm", load=Load(context_tokens=8192)).result, {"context"}),
        (lambda: planned(qwen(), mac(32), engine="mlx", kv_bits=8, quantized_kv_start=0).result, {"context", "kv_bits", "quantized_kv_start"}),
    ],
)  # fmt: skip
def test_flags_of_settle_give_the_judged_bill(
    make_verdict: Callable[[], Verdict], keys: set[str]
) -> None:
    verdict = make_verdict()
    flags = settle(verdict)
    assert flags.keys() - {"cache_ram", "ctx_checkpoints"} <= keys
    engine = engine_named(verdict.engine)
    load, setup = engine.setup(flags)
    of_machine = {
        name: getattr(verdict.way.setup, name)
        for name in ("devices", "gpu", "backend", "cpu", "overhead")
        if hasattr(verdict.way.setup, name)
    }
    assert verdict.variant is not None
    bill = engine.estimate(verdict.variant.model, load, replace(setup, **of_machine))
    assert bill.total_bytes == verdict.estimate.total_bytes


def test_settle_never_replaces_a_flag_that_was_given() -> None:
    verdict = planned(
        gguf("gemma-3-27b"), cards(24, ram=16), load=Load(context_tokens=16_384)
    ).result
    assert settle(verdict)["cache_ram"] < 8192
    assert settle(verdict, {"cache_ram": 8192})["cache_ram"] == 8192


def test_settle_has_backend_cpu_for_a_model_that_does_not_use_the_card() -> None:
    on_card = planned(gguf(SMALL), cards(24)).result
    assert "backend" not in settle(on_card)
    on_cpu = replace(planned(gguf(SMALL), cpu(16)).result, machine=cards(24))
    assert settle(on_cpu)["backend"] == "cpu"


def test_repacking_is_off_in_flags_and_command_if_it_does_not_fit() -> None:
    verdict = planned(gguf(SMALL), cpu(64)).result
    on_arm = replace(verdict.way, setup=verdict.way.setup.changed(cpu=Cpu.ARM))
    verdict = replace(verdict, way=on_arm)
    repacked_bytes, _ = repacking(verdict)
    assert repacked_bytes > 0
    for left_bytes, is_off in ((repacked_bytes, False), (repacked_bytes - 1, True)):
        used = tuple(
            replace(use, budget=replace(use.budget, total_bytes=use.required_bytes + left_bytes, free_bytes=use.required_bytes + left_bytes, reserve_bytes=0, has_default_reserve=False))
            for use in verdict.uses
        )  # fmt: skip
        tight = replace(verdict, uses=used)
        assert repacking(tight) == (repacked_bytes, not is_off)
        assert (settle(tight).get("repack") is False) is is_off
        server = commands_of(tight, label="m")[0]
        assert (" -nr" in server.text) is is_off


def test_check_advises_nr_only_if_repacking_is_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["check", "qwen3-4b", "--device", "phone-8", "--llama-version", "0.6", "--why"]
    for flags, is_advised in (([], True), (["-nr"], False)):
        main([*arguments, *flags])
        assert ("-nr turns it off" in " ".join(capsys.readouterr().out.split())) is is_advised


def test_describe_of_vllm_has_the_requests_that_its_pool_holds_at_once() -> None:
    verdict = planned(qwen(), cards(24), engine="vllm", load=Load(context_tokens=8192)).result
    vllm = engine_named("vllm")
    assert "such requests at once" in vllm.describe(verdict.load, vllm.taken(verdict))


def test_offload_of_vllm_is_empty() -> None:
    verdict = planned(qwen(), cards(24), engine="vllm", load=Load(context_tokens=8192)).result
    assert not any(engine_named("vllm").offload(verdict))


def test_offload_of_llama_cpp_counts_the_layers_on_the_cards() -> None:
    verdict = planned(gguf("llama-3.1-70b"), cards(24), load=Load(context_tokens=16_384)).result
    layers = LlamaCppSetup.of(verdict.way.setup).n_gpu_layers
    assert engine_named("llama.cpp").offload(verdict).layers == f"{layers} of 81 layers"


def test_settle_has_given_flags_first_and_ncmoe_before_ot() -> None:
    load = Load(context_tokens=8192, microbatch_tokens=128)
    verdict = planned(gguf(SMALL), cards(24), load=load).result
    given = {"context": 8192, "ubatch": 128}
    assert list(settle(verdict, given)) == ["context", "ubatch", "n_gpu_layers"]
    overrides = (Override(pattern="blk.7.ffn_down_exps", buffer="CPU"),)
    setup = verdict.way.setup.changed(n_cpu_moe=7, overrides=overrides)
    with_experts = replace(verdict, way=replace(verdict.way, setup=setup))
    assert list(settle(with_experts, given))[2:] == ["n_gpu_layers", "n_cpu_moe", "override_tensor"]
