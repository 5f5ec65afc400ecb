"""How llama.cpp is started, with llama.cpp's own names."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.bill.types import F16, CacheType, MemoryEstimate
from edgekit.engines.llamacpp.versions import NEWEST, Rules, version_name
from edgekit.errors import UsageError
from edgekit.machine.types import HOST, Pool, PoolKind
from edgekit.model.types import (
    Attention,
    CompressedAttention,
    LatentAttention,
    ModelGeometry,
    Span,
    attention_of,
)

if TYPE_CHECKING:
    from edgekit.engines.llamacpp.slices import Slicer


class LlamaMode(enum.Enum):
    """How llama.cpp is used: decides the rows of logits and whether sequences share the cache."""

    LIBRARY = (
        "library"  # llama-cli, llama-bench, bindings: every token of a micro-batch may have logits
    )
    SERVER = "server"  # llama-server: one row per sequence, four sequences in one cache


class Backend(enum.Enum):
    CPU = "cpu"
    CUDA = "cuda"
    METAL = "metal"
    VULKAN = "vulkan"


class SplitMode(enum.Enum):
    """How a model is divided among several devices: -sm."""

    NONE = "none"  # one device holds all of it (--main-gpu)
    LAYER = "layer"
    ROW = "row"  # rows of matrices; llama.cpp had it on CUDA until July 2026
    TENSOR = "tensor"  # slices of matrices and caches: every device works on every layer


class Cpu(enum.Enum):
    """The CPU family that a native build targets."""

    X86 = "x86"
    ARM = "arm"


ALL_LAYERS = 1_000_000  # more than any model has


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSlot:
    """What placement needs to know about a GPU or an RPC device."""

    free_bytes: int | None = None  # decides the split of layers if none is given
    max_buffer_bytes: int | None = None  # Metal: a longer span of the file is mapped in pieces
    rpc: str = ""  # of an RPC server: llama.cpp's name for its buffers, "RPC0[10.0.0.5:50052]"
    number: int | None = None  # of a GPU, if it differs from its index in the list


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Measured host memory of a llama.cpp process beyond its bill."""

    size_bytes: int
    because: str  # "measured on this machine with xllamacpp 2026.10"


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One entry of -ot: tensors whose names match the pattern go to that buffer type."""

    pattern: str
    buffer: str  # "CPU", "CUDA0", "RPC0[10.0.0.5:50052]"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSetup:
    mode: LlamaMode = LlamaMode.LIBRARY
    backend: Backend = Backend.CPU
    n_gpu_layers: int = ALL_LAYERS
    n_cpu_moe: int = 0  # the experts of the first N blocks stay on the host
    cpu_moe: bool = False  # the experts of all blocks stay on the host
    devices: tuple[DeviceSlot, ...] = (DeviceSlot(),)
    tensor_split: tuple[float, ...] = ()
    split_mode: SplitMode = SplitMode.LAYER
    main_gpu: int = 0  # the only device with SplitMode.NONE
    servers: tuple[
        DeviceSlot, ...
    ] = ()  # of --rpc: in `devices` as well, unless -sm none leaves them out
    overrides: tuple[Override, ...] = ()  # the first match applies, before n_cpu_moe
    offload_kqv: bool = True
    use_mmap: bool = True
    repack: bool = False  # the build keeps copies of weights on the host, rearranged for the CPU
    cpu: Cpu = Cpu.X86
    embeddings: bool = False
    load_mtp: bool = False  # blocks of multi-token prediction are loaded and run
    cache_ram_mib: int = 8192  # llama-server --cache-ram
    ctx_checkpoints: int = 32  # llama-server --ctx-checkpoints, of each slot
    ctx_shift: bool = False  # llama-server --context-shift: a full window drops its older half
    mix: str | None = None  # quantise the weights to this mix; None: as in the file
    draft_max: int = 0  # drafted tokens: N more rows of logits per sequence
    rules: int = NEWEST  # a build of llama.cpp (versions.py)
    version: str | None = None  # the billed version, if not that of the rules
    overhead: Overhead | None = None  # applies only to the machine it was measured on

    @property
    def has_device(self) -> bool:
        return self.backend is not Backend.CPU

    @property
    def version_name(self) -> str:
        """The billed llama.cpp version, as reports name it."""
        return version_name(self.rules, self.version)


def used_devices(
    devices: tuple[DeviceSlot, ...], mode: SplitMode, main_gpu: int = 0
) -> tuple[DeviceSlot, ...]:
    """The devices that llama.cpp uses, servers first; one with -sm none. Raises UsageError."""
    if mode is not SplitMode.NONE:
        return devices
    if main_gpu >= len(devices):
        there = f"GPU 0 to {len(devices) - 1}" if len(devices) > 1 else "GPU 0 alone"
        raise UsageError(f"--main-gpu {main_gpu}: there is {there}")
    chosen = devices[main_gpu]
    if not chosen.rpc and chosen.number is None:
        chosen = replace(chosen, number=sum(not one.rpc for one in devices[:main_gpu]))
    return (chosen,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The resolved options of llama_context."""

    n_ctx: int
    n_ctx_seq: int
    n_seq_max: int
    n_batch: int
    n_ubatch: int
    n_outputs_max: int
    streams: int  # 1 when all sequences share one cache
    cells: int  # of one stream
    swa_cells: int  # of one stream of the sliding layers; 0 without any
    flash_attn: bool
    v_trans: bool  # V is stored transposed: flash attention was off when the cache was made
    type_k: CacheType = F16
    type_v: CacheType = F16
    embeddings: bool = False
    rules: int = NEWEST  # a build of llama.cpp (versions.py)

    @property
    def n_tokens(self) -> int:
        """Tokens of the worst-case graph: a micro-batch, rounded up to whole sequences."""
        tokens = min(self.n_ctx, self.n_ubatch)
        return -(-tokens // self.n_seq_max) * self.n_seq_max

    @property
    def n_outputs(self) -> int:
        if self.rules < Rules.ROW_PER_SEQUENCE:
            return self.n_tokens
        return min(self.n_ctx, self.n_ubatch, self.n_outputs_max)


class LoadFacts(NamedTuple):
    """How llama.cpp resolved a load: the facts of a bill, by their public names."""

    n_ctx: int
    n_ctx_seq: int
    n_seq_max: int
    n_batch: int
    n_ubatch: int
    n_outputs_max: int
    flash_attn: bool
    kv_cells: int
    kv_swa_cells: int
    kv_streams: int

    @classmethod
    def of(cls, bill: MemoryEstimate) -> LoadFacts:
        facts: dict[str, Any] = dict(bill.facts)
        return cls(**facts)


DEFAULT_BATCH = 2048  # common.h @ 0c1e570: n_batch, n_ubatch
DEFAULT_UBATCH = 512
SERVER_SLOTS = 4  # server.cpp:156 @ 0c1e570: n_parallel auto
CELL_PADDING = 256


# Heads that CUDA has a flash attention kernel for: fattn.cu @ 0c1e570
SAME_HEADS = frozenset({40, 64, 72, 80, 96, 112, 128, 256, 512})
WIDER_KEYS = {192: 128, 320: 256, 576: 512}  # K size -> the V size that has a kernel
GQA_MULTIPLE = {192: 8, 320: 32}
NEEDS_GQA = frozenset({192, 320, 512, 576})


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSizes:
    """Head sizes that options are checked against."""

    key_dims: frozenset[int]
    value_dims: frozenset[int]
    latent: bool  # V is a part of K: both must have one type
    apart: bool  # sequences always have separate caches (DeepSeek-V4)
    window: int  # sliding window in tokens; 0: none
    widest_value: int  # V elements per token in the widest layer
    flashes: bool  # CUDA has a flash attention kernel for all of them

    @classmethod
    def of(cls, geometry: ModelGeometry) -> HeadSizes:
        attentions = [found for layer in geometry.layers if (found := attention_of(layer.mixer))]
        mixers = [layer.mixer for layer in geometry.layers]
        compressed = [one for one in mixers if isinstance(one, CompressedAttention)]
        latent = any(isinstance(one, LatentAttention) and one.absorbed for one in attentions)
        windows = [one.span_tokens for one in attentions if one.span is not Span.ALL]
        windows += [one.window_tokens for one in compressed]
        return cls(
            key_dims=frozenset(_cached_key_dim(one) for one in attentions),
            value_dims=frozenset() if latent else frozenset(one.value_dim for one in attentions),
            latent=latent or bool(compressed),
            apart=bool(compressed),
            window=max(windows, default=0),
            widest_value=max((_value_width(one) for one in attentions), default=0),
            flashes=all(_has_kernel(one) for one in attentions),
        )


def _cached_key_dim(attention: Attention | LatentAttention) -> int:
    if isinstance(attention, LatentAttention) and attention.absorbed:
        return attention.latent_dim + attention.rope_dim
    return attention.key_dim


def _has_kernel(attention: Attention | LatentAttention) -> bool:
    if isinstance(attention, LatentAttention):
        if attention.absorbed:
            keys, values = _cached_key_dim(attention), attention.latent_dim
            return has_flash_kernel(keys, values, attention.heads)
        return has_flash_kernel(attention.key_dim, attention.value_dim, 1)
    ratio = attention.heads // max(1, attention.kv_heads)
    return has_flash_kernel(attention.key_dim, attention.value_dim, ratio)


def _value_width(attention: Attention | LatentAttention) -> int:
    heads = attention.heads if isinstance(attention, LatentAttention) else attention.kv_heads
    return heads * attention.value_dim


def has_flash_kernel(keys: int, values: int, ratio: int) -> bool:
    """True if CUDA has a flash attention kernel for these head sizes, with `ratio` heads per KV head."""
    if keys in WIDER_KEYS:
        fits = values == WIDER_KEYS[keys] and ratio % GQA_MULTIPLE.get(keys, 1) == 0
    else:
        fits = keys in SAME_HEADS and values == keys
    return fits and (keys not in NEEDS_GQA or ratio >= 2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorPlacement:
    """Where each block is. The output counts as the block after the last."""

    blocks: tuple[Pool, ...]  # every loop of every block, including multi-token prediction
    own_blocks: int  # number of blocks with weights: later loops reuse them
    output: Pool
    offload_kqv: bool = True
    host_expert_blocks: int = 0  # the first N blocks have their experts on the host
    host_scans: bool = False  # ssm_a stays on the host: the device has no kernel for its scan
    moved: Mapping[str, Pool] = field(default_factory=dict)  # single tensors, by their names: -ot
    overridden: bool = False  # -ot was given, even if it moves nothing
    slicer: Slicer | None = None  # -sm tensor: everything on device 0 is shared by all devices
    rows: Slicer | None = None  # -sm row: matrices are shared by all devices
    pipelined: bool = True  # -sm layer: devices may work on several micro-batches in turn

    def cache_pool(self, block: int) -> Pool:
        return self.blocks[block] if self.offload_kqv else HOST

    @property
    def ranks(self) -> int:
        """Number of devices that hold a slice of what is placed on device 0."""
        return 1 if self.slicer is None else self.slicer.devices

    @property
    def together(self) -> bool:
        """True if everything except the token embedding is on devices, and -ot moves nothing."""
        whole = self.output is not HOST and HOST not in self.blocks
        moved = self.overridden or self.host_expert_blocks
        return whole and self.offload_kqv and not moved

    @property
    def used(self) -> frozenset[Pool]:
        """Devices that hold a block, the output or a tensor that was moved there."""
        found = {*self.blocks, self.output, *self.moved.values()}
        shared = self.slicer or self.rows
        if shared and any(pool.kind is PoolKind.DEVICE for pool in found):
            found |= {Pool(PoolKind.DEVICE, i) for i in range(shared.devices)}
        return frozenset(pool for pool in found if pool.kind is PoolKind.DEVICE)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools that hold weights of blocks."""
        return tuple(dict.fromkeys(self.blocks[: self.own_blocks]))


@dataclass(slots=True)
class TensorGroup:
    """Tensors that are always placed together."""

    name: str  # of one of them
    block: int | None
    is_idle: bool
    count: int = 0
    host_bytes: int = 0
    device_bytes: int = 0
