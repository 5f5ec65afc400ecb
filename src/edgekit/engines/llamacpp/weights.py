"""The pool of each block, tensor and cache, and the weight lines of the bill.

Follows llama-model.cpp (load_tensors) and llama-model-loader.cpp (create_tensor) @ 0c1e570.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.llamacpp.architectures import known_architecture
from edgekit.engines.llamacpp.prepared import prepare
from edgekit.engines.llamacpp.types import (
    Backend,
    Cpu,
    LlamaCppSetup,
    Override,
    SplitMode,
    TensorGroup,
    TensorPlacement,
    pad,
)
from edgekit.errors import UsageError
from edgekit.formats.types import Tensor
from edgekit.machine.types import DEVICE, HOST, Pool, PoolKind
from edgekit.model.types import Model
from edgekit.units import KIB, Basis

if TYPE_CHECKING:
    from edgekit.engines.llamacpp.slices import Slicer

DEVICE_ALIGNMENT = 128  # ggml-cuda.cu: ggml_backend_cuda_buffer_type_get_alignment
MATRIX_ROW_PADDING = 512  # ggml-cuda.cu: kernels may read quantised rows up to here

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
# llama-arch.cpp: LLM_TENSOR_LAYER_INPUT; they stay on the host.
INPUT_TENSORS = frozenset({"token_embd", "position_embd", "token_types", "per_layer_token_embd"})
# LLM_TENSOR_LAYER_REPEATING tensors without a block number belong to block 0.
FIRST_BLOCK_TENSORS = frozenset(
    {"token_embd_norm", "per_layer_model_proj", "per_layer_proj_norm", "hrm"}
)
# Tensors that every block uses: one copy in each pool that has a block.
SHARED_TENSORS = frozenset({"rope_freqs", "rope_factors_long", "rope_factors_short"})
# LFM2 calls its output norm by the name of an embedding norm.
OUTPUT_NORM_ALIASES = {"lfm2": "token_embd_norm", "lfm2moe": "token_embd_norm"}

# Tensors of a multi-token prediction block that are loaded even if it is not run.
_SHARED_HEAD = r"nextn\.(embed_tokens|shared_head_head|shared_head_norm)\."
_CHOOSING_BIAS = r"\.exp_probs_b"
LOADED_IDLE = {
    "cohere2moe": re.compile(_SHARED_HEAD),
    "deepseek32": re.compile(_CHOOSING_BIAS),
    "glm-dsa": re.compile(_CHOOSING_BIAS),
    "hy_v3": re.compile(rf"{_SHARED_HEAD}|\.ffn_|{_CHOOSING_BIAS}"),
    "step35": re.compile(
        rf"{_SHARED_HEAD}|{_CHOOSING_BIAS}|\.attn_(q_norm|k_norm|gate)\."
        r"|\.ffn_(gate|down|up)(_exps|_shexp)?\.|\.ffn_gate_inp\."
    ),
}

SCAN_STATES = frozenset({96, 128, 256})  # ggml-cuda.cu: d_state that SSM_SCAN has kernels for
# The first build of each architecture that loads blocks of multi-token prediction even if they are not run.
LOADS_PREDICTION_SINCE = {
    "cohere2moe": 9626,
    "glm-dsa": 10174,
    "hy_v3": 9993,
    "qwen35": 9180,
    "qwen35moe": 9180,
    "step35": 9480,
}
LOADS_PREDICTION_UNTIL = 10212  # 82dbc4f: from this build on they are loaded only if they are run

# llama.cpp's buffer names by backend: CUDA0, or ROCm0 in builds for AMD.
BUFFER_NAMES = {
    Backend.CPU: (),
    Backend.CUDA: ("CUDA", "ROCm"),
    Backend.HIP: ("ROCm",),
    Backend.METAL: ("MTL",),
    Backend.VULKAN: ("Vulkan",),
    Backend.SYCL: ("SYCL",),
}

_BLOCK = re.compile(r"(?:^|\.)blk\.(\d+)\.")
_EXPERTS = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")  # arg.cpp: --cpu-moe

# ggml-cpu/repack.cpp @ 0c1e570: types that are rearranged on x86 with AVX2 and on ARM with dot products.
REPACKED_TYPES = {
    Cpu.X86: frozenset({"Q2_K", "Q4_0", "Q4_K", "IQ4_NL"}),
    Cpu.ARM: frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL"}),
}
REPACK_WITHIN = 0.5  # depends on further CPU features and on row counts divisible by 8
PAGE_BYTES = 16 * KIB  # Apple silicon
FILE_ALIGNMENT = 32  # general.alignment of nearly every file


def place(model: Model, setup: LlamaCppSetup) -> TensorPlacement:
    """Decides the pool of each block, of the output and of the tensors that -ot moves.

    Raises UsageError for an invalid split, and for an override to a device that does not exist.
    """

    def compute() -> TensorPlacement:
        layers, loops = len(model.geometry.layers), model.geometry.loops
        blocks = layers + model.geometry.mtp_layers
        if known_architecture(model.geometry.architecture).caches_router:
            blocks += 1  # it counts as a layer
        pools = tuple(_block_pools(blocks, setup))
        return TensorPlacement(
            blocks=pools[:-1],
            stored_blocks=layers // loops if loops > 1 else blocks,
            output=pools[-1],
            offload_kqv=setup.offload_kqv,
            host_expert_blocks=blocks if setup.cpu_moe else min(setup.n_cpu_moe, blocks),
            host_scans=not _can_scan(model),
            moved=_override_pools(model, setup),
            overridden=bool(setup.overrides),
            slicer=_slicer(model, setup, SplitMode.TENSOR),
            rows=_slicer(model, setup, SplitMode.ROW),
            pipelined=setup.split_mode is SplitMode.LAYER,
        )

    return prepare(model).placements.get(setup, compute)


def _slicer(model: Model, setup: LlamaCppSetup, mode: SplitMode) -> Slicer | None:
    """Divides tensors among the devices; None for other split modes."""
    if setup.split_mode is not mode or not setup.has_device:
        return None
    from edgekit.engines.llamacpp.slices import Slicer  # only with -sm tensor or row

    shares = setup.tensor_split
    if mode is SplitMode.ROW and not shares:  # llama.cpp uses their total memory
        shares = tuple(float(device.free_bytes or 1) for device in setup.devices)
    return Slicer(model, len(setup.devices), shares)


def _override_pools(model: Model, setup: LlamaCppSetup) -> dict[str, Pool]:
    """The tensors that -ot places; the first matching entry applies."""
    overrides = setup.overrides
    if not overrides:
        return {}
    pools = {"CPU": HOST}  # by buffer type (arg.cpp: parse_tensor_buffer_overrides)
    count = 0
    for index, device in enumerate(setup.devices if setup.has_device else ()):
        pool = Pool(PoolKind.DEVICE, index)
        if device.rpc:
            pools[device.rpc] = pool
            continue
        number = count if device.number is None else device.number
        pools |= {f"{name}{number}": pool for name in BUFFER_NAMES[setup.backend]}
        count += 1
    for override in overrides:
        if override.buffer not in pools:
            shown = [name for name in pools if not name.startswith("ROCm")]
            raise UsageError(
                f"--override-tensor: {override.buffer[:60]!r} is not a buffer type here; "
                f"there is {', '.join(shown)}"
            )

    def match() -> dict[str, str]:
        rules = [*zip(_searchers(overrides), overrides, strict=True)]
        matches: dict[str, str] = {}
        for tensor in model.header.tensors or ():
            for is_found, override in rules:
                if is_found(tensor.name):
                    matches[tensor.name] = override.buffer
                    break
        return matches

    buffers = prepare(model).overrides.get(overrides, match)
    return {name: pools[buffer] for name, buffer in buffers.items()}


def has_experts_on_host(setup: LlamaCppSetup) -> Callable[[int], bool]:
    """Returns a function of a block number: true if -cmoe, -ncmoe or -ot leave experts of that block on the host."""
    searchers = _searchers([override for override in setup.overrides if override.buffer == "CPU"])

    def is_on_host(block: int) -> bool:
        names = (
            f"blk.{block}.ffn_{part}_exps.weight" for part in ("down", "gate", "up", "gate_up")
        )
        moved = (is_found(name) for name in names for is_found in searchers)
        return setup.cpu_moe or block < setup.n_cpu_moe or any(moved)

    return is_on_host


def _searchers(overrides: Sequence[Override]) -> list[Callable[[str], bool]]:
    """For each override, a function that is true for tensor names in which the pattern occurs."""
    if not overrides:
        return []
    from edgekit.engines.llamacpp.overrides import searcher  # only with -ot

    return [searcher(override.pattern) for override in overrides]


def _can_scan(model: Model) -> bool:
    """True if CUDA has a kernel for SSM_SCAN with the file's ssm_a (llama-model-loader.cpp: weight_buft_supported)."""
    name = model.geometry.architecture
    if not known_architecture(name).scans_state:
        return True
    shape = next(
        (tensor.shape for tensor in model.header.tensors or () if tensor.name.endswith(".ssm_a")),
        (),
    )
    if not shape:
        return True  # no layer has a scan
    keys = (model.header.keys.get(f"{name}.ssm.{key}") for key in ("inner_size", "state_size"))
    inner, state = (value if isinstance(value, int) else 0 for value in keys)
    heads, width = (1, *shape)[-2:]
    if width == 1:
        return state in SCAN_STATES and inner // max(1, heads) % 16 == 0
    groups = model.header.keys.get(f"{name}.ssm.group_count") or 1
    return width == 16 and inner == heads and heads % 128 == 0 and groups == 1


