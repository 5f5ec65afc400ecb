"""Options as llama.cpp's own parameters name them -> a load and a setup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.engine.llamacpp.types import ALL_LAYERS, Backend, Device, LlamaCppSetup
from edgekit.errors import UsageError
from edgekit.memory.cache_types import CacheType, cache_type
from edgekit.memory.types import Load

_FLASH = {"on": True, "off": False, "auto": None, True: True, False: False, None: None}
_BACKENDS = {backend.value: backend for backend in Backend}


def read_row(options: Mapping[str, Any], backend: str | None) -> tuple[Load, LlamaCppSetup]:
    return _load(options), _setup(options, backend)


def _load(options: Mapping[str, Any]) -> Load:
    flash = options.get("flash_attn")
    if not isinstance(flash, (str, bool, type(None))) or flash not in _FLASH:
        raise UsageError(f"flash_attn {flash!r} is not on, off or auto")
    return Load(
        context_tokens=whole(options, "n_ctx"),
        sequences=whole(options, "n_seq_max"),
        batch_tokens=whole(options, "n_batch"),
        microbatch_tokens=whole(options, "n_ubatch"),
        output_rows=whole(options, "n_outputs_max"),
        cache_k=_cache_type(options, "type_k"),
        cache_v=_cache_type(options, "type_v"),
        flash_attention=_FLASH[flash],
        unified=bool(options.get("kv_unified", False)),
        full_window=bool(options.get("swa_full", False)),
    )


def _setup(options: Mapping[str, Any], backend: str | None) -> LlamaCppSetup:
    kind = _BACKENDS.get(str(backend or Backend.CPU.value).lower())
    if kind is None:
        raise UsageError(f"backend {backend!r} is not one of {', '.join(_BACKENDS)}")
    layers = whole(options, "n_gpu_layers")
    split = options.get("tensor_split") or ()
    return LlamaCppSetup(
        backend=kind,
        n_gpu_layers=ALL_LAYERS if layers is None else layers,
        cpu_moe=bool(options.get("cpu_moe", False)),
        n_cpu_moe=whole(options, "n_cpu_moe") or 0,
        offload_kqv=bool(options.get("offload_kqv", True)),
        embeddings=bool(options.get("embeddings", False)),
        mix=_mix(options),
        tensor_split=tuple(float(share) for share in split),
        devices=(Device(),) * max(1, len(split), whole(options, "n_devices") or 1),
    )


def _mix(options: Mapping[str, Any]) -> str | None:
    mix = options.get("mix")
    if not isinstance(mix, str | None):
        raise UsageError("mix is not a name")
    return mix


def _cache_type(options: Mapping[str, Any], name: str) -> CacheType | None:
    value = options.get(name)
    return None if value is None else cache_type(str(value))


def whole(options: Mapping[str, Any], name: str) -> int | None:
    """A whole number, or None where it is not given."""
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} {value!r} is not a whole number")
    return value
