"""Checks of every kind: some from lines in whole GiB, to be checked by hand, some from recorded headers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from tests.recorded import config_header
from tests.unit.plan.tasks import gguf

from edgekit.app.check import Check
from edgekit.app.estimate import EstimateAnswer
from edgekit.bill.types import (
    Change,
    ChangeKind,
    Component,
    Load,
    MemoryEstimate,
    MemoryLine,
    Placement,
    Start,
    Status,
    Task,
    Usage,
    Verdict,
)
from edgekit.engines import engine_named
from edgekit.engines.llamacpp.placements import budgets_with as llamacpp_budgets
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode
from edgekit.engines.vllm.types import VllmSetup
from edgekit.machine.types import (
    DEVICE,
    HOST,
    Budget,
    Device,
    HostMemory,
    Machine,
    Pool,
    System,
    Vendor,
)
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.plan.choice import judge
from edgekit.units import GIB, Basis


def line(component: Component, size_bytes: int, pool: Pool = DEVICE, **more: Any) -> MemoryLine:
    return MemoryLine(component=component, size_bytes=size_bytes, pool=pool, **more)


def card(name: str, gib: int, **more: Any) -> Device:
    defaults: dict[str, Any] = {
        "vendor": Vendor.NVIDIA,
        "total_bytes": gib * GIB,
        "free_bytes": gib * GIB,
    }
    return Device(name=name, **{**defaults, **more})


def machine(*cards: Device, ram_gib: int | None = 64, **more: Any) -> Machine:
    host = (
        None if ram_gib is None else HostMemory(total_bytes=ram_gib * GIB, free_bytes=ram_gib * GIB)
    )
    defaults: dict[str, Any] = {"name": "this machine", "system": System.LINUX, "host": host}
    return Machine(devices=cards, **{**defaults, **more})


def mac(gib: int) -> Machine:
    gpu = card(
        "M3 Max",
        gib,
        vendor=Vendor.APPLE,
        unified=True,
        limit_bytes=gib * GIB * 3 // 4,
        limit_because="macOS lets the GPU use 75 % of the memory by default (iogpu.wired_limit_mb)",
    )
    return machine(gpu, ram_gib=gib, name="M3 Max", system=System.MACOS)


# 8 + 2 + 1 + 0.5 GiB on a card of 24, 1 + 0.5 GiB in 16 of RAM; 1 GiB of each is reserved.
LINES = (
    line(Component.WEIGHTS, 8 * GIB),
    line(Component.KV_CACHE, 2 * GIB),
    line(Component.COMPUTE, GIB, basis=Basis.MODELLED, within=0.1),
    line(Component.RUNTIME, GIB // 2, basis=Basis.ASSUMED),
    line(Component.WEIGHTS, GIB, HOST),
    line(Component.OUTPUT, GIB // 2, HOST),
    line(Component.PROMPT_CACHE, 8 * GIB, HOST, reserved=False, basis=Basis.MODELLED),
)
MACHINE = machine(card("RTX 4090", 24), ram_gib=16)


def check_from_lines(
    lines: tuple[MemoryLine, ...] = LINES,
    on: Machine = MACHINE,
    *,
    budgets: tuple[Budget, ...] | None = None,
    **more: Any,
) -> Check:
    """A check of this bill; the status follows from lines and budgets unless it is given."""
    estimate = MemoryEstimate(
        engine="llama.cpp", backend="cuda", lines=lines, notes=("a note of the bill",)
    )
    used_budgets = llamacpp_budgets(on, on.devices) if budgets is None else budgets
    uses = tuple(
        Usage(budget=item, required_bytes=estimate.in_pools(item.pools)) for item in used_budgets
    )
    worst = (Status.PASSED, Status.WARNING, Status.FAILED)
    defaults: dict[str, Any] = {
        "engine": "llama.cpp",
        "status": max((use.status for use in uses), key=worst.index),
        "context_tokens": 32_768,
        "asked": True,
        "max_context": 74_240,
        "recommended_context": 59_392,
        "native_context": 131_072,
        "uses": uses,
        "estimate": estimate,
        "reasons": (),
        "window": "",
        "way": Placement(
            setup=LlamaCppSetup(mode=LlamaMode.SERVER),
            budgets=used_budgets,
            because="fully on RTX 4090",
            cards=on.devices,
            whole=True,
        ),
        "machine": on,
    }
    bill = EstimateAnswer(
        label="tiny.gguf",
        reference="./tiny.gguf",
        version="1.0",
        asked="32,768 tokens of context for 1 sequence",
        command="llama-server -m tiny.gguf -c 32768 -ngl all",
        notes=("a note of the model",),
        estimate=estimate,
    )
    return Check(bill=bill, result=Verdict(**{**defaults, **more}))


def with_change(check: Check, shown: str, kind: ChangeKind = ChangeKind.CACHE) -> Check:
    flags = {"type_k": "q8_0", "type_v": "q8_0"}
    change = Change(kind=kind, value="q8_0", told=shown, flags=flags, max_context=131_072)
    return replace(check, changes=(*check.changes, change))


# 20 GiB of weights and 4 of cache, with 15 usable.
TOO_LARGE = with_change(
    check_from_lines(
        (line(Component.WEIGHTS, 20 * GIB, HOST), line(Component.KV_CACHE, 4 * GIB, HOST)),
        machine(ram_gib=16),
        max_context=0,
        recommended_context=0,
        asked=False,
        window="the default minimum",
        reasons=("32,768 tokens need 24.00 GiB; RAM has 15.00 GiB usable",),
        way=Placement(setup=LlamaCppSetup(), budgets=(), because="fully on the CPU", whole=True),
    ),
    "-ctk q8_0 -ctv q8_0: fits, up to 131,072 tokens",
)
QWEN = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
    "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
}  # fmt: skip


FIXED_UTILIZATION = Start(setup=VllmSetup(), fixed_flags=frozenset({"gpu_memory_utilization"}))


def check_of(
    model: Model,
    on: Machine,
    *,
    engine: str = "llama.cpp",
    context: int | None = None,
    start: Start | None = None,
) -> Check:
    """The check of a model by the engine's own rules."""
    load = Load(context_tokens=context)
    result = judge(Task(model=model, engine=engine, machine=on, load=load, start=start or Start()))
    shown = engine_named(engine).describe(
        Load(context_tokens=result.context_tokens), result.estimate
    )
    bill = EstimateAnswer(
        label=model.header.name,
        reference=model.header.name,
        version=engine_named(engine).version(result.way.setup),
        asked=shown,
        command=f"llama-server -m {model.header.name} -c {result.context_tokens}",
        estimate=result.estimate,
    )
    return Check(bill=bill, result=result)


