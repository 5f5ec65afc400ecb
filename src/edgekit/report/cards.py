"""A recommendation as a table of the best few models and as JSON (docs/json.md)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from edgekit.app.answers import Recommendation
from edgekit.basis import Basis
from edgekit.bill.verdict import Lever
from edgekit.catalog.repositories import Form, repository_at
from edgekit.catalog.types import Entry, ModelPurpose
from edgekit.engines import engine_named
from edgekit.engines.choices import AS_NAMED
from edgekit.machine.types import Device, Machine
from edgekit.plan.plan import Plan
from edgekit.plan.recommend import Suggestion
from edgekit.plan.verdict import download_bytes
from edgekit.report.bars import BLOCKS, Glyphs, bar_lines, memories, painted
from edgekit.report.check import assumed_of, change_lines
from edgekit.report.hardware import machine_json
from edgekit.report.headline import cache_words as cache_changed
from edgekit.report.headline import context_words, headline, typical_figure
from edgekit.report.json import SCHEMA
from edgekit.report.plan import plan_fields
from edgekit.report.tables import shortened, used_words
from edgekit.report.text import command_rows, figures, folded, placed, section, within
from edgekit.terminal import printable
from edgekit.units import GIB, format_download, short_count

_LEAST_NAME = 12  # columns; where fewer are left for the name, a model takes two lines
_TASKS = {
    ModelPurpose.CHAT: "chat",
    ModelPurpose.CODE: "code",
    ModelPurpose.REASONING: "reasoning",
    ModelPurpose.EMBEDDING: "embeddings",
    ModelPurpose.VISION: "vision",
}
_HEAD = ("", "model", "weights", "download", "context", "GiB used", "tokens/s", "runs on")
_MODEL, _WEIGHTS, _DOWNLOAD, _USED = 1, 2, 3, 5  # columns


def cards_text(
    found: Recommendation,
    *,
    width: int = 100,
    colour: bool = False,
    glyphs: Glyphs = BLOCKS,
    words: str = "",
    why: bool = False,
) -> str:
    """The screen. `words` are those of the command line that the next command needs as well: --device, --ram.

    `why` adds each model's headline and bars; `colour` only decorates.
    """
    width = within(width)
    shown = found.suggestions or tuple(filter(None, (found.nearest,)))
    top = folded(cards_answer(found), width)
    lines = [f"\x1b[1m{line}\x1b[0m" for line in top] if colour else top
    if shown:
        first = shown[0].plan.result
        sentence = folded(headline(first), width)
        lines += [painted(line, first.status) for line in sentence] if colour else sentence
    if found.suggestions:
        lines += ["", *_table_lines(found.suggestions, width)]
    elif found.nearest is not None:
        lines += change_lines(found.nearest.plan.result, found.nearest.plan.to_fit, width)
    if why:
        lines += _details(shown, width, glyphs, colour=colour)
    skipped = ", ".join(f"{count} {reason}" for reason, count in found.passed_over)
    lines += ["", *folded(f"skipped: {skipped}", width)] if skipped else []
    request, machine = found.request, found.request.find_machine()
    assumed = machine.notes if why else assumed_of(machine, shown[0].plan.result if shown else None)
    # of GGUF models the projector is a file of its own
    sees = found.purpose is ModelPurpose.VISION and engine_named(request.engines[0]).loads_gguf
    projector = ["text only: image projectors are not counted here"] if sees and shown else []
    lines += section("Note", [*found.notes, *projector, *assumed], width)
    if shown:
        lines += _next(shown[0], found, words, width)
    return "\n".join(lines) + "\n"


def cards_answer(found: Recommendation) -> str:
    """The whole of it in one line."""
    request = found.request
    task, machine = _task_words(found), machine_words(request.find_machine())
    if found.suggestions:
        first = found.suggestions[0]
        reads = found.purpose is ModelPurpose.EMBEDDING  # it writes nothing
        slow = ", but slower than reading speed" if first.plan.is_slow and not reads else ""
        return printable(f"Best for {task} on {machine}: {first.entry.id}{slow}")
    if found.nearest is None:
        return printable(f"No known model for {task} runs with {request.engine} on {machine}")
    return printable(f"Nothing fits for {task} on {machine}; nearest: {found.nearest.entry.id}")


def _task_words(found: Recommendation) -> str:
    task, request = _TASKS[found.purpose], found.request
    tokens = request.wanted_tokens
    if tokens is not None:
        task += f" at {tokens:,} tokens" if tokens else " at the model's full context"
        return f"{task} for each of {request.users} users" if request.users else task
    return f"{task} with {request.users} users at once" if request.users else task


def machine_words(machine: Machine) -> str:
    """'RTX 4090 + 64 GiB RAM' as it was asked for; one that was found with what is free in it."""
    if machine.what_if:
        return machine.name
    parts = list(_device_words(machine.devices))
    if machine.cores is not None:
        parts.append(f"{machine.cores} cores" if machine.cores > 1 else "1 core")
    if machine.host is not None:
        ram = " of RAM" if machine.devices else ""
        parts.append(f"{machine.host.usable_bytes / GIB:.1f} GiB{ram} free")
    return f"{machine.name} ({', '.join(parts)})" if parts else machine.name


def _device_words(devices: Sequence[Device]) -> Iterator[str]:
    """Unified memory is counted once, as the host's."""
    for device in devices:
        free = "" if device.unified else f" with {device.free_bytes / GIB:.1f} GiB free"
        yield f"{device.name}{free}"


