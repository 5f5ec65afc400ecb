"""Values of llama.cpp's flags -> a load and a setup, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from edgekit.bill.types import Load, MemoryEstimate
from edgekit.engines.flags import field_values, fields_of, given_values, number, read_options
from edgekit.engines.llamacpp.default_version import default_version
from edgekit.engines.llamacpp.flags import (
    DRAFT_MAX,
    FLAGS,
    GPU_OPTIONS,
    MAX_DEVICES,
    ON_A_GPU,
    ROUGH_PLACEMENT,
    TABLE,
)
from edgekit.engines.llamacpp.types import (
    Backend,
    Cpu,
    DeviceSlot,
    LlamaCppSetup,
    LlamaMode,
    LoadFacts,
    SplitMode,
    read_servers,
    read_version,
    used_devices,
)
from edgekit.errors import UsageError
from edgekit.formats.mixes import dynamic_mix, mix_records
from edgekit.machine.types import is_arm
from edgekit.sources.quants import SHORT_MIXES


def default_setup() -> LlamaCppSetup:
    """llama-server of the default llama.cpp version."""
    return LlamaCppSetup(mode=LlamaMode.SERVER, **default_version()._asdict())


def setup(values: Mapping[str, Any]) -> tuple[Load, LlamaCppSetup]:
    """The load and setup that the flags describe. Raises UsageError."""
    load = Load(**field_values(TABLE, values, Load))
    version, uses_mtp = values.get("llama_version"), values.get("spec_type") == "draft-mtp"
    flags = {
        "mode": "server",
        "backend": _implied_backend(values),
        "cpu": this_cpu().value,
        "load_mtp": uses_mtp,
        "draft_max": DRAFT_MAX,
        **values,
    }
    if not uses_mtp and "draft_model" not in values:
        del flags["draft_max"]
    fields = field_values(TABLE, flags, LlamaCppSetup)
    servers = read_servers(",".join(values["rpc"]), MAX_DEVICES) if values.get("rpc") else ()
    fields |= {"devices": _devices(values, servers), "servers": servers}
    billed = default_version() if version is None else read_version(version)
    return load, LlamaCppSetup(**fields, **billed._asdict())


def _implied_backend(values: Mapping[str, Any]) -> str:
    """The given backend; else cuda if a flag needs a GPU, else cpu."""
    return values.get("backend") or ("cuda" if ON_A_GPU & values.keys() else "cpu")


def this_cpu() -> Cpu:
    """The CPU of this machine, not of a machine that is judged."""
    return Cpu.ARM if is_arm() else Cpu.X86


def _devices(values: Mapping[str, Any], servers: tuple[DeviceSlot, ...]) -> tuple[DeviceSlot, ...]:
    """The devices that llama.cpp uses: RPC servers first, then as many GPUs as the flags imply. Raises UsageError."""
    memory, split = values.get("device_memory", ()), values.get("tensor_split", ())
    count = values.get("devices")
    if memory and split and len(memory) + len(servers) != len(split):
        raise UsageError(
            f"--device-memory has {len(memory)} GPUs and --rpc {len(servers)} devices, "
            f"but --tensor-split has {len(split)} shares"
        )
    gpus = tuple(DeviceSlot(free_bytes=free) for free in memory)
    if not gpus:
        default = 0 if servers and values.get("backend", "cpu") == "cpu" else 1
        requested = default if count is None else count
        gpus = (DeviceSlot(),) * max(requested, len(split) - len(servers))
    mode, main_gpu = SplitMode(values.get("split_mode", "layer")), values.get("main_gpu", 0)
    if mode is SplitMode.NONE and main_gpu >= len(servers) and not (memory or split or count):
        return (DeviceSlot(number=main_gpu - len(servers)),)  # the number of GPUs is not known here
    return used_devices((*servers, *gpus), mode, main_gpu)


def values(load: Load, setup: LlamaCppSetup) -> dict[str, Any]:
    """The inverse of `setup`: flag values that give this load and setup."""
    flags = given_values(TABLE, load, setup)
    if setup.servers:
        memory_of: dict[str, list[str]] = {}  # a server's devices are consecutive
        for slot in setup.servers:
            endpoint = slot.rpc.partition("[")[2].removesuffix("]")
            memory_of.setdefault(endpoint, []).append(str(slot.free_bytes))
        flags["rpc"] = tuple(f"{name}={'+'.join(sizes)}" for name, sizes in memory_of.items())
    gpus = [slot for slot in setup.devices if not slot.rpc]
    if any(slot.free_bytes is not None for slot in gpus):
        memory = [slot.free_bytes for slot in gpus]
        if gpus[0].number is not None:  # -sm none: the other cards are no longer known
            memory *= max(gpus[0].number + 1, len(setup.tensor_split) - len(setup.servers))
        flags["device_memory"] = tuple(memory)
    if flags.pop("load_mtp", False):
        flags["spec_type"] = "draft-mtp"
    # Each of these three is given only if it differs from what `setup` takes when it is not.
    implied = {
        "mode": "server",
        "cpu": this_cpu().value,
        # with servers, a GPU counts only if requested
        "backend": None if setup.servers and gpus else _implied_backend({**flags, "backend": None}),
    }
    actual = {"mode": setup.mode.value, "cpu": setup.cpu.value, "backend": setup.backend.value}
    flags = {key: value for key, value in flags.items() if key not in actual}
    flags |= {key: value for key, value in actual.items() if value != implied[key]}
    try:
        is_default = (setup.rules, setup.version) == default_version()
    except UsageError:  # the environment names an invalid version
        is_default = False
    if not is_default:
        flags["llama_version"] = setup.version_name
    return flags


def read_row(options: Mapping[str, Any], backend: str | None) -> tuple[Load, LlamaCppSetup]:
    """Reads a row of a batch, whose options have llama.cpp's parameter names, for a program that uses the library.
    Raises UsageError.
    """
    return setup({"mode": "library", "unified": False, **_read_options(options, backend)})


def read_keywords(options: Mapping[str, Any]) -> tuple[Load, LlamaCppSetup]:
    """Reads Python keywords, for llama-server. Raises UsageError."""
    return setup(_read_options(options, options.get("backend")))


def _read_options(options: Mapping[str, Any], backend: str | None) -> dict[str, Any]:
    """Flag values for options by llama.cpp's parameter names. Raises UsageError."""
    flags = read_options(TABLE, options)
    requests_gpu = any(options.get(name) for name in GPU_OPTIONS)
    name = str(backend or ("cuda" if requests_gpu else "cpu")).lower()
    backends = [member.value for member in Backend]
    if name not in backends:
        raise UsageError(f"backend {backend!r} is not one of {', '.join(backends)}")
    least_devices = 0 if flags.get("rpc") else 1
    if "n_devices" in options:
        count = number("n_devices", options["n_devices"] or 0) or least_devices
        if not least_devices <= count <= MAX_DEVICES:
            raise UsageError(f"n_devices {count} is not between {least_devices} and {MAX_DEVICES}")
        flags["devices"] = count
    elif not least_devices:
        flags["devices"] = 0
    return {"cpu": "x86", **flags, "backend": name}