def qwen() -> Model:
    header = config_header(QWEN)
    return Model(header=header, geometry=read_geometry(header))


RTX_4070 = machine(card("RTX 4070", 12), ram_gib=32)
BUSY = machine(card("RTX 4090", 24, free_bytes=18 * GIB))
TWO = machine(card("RTX 3090", 24), card("RTX 3090", 24), ram_gib=128)
ALONE = machine(card("RTX 4070", 12), ram_gib=None)

# One check of every kind of verdict and machine.
RECORDED: dict[str, Callable[[], Check]] = {
    "fits": lambda: check_of(gguf("mistral-small-24b"), TWO),
    "tight": lambda: check_of(gguf("mistral-small-24b"), RTX_4070),
    "too large": lambda: check_of(gguf("llama-3.1-70b"), RTX_4070),
    "experts in RAM": lambda: check_of(gguf("qwen3-30b-a3b"), RTX_4070),
    "RAM of unknown size": lambda: check_of(gguf("qwen3-30b-a3b"), ALONE),
    "mac": lambda: check_of(gguf("gemma-3-27b"), mac(36), context=131_072),
    "nothing free": lambda: check_of(gguf("mistral-small-24b"), machine(ram_gib=1)),
    "vllm": lambda: check_of(qwen(), machine(card("RTX 4090", 24)), engine="vllm"),
    "vllm blocked": lambda: check_of(qwen(), BUSY, engine="vllm", start=FIXED_UTILIZATION),
    "mlx": lambda: check_of(qwen(), mac(16), engine="mlx"),
    "small": lambda: check_of(gguf("all-minilm-l6-v2", "F16"), machine(ram_gib=8)),
}


@cache
def recorded(name: str) -> Check:
    return RECORDED[name]()
