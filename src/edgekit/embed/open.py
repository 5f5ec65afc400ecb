"""`open_embedder`: a model's name and a budget -> an Embedder. Everything is planned before a weight is read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import numpy as np
import psutil

from edgekit.embed import llamacpp
from edgekit.embed.embedder import Embedder, EmbedderParts
from edgekit.embed.types import BUILT_IN, ENGINES, EmbedPlan, Encoder, Mode
from edgekit.engines.native.buffers import matrices, usable_cores
from edgekit.engines.native.encoder import StreamedEncoder
from edgekit.engines.native.encoder_plan import (
    PlanLine,
    budget_for,
    choose_pooling,
    plan_encoder,
    rounded_up,
)
from edgekit.engines.native.families import Pooling
from edgekit.engines.native.file import FileHeader, Limits, WeightFile, scan_header
from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.kernels.types import Kernels
from edgekit.engines.native.token_mean import TABLE, TokenMean, token_mean_bytes
from edgekit.engines.native.tokenizer.build import build_tokenizer
from edgekit.engines.native.tokenizer.kinds import tokenizer_cost_bytes
from edgekit.engines.native.tokenizer.vocabulary import read_vocabulary
from edgekit.errors import MemoryPressureError, UsageError
from edgekit.machine.monitor import BREAKER_PERCENT, Monitor, usable_bytes
from edgekit.sources.download import LocalGguf, find_weights
from edgekit.units import KIB, MIB, Basis, format_bytes, parse_size

if TYPE_CHECKING:
    from edgekit.sources.download import Download
    from edgekit.sources.types import Reach

# Memory for the vectors of one pass, before they are copied to the caller.
_ROWS_BYTES = MIB
_TOKEN_ROWS_BYTES = 16 * KIB  # in mode `tokens`
_MOST_ROWS = 256  # vectors in one pass
# The memory of the process is rounded up to steps, so that a command has the same plan every time.
_PROCESS_STEP_BYTES = 4 * MIB
_PROCESS_SPARE_BYTES = 2 * MIB
_SPARE_BYTES = 16 * MIB  # added to a default budget, for results that callers have not collected
_TABLES = frozenset({TABLE, "position_embd.weight"})  # a pass reads only a few of their rows
_Choice = TypeVar("_Choice")


class Choices(TypedDict, total=False):
    """The options of an embedder."""

    memory_budget: int | str | None  # bytes, or "200M"; None: a quarter of the free memory, or less
    own_process: bool  # the budget is for the whole process, with interpreter and libraries
    input_bytes: int  # what the caller holds of its input, in the same budget: 0
    mode: Mode | str  # "encoder" runs the model, "tokens" takes the mean of its token rows
    pooling: Pooling | str | None  # "mean", "cls", "last"; None: as the file says
    normalize: bool  # to length 1: True
    dimensions: int | None  # only the first ones of each vector (Matryoshka); None: all
    truncate: bool  # cut a text that is over the limit, instead of refusing it: False
    limits: Limits
    threads: int | None  # None: one for each core, at most 8
    batch_tokens: int | None  # how many tokens share one reading of the weights
    engine: str  # "edgekit", or "llama.cpp" if the whole model fits in memory
    tokenizer: bool  # False: only `embed_tokens` will be called
    tokenizer_cache: str | os.PathLike[str] | None  # a folder: opens faster the next time
    reach: Reach | None
    confirm: Callable[[Download], bool] | None  # called before a download; None: do not download


def open_embedder(model: str | os.PathLike[str], **choices: Unpack[Choices]) -> Embedder:
    """An embedder that stays within its budget. Raises MemoryPressureError, which says what budget is needed.

    `model`: a GGUF file, a name in one of this machine's stores, or a hub id. `Choices` lists the options.
    """
    options = _options(choices)
    with ExitStack() as resources:
        inputs, plan, start = _prepare(model, options, resources)
        monitor = Monitor(budget_bytes=plan.budget_bytes, own_process=options.own_process)
        resources.enter_context(monitor.try_allocate(options.input_bytes, "the input"))
        tokenizer = None
        # Before the buffers exist, because building it takes more memory than it keeps.
        if options.tokenizer:
            cost = tokenizer_cost_bytes(inputs.header)
            reserved = resources.enter_context(
                monitor.try_allocate(cost.peak_bytes, "building the tokenizer")
            )
            vocabulary = read_vocabulary(inputs.file, inputs.header)
            tokenizer = build_tokenizer(vocabulary, cache=options.tokenizer_cache)
            del vocabulary
            reserved.shrink(cost.resident_bytes)
        encoder = start(monitor)
        resources.callback(encoder.close)
        shape = (_rows(encoder.width, options.mode), encoder.width)
        resources.enter_context(monitor.try_allocate(math.prod(shape) * 4, "the vectors of a pass"))
        table = inputs.header.tensors.get(TABLE)
        parts = EmbedderParts(
            plan=plan,
            encoder=encoder,
            monitor=monitor,
            tokenizer=tokenizer,
            vocabulary=table.shape[0] if table is not None and table.shape else 0,
            keys=dict(inputs.header.keys),
            normalize=options.normalize,
            truncate=options.truncate,
            limits=options.limits,
            rows=np.zeros(shape, dtype=np.float32),
            resources=resources.pop_all(),
        )
    return Embedder(parts)


def plan_embedder(model: str | os.PathLike[str], **choices: Unpack[Choices]) -> EmbedPlan:
    """What `open_embedder` would hold, without reading a weight; raises the same errors."""
    with ExitStack() as resources:
        return _prepare(model, _options(choices), resources)[1]


# --- options


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """The choices after parsing, with every default filled in."""

    memory_budget: int | None = None
    own_process: bool = False
    input_bytes: int = 0
    mode: Mode = Mode.ENCODER
    pooling: Pooling | None = None
    normalize: bool = True
    dimensions: int | None = None
    truncate: bool = False
    limits: Limits
    threads: int | None = None
    batch_tokens: int | None = None
    engine: str = BUILT_IN
    kernels: Kernels = field(default_factory=choose_kernels)
    tokenizer: bool = True
    tokenizer_cache: Path | None = None
    reach: Reach | None = None
    confirm: Callable[[Download], bool] | None = None


_KINDS: Mapping[str, tuple[type, ...]] = {  # a bool is not accepted as a number
    "memory_budget": (int, str),
    "dimensions": (int,),
    "input_bytes": (int,),
    "threads": (int,),
    "batch_tokens": (int,),
    "normalize": (bool,),
    "truncate": (bool,),
    "tokenizer": (bool,),
    "own_process": (bool,),
    "limits": (Limits,),
}


def _options(choices: Choices) -> _Options:
    """Parses the choices. Raises UsageError for an unknown option, a wrong type or an invalid value."""
    values: dict[str, Any] = {**choices}
    option_names = Choices.__annotations__
    for name, value in choices.items():
        if name not in option_names:
            near = get_close_matches(name, option_names)
            raise UsageError(
                f"unknown option {name[:40]!r}" + (f": did you mean {near[0]}?" if near else "")
            )
        kinds = _KINDS.get(name)
        if value is None or kinds is None:
            continue
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise UsageError(f"{name} must be {expected} (got {str(value)[:40]!r})")
        if name in ("threads", "batch_tokens") and isinstance(value, int) and value < 1:
            raise UsageError(f"{name} must be at least 1 (got {value})")
    if isinstance(budget := values.get("memory_budget"), str):
        values["memory_budget"] = parse_size(budget)
    if "mode" in values:
        values["mode"] = _choose("mode", {mode.value: mode for mode in Mode}, values["mode"])
    if values.get("pooling") is not None:
        poolings = {pooling.label: pooling for pooling in Pooling}
        values["pooling"] = _choose("pooling", poolings, values["pooling"])
    if "engine" in values:
        values["engine"] = _choose("engine", {name: name for name in ENGINES}, values["engine"])
    if values.get("tokenizer_cache") is not None:
        values["tokenizer_cache"] = Path(values["tokenizer_cache"])
    values["limits"] = values.get("limits") or Limits()
    return _Options(**values)


def _choose(what: str, choices: Mapping[str, _Choice], requested: _Choice | str) -> _Choice:
    """The choice with the requested name, or the requested choice itself. Raises UsageError if there is none."""
    for name, choice in choices.items():
        if requested == choice or (isinstance(requested, str) and requested.lower() == name):
            return choice
    raise UsageError(f"unknown {what} {str(requested)[:40]!r}: choose {' or '.join(choices)}")


# --- memory


Start = Callable[[Monitor], Encoder]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanInputs:
    """The file and the limits that the plan of every backend starts from."""

    options: _Options
    file: WeightFile
    header: FileHeader
    budget_bytes: int | None  # requested, or what a limit on this process allows if that is less
    available_bytes: int
    peak_bytes: int  # needed while the tokenizer is built, before the buffers exist
    plan: EmbedPlan  # so far with the lines of the process, the input and the tokenizer; the backend adds the rest


def _prepare(
    model: str | os.PathLike[str], options: _Options, resources: ExitStack
) -> tuple[_PlanInputs, EmbedPlan, Start]:
    """Opens the file and plans the memory. The third value starts the planned backend."""
    weights = find_weights(model, reach=options.reach, confirm=options.confirm)
    file = resources.enter_context(WeightFile(weights.path, options.limits))
    is_token_mode = options.mode is Mode.TOKENS
    header = scan_header(file, selects=lambda name: name == TABLE or not is_token_mode)
    inputs = _plan_inputs(weights, options, file, header)
    if is_token_mode:
        plan, start = _plan_token_mean(inputs)
    elif options.engine == BUILT_IN:
        plan, start = _plan_encoder(inputs)
    else:
        plan, start = _plan_llamacpp(inputs)
    if options.dimensions is not None:
        if not 0 < options.dimensions <= plan.dimensions:
            raise UsageError(
                f"dimensions must be between 1 and {plan.dimensions:,} for this model "
                f"(got {options.dimensions:,})"
            )
        plan = replace(plan, dimensions=options.dimensions)
    return inputs, plan, start


def _line(what: str, size_bytes: int, because: str, basis: Basis = Basis.EXACT) -> PlanLine:
    return PlanLine(what=what, size_bytes=size_bytes, basis=basis, because=because)


def _total(lines: Iterable[PlanLine]) -> int:
    return sum(line.size_bytes for line in lines)


def _plan_inputs(
    weights: LocalGguf, options: _Options, file: WeightFile, header: FileHeader
) -> _PlanInputs:
    """The memory that does not depend on the backend, and the limits for the rest.

    A limit on this process, such as a cgroup's, lowers both the requested budget and the available memory.
    """
    lines = []
    if options.own_process:
        import tokenizers  # noqa: F401 - loaded now, to be part of the measurement

        resident_bytes = int(psutil.Process().memory_info().rss) + _PROCESS_SPARE_BYTES
        size_bytes = math.ceil(resident_bytes / _PROCESS_STEP_BYTES) * _PROCESS_STEP_BYTES
        because = "Python and its libraries, as measured now, rounded up"
        lines.append(_line("process", size_bytes, because, Basis.MODELLED))
    if options.input_bytes:
        because = "upper bound for rows of the input, as bytes and as text"
        lines.append(_line("input", options.input_bytes, because, Basis.MODELLED))
    base_bytes = peak_bytes = _total(lines)
    if options.tokenizer:
        cost = tokenizer_cost_bytes(header)
        tokens = header.arrays.get("tokenizer.ggml.tokens")
        count = 0 if tokens is None else tokens.count
        because = f"{count:,} tokens; {format_bytes(cost.peak_bytes)} while it is being built"
        lines.append(_line("tokenizer", cost.resident_bytes, because, Basis.MODELLED))
        peak_bytes += cost.peak_bytes
    available_bytes = int(psutil.virtual_memory().available)
    requested = budget_bytes = options.memory_budget
    limited_bytes = Monitor().usable_bytes
    if limited_bytes is not None:
        most_bytes = limited_bytes * 100 // BREAKER_PERCENT + base_bytes
        available_bytes = min(available_bytes, most_bytes)
        budget_bytes = None if budget_bytes is None else min(budget_bytes, most_bytes)
    if requested is None:
        because = "as much as is useful, up to a quarter of the free memory"
    elif budget_bytes == requested:
        because = "as requested"
    else:
        because = (
            f"{format_bytes(requested)} was requested, but a limit on this process allows less"
        )
    plan = EmbedPlan(
        label=weights.label,
        mode=options.mode,
        engine=options.engine,
        kernels=options.kernels.name if options.engine == BUILT_IN else options.engine,
        threads=1,
        dimensions=0,
        pooling=None,
        budget_bytes=0,
        budget_because=because,
        lines=tuple(lines),
        pass_tokens=options.limits.tokens,
        text_tokens=options.limits.tokens,
        text_tokens_because="Limits.tokens",
        read_bytes=0,
        notes=weights.notes,
    )
    return _PlanInputs(
        options=options,
        file=file,
        header=header,
        budget_bytes=budget_bytes,
        available_bytes=available_bytes,
        peak_bytes=peak_bytes,
        plan=plan,
    )


def _rows(width: int, mode: Mode) -> int:
    """The number of vectors of one pass. It is small in mode `tokens`, where texts do not share work."""
    size_bytes = _TOKEN_ROWS_BYTES if mode is Mode.TOKENS else _ROWS_BYTES
    return max(1, min(_MOST_ROWS, size_bytes // (width * 4)))


def _row_lines(width: int, mode: Mode) -> tuple[PlanLine, PlanLine]:
    """The memory of the vectors of a pass, and of results that wait for their callers."""
    rows = _rows(width, mode)
    arithmetic = f"{rows} x {width:,} x 4"
    answers_because = (
        f"{arithmetic}: results that callers have not collected yet; more if there is memory"
    )
    return (
        _line("vectors of a pass", rows * width * 4, arithmetic),
        _line("answers", rows * width * 4, answers_because),
    )


def _plan_token_mean(inputs: _PlanInputs) -> tuple[EmbedPlan, Start]:
    """The plan for mode `tokens`, which runs no layer."""
    options, header = inputs.options, inputs.header
    if options.engine != BUILT_IN or options.pooling is not None:
        raise UsageError("mode tokens does not take an engine or a pooling")
    size_bytes = token_mean_bytes(header)
    width = _table_width(header)
    buffers = _line("buffers", size_bytes, "packed bytes and floats for part of one row")
    plan = _with_lines(inputs, width, buffers, *_row_lines(width, options.mode))
    return plan, lambda monitor: TokenMean(
        inputs.file, header, kernels=options.kernels, monitor=monitor
    )


def _plan_encoder(inputs: _PlanInputs) -> tuple[EmbedPlan, Start]:
    """The plan for the built-in encoder, which streams the weights that do not fit in the budget."""
    options, header = inputs.options, inputs.header
    width = _table_width(header)
    plan = plan_encoder(
        header,
        kernels=options.kernels,
        budget_bytes=inputs.budget_bytes,
        available_bytes=inputs.available_bytes,
        threads=options.threads,
        limits=options.limits,
        pooling=options.pooling,
        other_lines=(*inputs.plan.lines, *_row_lines(width, options.mode)),
        least_bytes=inputs.peak_bytes,
        varying_bytes=_PROCESS_STEP_BYTES if options.own_process else 0,
        **({} if options.batch_tokens is None else {"batch_tokens": options.batch_tokens}),
    )
    embed_plan = replace(
        inputs.plan,
        dimensions=width,
        lines=(*plan.other_lines, *plan.lines),
        budget_bytes=plan.budget_bytes,
        pooling=plan.pooling,
        threads=plan.threads,
        pass_tokens=plan.pass_tokens,
        text_tokens=plan.text_tokens,
        text_tokens_because=plan.text_tokens_because,
        read_bytes=sum(
            tensor.size_bytes
            for tensor in matrices(plan.model)
            if tensor.name not in plan.kept and tensor.name not in _TABLES
        ),
    )
    return embed_plan, lambda monitor: StreamedEncoder(
        inputs.file, header, kernels=options.kernels, monitor=monitor, plan=plan
    )


def _plan_llamacpp(inputs: _PlanInputs) -> tuple[EmbedPlan, Start]:
    """The plan for llama.cpp in a child process, with the whole model in memory."""
    options, header = inputs.options, inputs.header
    architecture = str(header.keys.get("general.architecture"))
    context = header.keys.get(f"{architecture}.context_length")
    text_tokens, because = options.limits.tokens, "Limits.tokens"
    if isinstance(context, int) and 0 < context < text_tokens:
        text_tokens, because = context, "the model's context length"
    settings = llamacpp.ChildSettings(
        pooling=choose_pooling(header.keys, architecture, options.pooling),
        threads=usable_cores() if options.threads is None else options.threads,
        pass_tokens=max(text_tokens, options.batch_tokens or 0),
    )
    width = llamacpp.width_of(header)
    engine = _line(
        options.engine,
        llamacpp.needed_bytes(header, settings),
        "the whole file, its KV cache and its compute buffers, in a separate process",
        Basis.MODELLED,
    )
    plan = replace(
        _with_lines(inputs, width, *_row_lines(width, options.mode), engine),
        pooling=settings.pooling,
        threads=settings.threads,
        pass_tokens=settings.pass_tokens,
        text_tokens=text_tokens,
        text_tokens_because=because,
    )
    return plan, lambda monitor: llamacpp.LlamaCppEncoder(
        Path(inputs.file.name), header, settings, monitor=monitor
    )


def _table_width(header: FileHeader) -> int:
    """The width of the token table; 1 if the header has none."""
    table = header.tensors.get(TABLE)
    return table.shape[-1] if table is not None and table.shape else 1


def _with_lines(inputs: _PlanInputs, width: int, *lines: PlanLine) -> EmbedPlan:
    """The plan with a backend's lines added. Raises MemoryPressureError if the requested budget is too small."""
    lines = (*inputs.plan.lines, *lines)
    needed_bytes, budget_bytes = max(_total(lines), inputs.peak_bytes), inputs.budget_bytes
    if budget_bytes is None:
        budget_bytes = budget_for(needed_bytes) + _SPARE_BYTES
    elif usable_bytes(budget_bytes) < needed_bytes:
        # The process may be measured one step larger the next time.
        step_bytes = _PROCESS_STEP_BYTES if inputs.options.own_process else 0
        raise MemoryPressureError(
            f"a budget of {format_bytes(budget_bytes)} is too small: "
            f"{format_bytes(needed_bytes)} is needed, and at most {BREAKER_PERCENT} % of a "
            f"budget is used; use at least {rounded_up(budget_for(needed_bytes + step_bytes))}"
        )
    return replace(inputs.plan, lines=lines, budget_bytes=budget_bytes, dimensions=width)