def read_quant(name: str) -> str | None:
    """`--quant NAME` in llama-quantize's spelling: q4_k -> Q4_K_M."""
    upper = re.sub(r"^FP(?=16$|32$)", "F", name.upper())
    mix = SHORT_MIXES.get(upper, upper)
    dynamic = dynamic_mix(upper)
    if dynamic is not None:
        return dynamic.name
    return mix if mix in quant_names() else None


@cache
def quant_names() -> tuple[str, ...]:
    """The mixes that llama-quantize supports."""
    return tuple(record["name"] for record in mix_records() if "llamacpp" in record)


def placement(setup: LlamaCppSetup) -> dict[str, Any]:
    """A plan's placement as flag values."""
    if not setup.has_device:
        return {}
    gpu_layers, _, some_experts = ROUGH_PLACEMENT
    flags = {
        flag.key: flag.meaning.value_of(value) if flag.meaning else value
        for flag, value, default in fields_of(FLAGS, setup)
        if flag.group == "placement" and (value != default or flag.key == gpu_layers)
    }
    if setup.cpu_moe:
        flags.pop(some_experts, None)
    return {key: flags[key] for key in (*ROUGH_PLACEMENT, *flags) if key in flags}


def describe(load: Load, estimate: MemoryEstimate) -> str:
    """The resolved context, sequences, cache types and flash attention as a phrase for reports."""
    facts = LoadFacts.of(estimate)
    count, shared = facts.n_seq_max, facts.kv_streams == 1
    relation = "shared by" if shared and count != 1 else "for"
    cache_types = dict.fromkeys(
        kind.name if kind else "f16" for kind in (load.cache_k, load.cache_v)
    )
    return (
        f"{facts.n_ctx:,} tokens of context {relation} {count} sequence{'s' * (count != 1)}, "
        f"cache {' and '.join(cache_types)}, flash attention {'on' if facts.flash_attn else 'off'}"
    )
