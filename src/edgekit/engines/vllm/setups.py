"""Values of vLLM's flags -> a load and a setup, and back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from edgekit.bill.types import Load, MemoryEstimate
from edgekit.engines.flags import field_values, fields_of, given_values, number, read_options
from edgekit.engines.vllm.flags import FLAGS, TABLE
from edgekit.engines.vllm.schemes import METHODS
from edgekit.engines.vllm.types import Gpu, VllmSetup
from edgekit.errors import UsageError
from edgekit.machine.devices import KnownDevice, find_device
from edgekit.units import GIB


def default_setup() -> VllmSetup:
    return VllmSetup()


def setup(values: Mapping[str, Any]) -> tuple[Load, VllmSetup]:
    """The load and the setup that flags describe. Raises UsageError."""
    load = field_values(TABLE, values, Load)
    load["context_tokens"] = values.get("context") or None
    return Load(**load), VllmSetup(
        **{**field_values(TABLE, values, VllmSetup), "gpu": _gpu(values)}
    )


def _gpu(values: Mapping[str, Any]) -> Gpu:
    """The GPU that the flags --gpu and --gpu-memory describe. Raises UsageError."""
    memory: int | None = values.get("gpu_memory")
    card: KnownDevice | Gpu | None = values.get("gpu")
    if isinstance(card, Gpu):
        return card
    if memory is not None and memory < GIB:
        raise UsageError(
            f"--gpu-memory: {memory} bytes is too small for a GPU; write for example 80G"
        )
    if card is None or card.capability is None:
        return Gpu(memory_bytes=memory)
    return Gpu(name=card.name, memory_bytes=memory or card.usable_bytes, capability=card.capability)


def values(load: Load, setup: VllmSetup) -> dict[str, Any]:
    """The flags that `setup` reads as this load and setup."""
    flags = given_values(TABLE, load, replace(setup, gpu=Gpu()))
    if setup.gpu != Gpu(memory_bytes=setup.gpu.memory_bytes):
        with suppress(UsageError):  # --vram gives a size but no name
            flags["gpu"] = find_device(setup.gpu.name)
    if setup.gpu.memory_bytes is not None:
        flags["gpu_memory"] = setup.gpu.memory_bytes
    return flags


def read_row(options: Mapping[str, Any], _backend: str | None = None) -> tuple[Load, VllmSetup]:
    """A row of a batch, with the names of vLLM's own flags. Raises UsageError."""
    flags = read_options(TABLE, options)
    for key in (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "dtype",
        "kv_cache_dtype",
        "mamba_cache_dtype",
        "mamba_ssm_cache_dtype",
    ):  # 0 and "" mean not given
        if not flags.get(key, True):
            del flags[key]
    pool = options.get("available_kv_bytes") if "kv_cache_memory_bytes" not in flags else None
    if pool is not None:
        flags["kv_cache_memory_bytes"] = number("available_kv_bytes", pool)
    load, row_setup = setup(flags)
    return replace(load, context_tokens=flags.get("context")), row_setup


def read_quant(name: str) -> str | None:
    """The quantisation of `--quant NAME` as vLLM calls it."""
    lower = "modelopt_fp4" if name.lower() == "nvfp4" else name.lower()
    return lower if lower in METHODS or lower.startswith("fp8") else None


def quant_names() -> tuple[str, ...]:
    return tuple(sorted(METHODS))


def placement(setup: VllmSetup) -> dict[str, Any]:
    """The placement of a plan as values of flags."""
    return {
        flag.key: value
        for flag, value, default in fields_of(FLAGS, setup)
        if value != default and (flag.group == "cards" or flag.key == "gpu_memory_utilization")
    }


def describe(load: Load, estimate: MemoryEstimate) -> str:
    """The request as vLLM resolved it, and the capacity of the pool."""
    facts: dict[str, Any] = dict(estimate.facts)
    cache = facts["dtype"] if facts["kv_cache_dtype"] == "auto" else facts["kv_cache_dtype"]
    cards = f" on each of {facts['world_size']} cards" if facts["world_size"] > 1 else ""
    request = f"requests of up to {facts['max_model_len']:,} tokens{cards}, cache {cache}, "
    if facts["refused"]:
        return f"{request}not even one of which fits"
    if facts["max_concurrency"] is None:
        count = load.sequences or 1
        return f"{request}GPU memory unknown (add --gpu): cache for {count} such request{'s' * (count > 1)}"
    return f"{request}blocks of {facts['block_size']}: room for {facts['max_concurrency']:,.2f} such requests at once"
