"""A model's name and a budget -> an Embedder. Everything is planned before the first weight is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import numpy as np

from edgekit.basis import Basis
from edgekit.embed import llamacpp
from edgekit.embed.embedder import Embedder, EmbedderParts
from edgekit.embed.plan import EmbedPlan
from edgekit.embed.prefixes import prefixes_of
from edgekit.embed.types import BUILT_IN, ENGINES, Mode
from edgekit.engines.native.buffers import matrices, usable_cores
from edgekit.engines.native.encoder import open_encoder
from edgekit.engines.native.encoder_plan import (
    PlanLine,
    budget_for,
    choose_pooling,
    plan_encoder,
    rounded_up,
)
from edgekit.engines.native.file import Walked, WeightFile, walk
from edgekit.engines.native.kernels.choice import choose
from edgekit.engines.native.kernels.types import Kernels
from edgekit.engines.native.token_mean import TABLE, open_token_mean, token_mean_bytes
from edgekit.engines.native.tokenizer.build import build_tokenizer
from edgekit.engines.native.tokenizer.cost import tokenizer_cost_bytes
from edgekit.engines.native.tokenizer.text import TextTokenizer
from edgekit.engines.native.tokenizer.vocabulary import read_vocabulary
from edgekit.engines.native.types import Encoder, Limits, Pooling
from edgekit.errors import MemoryPressureError, UsageError
from edgekit.machine.monitor import BREAKER_PERCENT, Monitor, usable_bytes
from edgekit.sources.download import Found, find_weights
from edgekit.units import KIB, MIB, format_bytes, parse_size

if TYPE_CHECKING:
    from edgekit.sources.download import Download
    from edgekit.sources.types import Reach

_ROWS_BYTES = MIB  # vectors of one pass, before they are the caller's
_TOKEN_ROWS_BYTES = 16 * KIB
_MOST_ROWS = 256
_PROCESS_STEP_BYTES = 4 * MIB
_PROCESS_SPARE_BYTES = 2 * MIB
_SPARE_BYTES = 16 * MIB  # without a budget: for the vectors that callers wait for
_TABLES = frozenset({TABLE, "position_embd.weight"})  # of which a pass reads a few rows
_Choice = TypeVar("_Choice")


class Choices(TypedDict, total=False):
    """What may be asked of an embedder."""

    memory_budget: int | str | None  # bytes, or "200M"; None: a quarter of what is free, or less
    own_process: bool  # the budget is for the whole process, interpreter and libraries included
    input_bytes: int  # what the caller itself holds of its input, in the same budget: 0
    mode: Mode | str  # "encoder" runs the model, "tokens" takes the mean of its token rows
    pooling: Pooling | str | None  # "mean", "cls", "last"; None: as the file says
    normalize: bool  # to length 1: True
    dimensions: int | None  # the first so many of each vector (Matryoshka); None: all
    truncate: bool  # cut a text that is over the limit, instead of refusing it: False
    limits: Limits
    threads: int | None  # None: one for each core, at most 8
    batch_tokens: int | None  # how many tokens share a reading of the weights
    engine: str  # "edgekit", or "llama.cpp" where there is memory for all of the model
    tokenizer: bool  # False: only `embed_tokens` will be called
    tokenizer_cache: (
        str | os.PathLike[str] | None
    )  # a folder: the next opening is faster and leaner
    reach: Reach | None
    confirm: Callable[[Download], bool] | None  # asked before a hub model is downloaded; None: no


def open_embedder(model: str | os.PathLike[str], **choices: Unpack[Choices]) -> Embedder:
    """An embedder that keeps inside its budget, or MemoryPressureError that says what budget would do.

    `model`: a GGUF file, a name in one of this machine's stores, or a hub id. `Choices` lists the options.
    """
    wish = _wish(choices)
    with ExitStack() as held:
        prepared = _prepare(model, wish, held)
        plan, way, walked = prepared.plan, prepared.way, prepared.walked
        monitor = Monitor(budget_bytes=plan.budget_bytes, own_process=wish.own_process)
        held.enter_context(monitor.try_allocate(wish.input_bytes, "the input"))
        cutter = _build_tokenizer(wish, prepared, monitor, held)
        encoder = way.begin(monitor)
        held.callback(encoder.close)
        rows = _rows(way.width, wish.mode)
        held.enter_context(monitor.try_allocate(rows * way.width * 4, "the vectors of a pass"))
        ready = EmbedderParts(
            plan=plan,
            encoder=encoder,
            monitor=monitor,
            tokenizer=cutter,
            vocabulary=_table_rows(walked),
            prefixes=partial(prefixes_of, dict(walked.keys)),
            normalize=wish.normalize,
            truncate=wish.truncate,
            limits=wish.limits,
            rows=np.zeros((rows, way.width), dtype=np.float32),
            held=held.pop_all(),
        )
    return Embedder(ready)


def plan_embedder(model: str | os.PathLike[str], **choices: Unpack[Choices]) -> EmbedPlan:
    """What `open_embedder` would hold, without reading a weight; the same errors."""
    with ExitStack() as held:
        return _prepare(model, _wish(choices), held).plan


# --- what was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """Choices in our own words, every default filled in."""

    budget_bytes: int | None
    own_process: bool
    input_bytes: int
    mode: Mode
    pooling: Pooling | None
    normalize: bool
    dimensions: int | None
    truncate: bool
    limits: Limits
    threads: int | None
    batch_tokens: int | None
    engine: str
    kernels: Kernels
    tokenizer: bool
    tokenizer_cache: Path | None
    reach: Reach | None
    confirm: Callable[[Download], bool] | None


_KINDS: Mapping[str, tuple[type, ...]] = {  # a bool is not meant where a number is
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


def _check(choices: Mapping[str, object]) -> None:
    """A word that nobody reads would look as if it had been obeyed."""
    known = Choices.__annotations__
    for name, value in choices.items():
        if name not in known:
            near = get_close_matches(name, known)
            raise UsageError(
                f"unknown option {name[:40]!r}" + (f": did you mean {near[0]}?" if near else "")
            )
        kinds = _KINDS.get(name)
        if value is None or kinds is None:
            continue
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            told = " or ".join(kind.__name__ for kind in kinds)
            raise UsageError(f"{name} must be {told} (got {str(value)[:40]!r})")
        if name in ("threads", "batch_tokens") and isinstance(value, int) and value < 1:
            raise UsageError(f"{name} must be at least 1 (got {value})")


def _wish(choices: Choices) -> _Wish:
    _check(choices)
    budget, pooling = choices.get("memory_budget"), choices.get("pooling")
    cache = choices.get("tokenizer_cache")
    engines = {name: name for name in ENGINES}
    poolings = {one.label: one for one in Pooling}
    return _Wish(
        budget_bytes=parse_size(budget) if isinstance(budget, str) else budget,
        own_process=choices.get("own_process", False),
        input_bytes=choices.get("input_bytes", 0),
        mode=_chosen("mode", {one.value: one for one in Mode}, choices.get("mode", Mode.ENCODER)),
        pooling=None if pooling is None else _chosen("pooling", poolings, pooling),
        normalize=choices.get("normalize", True),
        dimensions=choices.get("dimensions"),
        truncate=choices.get("truncate", False),
        limits=choices.get("limits") or Limits(),
        threads=choices.get("threads"),
        batch_tokens=choices.get("batch_tokens"),
        engine=_chosen("engine", engines, choices.get("engine", BUILT_IN)),
        kernels=choose(),
        tokenizer=choices.get("tokenizer", True),
        tokenizer_cache=None if cache is None else Path(cache),
        reach=choices.get("reach"),
        confirm=choices.get("confirm"),
    )


def _chosen(what: str, choices: Mapping[str, _Choice], wish: _Choice | str) -> _Choice:
    for name, choice in choices.items():
        if wish == choice or (isinstance(wish, str) and wish.lower() == name):
            return choice
    raise UsageError(f"unknown {what} {str(wish)[:40]!r}: choose {' or '.join(choices)}")


# --- what it will cost


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One of the three ways to make vectors: what it takes, and how it is begun."""

    width: int
    lines: tuple[PlanLine, ...]
    budget_bytes: int
    pooling: Pooling | None
    threads: int
    pass_tokens: int
    text_tokens: int
    text_tokens_because: str
    read_bytes: int
    begin: Callable[[Monitor], Encoder]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    file: WeightFile
    walked: Walked
    plan: EmbedPlan
    way: _Way


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What every way is planned with."""

    wish: _Wish
    file: WeightFile
    walked: Walked
    budget_bytes: int | None
    available_bytes: int
    others: tuple[PlanLine, ...]
    peak_bytes: int  # while the tokenizer is built, before there is anything else


def _prepare(model: str | os.PathLike[str], wish: _Wish, held: ExitStack) -> _Prepared:
    found = find_weights(model, reach=wish.reach, confirm=wish.confirm)
    file = held.enter_context(WeightFile(found.path, wish.limits))
    walked = walk(file, wanted=_is_table if wish.mode is Mode.TOKENS else None)
    asked = _asked(wish, file, walked)
    way = _way(asked)
    return _Prepared(file=file, walked=walked, plan=_plan(found, asked, way), way=way)


def _is_table(name: str) -> bool:
    return name == TABLE


def _asked(wish: _Wish, file: WeightFile, walked: Walked) -> _Asked:
    """The budget is the user's, or what the machine lets this process have, if that is less."""
    import psutil

    room = Monitor().usable_bytes
    base = (*(_process_lines() if wish.own_process else ()), *_input_lines(wish))
    available = int(psutil.virtual_memory().available)
    budget_bytes = wish.budget_bytes
    if room is not None:
        most = room * 100 // BREAKER_PERCENT + _total(base)
        available = min(available, most)
        budget_bytes = None if budget_bytes is None else min(budget_bytes, most)
    return _Asked(
        wish=wish,
        file=file,
        walked=walked,
        budget_bytes=budget_bytes,
        available_bytes=available,
        others=(*base, *_tokenizer_lines(wish, walked)),
        peak_bytes=_total(base)
        + (tokenizer_cost_bytes(walked).peak_bytes if wish.tokenizer else 0),
    )


