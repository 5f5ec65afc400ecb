"""Values of llama.cpp's flags -> a load and a setup, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from edgekit.bill.types import Load, MemoryEstimate
from edgekit.engines.flags import field_values, fields_of, given_values, number, read_options
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
    default_version,
    read_servers,
    read_version,
    used_devices,
)
from edgekit.errors import UsageError
from edgekit.formats.mixes import mix_records
from edgekit.machine.types import is_arm
from edgekit.sources.filenames import SHORT_MIXES


def default_setup() -> LlamaCppSetup:
    """llama-server of the default llama.cpp version."""
    return LlamaCppSetup(mode=LlamaMode.SERVER, **default_version()._asdict())


def setup(values: Mapping[str, Any]) -> tuple[Load, LlamaCppSetup]:
    """The load and setup that the flags describe. Raises UsageError."""
    return Load(**field_values(TABLE, values, Load)), _setup(values)


def _setup(values: Mapping[str, Any]) -> LlamaCppSetup:
    version = values.get("llama_version")
    drafts = "draft_model" in values or values.get("spec_type") == "draft-mtp"
    implied = {
        "mode": "server",
        "backend": _implied_backend(values),
        "cpu": this_cpu().value,
        "load_mtp": values.get("spec_type") == "draft-mtp",
        **({"draft_max": DRAFT_MAX} if drafts else {}),
    }
    given = {**implied, **values}
    if not drafts:
        given.pop("draft_max", None)
    fields = field_values(TABLE, given, LlamaCppSetup) | {
        "devices": _devices(values),
        "servers": _given_servers(values),
    }
    billed = default_version() if version is None else read_version(version)
    return LlamaCppSetup(**fields, **billed._asdict())


def _implied_backend(values: Mapping[str, Any]) -> str:
    return values.get("backend") or ("cuda" if ON_A_GPU & values.keys() else "cpu")


def this_cpu() -> Cpu:
    """The CPU of this machine, not of a machine that is judged."""
    return Cpu.ARM if is_arm() else Cpu.X86


def _given_servers(values: Mapping[str, Any]) -> tuple[DeviceSlot, ...]:
    if not values.get("rpc"):
        return ()

    return read_servers(",".join(values["rpc"]), MAX_DEVICES)


def _devices(values: Mapping[str, Any]) -> tuple[DeviceSlot, ...]:
    memory, split = values.get("device_memory", ()), values.get("tensor_split", ())
    servers, count = _given_servers(values), values.get("devices")
    if memory and split and len(memory) + len(servers) != len(split):
        raise UsageError(
            f"--device-memory has {len(memory)} GPUs and --rpc {len(servers)} devices, "
            f"but --tensor-split has {len(split)} shares"
        )
    own = tuple(DeviceSlot(free_bytes=free) for free in memory)
    if not own:
        least = 0 if servers and values.get("backend", "cpu") == "cpu" else 1
        least = least if count is None else count
        own = (DeviceSlot(),) * max(least, len(split) - len(servers))
    mode, main = SplitMode(values.get("split_mode", "layer")), values.get("main_gpu", 0)
    if mode is SplitMode.NONE and main >= len(servers) and not (memory or split or count):
        return (DeviceSlot(number=main - len(servers)),)  # the number of GPUs is not known here
    return used_devices((*servers, *own), mode, main)


def values(load: Load, setup: LlamaCppSetup) -> dict[str, Any]:
    """The inverse of `setup`: flag values that give this load and setup."""
    found = given_values(TABLE, load, setup)
    if setup.servers:
        found["rpc"] = tuple(_server_entries(setup))
    own = [one for one in setup.devices if not one.rpc]
    if any(one.free_bytes is not None for one in own):
        memory = [one.free_bytes for one in own]
        if own[0].number is not None:  # -sm none: the other cards are no longer known
            memory *= max(own[0].number + 1, len(setup.tensor_split) - len(setup.servers))
        found["device_memory"] = tuple(memory)
    if found.pop("load_mtp", False):
        found["spec_type"] = "draft-mtp"
    implied = {
        "mode": "server",
        "cpu": this_cpu().value,
        # with servers, a GPU counts only if requested
        "backend": None if setup.servers and own else _implied_backend({**found, "backend": None}),
    }
    stated = {"mode": setup.mode.value, "cpu": setup.cpu.value, "backend": setup.backend.value}
    found = {key: value for key, value in found.items() if key not in stated}
    found |= {key: value for key, value in stated.items() if value != implied[key]}
    if not _is_default_version(setup):
        found["llama_version"] = setup.version_name
    return found


def _is_default_version(setup: LlamaCppSetup) -> bool:
    """True if the setup has the default version; False if the environment names an invalid one."""
    try:
        return (setup.rules, setup.version) == default_version()
    except UsageError:
        return False


def _server_entries(setup: LlamaCppSetup) -> Iterator[str]:
    """HOST:PORT=FREE+FREE for each server, whose devices are consecutive."""
    memory: dict[str, list[str]] = {}
    for one in setup.servers:
        endpoint = one.rpc.partition("[")[2].removesuffix("]")
        memory.setdefault(endpoint, []).append(str(one.free_bytes))
    return (f"{endpoint}={'+'.join(sizes)}" for endpoint, sizes in memory.items())


def read_row(options: Mapping[str, Any], backend: str | None) -> tuple[Load, LlamaCppSetup]:
    """A row of a batch in llama.cpp's parameters, for a program that uses the library. Raises UsageError."""
    return setup({"mode": "library", "unified": False, **_read_options(options, backend)})


