"""A recommendation -> fit cards: the answer in one line, a card for each model, who was passed over, what is next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgekit.basis import Basis
from edgekit.catalog.types import Kind
from edgekit.hardware.types import Accelerator, Machine
from edgekit.memory.types import Component
from edgekit.plan.planned import Lever, Plan
from edgekit.plan.recommending import Ask, Recommendation, Suggestion
from edgekit.plan.types import PreflightResult
from edgekit.report.bars import BLOCKS, PARTS, Glyphs
from edgekit.report.check_memory import bar_lines, painted
from edgekit.report.check_words import VERDICTS
from edgekit.report.lines import printable
from edgekit.report.plan_text import weights_words
from edgekit.report.screen import command_rows, folded, joined, placed, row_width, section, within
from edgekit.report.speed_words import is_slow, rate_words
from edgekit.units import GIB, format_bytes

UNKNOWN = "speed not known"
_INDENT = 3  # columns: what belongs to a number stands to the right of it
_WORTH_A_BAR = 0.05  # of a memory: what takes less of it and is not the tightest says nothing
_TASKS = {
    Kind.CHAT: "chat",
    Kind.CODE: "code",
    Kind.REASONING: "reasoning",
    Kind.EMBEDDING: "embeddings",
    Kind.VISION: "vision",
}


def cards_text(
    found: Recommendation,
    *,
    width: int = 100,
    colour: bool = False,
    glyphs: Glyphs = BLOCKS,
    words: str = "",
    problems: Sequence[str] = (),
) -> str:
    """The screen. `words` are those of the command line that the next command needs as well: --device, --ram.

    `problems` of the catalog are told; `colour` only decorates: every word stands there without it.
    """
    width = within(width)
    lines = _answer_lines(found, width, colour=colour)
    shown = found.suggestions or tuple(filter(None, (found.nearest,)))
    lines += _cards(shown, found.ask, width, glyphs, colour=colour)
    if shown:
        lines += ["", *joined(_legend(glyphs), width, glyphs.between)]
    for label, rows in _sections(found, problems):
        lines += section(label, rows, width)
    if shown:
        lines += _next(shown[0], words, width)
    return "\n".join(lines) + "\n"


def cards_answer(found: Recommendation) -> str:
    """The whole of it in one line."""
    task, machine = _task_words(found.ask), machine_words(found.ask.machine)
    return printable(f"For {task} on {machine}: {_best(found)}")


def _answer_lines(found: Recommendation, width: int, *, colour: bool) -> list[str]:
    lines = folded(cards_answer(found), width)
    return [f"\x1b[1m{line}\x1b[0m" for line in lines] if colour else lines


def _best(found: Recommendation) -> str:
    if not found.suggestions:
        if found.nearest is None:
            return f"no known model that {found.ask.engine} runs"
        return f"nothing fits; {found.nearest.entry.id} comes nearest"
    first = found.suggestions[0]
    slow = ", but it is slow" if is_slow(first.plan) else ""
    return f"{first.entry.id}{_at(first.plan)} is the best that fits{slow}"


def _at(plan: Plan) -> str:
    words = weights_words(plan)
    return f" at {words}" if words == plan.variant.name else ""


def _task_words(ask: Ask) -> str:
    task = _TASKS[ask.task]
    if ask.context_tokens is not None:
        task += f" with {ask.context_tokens:,} tokens"
        return f"{task} for each of {ask.users} users" if ask.users else task
    return f"{task} of {ask.users} users at once" if ask.users else task


def machine_words(machine: Machine) -> str:
    """'RTX 4090 + 64 GiB RAM' as it was wished for; one that was found with what is free in it."""
    if machine.what_if:
        return machine.name
    parts = list(_device_words(machine.devices))
    if machine.cores is not None:
        parts.append(f"{machine.cores} cores" if machine.cores > 1 else "1 core")
    if machine.host is not None:
        ram = " of RAM" if machine.devices else ""
        parts.append(f"{machine.host.usable_bytes / GIB:.1f} GiB{ram} free")
    return f"{machine.name} ({', '.join(parts)})" if parts else machine.name


def _device_words(devices: Sequence[Accelerator]) -> Iterator[str]:
    """Unified memory is told once, as the host's."""
    for device in devices:
        free = "" if device.unified else f" with {device.free_bytes / GIB:.1f} GiB free"
        yield f"{device.name}{free}"


def _cards(
    shown: Sequence[Suggestion], ask: Ask, width: int, glyphs: Glyphs, *, colour: bool
) -> list[str]:
    room = width - _INDENT
    results = [_worth_bars(one.plan.result) for one in shown]
    bars = bar_lines(results, room, glyphs, colour=colour) if shown else []
    facts = _fact_lines(shown, ask, room, glyphs.between, colour=colour)
    lines: list[str] = []
    for number, (one, told, drawn) in enumerate(zip(shown, facts, bars, strict=True), start=1):
        head, *more = joined(_head(one), room, glyphs.between)
        title = f"{number if one.plan.fits else '':<{_INDENT}}{head}"
        lines += ["", f"\x1b[1m{title}\x1b[0m" if colour else title]
        lines += [f"{' ' * _INDENT}{line}".rstrip() for line in (*more, *told, *drawn)]
    return lines


def _head(one: Suggestion) -> Iterator[str]:
    """What the model is, and where it lies."""
    entry = one.entry
    yield entry.id
    if entry.parameters is not None:
        yield parameters_words(entry.parameters, entry.active_parameters)
    yield one.plan.result.way.because.removeprefix("all of it ")
    if entry.released:
        yield f"released {entry.released[:7]}"  # the day may be that of a paper
    if entry.licence:
        yield f"licence {entry.licence}"


