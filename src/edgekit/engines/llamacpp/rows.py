"""Options as llama.cpp's own parameters name them -> a load and a setup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.bill.cache_types import CacheType, cache_type
from edgekit.bill.types import Load
from edgekit.engines.llamacpp.devices import read_overrides, read_servers
from edgekit.engines.llamacpp.types import (
    ALL_LAYERS,
    Backend,
    DeviceSlot,
    LlamaCppSetup,
    SplitMode,
    used_devices,
)
from edgekit.engines.llamacpp.versions import LlamaVersion, default_version, read_version
from edgekit.engines.row_options import LARGEST, flag, text, whole
from edgekit.errors import UsageError

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
    mode, main = _split_mode(options), whole(options, "main_gpu") or 0
    moved, rpc = text(options, "override_tensor"), text(options, "rpc")
    servers = read_servers(rpc) if rpc else ()
    own = _devices(options, split[len(servers) :], least=0 if servers else 1)
    known = "n_devices" in options or bool(split)  # else the machine says how many there are
    least = main + 1 - len(servers) if mode is SplitMode.NONE and not known else 0
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
        split_mode=mode,
        main_gpu=main,
        servers=servers,
        overrides=read_overrides(moved) if moved else (),
        devices=used_devices((*servers, *(DeviceSlot(),) * max(own, least)), mode, main),
        **_version(options)._asdict(),
    )


def _version(options: Mapping[str, Any]) -> LlamaVersion:
    asked = text(options, "llama_version")
    return default_version() if asked is None else read_version(asked)


def _backend_of(options: Mapping[str, Any]) -> str:
    """Where none is named: a GPU if anything is asked of one."""
    asked = any(
        options.get(name)
        for name in (
            "n_gpu_layers", "tensor_split", "cpu_moe", "n_cpu_moe", "split_mode", "override_tensor",
            "rpc",
        )
    )  # fmt: skip
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


def _split_mode(options: Mapping[str, Any]) -> SplitMode:
    name = text(options, "split_mode") or SplitMode.LAYER.value
    try:
        return SplitMode(name.lower())
    except ValueError as error:
        known = ", ".join(mode.value for mode in SplitMode)
        raise UsageError(f"split_mode {name[:40]!r} is not one of {known}") from error


def _devices(options: Mapping[str, Any], split: tuple[float, ...], *, least: int) -> int:
    """GPUs in addition to those of servers."""
    count = whole(options, "n_devices") or least
    if not least <= count <= MAX_DEVICES:
        raise UsageError(f"n_devices {count} is not between {least} and {MAX_DEVICES}")
    return max(count, len(split))


def _cache_type(options: Mapping[str, Any], name: str) -> CacheType | None:
    value = text(options, name)
    return None if value is None else cache_type(value)