def read_keywords(options: Mapping[str, Any]) -> tuple[Load, LlamaCppSetup]:
    """Python keywords, for llama-server. Raises UsageError."""
    return setup(_read_options(options, options.get("backend")))


def _read_options(options: Mapping[str, Any], backend: str | None) -> dict[str, Any]:
    given = read_options(TABLE, options)
    requests_gpu = any(options.get(name) for name in GPU_OPTIONS)
    name = str(backend or ("cuda" if requests_gpu else "cpu")).lower()
    known = [one.value for one in Backend]
    if name not in known:
        raise UsageError(f"backend {backend!r} is not one of {', '.join(known)}")
    least = 0 if given.get("rpc") else 1
    if "n_devices" in options:
        count = number("n_devices", options["n_devices"] or 0) or least
        if not least <= count <= MAX_DEVICES:
            raise UsageError(f"n_devices {count} is not between {least} and {MAX_DEVICES}")
        given["devices"] = count
    elif not least:
        given["devices"] = 0
    return {"cpu": "x86", **given, "backend": name}


def read_quant(name: str) -> str | None:
    """`--quant NAME` in llama-quantize's spelling: q4_k -> Q4_K_M."""
    upper = re.sub(r"^FP(?=16$|32$)", "F", name.upper())
    mix = SHORT_MIXES.get(upper, upper)
    return mix if mix in quant_names() else None


@cache
def quant_names() -> tuple[str, ...]:
    """The mixes that llama-quantize supports."""
    return tuple(record["name"] for record in mix_records() if "llamacpp" in record)


def placement(setup: LlamaCppSetup) -> dict[str, Any]:
    """A plan's placement as flag values."""
    if not setup.has_device:
        return {}
    layers, _, some_experts = ROUGH_PLACEMENT
    given = {
        flag.key: flag.meaning.value_of(value) if flag.meaning else value
        for flag, value, default in fields_of(FLAGS, setup)
        if flag.group == "placement" and (value != default or flag.key == layers)
    }
    if setup.cpu_moe:
        given.pop(some_experts, None)
    return {key: given[key] for key in (*ROUGH_PLACEMENT, *given) if key in given}


def describe(load: Load, estimate: MemoryEstimate) -> str:
    """The request as llama.cpp resolved it, in words."""
    facts = LoadFacts.of(estimate)
    count, shared = facts.n_seq_max, facts.kv_streams == 1
    who = "shared by" if shared and count != 1 else "for"
    kept = dict.fromkeys(kind.name if kind else "f16" for kind in (load.cache_k, load.cache_v))
    return (
        f"{facts.n_ctx:,} tokens of context {who} {count} sequence{'s' * (count != 1)}, "
        f"cache {' and '.join(kept)}, flash attention {'on' if facts.flash_attn else 'off'}"
    )