def _total(lines: Iterable[PlanLine]) -> int:
    return sum(line.size_bytes for line in lines)


def _process_lines() -> tuple[PlanLine, ...]:
    """In steps of a few MiB, so that the same command has the same plan twice."""
    import psutil
    import tokenizers  # noqa: F401 - measured with all that will be loaded

    resident = int(psutil.Process().memory_info().rss) + _PROCESS_SPARE_BYTES
    because = "Python and its libraries, as measured now, rounded up"
    size_bytes = -(-resident // _PROCESS_STEP_BYTES) * _PROCESS_STEP_BYTES
    return (PlanLine(what="process", size_bytes=size_bytes, basis=Basis.MODELLED, because=because),)


def _input_lines(wish: _Wish) -> tuple[PlanLine, ...]:
    if not wish.input_bytes:
        return ()
    because = "upper bound for rows of the input, as bytes and as text"
    return (
        PlanLine(what="input", size_bytes=wish.input_bytes, basis=Basis.MODELLED, because=because),
    )


def _tokenizer_lines(wish: _Wish, walked: Walked) -> tuple[PlanLine, ...]:
    if not wish.tokenizer:
        return ()
    resident_bytes, peak_bytes = tokenizer_cost_bytes(walked)
    tokens = walked.arrays.get("tokenizer.ggml.tokens")
    because = (
        f"{(0 if tokens is None else tokens.count):,} tokens; {format_bytes(peak_bytes)} "
        "while it is being built"
    )
    return (
        PlanLine(
            what="tokenizer", size_bytes=resident_bytes, basis=Basis.MODELLED, because=because
        ),
    )


def _way(asked: _Asked) -> _Way:
    if asked.wish.mode is Mode.TOKENS:
        return _token_way(asked)
    return _engine_way(asked) if asked.wish.engine != BUILT_IN else _encoder_way(asked)


def _rows(width: int, mode: Mode) -> int:
    """Vectors of one pass. Without a forward pass there is little that texts could share."""
    size_bytes = _TOKEN_ROWS_BYTES if mode is Mode.TOKENS else _ROWS_BYTES
    return max(1, min(_MOST_ROWS, size_bytes // (width * 4)))


def _row_lines(width: int, mode: Mode) -> tuple[PlanLine, PlanLine]:
    rows = _rows(width, mode)
    told = f"{rows} x {width:,} x 4"
    return (
        _exact("vectors of a pass", rows * width * 4, told),
        _exact(
            "answers",
            rows * width * 4,
            f"{told}: results that callers have not collected yet; more if there is memory",
        ),
    )


def _exact(what: str, size_bytes: int, because: str) -> PlanLine:
    return PlanLine(what=what, size_bytes=size_bytes, basis=Basis.EXACT, because=because)


def _token_way(asked: _Asked) -> _Way:
    wish, walked = asked.wish, asked.walked
    if wish.engine != BUILT_IN or wish.pooling is not None:
        raise UsageError("mode tokens does not take an engine or a pooling")
    size_bytes = token_mean_bytes(walked)
    width = _width(walked)
    buffers = _exact("buffers", size_bytes, "packed bytes and floats for part of one row")
    lines = (*asked.others, buffers, *_row_lines(width, wish.mode))
    return _Way(
        width=width,
        lines=lines,
        budget_bytes=_budget_for(asked, lines),
        pooling=None,
        threads=1,
        pass_tokens=wish.limits.tokens,
        text_tokens=wish.limits.tokens,
        text_tokens_because="Limits.tokens",
        read_bytes=0,
        begin=lambda monitor: open_token_mean(
            asked.file, walked, kernels=wish.kernels, monitor=monitor
        ),
    )


def _encoder_way(asked: _Asked) -> _Way:
    wish, walked = asked.wish, asked.walked
    width = _width(walked)
    plan = plan_encoder(
        walked,
        kernels=wish.kernels,
        budget_bytes=asked.budget_bytes,
        available_bytes=asked.available_bytes,
        threads=wish.threads,
        limits=wish.limits,
        pooling=wish.pooling,
        other_lines=(*asked.others, *_row_lines(width, wish.mode)),
        least_bytes=asked.peak_bytes,
        varying_bytes=_PROCESS_STEP_BYTES if wish.own_process else 0,
        **({} if wish.batch_tokens is None else {"batch_tokens": wish.batch_tokens}),
    )
    return _Way(
        width=width,
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
        begin=lambda monitor: open_encoder(
            asked.file, walked, kernels=wish.kernels, monitor=monitor, plan=plan
        ),
    )


def _engine_way(asked: _Asked) -> _Way:
    wish, walked = asked.wish, asked.walked
    architecture = str(walked.keys.get("general.architecture"))
    context = walked.keys.get(f"{architecture}.context_length")
    text_tokens, because = wish.limits.tokens, "Limits.tokens"
    if isinstance(context, int) and 0 < context < text_tokens:
        text_tokens, because = context, "the model's context length"
    settings = llamacpp.ChildSettings(
        pooling=choose_pooling(walked.keys, architecture, wish.pooling),
        threads=usable_cores() if wish.threads is None else wish.threads,
        pass_tokens=max(text_tokens, wish.batch_tokens or 0),
    )
    width = llamacpp.width_of(walked)
    engine = PlanLine(
        what=wish.engine,
        size_bytes=llamacpp.needed_bytes(walked, settings),
        basis=Basis.MODELLED,
        because="the whole file, its KV cache and its compute buffers, in a separate process",
    )
    lines = (*asked.others, *_row_lines(width, wish.mode), engine)
    return _Way(
        width=width,
        lines=lines,
        budget_bytes=_budget_for(asked, lines),
        pooling=settings.pooling,
        threads=settings.threads,
        pass_tokens=settings.pass_tokens,
        text_tokens=text_tokens,
        text_tokens_because=because,
        read_bytes=0,
        begin=lambda monitor: llamacpp.LlamaCppEncoder(
            Path(asked.file.name), walked, settings, monitor=monitor
        ),
    )


def _width(walked: Walked) -> int:
    table = walked.tensors.get(TABLE)
    return table.shape[-1] if table is not None and table.shape else 1


def _table_rows(walked: Walked) -> int:
    table = walked.tensors.get(TABLE)
    return table.shape[0] if table is not None and table.shape else 0


def _budget_for(asked: _Asked, lines: tuple[PlanLine, ...]) -> int:
    """The user's budget where it is enough, what is needed where there is none."""
    total = max(_total(lines), asked.peak_bytes)
    if asked.budget_bytes is None:
        return budget_for(total) + _SPARE_BYTES
    if usable_bytes(asked.budget_bytes) < total:
        varying = _PROCESS_STEP_BYTES if asked.wish.own_process else 0
        raise MemoryPressureError(
            f"a budget of {format_bytes(asked.budget_bytes)} is too small: "
            f"{format_bytes(total)} is needed, and at most {BREAKER_PERCENT} % of a "
            f"budget is used; use at least {rounded_up(budget_for(total + varying))}"
        )
    return asked.budget_bytes


def _plan(found: Found, asked: _Asked, way: _Way) -> EmbedPlan:
    wish = asked.wish
    dimensions = way.width if wish.dimensions is None else wish.dimensions
    if not 0 < dimensions <= way.width:
        raise UsageError(
            f"dimensions must be between 1 and {way.width:,} for this model (got {dimensions:,})"
        )
    return EmbedPlan(
        label=found.label,
        mode=wish.mode,
        engine=wish.engine,
        kernels=wish.kernels.name if wish.engine == BUILT_IN else wish.engine,
        threads=way.threads,
        dimensions=dimensions,
        pooling=way.pooling,
        budget_bytes=way.budget_bytes,
        budget_because=_budget_because(asked),
        lines=way.lines,
        pass_tokens=way.pass_tokens,
        text_tokens=way.text_tokens,
        text_tokens_because=way.text_tokens_because,
        read_bytes=way.read_bytes,
        notes=found.notes,
    )


def _budget_because(asked: _Asked) -> str:
    wished = asked.wish.budget_bytes
    if wished is None:
        return "as much as is useful, up to a quarter of the free memory"
    if asked.budget_bytes == wished:
        return "as requested"
    return f"{format_bytes(wished)} was requested, but a limit on this process allows less"


# --- what is built


def _build_tokenizer(
    wish: _Wish, prepared: _Prepared, monitor: Monitor, held: ExitStack
) -> Callable[[], TextTokenizer]:
    """Before the buffers are there, so that what building it takes for a while has room."""
    if not wish.tokenizer:

        def none() -> TextTokenizer:
            raise UsageError(
                "this embedder was opened without a tokenizer: only embed_tokens works"
            )

        return none
    resident_bytes, peak_bytes = tokenizer_cost_bytes(prepared.walked)
    reserved = held.enter_context(monitor.try_allocate(peak_bytes, "building the tokenizer"))
    vocabulary = read_vocabulary(prepared.file, prepared.walked)
    built = build_tokenizer(vocabulary, cache=wish.tokenizer_cache)
    del vocabulary
    reserved.shrink(resident_bytes)
    return lambda: built
