"""Values that llama.cpp's rules share: versions, the setup, the resolved context, and where tensors are.

llama.cpp numbers builds by commit (b9294) and, since August 2026, versions (0.1.0, 0.2.0 ...). Wheels of xllamacpp are
named by month and build: 2026.5.9294.
"""

from __future__ import annotations

import enum
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.bill.types import F16, CacheType, MemoryEstimate, Setup
from edgekit.errors import UsageError
from edgekit.machine.types import HOST, Pool, PoolKind
from edgekit.model.types import (
    Attention,
    CompressedAttention,
    ModelGeometry,
    Span,
    attention_of,
)
from edgekit.units import parse_size

if TYPE_CHECKING:
    from edgekit.engines.llamacpp.slices import Slicer


# -- versions ----------------------------------------------------------------------------------

VARIABLE = "EDGEKIT_LLAMA_VERSION"
WHEEL, SERVER = "xllamacpp", "llama-server"  # programs that `edgekit run` starts


class Rules(enum.IntEnum):
    """Builds that changed the bill, to be compared with `rules >= Rules.F16_MASK`. Where the exact build of a change
    is not known, the builds in question follow the rule that needs more memory.
    """

    ROTATION_PER_CACHE = 8699  # llama-kv-cache.cpp @ 4eb1951: heads of quantised caches may differ
    PER_LAYER_FIRST = 8711  # gemma3n-iswa.cpp @ 5764d7c: inputs of all layers are looked up first
    EXPERTS_FIRST = 8738  # llama-graph.cpp @ d6f3030: experts are added up before a shared one runs
    ROTATION_OF_VIEWS = 9027  # llama-graph.cpp @ fa59546: fused matrices do not abort with q8_0
    F16_MASK = 9410  # llama-graph.cpp @ 031ddb2: flash attention has an f16 mask from the start
    SLICED_QUANTISED = 9455  # llama-context.cpp @ 8e6fff8: -sm tensor with quantised caches
    ROW_PER_SEQUENCE = 9460  # server-context.cpp @ de6f727: not a row of logits for every token
    WITHOUT_ROWS = 9890  # ggml-cuda.cu @ 74976e1: no -sm row
    ROPE_OFFSET = 10568  # minicpm3.cpp, deepseek2.cpp @ 873e5d8: queries are not cut to be rotated
    RPC_PIPELINED = 10587  # ggml-rpc.cpp: devices of servers work on several micro-batches in turn
    FLAT_MAMBA2 = 10809  # mamba-base.cpp: all sequences are projected as one matrix
    V0_5 = 11064  # 0c1e570: its allocations are recorded
    V0_6 = 11065  # tokens and embeddings may share a batch; states are read all at once


OLDEST = 8608  # the first build of April 2026
NEWEST = 11549  # the newest build that the rules were checked against
_CHECKED = {Rules.V0_5.value: "0.5.0-dev (0c1e570)", NEWEST: "0.6.0-dev (b11549)"}
# The last wheel of each month.
_MONTHS = {
    (2026, 4): 8929,
    (2026, 5): 9294,
    (2026, 6): 9713,
    (2026, 7): 10068,
    (2026, 8): 10566,
    (2026, 9): 11063,
    (2026, 10): NEWEST,
}
_NEWEST_NUMBER = (6, 0)  # 0.6.0
_BEFORE_0_4_1, _0_4_1 = 10809, 11063  # which call themselves 0.4.0-dev and 0.4.1-dev
_LEAST_BUILD = 1000  # a source archive reports build 0 or 1

_BUILD = re.compile(r"(?:b(?=\d)|(?=\d{4}))(\d{1,6})(?: \([0-9a-f]+\))?")
_WHEEL = re.compile(
    r"(20\d\d)\.(\d{1,2})(?:\.(\d+))?(?:\.\d+)?(?:\.?(?:post|dev|rc)\d+)?(?:\+\S+)?"
)
_NUMBER = re.compile(
    r"v?0\.(\d{1,3})(?:\.(\d{1,3}))?(?:-dev)?(?: \((?:(?:build |b(?=\d{4,6}\)))(\d+)(?:, commit \w+)?|\w+)\))?"
)


class LlamaVersion(NamedTuple):
    """One version, as fields of LlamaCppSetup."""

    rules: int  # a build: this version, or one with the same bill
    version: str | None = None  # its name, if the rules were checked against another