def _table_lines(shown: Sequence[Suggestion], width: int) -> list[str]:
    """One row a model. What a narrow screen has no room for goes first: parameters, which names have, what is usable,
    the download, the memory; names are cut last. On the narrowest a model takes two lines.
    """
    full = [_row(number, one) for number, one in enumerate(shown, start=1)]
    plain = [_with(row, _WEIGHTS, row[_WEIGHTS].split(" ")[-1]) for row in full]
    short = [_with(row, _USED, row[_USED].partition(" of ")[0]) for row in plain]
    head = _with(_HEAD, _USED, "GiB")
    brief = [(*row[:-1], re.sub(r"^\d+ GPUs", "GPU", row[-1])) for row in short]
    small = _without(head, _DOWNLOAD), [_without(row, _DOWNLOAD) for row in brief]
    without = _without(small[0], _USED - 1), [_without(row, _USED - 1) for row in small[1]]
    for names, rows in ((_HEAD, full), (_HEAD, plain), (head, short), small, without):
        table = figures(names, rows, words=3)
        over = max(map(len, table)) - width
        if over <= 0:
            return table
    room = max(len(row[_MODEL]) for row in full) - over
    if room >= _LEAST_NAME:
        cut = [_with(row, _MODEL, shortened(row[_MODEL], room)) for row in without[1]]
        return figures(without[0], cut, words=3)
    return [line for row in full for line in _stacked(row, width)]


def _with(row: tuple[str, ...], column: int, text: str) -> tuple[str, ...]:
    return (*row[:column], text, *row[column + 1 :])


def _without(row: tuple[str, ...], column: int) -> tuple[str, ...]:
    return (*row[:column], *row[column + 1 :])


def _stacked(row: tuple[str, ...], width: int) -> list[str]:
    number, name, weights, download, context, used, speed, where = row
    second = f"{weights}, {download} download, {context}, {used} GiB, {speed} tokens/s, {where}"
    return [
        *folded(f"{number} {name}", width),
        *(f"  {line}" for line in folded(second, width - 2)),
    ]


def _row(number: int, one: Suggestion) -> tuple[str, ...]:
    plan, entry, name = one.plan, one.entry, one.plan.variant.name
    size = short_count(entry.parameters) if entry.parameters is not None else ""
    weights, download = printable(name).replace(" bit", "-bit"), download_bytes(plan.result)
    return (
        str(number),
        printable(entry.id),
        " ".join(filter(None, (size, weights if name != AS_NAMED else ""))),
        "?" if download is None else format_download(download),
        _window(plan),
        used_words(plan.result).removesuffix(" +RAM"),
        _speed(one),
        _where(plan),
    )


def _window(plan: Plan) -> str:
    """'32K', '32K q8_0' where the cache is not the engine's own, '4 x 16K' of several users."""
    users = plan.task.users or 1
    each = context_words(plan.context_tokens).removesuffix(" tokens")
    tokens = f"{users} x {each}" if users > 1 else each
    return f"{tokens} {plan.result.cache}" if cache_changed(plan.result) else tokens


def _speed(one: Suggestion) -> str:
    """An embedding model writes nothing: how fast it reads."""
    speed = one.plan.speed
    rates = None if speed is None else speed.decode
    if speed is not None and ModelPurpose.EMBEDDING in one.entry.kinds:
        rates = speed.prefill
    return "?" if rates is None else typical_figure(rates)


