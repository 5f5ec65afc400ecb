"""Options as the flags of `vllm serve` name them -> a load and a setup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.bill.types import Load
from edgekit.engines.row_options import flag, text, whole
from edgekit.engines.vllm.types import DEFAULT_UTILIZATION, Gpu, VllmSetup
from edgekit.errors import UsageError


def read_row(options: Mapping[str, Any]) -> tuple[Load, VllmSetup]:
    return _load(options), _setup(options)


def _load(options: Mapping[str, Any]) -> Load:
    return Load(
        context_tokens=whole(options, "max_model_len"), sequences=whole(options, "sequences")
    )


def _setup(options: Mapping[str, Any]) -> VllmSetup:
    pool = whole(options, "kv_cache_memory_bytes")
    return VllmSetup(
        gpu=_gpu(options.get("gpu")),
        tensor_parallel_size=whole(options, "tensor_parallel_size") or 1,
        pipeline_parallel_size=whole(options, "pipeline_parallel_size") or 1,
        dtype=text(options, "dtype") or "auto",
        quantization=text(options, "quantization"),
        kv_cache_dtype=text(options, "kv_cache_dtype") or "auto",
        block_size=whole(options, "block_size"),
        max_num_seqs=whole(options, "max_num_seqs"),
        max_num_batched_tokens=whole(options, "max_num_batched_tokens"),
        enable_prefix_caching=flag(options, "enable_prefix_caching"),
        async_scheduling=flag(options, "async_scheduling") is not False,
        disable_hybrid_kv_cache_manager=bool(flag(options, "disable_hybrid_kv_cache_manager")),
        mamba_cache_dtype=text(options, "mamba_cache_dtype") or "auto",
        mamba_ssm_cache_dtype=text(options, "mamba_ssm_cache_dtype") or "auto",
        gpu_memory_utilization=_share(options),
        kv_cache_memory_bytes=whole(options, "available_kv_bytes") if pool is None else pool,
        enforce_eager=bool(flag(options, "enforce_eager")),
        flashinfer=bool(flag(options, "flashinfer")),
    )


def _gpu(described: Any) -> Gpu:
    if described is None:
        return Gpu()
    if not isinstance(described, Mapping):
        raise UsageError(
            f"gpu {described!r:.60} is not an object with name, memory_bytes, capability"
        )
    capability = described.get("capability", Gpu().capability)
    if not _is_capability(capability):
        raise UsageError(f"capability {capability!r:.60} is not two whole numbers")
    return Gpu(
        name=text(described, "name") or "",
        memory_bytes=whole(described, "memory_bytes"),
        capability=(capability[0], capability[1]),
    )


def _is_capability(value: Any) -> bool:
    two = isinstance(value, (list, tuple)) and len(value) == 2
    return two and all(type(part) is int and 0 <= part < 1000 for part in value)


def _share(options: Mapping[str, Any]) -> float:
    value = options.get("gpu_memory_utilization")
    if value is None:
        return DEFAULT_UTILIZATION
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise UsageError(
            f"gpu_memory_utilization must be above 0 and at most 1 (got {value!r:.60})"
        )
    return float(value)