def _block_pools(blocks: int, setup: LlamaCppSetup) -> Iterator[Pool]:
    """The pool of each block and, last, of the output. The last n_gpu_layers of them go to the devices: each device
    gets a consecutive run, in proportion to its share of -ts (default: its free memory).
    """
    if not setup.has_device:
        yield from [HOST] * (blocks + 1)
        return
    ends = [1.0]
    if setup.split_mode is not SplitMode.TENSOR:
        free = tuple(float(device.free_bytes or 1) for device in setup.devices)
        shares = setup.tensor_split[: len(free)] or free
        if setup.split_mode is SplitMode.NONE:
            shares = free
        memory_known = {device.free_bytes is not None for device in setup.devices}
        if len(memory_known) > 1 and shares is free:  # known for some devices only
            raise UsageError(
                "layers are divided by free memory, which is unknown for some GPUs: give "
                "--device-memory or --tensor-split (servers of --rpc come first)"
            )
        if any(share < 0 for share in shares) or not sum(shares):
            raise UsageError(f"a tensor split needs positive shares (got {shares})")
        total = sum(shares)
        ends = [end / total for end in accumulate(shares)]
    start = max(blocks + 1 - setup.n_gpu_layers, 0)
    offloaded = min(setup.n_gpu_layers, blocks + 1)
    for index in range(blocks + 1):
        if index < start:
            yield HOST
        else:
            yield Pool(PoolKind.DEVICE, bisect_right(ends, (index - start) / offloaded))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTensor:
    """One copy of a tensor in a pool."""

    tensor: Tensor
    pool: Pool
    block: int | None
    mapped: bool = False  # memory-mapped from the file: no padding

    @property
    def size_bytes(self) -> int:
        """Its bytes in this pool, with padding."""
        tensor = self.tensor
        if self.mapped:
            return tensor.size_bytes
        if self.pool.kind is PoolKind.HOST:
            return pad(tensor.size_bytes, 32)
        row = tensor.shape[-1] if tensor.shape else 1
        return device_bytes(
            tensor.size_bytes, row, tensor.type.block_elements, tensor.type.block_bytes
        )


