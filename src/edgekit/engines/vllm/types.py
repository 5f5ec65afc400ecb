"""How vLLM is started, in its own words, and what it makes of a model's caches."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from edgekit.units import GIB

DEFAULT_UTILIZATION = 0.92  # config/cache.py @ 0.32.0: gpu_memory_utilization


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A card as far as vLLM's choices depend on it."""

    name: str = "NVIDIA H100 80GB HBM3"
    memory_bytes: int | None = None  # None: no budget can be worked out
    total_bytes: int | None = None  # what vLLM's own defaults go by, where no budget is asked for
    capability: tuple[int, int] = (9, 0)

    @property
    def major(self) -> int:
        return self.capability[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSetup:
    """Flags of `vllm serve`. None: vLLM's own default, which may depend on the card or the model."""

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
    kv_cache_memory_bytes: int | None = None  # the pool of one card, whatever else it holds
    enforce_eager: bool = False  # no CUDA graphs
    # FlashInfer is an optional package. The recorded engine ran without it, so that is the default here.
    flashinfer: bool = False

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size


class Keeps(enum.Enum):
    """What a cache layer holds on to; each has its own rule for how many blocks a request takes."""

    FULL = "full attention"
    LATENT = "latent attention"
    WINDOW = "sliding window"
    CHUNK = "chunked attention"
    STATE = "recurrent state"


ALL_TOKENS = frozenset({Keeps.FULL, Keeps.LATENT})  # vLLM lets these share one group


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """One thing that vLLM gives a page of every block to. A model layer may have none, one or two."""

    keeps: Keeps
    form: tuple[object, ...]  # heads, widths, dtype: layers of unequal form never share a group
    token_bytes: int = 0  # of one token; 0 for a state
    state_bytes: int = 0
    state_blocks: int = 0  # that a request takes
    span_tokens: int = 0
    block_size: int = 0  # tokens in a block, once it is known
    page_padded: int = 0  # the page is stretched to so many bytes, where not 0

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in this layer."""
        return self.page_padded or self.state_bytes or self.token_bytes * self.block_size


Members = tuple[tuple[int, CacheSpec], ...]  # (layer of the model, what it keeps)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that share one table of blocks."""

    members: Members

    @property
    def spec(self) -> CacheSpec:
        return self.members[0][1]

    @property
    def page_bytes(self) -> int:
        return sum(spec.page_bytes for _, spec in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedVllm:
    """What vLLM makes of the flags, the card and the model, all lengths of a request alike."""

    dtype: str
    cache_dtype: str
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    in_flight_tokens: int  # scheduled and not settled yet: their blocks are still held
    prefix_caching: bool
    backends: tuple[str, ...]
    groups: tuple[CacheGroup, ...]  # of the whole model
    bytes_per_block: int  # on the pipeline stage where they are largest


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPool:
    """The pool of blocks, and what one request of the asked length takes of it."""

    blocks_per_group: tuple[int, ...]
    request_bytes: int
    available_bytes: int | None  # None: unknown, no card and no size given
    num_blocks: int | None  # None: unknown, or refused
    refused: str = ""

    @property
    def max_concurrency(self) -> float | None:
        blocks = sum(self.blocks_per_group)
        return self.num_blocks / blocks if self.num_blocks is not None and blocks else None


DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
CUDA_CONTEXT_BYTES = GIB // 2  # a bare CUDA context on an H200 takes 527 MiB
