"""Options as llama.cpp's own parameters name them -> a load and a setup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.engine.llamacpp.types import (
    ALL_LAYERS,
    Backend,
    Device,
    LlamaCppSetup,
)
from edgekit.engine.llamacpp.versions import LlamaVersion, default_version, read_version
from edgekit.engine.row_options import LARGEST, flag, text, whole
from edgekit.errors import UsageError
from edgekit.memory.cache_types import CacheType, cache_type
from edgekit.memory.types import Load

_FLASH = {"on": True, "off": False, "auto": None, True: True, False: False, None: None}
MAX_DEVICES = 16  # ggml-cuda.h: GGML_CUDA_MAX_DEVICES
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
        unified=flag(options, "kv_unified") or False,
        full_window=flag(options, "swa_full") or False,
    )


def _setup(options: Mapping[str, Any], backend: str | None) -> LlamaCppSetup:
    kind = _BACKENDS.get(str(backend or _backend_of(options)).lower())
    if kind is None:
        raise UsageError(f"backend {backend!r} is not one of {', '.join(_BACKENDS)}")
    layers, split = whole(options, "n_gpu_layers"), _split(options)
    return LlamaCppSetup(
        backend=kind,
        n_gpu_layers=ALL_LAYERS if layers is None or layers < 0 else layers,
        cpu_moe=flag(options, "cpu_moe") or False,
        n_cpu_moe=whole(options, "n_cpu_moe") or 0,
        offload_kqv=flag(options, "offload_kqv") is not False,
        use_mmap=flag(options, "use_mmap") is not False,
        embeddings=flag(options, "embeddings") or False,
        load_mtp=flag(options, "load_mtp") or False,
        mix=text(options, "mix"),
        tensor_split=split,
        devices=(Device(),) * _devices(options, split),
        **_version(options)._asdict(),
    )


def _version(options: Mapping[str, Any]) -> LlamaVersion:
    asked = text(options, "llama_version")
    return default_version() if asked is None else read_version(asked)


def _backend_of(options: Mapping[str, Any]) -> str:
    """Where none is named: a GPU if anything is asked of one."""
    asked = any(
        options.get(name) for name in ("n_gpu_layers", "tensor_split", "cpu_moe", "n_cpu_moe")
    )
    return Backend.CUDA.value if asked else Backend.CPU.value


def _split(options: Mapping[str, Any]) -> tuple[float, ...]:
    shares = options.get("tensor_split") or ()
    if not isinstance(shares, list | tuple) or len(shares) > MAX_DEVICES:
        raise UsageError(f"tensor_split {shares!r:.60} is not a list of up to {MAX_DEVICES} shares")
    for share in shares:
        if (
            isinstance(share, bool)
            or not isinstance(share, int | float)
            or not 0 <= share <= LARGEST
        ):
            raise UsageError(f"tensor_split: {share!r:.60} is not a share")
    return tuple(float(share) for share in shares)


def _devices(options: Mapping[str, Any], split: tuple[float, ...]) -> int:
    count = whole(options, "n_devices") or 1
    if not 1 <= count <= MAX_DEVICES:
        raise UsageError(f"n_devices {count} is not between 1 and {MAX_DEVICES}")
    return max(count, len(split))


def _cache_type(options: Mapping[str, Any], name: str) -> CacheType | None:
    value = text(options, name)
    return None if value is None else cache_type(value)