def device_bytes(size_bytes: int, row_elements: int, block_elements: int, block_bytes: int) -> int:
    """A tensor's size on a CUDA device: quantised rows are padded to 512 elements, everything to 128 bytes."""
    missing = -row_elements % MATRIX_ROW_PADDING if block_elements > 1 else 0
    extra = missing * block_bytes // block_elements
    return pad(size_bytes + extra, DEVICE_ALIGNMENT)


def _loaded_blocks(model: Model, placement: TensorPlacement, setup: LlamaCppSetup) -> int:
    """The number of blocks that are loaded, with those of multi-token prediction if this build loads them."""
    first_build = LOADS_PREDICTION_SINCE.get(model.geometry.architecture, LOADS_PREDICTION_UNTIL)
    always_loads = first_build <= setup.rules < LOADS_PREDICTION_UNTIL
    loads_prediction = setup.load_mtp or always_loads
    return len(placement.blocks) - (0 if loads_prediction else model.geometry.mtp_layers)


def placed_tensors(
    model: Model, placement: TensorPlacement, setup: LlamaCppSetup
) -> tuple[PlacedTensor, ...]:
    """Every tensor that llama.cpp loads, once for each pool that holds a copy or a slice of it."""
    blocks = _loaded_blocks(model, placement, setup)
    idle = LOADED_IDLE.get(model.geometry.architecture)
    placed: list[PlacedTensor] = []
    for tensor, block in _blocks(model):
        loaded = block is None or block < blocks or (idle and idle.search(tensor.name))
        if loaded and (block is None or block < len(placement.blocks)):
            pools = pools_of(tensor.name, block, placement, model.geometry.architecture)
            placed.extend(PlacedTensor(tensor=tensor, pool=pool, block=block) for pool in pools)
    placed.extend(_tied_head(model, placement))
    slicer, rows = placement.slicer, placement.rows
    if slicer is None and rows is None:
        return tuple(placed)
    divided: list[PlacedTensor] = []
    for copy in placed:
        slices: list[Tensor] = []
        if copy.pool.kind is PoolKind.DEVICE:
            if rows is not None:
                slices = rows.rows(copy.tensor)
            elif slicer is not None:
                slices = slicer.weights(copy.tensor, copy.block)
        if not slices:
            divided.append(copy)
        for index, part in enumerate(slices):
            divided.append(replace(copy, tensor=part, pool=Pool(PoolKind.DEVICE, index)))
    return tuple(divided)