def read_version(text: str) -> LlamaVersion:
    """Reads b9294, 0.5, 0.6.0-dev, 2026.9, 2026.10.11549, or the output of `llama-server --version`.

    Raises UsageError for other text, and for versions before April 2026.
    """
    lines = text.strip().splitlines() or [""]
    name = lines[0].removeprefix("version:").strip().lower()
    if match := _BUILD.fullmatch(name):
        return _of_build(int(match[1]))
    if match := _WHEEL.fullmatch(name):
        year, month, build = int(match[1]), int(match[2]), int(match[3] or 0)
        if build >= _LEAST_BUILD:
            return _of_build(build)
        if not 1 <= month <= 12:
            raise UsageError(f"{year}.{month} is not a llama.cpp version: a month is 1 to 12")
        if (year, month) > max(_MONTHS):
            return LlamaVersion(NEWEST, f"{year}.{month}")
        if (year, month) not in _MONTHS:
            raise UsageError(
                f"llama.cpp of {year}.{month} is too old: edgekit supports April 2026 and newer"
            )
        return _of_build(_MONTHS[year, month])
    if match := _NUMBER.fullmatch(name):
        minor, patch, build = int(match[1]), int(match[2] or 0), int(match[3] or 0)
        if build >= _LEAST_BUILD:
            return _of_build(build)
        name = f"0.{minor}.{patch}"
        if minor >= 6:
            return LlamaVersion(NEWEST, name if (minor, patch) > _NEWEST_NUMBER else None)
        if minor == 5:
            return LlamaVersion(Rules.V0_5)
        return LlamaVersion(_BEFORE_0_4_1 if (minor, patch) < (4, 1) else _0_4_1, name)
    raise UsageError(
        f"{name[:40]!r} is not a llama.cpp version: write for example b{NEWEST}, 0.6 or 2026.10"
    )


def _of_build(build: int) -> LlamaVersion:
    """The version with this build number. Raises UsageError for builds before April 2026."""
    if build < OLDEST:
        raise UsageError(
            f"llama.cpp b{build} is too old: edgekit supports b{OLDEST} (April 2026) and newer"
        )
    # Stands for the recorded release 0.5, not for the build with this number.
    if build == Rules.V0_5:
        build = Rules.V0_6
    return LlamaVersion(min(build, NEWEST), None if build == NEWEST else f"b{build}")


def is_newer(version: str | None) -> bool:
    """True if a version is newer than the newest one that the rules were checked against."""
    if version is None:
        return False
    if version.startswith("b"):
        return int(version[1:]) > NEWEST
    return read_version(version).rules == NEWEST


def version_name(rules: int, version: str | None) -> str:
    """A version's name in reports: `version` if it is given, else the checked version with these rules."""
    if version is not None and read_version(version).rules == rules:
        return version
    return _CHECKED.get(rules, f"b{rules}")


def answered_version(text: str) -> LlamaVersion:
    """The version in an engine's reply, such as `2026.10.11549 (llama.cpp 0.6.0-dev)`; the newest if there is none.

    Bindings with their own numbering are identified by the library's version: `0.2.13 (llama.cpp 0.6.0-dev)`.
    """
    binding, _, library = text.partition(" (llama.cpp ")
    library = library.removesuffix(")")
    has_own_numbers = library and binding.startswith("0.")
    for name in (library,) if has_own_numbers else (binding, library):
        with suppress(UsageError):
            return read_version(name)
    return LlamaVersion(NEWEST)


def wheel_version(text: str) -> LlamaVersion:
    """The llama.cpp in a wheel of xllamacpp. Wheels before 2026.4 (0.2.14) count as the oldest known build."""
    if not text.startswith("0."):
        with suppress(UsageError):
            return read_version(text)
    return LlamaVersion(OLDEST)