def parameters_words(parameters: int, active: int | None = None) -> str:
    """'12B', or '122B with 9.8B active'."""
    if active is None or active == parameters:
        return _short_count(parameters)
    return f"{_short_count(parameters)} with {_short_count(active)} active"


_COUNTS = ((10**12, "T"), (10**9, "B"), (10**6, "M"))


def _short_count(count: int) -> str:
    """As people name models: 7.2B, 31B, 235B, 1.0T."""
    step, unit = next(((s, u) for s, u in _COUNTS if count >= s * 0.995), (1, ""))
    number = count / step
    return f"{number:.1f}{unit}" if unit and number < 9.95 else f"{number:.0f}{unit}"


def _fact_lines(
    shown: Sequence[Suggestion], ask: Ask, room: int, between: str, *, colour: bool
) -> list[list[str]]:
    """Verdict, weights, window, speed: in columns over all cards, where the screen is wide enough for it."""
    rows = [_facts(one.plan, ask) for one in shown]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    beside = sum(widths) + 2 * (len(widths) - 1) <= room
    found: list[list[str]] = []
    for one, row in zip(shown, rows, strict=True):
        cells = (f"{cell:<{size}}" for cell, size in zip(row, widths, strict=True))
        first, *more = ["  ".join(cells)] if beside else joined(row, room, between)
        if colour:
            word = painted(row[0], one.plan.result.status, "1;")
            first = f"{word}{first.removeprefix(row[0])}"
        found.append([first, *more])
    return found


def _facts(plan: Plan, ask: Ask) -> tuple[str, ...]:
    weights = f"{plan.variant.name}, {format_bytes(_weights_bytes(plan))}{_share(plan)}"
    return (
        VERDICTS[plan.result.status],
        printable(weights),
        printable(_window(plan)),
        _speed(plan, ask),
    )


def _weights_bytes(plan: Plan) -> int:
    """Of the model itself, wherever they lie."""
    return plan.result.estimate.total(
        lambda line: line.component is Component.WEIGHTS and not line.part
    )


def _share(plan: Plan) -> str:
    """A bill of vLLM is that of one card, and each holds the same."""
    return " a card" if plan.wish.engine == "vllm" and len(plan.result.way.cards) > 1 else ""


def _window(plan: Plan) -> str:
    users = plan.wish.users
    tokens = f"{plan.context_tokens:,} tokens"
    if users is not None and users > 1:
        tokens = f"{users} x {tokens}"
    kept = cache_words(plan)
    return f"{tokens} in {kept}" if kept else tokens


def cache_words(plan: Plan) -> str:
    """The type of the cache; '' of a model that keeps none."""
    cache = plan.decision(Lever.CACHE)
    if cache is None or not plan.result.estimate.kv_cache_bytes:
        return ""
    facts = dict(plan.result.estimate.facts)
    return str(facts.get("dtype", cache.value)) if cache.value == "auto" else cache.value


def _speed(plan: Plan, ask: Ask) -> str:
    """Of an embedder how fast it reads: it writes nothing."""
    speed = plan.speed
    if speed is None:
        return UNKNOWN
    if ask.task is Kind.EMBEDDING:
        return UNKNOWN if speed.prefill is None else f"reads {rate_words(speed.prefill)}"
    return f"{rate_words(speed.decode)}{', slow' if is_slow(plan) else ''}"


def _worth_bars(result: PreflightResult) -> PreflightResult:
    """The verdict with the memories that say something about it."""
    tightest = result.tightest
    uses = tuple(use for use in result.uses if use == tightest or use.utilization >= _WORTH_A_BAR)
    return replace(result, uses=uses)


def _legend(glyphs: Glyphs) -> Iterator[str]:
    parts = zip(glyphs.parts, PARTS, strict=True)
    yield "  ".join(f"{glyph} {part}" for glyph, part in parts)
    yield f"{glyphs.mark} usable"


def _sections(found: Recommendation, problems: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    if not found.suggestions and found.nearest is not None:
        plan = found.nearest.plan
        yield "Why", list(plan.result.reasons)
        yield "To fit", [change.told for change in plan.to_fit]
    yield "Basis", list(_basis_rows(found.suggestions))
    notes = [*found.ask.machine.notes, *problems]
    if found.passed_over:
        told = ", ".join(f"{count} {why}" for why, count in found.passed_over)
        notes.append(f"passed over on the way: {told}")
    yield "Note", notes


def _basis_rows(shown: Sequence[Suggestion]) -> Iterator[str]:
    """How well it is known: by the numbers of the cards where they differ."""
    if not shown:
        return
    memory = _by_basis([one.plan.result.estimate.basis for one in shown])
    speed = _by_basis([one.plan.speed.basis if one.plan.speed else None for one in shown])
    yield f"memory {memory}; speed {speed}; order a rule of thumb from parameters and age"


def _by_basis(bases: Sequence[Basis | None]) -> str:
    """'exact', or 'exact for 1 and 3, modelled for 2'."""
    numbers: dict[str, list[str]] = {}
    for number, basis in enumerate(bases, start=1):
        numbers.setdefault("not known" if basis is None else basis.value, []).append(str(number))
    if len(numbers) == 1:
        return next(iter(numbers))
    return ", ".join(f"{word} for {_listed(those)}" for word, those in numbers.items())


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _next(first: Suggestion, words: str, width: int) -> list[str]:
    command = f"edgekit plan {shlex.quote(first.entry.id)} {words}".strip()
    told = "the whole plan of a model: reasons, and commands to paste"
    if not first.plan.fits:
        command, told = f"{command} --why", "what was tried, and what would help"
    rows = [*command_rows(command, width), *folded(told, row_width(width))]
    return placed("Next", rows, width)