def placed_sums(
    model: Model, placement: TensorPlacement, setup: LlamaCppSetup
) -> dict[tuple[int | None, Pool], tuple[int, int]]:
    """Block and pool -> bytes and number of the tensors that `placed_tensors` puts there."""
    if placement.overridden or placement.slicer or placement.rows:
        return sums_of(placed_tensors(model, placement, setup))
    blocks = _loaded_blocks(model, placement, setup)
    sums = sums_of(_tied_head(model, placement))
    for group in prepare(model).tensor_groups.get(lambda: _tensor_groups(model)):
        block = group.block
        if block is not None and (
            block >= len(placement.blocks) or not (block < blocks or group.is_idle)
        ):
            continue
        for pool in pools_of(group.name, block, placement, model.geometry.architecture):
            group_bytes = group.host_bytes if pool.kind is PoolKind.HOST else group.device_bytes
            size_bytes, count = sums.get((block, pool), (0, 0))
            sums[block, pool] = size_bytes + group_bytes, count + group.count
    return sums


def sums_of(placed: Iterable[PlacedTensor]) -> dict[tuple[int | None, Pool], tuple[int, int]]:
    """Sums up tensors by block and pool: total bytes and number of tensors."""
    sums: dict[tuple[int | None, Pool], tuple[int, int]] = {}
    for copy in placed:
        size, count = sums.get((copy.block, copy.pool), (0, 0))
        sums[copy.block, copy.pool] = (size + copy.size_bytes, count + 1)
    return sums


def _tensor_groups(model: Model) -> tuple[TensorGroup, ...]:
    """Groups the tensors that `pools_of` always puts into the same pools."""
    idle = LOADED_IDLE.get(model.geometry.architecture)
    groups: dict[tuple[object, ...], TensorGroup] = {}
    sizes: dict[tuple[object, ...], list[int]] = {}  # a model has few different tensors
    for tensor, block in _blocks(model):
        name, is_idle = tensor.name, bool(idle and idle.search(tensor.name))
        kind = (name,) if block is None else (bool(_EXPERTS.search(name)), name.endswith(".ssm_a"))
        key = (block, is_idle, *kind)
        group = groups.get(key)
        if group is None:
            group = groups[key] = TensorGroup(name, block, is_idle)
        size_key = (tensor.size_bytes, tensor.shape, tensor.type.name)
        if size_key not in sizes:
            sizes[size_key] = [
                PlacedTensor(tensor=tensor, pool=pool, block=block).size_bytes
                for pool in (HOST, DEVICE)
            ]
        host_bytes, device_bytes = sizes[size_key]
        group.count += 1
        group.host_bytes += host_bytes
        group.device_bytes += device_bytes
    return tuple(groups.values())