def _where(plan: Plan) -> str:
    cards, off = plan.result.way.cards, engine_named(plan.task.engine).offload(plan.result)
    if not cards or off.everything:
        return "CPU"
    gpus = "GPU" if len(cards) == 1 else f"{len(cards)} GPUs"
    return f"{gpus} + CPU" if off.layers or off.experts else gpus


def _details(
    shown: Sequence[Suggestion], width: int, glyphs: Glyphs, *, colour: bool
) -> Iterator[str]:
    """Each model with its headline and bars, and how well the figures are known."""
    for one in shown:
        yield ""
        facts = ", ".join(_facts(one))
        yield from folded(f"{one.entry.id} ({facts})" if facts else one.entry.id, width)
        yield from folded(headline(one.plan.result), width)
        yield from bar_lines(memories(one.plan.result), width, glyphs, colour=colour)
    if shown:
        yield from section("Basis", list(_basis_rows(shown)), width)


def _facts(one: Suggestion) -> Iterator[str]:
    entry = one.entry
    if entry.parameters is not None:
        yield parameters_words(entry.parameters, entry.active_parameters)
    if entry.released:
        yield f"released {entry.released[:7]}"  # the day may be that of a paper
    if entry.licence:
        yield f"licence {entry.licence}"


def parameters_words(parameters: int, active: int | None = None) -> str:
    """'12B', or '122B with 9.8B active'."""
    if active is None or active == parameters:
        return short_count(parameters)
    return f"{short_count(parameters)} with {short_count(active)} active"


def cache_words(plan: Plan) -> str:
    """The type of the cache; '' of a model that keeps none."""
    cache = plan.decision(Lever.CACHE)
    if cache is None or not plan.result.estimate.kv_cache_bytes:
        return ""
    facts = dict(plan.result.estimate.facts)
    return str(facts.get("dtype", cache.value)) if cache.value == "auto" else cache.value


def _basis_rows(shown: Sequence[Suggestion]) -> Iterator[str]:
    """How well it is known: by the numbers of the models where they differ."""
    memory = _by_basis([one.plan.result.estimate.basis for one in shown])
    speed = _by_basis([one.plan.speed.basis if one.plan.speed else None for one in shown])
    yield f"memory {memory}; speed {speed}; ranked by a rule of thumb from parameters and age"


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


def _next(first: Suggestion, found: Recommendation, words: str, width: int) -> list[str]:
    """What to type next: run it here, or look at the plan of a machine that is only asked about."""
    name = shlex.quote(first.entry.id)
    plan = f"edgekit plan {name} {words}".strip()
    if not first.plan.fits:
        return placed("Next", command_rows(f"{plan} --why", width), width)
    lines = []
    is_here = not found.request.find_machine().what_if
    chats = found.purpose is not ModelPurpose.EMBEDDING
    mix = first.plan.variant.name
    if is_here and chats and repository_at(first.entry.id, Form.GGUF, mix) is not None:
        lines += command_rows(f"edgekit run {name}", width)
    return placed("Next", [*lines, *command_rows(plan, width)], width)


def cards_json(found: Recommendation) -> dict[str, Any]:
    """The whole answer, the best first."""
    request, machine = found.request, found.request.find_machine()
    return {
        "schema": SCHEMA,
        "task": found.purpose.value,
        "engine": request.engine,
        "context_tokens": request.wanted_tokens,
        "users": request.users,
        "min_context": request.min_context,
        "prefer_accurate_cache": request.prefer_accurate_kv,
        "machine": machine_json(machine),
        "suggestions": [_suggestion(one) for one in found.suggestions],
        "nearest": None if found.nearest is None else _suggestion(found.nearest),
        "passed_over": [{"because": why, "count": count} for why, count in found.passed_over],
        "notes": [*machine.notes, *found.notes],
    }


def _suggestion(one: Suggestion) -> dict[str, Any]:
    return {
        "id": one.entry.id,
        "entry": card_entry_json(one.entry),
        "rank": one.rank,
        "worth": one.worth,
        "is_quick": one.is_quick,
        "is_preferred": one.is_preferred,
        "plan": plan_fields(one.plan),
    }


def card_entry_json(entry: Entry) -> dict[str, Any]:
    """What a card says of the model; the rest is in the catalog."""
    return {
        "repository": entry.repository,
        "family": entry.family,
        "architecture": entry.architecture,
        "parameters": entry.parameters,
        "active_parameters": entry.active_parameters,
        "native_context": entry.native_context,
        "kinds": [kind.value for kind in entry.kinds],
        "licence": entry.licence,
        "released": entry.released,
    }