def named_version() -> LlamaVersion | None:
    """The version in EDGEKIT_LLAMA_VERSION; None if it is not set. Raises UsageError."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    try:
        return read_version(named)
    except UsageError as error:
        raise UsageError(f"{VARIABLE}: {error}") from None


@cache
def installed_version() -> LlamaVersion | None:
    """The installed wheel's version, or None.

    Read from the name of its metadata folder, because importlib.metadata takes longer than a complete estimate.
    """
    pattern = re.compile(rf"{WHEEL}-(.+)\.dist-info")
    for folder in sys.path:
        with suppress(OSError):
            for path in Path(folder).iterdir():
                if match := pattern.fullmatch(path.name):
                    return wheel_version(match[1])
    return None


# -- setups ------------------------------------------------------------------------------------


class LlamaMode(enum.Enum):
    """How llama.cpp is used: decides the rows of logits and whether sequences share the cache."""

    # llama-cli, llama-bench, bindings: every token of a micro-batch may have logits
    LIBRARY = "library"
    SERVER = "server"  # llama-server: one row per sequence, four sequences in one cache


class Backend(enum.Enum):
    CPU = "cpu"
    CUDA = "cuda"
    HIP = "hip"  # AMD's ROCm: the kernels of CUDA, compiled for AMD
    METAL = "metal"
    VULKAN = "vulkan"
    SYCL = "sycl"  # Intel's oneAPI


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
MOST_PORTS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSlot:
    """What placement needs to know about a GPU or an RPC device."""

    free_bytes: int | None = None  # decides the split of layers if none is given
    max_buffer_bytes: int | None = None  # Metal: a longer span of the file is mapped in pieces
    rpc: str = ""  # of an RPC server: llama.cpp's name for its buffers, "RPC0[10.0.0.5:50052]"
    number: int | None = None  # of a GPU, if it differs from its index in the list


def read_servers(text: str, most: int) -> tuple[DeviceSlot, ...]:
    """Reads the servers of --rpc (HOST:PORT=FREE,...) as up to `most` devices. Raises UsageError.

    A server with several devices lists the free memory of each: 24G+24G.
    """
    slots: list[DeviceSlot] = []
    for entry in text.split(","):
        endpoint, _, memory = entry.partition("=")
        host, _, port = endpoint.rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port[:6]) < MOST_PORTS):
            raise UsageError(f"{entry[:60]!r} is not a server such as 192.168.1.5:50052=24G")
        if not memory:
            raise UsageError(
                f"the free memory of {endpoint[:60]} is not known: add it, as in {endpoint[:60]}=24G "
                "(for a server with two devices =24G+24G)"
            )
        slots += (
            DeviceSlot(free_bytes=parse_size(size), rpc=f"RPC{index}[{endpoint}]")
            for index, size in enumerate(memory.split("+"))
        )
    if len(slots) > most:
        raise UsageError(f"{len(slots)} devices are more than {most}")
    return tuple(slots)


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
class LlamaCppSetup(Setup):
    """How llama.cpp runs: its program, devices, placement and build."""

    mode: LlamaMode = LlamaMode.LIBRARY
    backend: Backend = Backend.CPU
    n_gpu_layers: int = ALL_LAYERS
    n_cpu_moe: int = 0  # the experts of the first N blocks stay on the host
    cpu_moe: bool = False  # the experts of all blocks stay on the host
    devices: tuple[DeviceSlot, ...] = (DeviceSlot(),)
    tensor_split: tuple[float, ...] = ()
    split_mode: SplitMode = SplitMode.LAYER
    main_gpu: int = 0  # the only device with SplitMode.NONE
    # of --rpc: in `devices` as well, unless -sm none leaves them out
    servers: tuple[DeviceSlot, ...] = ()
    overrides: tuple[Override, ...] = ()  # the first match applies, before n_cpu_moe
    offload_kqv: bool = True
    repack: bool = False  # the build keeps copies of weights on the host, rearranged for the CPU
    cpu: Cpu = Cpu.X86
    load_mtp: bool = False  # blocks of multi-token prediction are loaded and run
    cache_ram_mib: int = 8192  # llama-server --cache-ram
    ctx_checkpoints: int = 32  # llama-server --ctx-checkpoints, of each slot
    ctx_shift: bool = False  # llama-server --context-shift: a full window drops its older half
    mix: str | None = None  # quantise the weights to this mix; None: as in the file
    draft_max: int = 0  # drafted tokens: N more rows of logits per sequence
    rules: int = NEWEST  # a build of llama.cpp (Rules)
    version: str | None = None  # the billed version, if not that of the rules
    overhead: Overhead | None = None  # applies only to the machine it was measured on

    @property
    def uses_nvidia(self) -> bool:
        """Whether layers are on NVIDIA GPUs."""
        return self.backend is Backend.CUDA and self.n_gpu_layers > 0

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
    """The devices that llama.cpp uses, RPC servers first; with -sm none only --main-gpu. Raises UsageError if there is
    no such device.
    """
    if mode is not SplitMode.NONE:
        return devices
    if main_gpu >= len(devices):
        choices = f"GPU 0 to {len(devices) - 1}" if len(devices) > 1 else "GPU 0 alone"
        raise UsageError(f"--main-gpu {main_gpu}: there is {choices}")
    chosen = devices[main_gpu]
    if not chosen.rpc and chosen.number is None:
        chosen = replace(chosen, number=sum(not device.rpc for device in devices[:main_gpu]))
    return (chosen,)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFacts:
    """How llama.cpp resolved a load: the facts of a bill, by their public names."""

    n_ctx: int
    n_ctx_seq: int
    n_seq_max: int
    n_batch: int
    n_ubatch: int
    n_outputs_max: int
    flash_attn: bool
    kv_cells: int  # of one stream
    kv_swa_cells: int  # of one stream of the sliding layers; 0 without any
    kv_streams: int  # 1 when all sequences share one cache

    @classmethod
    def of(cls, bill: MemoryEstimate) -> LoadFacts:
        facts: dict[str, Any] = dict(bill.facts)
        return LoadFacts(**facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(LoadFacts):
    """The resolved options of llama_context."""

    v_trans: bool  # V is stored transposed: flash attention was off when the cache was made
    type_k: CacheType = F16
    type_v: CacheType = F16
    embeddings: bool = False
    rules: int = NEWEST  # a build of llama.cpp (Rules)

    @property
    def facts(self) -> tuple[tuple[str, object], ...]:
        names = (fact.name for fact in fields(LoadFacts))
        return tuple((name, getattr(self, name)) for name in names)

    @property
    def n_tokens(self) -> int:
        """Tokens of the worst-case graph: a micro-batch, rounded up to whole sequences."""
        tokens = min(self.n_ctx, self.n_ubatch)
        return -(-tokens // self.n_seq_max) * self.n_seq_max

    @property
    def n_outputs(self) -> int:
        """Output rows of the worst-case graph; builds before ROW_PER_SEQUENCE have one for every token."""
        if self.rules < Rules.ROW_PER_SEQUENCE:
            return self.n_tokens
        return min(self.n_ctx, self.n_ubatch, self.n_outputs_max)


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
        key_dims, value_dims = set[int](), set[int]()
        latent, apart, window, widest_value, flashes = False, False, 0, 0, True
        for layer in geometry.layers:
            if isinstance(layer.mixer, CompressedAttention):
                apart, window = True, max(window, layer.mixer.window_tokens)
            attention = attention_of(layer.mixer)
            if attention is None:
                continue
            keys, values = attention.key_dim, attention.value_dim
            if isinstance(attention, Attention):
                value_heads = attention.kv_heads
                ratio = attention.heads // max(1, attention.kv_heads)
            elif attention.absorbed:
                latent = True
                keys, values = attention.latent_dim + attention.rope_dim, attention.latent_dim
                value_heads = ratio = attention.heads
            else:
                value_heads, ratio = attention.heads, 1
            key_dims.add(keys)
            value_dims.add(attention.value_dim)
            widest_value = max(widest_value, value_heads * attention.value_dim)
            flashes = flashes and has_flash_kernel(keys, values, ratio)
            if attention.span is not Span.ALL:
                window = max(window, attention.span_tokens)
        return cls(
            key_dims=frozenset(key_dims),
            value_dims=frozenset() if latent else frozenset(value_dims),
            latent=latent or apart,
            apart=apart,
            window=window,
            widest_value=widest_value,
            flashes=flashes,
        )


def has_flash_kernel(keys: int, values: int, ratio: int) -> bool:
    """True if CUDA has a flash attention kernel for these head sizes, with `ratio` heads per KV head."""
    if keys in WIDER_KEYS:
        fits = values == WIDER_KEYS[keys] and ratio % GQA_MULTIPLE.get(keys, 1) == 0
    else:
        fits = keys in SAME_HEADS and values == keys
    return fits and (keys not in NEEDS_GQA or ratio >= 2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorPlacement:
    """The pools of a model's blocks, its output and its caches."""

    blocks: tuple[Pool, ...]  # every loop of every block, including multi-token prediction
    stored_blocks: int  # number of blocks in the file: a looped model runs them several times
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
        """The pool of a block's caches: the block's own, or the host with -nkvo."""
        return self.blocks[block] if self.offload_kqv else HOST

    @property
    def ranks(self) -> int:
        """Number of devices that hold a slice of what is placed on device 0."""
        return 1 if self.slicer is None else self.slicer.devices

    @property
    def together(self) -> bool:
        """True if everything except the token embedding is on devices, and -ot moves nothing."""
        all_on_devices = self.output is not HOST and HOST not in self.blocks
        moved = self.overridden or self.host_expert_blocks
        return all_on_devices and self.offload_kqv and not moved

    @property
    def used(self) -> frozenset[Pool]:
        """Devices that hold a block, the output or a tensor that was moved there."""
        pools = {*self.blocks, self.output, *self.moved.values()}
        shared = self.slicer or self.rows
        if shared and any(pool.kind is PoolKind.DEVICE for pool in pools):
            pools |= {Pool(PoolKind.DEVICE, index) for index in range(shared.devices)}
        return frozenset(pool for pool in pools if pool.kind is PoolKind.DEVICE)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools that hold weights of blocks."""
        return tuple(dict.fromkeys(self.blocks[: self.stored_blocks]))


@dataclass(slots=True)
class TensorGroup:
    """Tensors that are always placed together."""

    name: str  # of one of them
    block: int | None
    is_idle: bool
    count: int = 0
    host_bytes: int = 0
    device_bytes: int = 0


def pad(value: int, multiple: int) -> int:
    """The value, rounded up to a multiple."""
    return -(-value // multiple) * multiple