def _blocks(model: Model) -> tuple[tuple[Tensor, int | None], ...]:
    """Each tensor with the number of its block; None for tensors outside the blocks."""
    tensors = model.header.tensors or ()
    return prepare(model).tensor_blocks.get(
        lambda: tuple((tensor, block_number(tensor.name)) for tensor in tensors)
    )


def block_number(name: str) -> int | None:
    """The number in a tensor's name: 7 for blk.7.attn_q.weight; None outside the blocks."""
    matched = _BLOCK.search(name)
    return int(matched.group(1)) if matched else None


def pools_of(
    name: str, block: int | None, placement: TensorPlacement, architecture: str
) -> tuple[Pool, ...]:
    """The pools that hold a tensor. A tensor that every block uses has a copy in each pool with a block."""
    if name in placement.moved:
        return (placement.moved[name],)
    if block is not None:
        on_host = block < placement.host_expert_blocks and _EXPERTS.search(name)
        unscanned = placement.host_scans and name.endswith(".ssm_a")
        return (HOST if on_host or unscanned else placement.blocks[block],)
    stem = name.rsplit(".", 1)[0]
    if stem in INPUT_TENSORS:
        return (HOST,)
    if stem in SHARED_TENSORS:
        return placement.pools
    in_first_block = stem in FIRST_BLOCK_TENSORS and stem != OUTPUT_NORM_ALIASES.get(architecture)
    return (placement.blocks[0] if in_first_block and placement.blocks else placement.output,)


def _tied_head(model: Model, placement: TensorPlacement) -> Iterator[PlacedTensor]:
    """The output head of a file without one: a second copy of the token embedding if the head is in another pool.

    Some architectures do the reverse: a file without a token embedding loads its head a second time.
    """
    architecture = known_architecture(model.geometry.architecture)
    names = prepare(model).tensors_by_name.get(
        lambda: {tensor.name: tensor for tensor in model.header.tensors or ()}
    )
    embedding = names.get(EMBEDDING)
    if embedding is None and architecture.head_as_embedding and HEAD in names:
        yield PlacedTensor(
            tensor=names[HEAD], pool=placement.moved.get(HEAD, placement.output), block=None
        )
    if embedding is None or HEAD in names or architecture.without_head:
        return
    embedding_pool = placement.moved.get(EMBEDDING, HOST)
    head_pool = tied_pool(placement)
    if head_pool != embedding_pool or architecture.head_made_first:
        yield PlacedTensor(tensor=embedding, pool=head_pool, block=None)


def tied_pool(placement: TensorPlacement) -> Pool:
    """The pool of a tied output head. -ot matches the head by the name of the embedding."""
    return placement.moved.get(EMBEDDING, placement.output)


# -- lines -------------------------------------------------------------------------------------


def weight_lines(
    model: Model, placement: TensorPlacement, setup: LlamaCppSetup
) -> tuple[MemoryLine, ...]:
    """All weight lines of the bill, including repacked copies and the gaps in Metal's mapped spans."""
    if not setup.repack and not maps_spans(setup):  # sums are enough
        return tuple(_block_lines(placed_sums(model, placement, setup)))
    placed = placed_tensors(model, placement, setup)
    repacked = tuple(_repacked_lines(model, placement, placed, setup)) if setup.repack else ()
    gaps: tuple[MemoryLine, ...] = ()
    if maps_spans(setup):
        placed, gaps = mapped(placed, model.header.tensors or (), setup)
    return (*_block_lines(sums_of(placed)), *gaps, *repacked)


