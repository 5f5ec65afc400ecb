"""How llama.cpp is started, in its own words."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from edgekit.memory.cache_types import F16, CacheType


class Mode(enum.Enum):
    """Who calls llama.cpp: it decides how many rows of logits are kept and how sequences share the cache."""

    LIBRARY = (
        "library"  # llama-cli, llama-bench, bindings: every token of a micro-batch may have logits
    )
    SERVER = "server"  # llama-server: one row per sequence, four sequences in one cache


class Backend(enum.Enum):
    CPU = "cpu"
    CUDA = "cuda"
    METAL = "metal"
    VULKAN = "vulkan"


class Cpu(enum.Enum):
    """What a build that is made for its own CPU is made for."""

    X86 = "x86"
    ARM = "arm"


class Rules(enum.Enum):
    """The version whose graphs are built."""

    V0_5 = "0.5.0-dev (0c1e570)"  # its allocations are recorded: estimates are for it
    V0_6 = "0.6.0-dev"  # tokens and embeddings may share a batch; states are read all at once


NEWEST = Rules.V0_6  # for an engine that is started here, and for versions nobody knows
_NUMBERED = re.compile(r"(?<![.\w])0\.(\d{1,3})(?:\.\d{1,3})?(?:-dev)?(?![.\w])")


def rules_for(version: str) -> Rules:
    """What a llama.cpp that calls itself so follows, as far as it is known here: 0.6.0-dev, 0.5.

    A binding may have a number of its own: `2026.10 (llama.cpp 0.6.0-dev)`.
    """
    found = _NUMBERED.search(version.rpartition("(llama.cpp ")[2])
    return Rules.V0_5 if found is not None and int(found[1]) <= 5 else NEWEST


ALL_LAYERS = 1_000_000  # beyond the blocks of any header


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU as far as placement cares."""

    free_bytes: int | None = None  # layers are split by it where no split is asked for
    max_buffer_bytes: int | None = None  # Metal: a longer span of the file is mapped in pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What a process of llama.cpp was measured to hold on the host beside its bill."""

    size_bytes: int
    because: str  # "measured on this machine with xllamacpp 2026.10"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSetup:
    mode: Mode = Mode.LIBRARY
    backend: Backend = Backend.CPU
    n_gpu_layers: int = ALL_LAYERS
    n_cpu_moe: int = 0  # experts of the first so many blocks stay on the host
    cpu_moe: bool = False  # those of all blocks do
    devices: tuple[Device, ...] = (Device(),)
    tensor_split: tuple[float, ...] = ()
    offload_kqv: bool = True
    use_mmap: bool = True
    repack: bool = False  # the build keeps copies of weights on the host, rearranged for the CPU
    cpu: Cpu = Cpu.X86
    embeddings: bool = False
    load_mtp: bool = False  # blocks of multi-token prediction are loaded and run
    cache_ram_mib: int = 8192  # llama-server --cache-ram
    ctx_checkpoints: int = 32  # llama-server --ctx-checkpoints, of each slot
    ctx_shift: bool = False  # llama-server --context-shift: a full window drops its older half
    mix: str | None = None  # as if the weights were quantised so; None: as the file has them
    draft_max: int = 0  # tokens a drafter proposes: that many more rows of logits per sequence
    rules: Rules = Rules.V0_5
    overhead: Overhead | None = None  # only of the machine that it was measured on

    @property
    def has_device(self) -> bool:
        return self.backend is not Backend.CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What llama_context makes of the options."""

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
    v_trans: (
        bool  # V is stored transposed: without flash attention, unless that was given up only later
    )
    type_k: CacheType = F16
    type_v: CacheType = F16
    embeddings: bool = False
    rules: Rules = Rules.V0_5

    @property
    def n_tokens(self) -> int:
        """Tokens of the worst-case graph: a micro-batch, rounded up to whole sequences."""
        tokens = min(self.n_ctx, self.n_ubatch)
        return -(-tokens // self.n_seq_max) * self.n_seq_max

    @property
    def n_outputs(self) -> int:
        return min(self.n_ctx, self.n_ubatch, self.n_outputs_max)


DEFAULT_BATCH = 2048  # common.h @ 0c1e570: n_batch, n_ubatch
DEFAULT_UBATCH = 512
SERVER_SLOTS = 4  # server.cpp:156 @ 0c1e570: n_parallel auto
CELL_PADDING = 256
