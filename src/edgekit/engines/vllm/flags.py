"""vLLM's flags: the table of everything that can be set."""

# ruff: noqa: E501 - a table: one row, one line
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgekit.engines import flags as common
from edgekit.engines.flags import (
    CacheFlags,
    Control,
    Flag,
    Page,
    Whole,
    number,
    share,
    text,
    yes_no,
)
from edgekit.errors import UsageError
from edgekit.units import parse_size

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.engines.vllm.types import Gpu
    from edgekit.machine.devices import KnownDevice

TITLE = "vLLM"


def _card(name: str) -> KnownDevice:
    from edgekit.machine.devices import find_device

    device = find_device(name)
    if device.capability is None:
        raise UsageError(
            f"{device.name}: EdgeKit supports vLLM on NVIDIA GPUs of the Volta generation or newer"
        )
    return device


def _row_gpu(name: str, value: object) -> Gpu:
    """The GPU of a row of a batch."""
    from edgekit.engines.vllm.types import Gpu

    if not isinstance(value, Mapping):
        raise UsageError(
            f"{name} {value!r:.60} is not an object with name, memory_bytes, capability"
        )
    capability = value.get("capability", Gpu().capability)
    is_pair = isinstance(capability, list | tuple) and len(capability) == 2
    if not is_pair or not all(type(part) is int and 0 <= part < 1000 for part in capability):
        raise UsageError(f"capability {capability!r:.60} is not two whole numbers")
    label, memory = value.get("name"), value.get("memory_bytes")
    return Gpu(
        name="" if label is None else text("name", label),
        memory_bytes=None if memory is None else number("memory_bytes", memory),
        capability=(capability[0], capability[1]),
    )


def _row_share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise UsageError(f"{name} must be above 0 and at most 1 (got {value!r:.60})")
    return float(value)


_CACHE_NAMES = (
    "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla",
    "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit",
    "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6",
)  # fmt: skip
CONTEXT = common.CONTEXT._replace(option="max_model_len")
FLAGS: tuple[Flag, ...] = (
    Flag(("-tp", "--tensor-parallel-size"), "tensor_parallel_size", "GPUs that each layer is split over (tensor parallel)", "N", Whole(1, 4096), group="cards",
         row=number, control=Control("Tensor parallel GPUs", ("1", "2", "4", "8"), "auto", is_wide=True)),
    Flag(("-pp", "--pipeline-parallel-size"), "pipeline_parallel_size", "groups of GPUs that the layers are divided among (pipeline parallel)", "N", Whole(1, 4096), group="cards", row=number),
    Flag(("--kv-cache-dtype",), "kv_cache_dtype", "KV cache type: auto (default), fp8 ...", "TYPE", group="cache",
         row=text, control=Control("KV cache type", _CACHE_NAMES, "auto", is_wide=True, place=0)),
    Flag(("--gpu-memory-utilization",), "gpu_memory_utilization", "share of the GPU's memory that vLLM may use (default 0.92)", "SHARE", share,
         row=_row_share, control=Control("GPU memory utilization", default=0.92, kind="share")),
    Flag(("--kv-cache-memory-bytes",), "kv_cache_memory_bytes", "size of the KV cache, instead of a share of the GPU: 20G", "SIZE", parse_size, row=number),
    Flag(("--max-num-seqs",), "max_num_seqs", "maximum number of requests at the same time", "N", Whole(1),
         row=number, control=Control("Max parallel requests", fact="max_num_seqs"), not_planned="--max-num-seqs: use --users N for N requests at the same time"),
    Flag(("--max-num-batched-tokens",), "max_num_batched_tokens", "maximum number of tokens computed in one step", "N", Whole(1),
         row=number, control=Control("Max batched tokens", fact="max_num_batched_tokens")),
    Flag(("--block-size",), "block_size", "tokens per block of the KV cache", "N", Whole(1, 2**20), row=number),
    Flag(("--enable-prefix-caching",), "enable_prefix_caching", "reuse the KV cache of repeated prompts (default)", row=yes_no),
    Flag(("--no-enable-prefix-caching",), "enable_prefix_caching", "do not reuse the KV cache of repeated prompts", value=False),
    Flag(("--disable-hybrid-kv-cache-manager",), "disable_hybrid_kv_cache_manager", "cache sliding-window layers like full attention", row=yes_no),
    Flag(("--dtype",), "dtype", "data type of the weights: auto (default), bfloat16, float16, float32", "TYPE", row=text),
    Flag(("-q", "--quantization"), "quantization", "same as --quant, for vLLM: fp8, awq ... (default: as the files say)", "NAME", row=text),
    Flag(("--enforce-eager",), "enforce_eager", "run without CUDA graphs", row=yes_no),
    Flag(("--no-async-scheduling",), "async_scheduling", "do not schedule the next step while one runs", value=False, row=yes_no),
    Flag(("--mamba-ssm-cache-dtype",), "mamba_ssm_cache_dtype", "data type of recurrent states", "TYPE", row=text),
    Flag(("--gpu",), "gpu", "GPU by name: H100, RTX 4090 ...", "NAME", _card, ours=True, row=_row_gpu, of_machine=True),
    Flag(("--gpu-memory",), "gpu_memory", "memory of one GPU: 80G", "SIZE", parse_size, ours=True, of_machine=True),
)  # fmt: skip
# Only rows of a batch have these: there is no flag.
ROW_ONLY = (
    Flag((), "sequences", "", "N", row=number),
    Flag((), "mamba_cache_dtype", "", "TYPE", row=text),
    Flag((), "flashinfer", "", row=yes_no),
)
TABLE = (CONTEXT, *FLAGS, *ROW_ONLY)
# vLLM takes its share of the GPU and either starts or not.
PAGE = Page(
    "vLLM",
    "vLLM",
    CacheFlags(("kv_cache_dtype",), "auto"),
    verdicts=(("passed", "Starts"), ("failed", "Does not start")),
)
UNUSED_OPTIONS = frozenset({"available_kv_bytes"})
QUANT_KEY = "quantization"