def repacked_bytes(model: Model, setup: LlamaCppSetup) -> int:
    """Extra host memory of a build that repacks weights for its CPU: a second copy of a tied head. Other repacked
    matrices do not count, because the system drops their mapped originals when memory is short.
    """

    def compute() -> int:
        placement, unmapped = place(model, setup), replace(setup, use_mmap=False)
        placed = placed_tensors(model, placement, unmapped)
        return sum(line.size_bytes for line in _repacked_lines(model, placement, placed, unmapped))

    return prepare(model).repacked_bytes.get(setup, compute)


def _block_lines(sums: Mapping[tuple[int | None, Pool], tuple[int, int]]) -> Iterator[MemoryLine]:
    """Weight lines by block and pool; tensors outside the blocks come first."""

    def order(item: tuple[tuple[int | None, Pool], tuple[int, int]]) -> tuple[int, str]:
        block, pool = item[0]
        return -1 if block is None else block, pool.label

    for (block, pool), (size, count) in sorted(sums.items(), key=order):
        tensors = "1 tensor" if count == 1 else f"{count} tensors"
        yield MemoryLine(
            component=Component.WEIGHTS,
            size_bytes=size,
            pool=pool,
            layer=block,
            because=f"{tensors} from the file, padded to the buffer alignment",
        )


def _repacked_lines(
    model: Model, placement: TensorPlacement, placed: Sequence[PlacedTensor], setup: LlamaCppSetup
) -> Iterator[MemoryLine]:
    """Lines for weights that are repacked for the CPU. The originals of a mapped file stay in memory until memory runs
    short.

    With a CUDA or Vulkan device nothing is repacked: that device's host buffer type has priority (llama-model.cpp @
    b21e4de: make_cpu_buft_list). Metal has no host buffer type.
    """
    if setup.has_device and setup.backend is not Backend.METAL:
        return
    types = REPACKED_TYPES[setup.cpu]
    sizes = [
        copy.size_bytes
        for copy in placed
        if copy.pool == HOST
        and copy.tensor.type.name in types
        and len(copy.tensor.shape) > 1
        and copy.tensor.name != EMBEDDING
    ]
    copies: list[tuple[int, str]] = []
    if setup.use_mmap and sizes:
        matrices = f"copy of {len(sizes)} matrices repacked for the CPU"
        copies.append((sum(sizes), f"{matrices}, in addition to the mapped file"))
    names = {copy.tensor.name: copy for copy in placed}
    tied = names.get(EMBEDDING)
    without_head = known_architecture(model.geometry.architecture).without_head
    has_tied_head = HEAD not in names and not without_head
    on_host = tied_pool(placement) == HOST  # the embedding may be there, and its copy elsewhere
    if tied is not None and tied.tensor.type.name in types and has_tied_head and on_host:
        because = "second copy of the token embedding, repacked as the output head"
        copies.append((tied.size_bytes, because))
    for size_bytes, because in copies:
        yield MemoryLine(
            component=Component.WEIGHTS,
            size_bytes=size_bytes,
            pool=HOST,
            basis=Basis.MODELLED,
            because=because,
            within=REPACK_WITHIN,
        )


def maps_spans(setup: LlamaCppSetup) -> bool:
    """True if the GPU's weights are spans of the mapped file, as on Metal."""
    return setup.backend is Backend.METAL and setup.use_mmap


