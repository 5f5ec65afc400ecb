"""Tasks from recorded models on machines with whole GiB and round bandwidths, to be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.recorded import config_header, engine_models, rows

from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine, Task, Variant
from edgekit.engines import engine_named
from edgekit.engines.choices import as_named
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.choices import at_mixes
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup, LlamaMode, Rules
from edgekit.machine.types import HOST, Machine
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.plan.choice import for_users
from edgekit.plan.plan import Plan

LLAMA, GEMMA, MOE, LATENT = "llama-3.1-8b", "gemma-3-27b", "qwen3-30b-a3b", "deepseek-v2-lite"


def gguf(name: str, mix: str = "Q4_K_M") -> Model:
    return engine_models()[name, mix]


def of_config(name: str) -> Model:
    row = next(row for row in rows("vllm.jsonl.gz") if row["model"] == name)
    header = config_header(row["config"])
    return Model(header=header, geometry=read_geometry(header))


def task_for(model: Model, machine: Machine, engine: str = "llama.cpp", **more: Any) -> Task:
    """The model as it is, on a machine."""
    return Task(model=model, engine=engine, machine=machine, **more)


def linear_bill(bytes_per_token: int, fixed_bytes: int = 0) -> Any:
    """A bill that is a straight line over the context."""

    def bill(load: Load, _: Any) -> MemoryEstimate:
        lines = (
            (Component.KV_CACHE, (load.context_tokens or 0) * bytes_per_token),
            (Component.WEIGHTS, fixed_bytes),
        )
        return MemoryEstimate(
            engine="llama.cpp",
            backend="cpu",
            lines=tuple(
                MemoryLine(component=component, size_bytes=size, pool=HOST)
                for component, size in lines
            ),
        )

    return bill


def one_file(name: str, machine: Machine, context: int | None = None, **more: Any) -> Task:
    """The Q4_K_M file as the only choice."""
    return _task(name, as_named(gguf(name)), machine, "llama.cpp", context, **more)


def any_mix(name: str, machine: Machine, context: int | None = None, **more: Any) -> Task:
    """Every quantisation that llama-quantize could make of the model."""
    return _task(name, at_mixes(gguf(name, "F16")), machine, "llama.cpp", context, **more)


def from_config(
    name: str, machine: Machine, engine: str, context: int | None = None, **more: Any
) -> Task:
    variants = engine_named(engine).variants(of_config(name))
    return _task(name, variants, machine, engine, context, **more)


def _task(
    name: str,
    variants: tuple[Variant, ...],
    machine: Machine,
    engine: str,
    context: int | None,
    **more: Any,
) -> Task:
    load, model = more.pop("load", Load(context_tokens=context)), variants[0].model
    load = for_users(load, more.get("users"), engine, model)
    return Task(
        label=name,
        model=model,
        variants=variants,
        engine=engine,
        machine=machine,
        load=load,
        **more,
    )


def rated(machine: Machine, *, host: int = 60, card: int = 500) -> Machine:
    """The machine with bandwidths in GB/s; without them no speed is known."""
    memory = machine.host and replace(machine.host, bandwidth_bytes_per_s=host * 10**9)
    devices = tuple(
        replace(
            device,
            bandwidth_bytes_per_s=card * 10**9,
            fp32_flops=36 * 10**12,
            matrix_flops=71 * 10**12,
        )
        for device in machine.devices
    )
    return replace(machine, host=memory, devices=devices)


def billed(name: str, load: Load, **setup: Any) -> int:
    """Total bytes of llama-server, straight from the engine's rules."""
    llamacpp_setup = LlamaCppSetup(
        mode=LlamaMode.SERVER, backend=Backend.CPU, rules=Rules.V0_5, **setup
    )
    return llamacpp.estimate(gguf(name), load, llamacpp_setup).total_bytes


def is_within(plan: Plan) -> bool:
    """Whether every memory of the plan stays within what is usable."""
    return all(use.required_bytes <= use.budget.available_bytes for use in plan.result.uses)
