"""llama.cpp's bill: its buffers, the driver, the server's caches, and what grows later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgekit.bill.types import (
    CACHES,
    Component,
    Load,
    MemoryEstimate,
    MemoryLine,
    Verdict,
    no_better_than,
    weakest,
)
from edgekit.engines.llamacpp import weights
from edgekit.engines.llamacpp.architectures import (
    architecture_names,
    default_mix,
    known_architecture,
)
from edgekit.engines.llamacpp.compute import (
    bounding_lines,
    compute_lines,
    output_line,
    prediction_lines,
    shift_lines,
)
from edgekit.engines.llamacpp.context import cache_lines, cache_sums, resolve
from edgekit.engines.llamacpp.flags import FLAGS
from edgekit.engines.llamacpp.prepared import prepare
from edgekit.engines.llamacpp.refusals import refusal
from edgekit.engines.llamacpp.types import (
    NEWEST,
    Backend,
    Context,
    LlamaCppSetup,
    LlamaMode,
    SplitMode,
    TensorPlacement,
    is_newer,
    version_name,
)
from edgekit.engines.llamacpp.weights import place
from edgekit.errors import NewArchitectureError, RefusedError
from edgekit.machine.types import HOST, Pool, PoolKind
from edgekit.model.types import Cell, Model, Recurrent
from edgekit.sources.types import Container
from edgekit.units import MIB, Basis, format_bytes

if TYPE_CHECKING:
    from edgekit.engines.llamacpp.quantization import Converted

ComputeLines = Callable[[Model, Context, TensorPlacement, LlamaCppSetup], list[MemoryLine]]
MEASURED_BACKENDS = frozenset({Backend.CPU, Backend.CUDA})
UNMEASURED_WITHIN = 0.02  # other alignments than CUDA's
NAME = "llama.cpp"
VERSION = version_name(NEWEST, None)
LEAST_PROMPTS_MIB = 64
# Measured on an H200 with CUDA 13: 526.8 MiB before anything is loaded; smaller cards take 0.3 to 0.6 GB.
CUDA_CONTEXT_BYTES = 527 * MIB
# Memory that decoding added within 600 tokens: the maximum measured per architecture, without and with experts.
FIRST_DECODE_MIB = {
    ("llama", False): 97,  # Llama 2 and 3.1: 78 to 89; Mistral Small 24B: 94 to 97
    ("qwen3", False): 81,
    ("gemma2", False): 88,
    ("gemma3", False): 92,  # the 4B 84
    ("llama", True): 180,  # Mixtral
    ("qwen3moe", True): 180,
    ("gpt-oss", True): 177,
    ("deepseek2", True): 184,
    ("granitehybrid", True): 187,
}
FIRST_DECODE_DENSE_MIB = 98
FIRST_DECODE_DELTA_MIB = 93  # gated delta nets without experts: Qwen3.5 27B; the 9B 84
FIRST_DECODE_OTHER_MIB = 187  # experts or recurrences: measured 178 to 219
# Without flash attention, cuBLAS computes the attention scores: Llama 3.1 8B took 190 MiB.
FIRST_DECODE_SCORES_MIB = 190
# Metal and Vulkan are not measured: pipelines and command buffers as users report them.
OTHER_CONTEXT_BYTES = 256 * MIB
EXCHANGE_BYTES = 192 * MIB  # NCCL buffers per card, as users report for two cards
# The overhead was measured with one model: vocabularies of other sizes and other builds change it by up to half.
OVERHEAD_WITHIN = 0.5
# llama-server's limit on saved prompts counts their caches and states only; positions and tokens come on top.
SAVED_WITHIN = 0.05


def version(setup: LlamaCppSetup | None) -> str:
    """The llama.cpp version whose rules the bill follows."""
    return VERSION if setup is None else setup.version_name


def config_probes() -> Iterator[tuple[Load, LlamaCppSetup]]:
    """Loads and setups whose bills read different parts of a config.json."""
    load = Load(context_tokens=1_024)
    yield load, LlamaCppSetup(mix="Q4_K_M")
    yield load, LlamaCppSetup(mix="Q8_0", backend=Backend.CUDA, load_mtp=True)


def estimate(model: Model, load: Load, setup: LlamaCppSetup) -> MemoryEstimate:
    """The bill of a model: of the GGUF file itself, or of the GGUF that another format or `setup.mix` would become.
    Raises RefusedError if llama.cpp would not start.
    """
    return _estimate(model, load, setup, compute_lines)


def estimate_bounds(
    model: Model, load: Load, setup: LlamaCppSetup
) -> tuple[MemoryEstimate, MemoryEstimate] | None:
    """The bill without compute buffers, and with upper bounds of them: most of the time is spent on the graph.

    None if other lines depend on the graph, or it runs in another mode than the bounds were compared in.
    """
    if setup.ctx_shift or setup.load_mtp or setup.embeddings or len(setup.devices) > 1:
        return None
    upper = _estimate(model, load, setup, bounding_lines)
    others = (line for line in upper.lines if line.component is not Component.COMPUTE)
    return replace(upper, lines=tuple(others)), upper


def _estimate(
    model: Model, load: Load, setup: LlamaCppSetup, lines_of_graph: ComputeLines
) -> MemoryEstimate:
    _check_file(model, setup)
    conversion = converted(model, setup.mix)
    loaded = model if conversion is None else conversion.model
    _check_architecture(loaded, setup)
    context = resolve(loaded, load, setup)
    placement = place(loaded, setup)
    caches = cache_lines(loaded, context, placement)
    compute = lines_of_graph(loaded, context, placement, setup)
    lines = (
        *caches,
        output_line(loaded, context),
        *compute,
        *(shift_lines(loaded, context, placement, compute) if setup.ctx_shift else ()),
        *(prediction_lines(loaded, context, placement, compute) if setup.load_mtp else ()),
        *runtime_lines(loaded, context, placement, setup),
        *server_lines(context, setup, caches),
    )
    limit_certainty = _certainty_limit(loaded, setup, conversion)
    weight_lines = prepare(loaded).weights_as_known.get(  # the same for all loads
        setup, lambda: tuple(map(limit_certainty, weights.weight_lines(loaded, placement, setup)))
    )
    unexplained = () if conversion is None else conversion.unexplained(setup.backend)
    return MemoryEstimate(
        engine=NAME,
        backend=setup.backend.value,
        lines=(*weight_lines, *map(limit_certainty, lines), *unexplained),
        facts=context.facts,
        notes=tuple(_notes(setup, conversion)),
    )


def converted(model: Model, mix: str | None) -> Converted | None:
    """The GGUF that the model is converted to; None if a GGUF file is loaded unchanged. Raises EdgekitError for a
    family without known conversion.

    A GGUF of which only the keys were read is treated like a conversion, at the mix of its name or size.
    """
    is_gguf = model.header.container is Container.GGUF
    if mix is None and is_gguf and model.header.tensors is not None:
        return None
    from edgekit.engines.llamacpp.conversion import convert, likely_mix

    if mix is None and is_gguf:
        mix = prepare(model).likely_mix.get(lambda: likely_mix(model))
    name = mix or default_mix(model)
    return prepare(model).conversions.get(name, lambda: convert(model, name))


def load_facts(model: Model, load: Load, setup: LlamaCppSetup) -> tuple[tuple[str, object], ...]:
    """Only the facts of the bill. Raises RefusedError like `estimate`, except for reasons found in the graph."""
    _check_file(model, setup)
    loaded = as_loaded(model, setup.mix)
    _check_architecture(loaded, setup)
    return resolve(loaded, load, setup).facts


def cache_bytes(model: Model, load: Load, setup: LlamaCppSetup) -> int:
    """Only the caches and states of the bill. Raises RefusedError like `estimate`."""
    loaded = as_loaded(model, setup.mix)
    return sum(cache_sums(loaded, resolve(loaded, load, setup), place(loaded, setup)).values())


def held_bytes(model: Model, load: Load, setup: LlamaCppSetup) -> dict[Pool, int]:
    """Weights, caches and states per pool: a lower bound of the bill. Raises RefusedError like `estimate`."""
    loaded = as_loaded(model, setup.mix)
    placement = place(loaded, setup)

    def weight_sums() -> tuple[tuple[Pool, int], ...]:
        sums: dict[Pool, int] = {}
        for line in weights.weight_lines(loaded, placement, setup):
            if line.reserved:
                sums[line.pool] = sums.get(line.pool, 0) + line.size_bytes
        return tuple(sums.items())

    sums = dict(prepare(loaded).weight_sums.get(setup, weight_sums))
    for pool, size_bytes in cache_sums(loaded, resolve(loaded, load, setup), placement).items():
        sums[pool] = sums.get(pool, 0) + size_bytes
    return sums


def repacked_bytes(model: Model, setup: LlamaCppSetup) -> int:
    """Extra RAM that a build needs if it repacks weights for its CPU."""
    return weights.repacked_bytes(as_loaded(model, setup.mix), setup)


def as_loaded(model: Model, mix: str | None) -> Model:
    """The GGUF that is loaded: the file itself, or its conversion."""
    conversion = converted(model, mix)
    return model if conversion is None else conversion.model


def _notes(setup: LlamaCppSetup, conversion: Converted | None) -> Iterator[str]:
    if is_newer(setup.version):
        yield (
            f"llama.cpp {setup.version} is newer than {VERSION}, the newest version that "
            f"edgekit knows, so the rules of {VERSION} are used; a newer edgekit may know it"
        )
    if setup.overhead is not None:
        size = format_bytes(setup.overhead.size_bytes)
        yield (
            f"includes {size} of RAM that llama.cpp needs in addition to its buffers: "
            f"{setup.overhead.because}"
        )
    if conversion is not None:
        yield conversion.note


def _check_architecture(model: Model, setup: LlamaCppSetup) -> None:
    """Raises RefusedError if this llama.cpp does not support the architecture. Models without keys are not checked."""
    name = model.geometry.architecture
    facts = known_architecture(name)
    first_build = facts.first_build
    if model.header.keys and facts.unimplemented:
        raise RefusedError(
            f"llama.cpp {VERSION} does not support architecture {name!r}: it only has the name"
        )
    if model.header.keys and setup.rules < first_build:
        raise RefusedError(
            f"llama.cpp {setup.version_name} does not support architecture {name!r}: it "
            f"was added in b{first_build}"
        )
    if model.header.keys and name not in architecture_names():
        raise NewArchitectureError(
            f"llama.cpp {VERSION} does not support architecture {name[:60]!r}; a newer version may"
        )


def _check_file(model: Model, setup: LlamaCppSetup) -> None:
    """Raises RefusedError with llama.cpp's reason if it would not load this GGUF file. Other formats pass: they are
    converted first.
    """
    is_file = model.header.version is not None  # otherwise a catalog model, or keys only
    if model.header.container is Container.GGUF and is_file:
        _check_architecture(model, setup)
        if reason := prepare(model).refusal.get(lambda: refusal(model)):
            raise RefusedError(f"llama.cpp would not load it: {reason}")


def _certainty_limit(
    model: Model, setup: LlamaCppSetup, conversion: Converted | None
) -> Callable[[MemoryLine], MemoryLine]:
    """Returns a function that makes a line at most as certain as the layers, the backend, the split and the
    conversion are.
    """
    architecture = known_architecture(model.geometry.architecture)
    # How these modes split tensors was read in llama.cpp's source, but not compared with a running engine.
    is_uncompared_split = setup.split_mode is SplitMode.ROW or (
        setup.split_mode is SplitMode.TENSOR and architecture.slices_uncompared
    )
    is_measured = setup.backend in MEASURED_BACKENDS and not (
        is_uncompared_split and setup.has_device
    )

    def limited(line: MemoryLine) -> MemoryLine:
        # Sizes of weights are read from the tensor directory and do not depend on the layers.
        basis = Basis.EXACT if line.component is Component.WEIGHTS else model.geometry.basis
        if not is_measured and line.pool.kind is PoolKind.DEVICE:
            basis = weakest((basis, Basis.MODELLED))
        line = no_better_than(line, basis, UNMEASURED_WITHIN)
        return line if conversion is None else conversion.known(line)

    return limited


def divided(line: MemoryLine, model: Model, setup: LlamaCppSetup) -> Iterator[MemoryLine]:
    """Divides a line of the whole model among the pools of a placement, as if all blocks had the same size."""
    placement = place(model, setup)
    # The pool of each equal share of the line.
    if line.component in CACHES:
        pool_of_share = [placement.cache_pool(block) for block in range(len(placement.blocks))]
    elif line.component is Component.WEIGHTS:
        pool_of_share = [*placement.blocks, placement.output]
    elif setup.has_device:  # buffers and the driver are on the last device
        pool_of_share = [pool for pool in placement.blocks if pool != HOST][-1:] or [HOST]
    else:
        pool_of_share = [placement.output]
    remaining_bytes = line.size_bytes
    *first_pools, last_pool = sorted(set(pool_of_share), key=lambda pool: pool.label)
    for pool in first_pools:
        size = line.size_bytes * pool_of_share.count(pool) // len(pool_of_share)
        remaining_bytes -= size
        yield replace(line, size_bytes=size, pool=pool)
    yield replace(line, size_bytes=remaining_bytes, pool=last_pool)


def runtime_lines(
    model: Model, context: Context, placement: TensorPlacement, setup: LlamaCppSetup
) -> Iterator[MemoryLine]:
    """Memory of the process besides tensors and graphs: driver contexts, kernels, and measured overhead in RAM."""
    layers = model.geometry.layers
    devices = set(placement.used)
    if setup.has_device and not devices:
        devices = {Pool(PoolKind.DEVICE)}  # the driver is initialised even without layers
    for pool in sorted(devices, key=lambda device: device.index):
        if setup.backend is Backend.CUDA:
            because = "CUDA context, as measured on an H200"
            yield _line(Component.RUNTIME, pool, CUDA_CONTEXT_BYTES, because, 0.5)
            yield _first_decode_line(model, context, pool)
        else:
            because = f"{setup.backend.value} context: pipelines and command buffers, not measured"
            yield _line(Component.RUNTIME, pool, OTHER_CONTEXT_BYTES, because, 1.0)
        if placement.ranks > 1:
            # -sm tensor: buffers for the reduction between devices (ggml-backend-meta.cpp: max_tmp_size)
            used = max((layer.experts.used for layer in layers if layer.experts), default=1)
            steps = (placement.ranks - 1).bit_length()
            sums = steps * used * context.n_tokens * model.geometry.hidden * 4
            because = "buffers to add up partial sums (NCCL), not measured"
            yield _line(Component.RUNTIME, pool, EXCHANGE_BYTES + sums, because, 1.0)
    if setup.overhead is not None:
        size, because = setup.overhead.size_bytes, setup.overhead.because
        yield _line(Component.RUNTIME, HOST, size, because, OVERHEAD_WITHIN)


def _first_decode_line(model: Model, context: Context, pool: Pool) -> MemoryLine:
    """CUDA memory that the first decode adds: the measured figure of the architecture, or of models like it."""
    geometry = model.geometry
    has_experts = any(layer.experts for layer in geometry.layers)
    mixers = [layer.mixer for layer in geometry.layers]
    has_states = any(mixer.states for mixer in mixers)
    cells = {mixer.cell for mixer in mixers if isinstance(mixer, Recurrent)}
    default_mib = FIRST_DECODE_OTHER_MIB if has_experts or has_states else FIRST_DECODE_DENSE_MIB
    if cells == {Cell.GATED_DELTA} and not has_experts:
        default_mib = FIRST_DECODE_DELTA_MIB
    size_mib = FIRST_DECODE_MIB.get((geometry.architecture, has_experts), default_mib)
    within = 0.6 if has_states else 0.5  # some recurrences take as little as dense models
    because = "kernels and scratch memory loaded by the first decode"
    if not context.flash_attn:
        size_mib = max(size_mib, FIRST_DECODE_SCORES_MIB)
        because += ", without flash attention"
    line = _line(Component.RUNTIME, pool, size_mib * MIB, because, within)
    return replace(line, first_request=True)


def _line(
    component: Component,
    pool: Pool,
    size_bytes: int,
    because: str,
    within: float,
    *,
    reserved: bool = True,
) -> MemoryLine:
    return MemoryLine(
        component=component,
        size_bytes=size_bytes,
        pool=pool,
        basis=Basis.MODELLED,
        because=because,
        within=within,
        reserved=reserved,
    )


def server_lines(
    context: Context, setup: LlamaCppSetup, caches: Sequence[MemoryLine]
) -> Iterator[MemoryLine]:
    """RAM that llama-server may use once prompts arrive: saved prompts and checkpoints. None of it is used at the
    start.
    """
    if setup.mode is not LlamaMode.SERVER or setup.embeddings:
        return
    if setup.cache_ram_mib:
        size = setup.cache_ram_mib * MIB
        prompt = sum(line.size_bytes for line in caches) // context.kv_streams
        because = (
            f"prompts of finished requests, up to --cache-ram {setup.cache_ram_mib} MiB; "
            "builds before July 2026 store one prompt of any size"
        )
        within = max(SAVED_WITHIN, prompt / size - 1)
        yield _line(Component.PROMPT_CACHE, HOST, size, because, within, reserved=False)
    # A checkpoint holds state that cannot be rolled back: sliding windows and recurrent states.
    partial = (Component.SLIDING_KV_CACHE, Component.STATE)
    saved = sum(line.size_bytes for line in caches if line.component in partial)
    saved //= context.n_seq_max
    if saved and setup.ctx_checkpoints:
        size = setup.ctx_checkpoints * context.n_seq_max * saved
        because = (
            f"up to {setup.ctx_checkpoints} checkpoints x {context.n_seq_max} slots x "
            f"{saved} bytes of sliding windows and states"
        )
        yield _line(Component.CHECKPOINTS, HOST, size, because, SAVED_WITHIN, reserved=False)


def _growth(verdict: Verdict) -> tuple[list[MemoryLine], int | None]:
    """The lines of llama-server's prompt cache and checkpoints, which fill up after the start, and the usable RAM that
    remains for them; None if the size of the RAM is unknown.
    """
    lines = [
        line
        for line in verdict.estimate.lines
        if not line.reserved and line.size_bytes and line.pool == HOST
    ]
    remaining_bytes = [
        use.budget.unreserved_bytes - use.required_bytes
        for use in verdict.uses
        if HOST in use.budget.pools
    ]
    return lines, max(0, min(remaining_bytes)) if remaining_bytes else None


def growth_limits(verdict: Verdict) -> dict[str, int]:
    """Limits for llama-server's prompt cache (MiB) and checkpoints per slot; empty if both fit unlimited. The prompt
    cache gets half of the remaining RAM, or more if the checkpoints need less.
    """
    lines, remaining_bytes = _growth(verdict)
    setup = LlamaCppSetup.of(verdict.way.setup)
    if remaining_bytes is None or sum(line.size_bytes for line in lines) <= remaining_bytes:
        return {}
    checkpoints = sum(line.size_bytes for line in lines if line.component is Component.CHECKPOINTS)
    prompts_mib = min(
        max(remaining_bytes - checkpoints, remaining_bytes // 2) // MIB, setup.cache_ram_mib
    )
    if prompts_mib < LEAST_PROMPTS_MIB:
        prompts_mib = 0  # too little for a conversation
    limits = {} if prompts_mib == setup.cache_ram_mib else {"cache_ram": prompts_mib}
    if checkpoints > remaining_bytes - prompts_mib * MIB:
        # one checkpoint in every slot
        checkpoint_bytes = checkpoints // setup.ctx_checkpoints
        limits["ctx_checkpoints"] = (remaining_bytes - prompts_mib * MIB) // checkpoint_bytes
    return limits


def later_bytes(verdict: Verdict) -> int:
    """How much RAM use may grow after the start, with these limits."""
    limits, setup = growth_limits(verdict), LlamaCppSetup.of(verdict.way.setup)
    total = 0
    for line in _growth(verdict)[0]:
        if line.component is Component.CHECKPOINTS:
            count = limits.get("ctx_checkpoints", setup.ctx_checkpoints)
            total += line.size_bytes * count // setup.ctx_checkpoints
        else:
            total += limits.get("cache_ram", setup.cache_ram_mib) * MIB
    return total


def later_rows(verdict: Verdict) -> Iterator[str]:
    """A row of the report if RAM use may grow later: by how much, what remains, and flags that limit the growth if it
    does not fit.
    """
    lines, remaining_bytes = _growth(verdict)
    if not lines:
        return
    parts = [f"{format_bytes(line.size_bytes)} of {line.component.value}" for line in lines]
    grows, limits = f"RAM use may grow by up to {' and '.join(parts)}", growth_limits(verdict)
    if remaining_bytes is None:
        yield f"{grows}, and the size of the RAM is unknown"
    elif not limits:
        yield f"{grows}; {format_bytes(remaining_bytes)} is left"
    else:
        long = {flag.key: flag.names[-1] for flag in FLAGS}
        words = " ".join(f"{long[key]} {number}" for key, number in limits.items())
        yield f"{grows}, but only {format_bytes(remaining_bytes)} is left: {words} limits it"