def mapped(
    placed: Sequence[PlacedTensor], tensors: Iterable[Tensor], setup: LlamaCppSetup
) -> tuple[tuple[PlacedTensor, ...], tuple[MemoryLine, ...]]:
    """The tensors that are billed by block, and one line per device for the gaps between them in its spans.

    Metal maps the file: the GPU's buffer is the span from its first tensor to its last, including the host's in between
    (llama-model-loader.cpp: get_mapping_range; llama-model.cpp: load_tensors; ggml-metal-device.m:
    ggml_metal_buffer_map). A buffer counts in full against the GPU's working set. The CPU reads the same pages, so
    what is inside a span is billed once, on the device.
    """
    extents = _extents(tensors)
    # The tensors of each device in each shard of the file, and the span of the shard that it maps for them.
    device_tensors: dict[tuple[Pool, int], dict[str, Tensor]] = {}
    for copy in placed:
        if copy.pool.kind is PoolKind.DEVICE:
            shard = extents[copy.tensor.name].shard
            device_tensors.setdefault((copy.pool, shard), {})[copy.tensor.name] = copy.tensor
    spans = {
        key: _Extent(
            key[1],
            min(extents[name].first_byte for name in group),
            max(extents[name].end_byte for name in group),
        )
        for key, group in device_tensors.items()
    }
    billed: dict[tuple[str, Pool], PlacedTensor] = {}  # a second copy in one pool is the same pages
    cpu_tensors = 0
    for copy in placed:
        extent, on_device = extents[copy.tensor.name], copy.pool.kind is PoolKind.DEVICE
        if not on_device and any(span.contains(extent) for span in spans.values()):
            cpu_tensors += 1
        else:
            billed[copy.tensor.name, copy.pool] = PlacedTensor(
                tensor=copy.tensor, pool=copy.pool, block=copy.block, mapped=on_device
            )
    because = (
        f"Metal maps the file from the GPU's first tensor to its last: {cpu_tensors} CPU "
        "tensors in between, padding and whole pages"
    )
    gap_bytes: dict[Pool, int] = {}
    for (pool, shard), group in device_tensors.items():
        span, device = spans[pool, shard], setup.devices[pool.index]
        sizes = [tensor.size_bytes for tensor in group.values()]
        size = buffer_bytes(span.first_byte, span.end_byte, max(sizes), device.max_buffer_bytes)
        gap_bytes[pool] = gap_bytes.get(pool, 0) + size - sum(sizes)
    lines = tuple(
        MemoryLine(component=Component.WEIGHTS, size_bytes=size, pool=pool, because=because)
        for pool, size in gap_bytes.items()
    )
    return tuple(billed.values()), lines


class _Extent(NamedTuple):
    """Where a tensor or a span of tensors is in the file."""

    shard: int
    first_byte: int
    end_byte: int

    def contains(self, other: _Extent) -> bool:
        is_inside = self.first_byte <= other.first_byte and other.end_byte <= self.end_byte
        return self.shard == other.shard and is_inside


def buffer_bytes(
    first_byte: int, end_byte: int, largest_bytes: int, max_buffer_bytes: int | None
) -> int:
    """The bytes that Metal allocates for a span of the file, in whole pages. A span longer than the device's maximum
    buffer is split into views that overlap by the largest tensor: every tensor is complete in one view.
    """
    size = pad(end_byte - first_byte + first_byte % PAGE_BYTES, PAGE_BYTES)
    if max_buffer_bytes is None or size <= max_buffer_bytes:
        return size
    overlap = pad(largest_bytes, PAGE_BYTES) + PAGE_BYTES
    step = max_buffer_bytes - overlap
    if step <= 0:
        return size  # no view holds the largest tensor: llama.cpp fails, and the span exceeds the limit anyway
    views = -(-size // step)
    full_views = min(views, max(0, (size - max_buffer_bytes) // step + 1))
    # View k starts k steps into the span; the last views are shorter, because they end with the span.
    skipped_steps = sum(range(full_views, views))
    return full_views * max_buffer_bytes + (views - full_views) * size - step * skipped_steps


def _extents(tensors: Iterable[Tensor]) -> dict[str, _Extent]:
    """The position of each tensor in its file. A file that does not exist yet has only offsets of 0: its tensors are
    laid out as llama-quantize writes them, those outside the blocks first, then block by block, sorted by name.
    """
    listed = tuple(tensors)
    if any(tensor.offset for tensor in listed):
        return {
            tensor.name: _Extent(tensor.shard, tensor.offset, tensor.offset + tensor.size_bytes)
            for tensor in listed
        }

    def quantizer_order(tensor: Tensor) -> tuple[int, str]:
        block = block_number(tensor.name)
        return -1 if block is None else block, tensor.name

    extents: dict[str, _Extent] = {}
    position = 0
    for tensor in sorted(listed, key=quantizer_order):
        extents[tensor.name] = _Extent(0, position, position + tensor.size_bytes)
        position += pad(tensor.size_bytes, FILE_ALIGNMENT)
    return extents
