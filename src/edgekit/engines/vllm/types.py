"""How vLLM is started, in the names of its own flags, and how it lays out a model's caches."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from edgekit.bill.types import Setup
from edgekit.units import GIB

DEFAULT_UTILIZATION = 0.92  # config/cache.py @ 0.32.0: gpu_memory_utilization


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The facts about a GPU that vLLM's choices depend on."""

    name: str = "NVIDIA H100 80GB HBM3"
    memory_bytes: int | None = None  # None: the budget is unknown
    total_bytes: int | None = None  # decides vLLM's defaults if `memory_bytes` is None
    capability: tuple[int, int] = (9, 0)

    @property
    def major(self) -> int:
        return self.capability[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSetup(Setup):
    """Flags of `vllm serve`. None: vLLM's default, which may depend on the GPU or the model."""

    gpu: Gpu = Gpu()
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool = True
    disable_hybrid_kv_cache_manager: bool = False
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    gpu_memory_utilization: float = DEFAULT_UTILIZATION
    kv_cache_memory_bytes: int | None = None  # pool of one GPU, regardless of what else is on it
    enforce_eager: bool = False  # no CUDA graphs
    # FlashInfer is an optional package. The recorded engine ran without it, so that is the default here.
    flashinfer: bool = False

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size


class Keeps(enum.Enum):
    """What a cache layer stores; each kind has its own rule for the blocks of a request."""

    FULL = "full attention"
    LATENT = "latent attention"
    WINDOW = "sliding window"
    CHUNK = "chunked attention"
    STATE = "recurrent state"


ALL_TOKENS = frozenset({Keeps.FULL, Keeps.LATENT})  # these can share one group


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """One cache layer: it has a page in every block. A model layer may have none, one or two."""

    keeps: Keeps
    form: tuple[object, ...]  # heads, widths, dtype: layers of different form never share a group
    token_bytes: int = 0  # 0 for a state
    state_bytes: int = 0
    state_blocks: int = 0  # of one request
    span_tokens: int = 0
    block_size: int = 0  # tokens in a block, once it is known
    page_padded: int = 0  # size that the page is padded to; 0: not padded

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in this layer."""
        return self.page_padded or self.state_bytes or self.token_bytes * self.block_size


Members = tuple[tuple[int, CacheSpec], ...]  # (layer of the model, its cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that share one block table."""

    members: Members

    @property
    def spec(self) -> CacheSpec:
        return self.members[0][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedVllm:
    """The options that vLLM derives from the flags, the GPU and the model, for any length of a request."""

    dtype: str
    cache_dtype: str
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    in_flight_tokens: int  # scheduled and not finished: their blocks are still in use
    prefix_caching: bool
    backends: tuple[str, ...]
    groups: tuple[CacheGroup, ...]  # of the whole model
    bytes_per_block: int  # on the pipeline stage where they are largest


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPool:
    """The pool of blocks, and the blocks of one request of the given length."""

    blocks_per_group: tuple[int, ...]
    request_bytes: int
    num_blocks: int | None  # None: refused, or neither a GPU nor a size was given
    refused: str = ""

    @property
    def max_concurrency(self) -> float | None:
        blocks = sum(self.blocks_per_group)
        return self.num_blocks / blocks if self.num_blocks is not None and blocks else None


DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
CUDA_CONTEXT_BYTES = GIB // 2  # a bare CUDA context on an H200 takes 527 MiB
