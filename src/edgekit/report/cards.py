"""A recommendation as a table of the best models and as JSON (docs/json.md), and the cards of the page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from edgekit.bill.types import Lever
from edgekit.engines import engine_named
from edgekit.engines.choices import AS_NAMED
from edgekit.engines.commands import Command
from edgekit.engines.flags import typed
from edgekit.errors import printable
from edgekit.index.quality import (
    TYPICAL_RELEASE,
    Quality,
    QualityBasis,
    Score,
    reference_benchmark,
)
from edgekit.index.repositories import Form, repository_at
from edgekit.index.titles import publisher_of, title_of
from edgekit.index.types import Entry, ModelPurpose
from edgekit.machine.types import Machine
from edgekit.plan.choice import download_bytes, runs_on, with_weights
from edgekit.plan.commands import by_program, main_command
from edgekit.plan.fit import first_placement
from edgekit.plan.plan import Plan
from edgekit.plan.recommend import (
    Suggestion,
    entry_related_scores,
    rank_of,
    suits_task,
    task_of_entry,
)
from edgekit.report.check import assumed_of, bars_json, changes_section, headline
from edgekit.report.hardware import machine_json
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.report.plan import plan_fields, plan_speed
from edgekit.report.tables import MIN_NAME, shorten, used_words, window_words
from edgekit.report.text import (
    PLAIN,
    Screen,
    Sections,
    bar_lines,
    command_lines,
    fold,
    memories,
    paint,
    render,
    table,
)
from edgekit.units import (
    GIB,
    Basis,
    about_rate,
    format_download,
    min_speed_words,
    rate_figure,
    short_count,
)

if TYPE_CHECKING:
    from edgekit.app.recommend import Recommendation

_HEAD: tuple[str, ...] = (
    "",
    "model",
    "weights",
    "download",
    "context",
    "GiB used",
    "tokens/s",
    "quality",
    "runs on",
)
_MODEL, _WEIGHTS, _DOWNLOAD, _USED, _RUNS_ON = 1, 2, 3, 5, 8  # columns of the table
MAX_CARD_CHARS = 400
_CARD_SPEED = (
    "typical", "decode", "prefill", "prefill_typical", "interval", "steady", "basis",
)  # fmt: skip


def cards_text(
    recommendation: Recommendation, screen: Screen = PLAIN, *, words: str = "", why: bool = False
) -> str:
    """The screen. `words` are the flags that the next command needs as well, such as --device and --ram.

    `why` adds each model's headline and bars.
    """
    return render(cards_headline(recommendation), _sections(recommendation, words, why=why), screen)


def _sections(recommendation: Recommendation, words: str, *, why: bool) -> Sections:
    """The best model's headline, the table, skipped models, notes and the next command."""
    suggestions, nearest = recommendation.suggestions, recommendation.nearest
    # Of models of unknown speed, the nearest says nothing about a requested one.
    if nearest is not None and nearest.plan.fits and recommendation.request.min_speed is not None:
        nearest = None
    shown = suggestions or tuple(filter(None, (recommendation.fastest, nearest)))

    def first_headline(screen: Screen) -> list[str]:
        result = shown[0].plan.result
        lines = fold(headline(result), screen.width)
        return [paint(line, result.status) for line in lines] if screen.colour else lines

    if shown:
        yield None, first_headline
    if suggestions:
        yield "", lambda screen: _table_lines(suggestions, screen.width)
    elif nearest is not None:
        yield changes_section(nearest.plan.result, nearest.plan.to_fit)
    if why and shown:
        for suggestion in shown:
            yield "", partial(_detail_lines, suggestion)
        plans = [suggestion.plan for suggestion in shown]
        memory = _by_basis([plan.result.estimate.basis for plan in plans])
        speed = _by_basis([plan.speed.basis if plan.speed else None for plan in plans])
        quality = _by_word([suggestion.quality.basis.value for suggestion in shown])
        yield "Basis", [f"memory {memory}; speed {speed}; quality {quality}"]
    skipped = ", ".join(f"{count} {reason}" for reason, count in recommendation.passed_over)
    yield "", [f"skipped: {skipped}"] if skipped else []
    machine = recommendation.request.find_machine()
    assumed = machine.notes if why else assumed_of(machine, shown[0].plan.result if shown else None)
    projector = []
    if recommendation.purpose is ModelPurpose.VISION:
        uncounted = [printable(each.entry.id) for each in shown if not each.counts_images]
        if uncounted:
            names = ", ".join(uncounted)
            projector.append(f"text only, the size of the image projector is unknown: {names}")
        if len(uncounted) < len(shown):
            projector.append("the image projector and one image are counted")
    unmeasured = unmeasured_notes(suggestion.quality for suggestion in suggestions)
    yield "Note", [*recommendation.notes, *unmeasured, *projector, *assumed]
    if shown:
        yield "Next", partial(_next_lines, shown[0], recommendation, words)


def cards_headline(recommendation: Recommendation) -> str:
    """The recommendation in one line."""
    request, task = recommendation.request, recommendation.purpose.value
    task += "s" if recommendation.purpose is ModelPurpose.EMBEDDING else ""
    tokens, users = request.wanted_tokens, request.users
    if tokens is not None:
        task += f" at {tokens:,} tokens" if tokens else " at the model's full context"
        task += f" for each of {users} users" if users else ""
    else:
        task += f" with {users} users at once" if users else ""
    machine = machine_words(request.find_machine())
    if recommendation.suggestions:
        first = recommendation.suggestions[0]
        writes = recommendation.purpose is not ModelPurpose.EMBEDDING
        slow = ", but slower than reading speed" if first.plan.is_slow and writes else ""
        return printable(f"Best for {task} on {machine}: {first.entry.id}{slow}")
    fastest = recommendation.fastest
    if fastest is not None and request.min_speed is not None:
        wanted, rate = min_speed_words(request.min_speed), fastest.plan.result.typical_speed or 0.0
        return printable(
            f"Nothing for {task} on {machine} reaches {wanted} tokens/s; "
            f"fastest: {fastest.entry.id}, {about_rate(rate)}"
        )
    nearest = recommendation.nearest
    if nearest is not None and nearest.plan.fits and request.min_speed is not None:
        wanted = min_speed_words(request.min_speed)
        return printable(
            f"No model for {task} on {machine} is known to reach {wanted} tokens/s, because speeds are unknown: "
            "name the GPU with --device, or leave --min-speed out"
        )
    if nearest is None:
        return printable(f"No known model for {task} runs with {request.engine} on {machine}")
    return printable(f"Nothing fits for {task} on {machine}; nearest: {nearest.entry.id}")


def machine_words(machine: Machine) -> str:
    """'RTX 4090 + 64 GiB RAM' for a described machine; for a detected one also its free memory."""
    if machine.what_if:
        return machine.name
    parts = []
    for device in machine.devices:  # unified memory is shown once, as RAM
        free = "" if device.unified else f" with {device.free_bytes / GIB:.1f} GiB free"
        parts.append(f"{device.name}{free}")
    if machine.cores is not None:
        parts.append(f"{machine.cores} cores" if machine.cores > 1 else "1 core")
    if machine.host is not None:
        ram = " of RAM" if machine.devices else ""
        parts.append(f"{machine.host.usable_bytes / GIB:.1f} GiB{ram} free")
    return f"{machine.name} ({', '.join(parts)})" if parts else machine.name


def _table_lines(suggestions: Sequence[Suggestion], width: int) -> list[str]:
    """One row per model. A narrow screen drops, in this order: the parameters (names have them), the usable memory, the
    download, the memory, the middle of names. On the narrowest screens a model takes two lines.
    """
    full = [_row(number, each) for number, each in enumerate(suggestions, start=1)]
    layouts = [(_HEAD, full)]
    rows = [_with(row, _WEIGHTS, row[_WEIGHTS].split(" ")[-1]) for row in full]
    layouts.append((_HEAD, rows))
    head = _with(_HEAD, _USED, "GiB")
    rows = [_with(row, _USED, row[_USED].partition(" of ")[0]) for row in rows]
    layouts.append((head, rows))
    rows = [_with(row, _RUNS_ON, re.sub(r"^\d+ GPUs", "GPU", row[_RUNS_ON])) for row in rows]
    layouts += [
        (_without(head, dropped), [_without(row, dropped) for row in rows])
        for dropped in ({_DOWNLOAD}, {_DOWNLOAD, _USED})
    ]
    for head, rows in layouts:
        lines = table(head, rows, left=range(3))
        over = max(map(len, lines)) - width
        if over <= 0:
            return lines
    name_width = max(len(row[_MODEL]) for row in full) - over
    if name_width >= MIN_NAME:
        rows = [_with(row, _MODEL, shorten(row[_MODEL], name_width)) for row in rows]
        return table(head, rows, left=range(3))
    lines = []
    for number, name, weights, download, context, used, speed, quality, where in full:
        second = (
            f"{weights}, {download} download, {context}, {used} GiB, {speed} tokens/s,"
            f" quality {quality}, {where}"
        )
        lines += fold(f"{number} {name}", width)
        lines += [f"  {line}" for line in fold(second, width - 2)]
    return lines


def _with(row: tuple[str, ...], column: int, cell: str) -> tuple[str, ...]:
    """The row with another cell in this column."""
    return (*row[:column], cell, *row[column + 1 :])


def _without(row: tuple[str, ...], columns: Collection[int]) -> tuple[str, ...]:
    """The row without these columns."""
    return tuple(cell for column, cell in enumerate(row) if column not in columns)


def _row(number: int, suggestion: Suggestion) -> tuple[str, ...]:
    """The cells of the table's columns, _HEAD."""
    plan, entry, name = suggestion.plan, suggestion.entry, suggestion.plan.variant.name
    size = short_count(entry.parameters) if entry.parameters is not None else ""
    weights = "" if name == AS_NAMED else printable(name).replace(" bit", "-bit")
    download, speed = download_bytes(plan.result), plan.speed
    embeds = ModelPurpose.EMBEDDING in entry.kinds
    rate = None if speed is None else speed.typical_for(embeds=embeds)
    return (
        str(number),
        printable(entry.id),
        " ".join(filter(None, (size, weights))),
        "?" if download is None else format_download(download),
        window_words(plan.result, plan.context_tokens, plan.task.users or 1),
        used_words(plan.result).removesuffix(" +RAM"),
        rate_figure(rate),
        quality_range(suggestion.quality, suggestion.loss.value + suggestion.cache_loss.value),
        runs_on(plan.result),
    )


def quality_range(quality: Quality, loss: float) -> str:
    """'61-74', the 80 % interval less what weights and cache cost; '~' if the model has no scores of its own."""
    about = "" if quality.basis is QualityBasis.MEASURED else "~"
    return f"{about}{max(quality.low - loss, 0):.0f}-{max(quality.high - loss, 0):.0f}"


def unmeasured_notes(qualities: Iterable[Quality]) -> list[str]:
    """What '~' means, if any of the qualities has it."""
    if all(quality.basis is QualityBasis.MEASURED for quality in qualities):
        return []
    return ["~ quality estimated from size, age and related models: no scores for this task"]


def _detail_lines(suggestion: Suggestion, screen: Screen) -> Iterator[str]:
    """The model with its headline and bars."""
    entry, facts = suggestion.entry, []
    if entry.parameters is not None:
        facts.append(parameters_words(entry.parameters, entry.active_parameters))
    if entry.released:
        facts.append(f"released {entry.released[:7]}")  # the day may be that of the paper
    elif entry.not_before:
        facts.append(f"released {entry.not_before[:7]} or later")
    if entry.licence:
        facts.append(f"licence {entry.licence}")
    title = f"{entry.id} ({', '.join(facts)})" if facts else entry.id
    yield from fold(title, screen.width)
    yield from fold(headline(suggestion.plan.result), screen.width)
    for line in quality_lines(suggestion):
        yield from fold(line, screen.width)
    yield from bar_lines(memories(suggestion.plan.result), screen)


SHOWN_SCORES = 4
MIN_SHOWN_POINTS = 0.05  # less rounds to nothing
ASSUMED_AGE = f"release unknown, assumed {TYPICAL_RELEASE}"


def quality_lines(suggestion: Suggestion) -> Iterator[str]:
    """The quality for the task, the scores it rests on, and how it leads to the place in the list."""
    quality, entry = suggestion.quality, suggestion.entry
    reference = reference_benchmark(quality.task)
    related: tuple[tuple[str, Score], ...] = ()
    if quality.basis is QualityBasis.FAMILY:
        related = entry_related_scores(entry, quality.task)
    rests_on = {
        QualityBasis.MEASURED: "from its own scores",
        QualityBasis.FAMILY: "from its scores in other tasks or its family's",
        QualityBasis.NOT_MEASURED: "not measured: from its size, its age and its maker's other models",
    }[quality.basis]
    yield (
        f"quality for {quality.task.value}: about {quality.value:.0f} of 100 in {reference} "
        f"({quality.low:.0f}-{quality.high:.0f}), {rests_on}"
    )
    newest = sorted(quality.scores, key=lambda score: score.date, reverse=True)
    shown = [("", score) for score in newest] or list(related)
    for model, score in shown[:SHOWN_SCORES]:
        yield f"  {_score_words(score, model)}"
    if len(shown) > SHOWN_SCORES:
        yield f"  and {len(shown) - SHOWN_SCORES} more"
    for what, loss in (("weights", suggestion.loss), ("KV cache", suggestion.cache_loss)):
        if loss.value >= MIN_SHOWN_POINTS:
            yield (
                f"  {what} at {_type_name(suggestion, what)}: {loss.value:.1f} points less "
                f"({loss.low:.1f}-{loss.high:.1f}, {loss.basis.value})"
            )
    terms = dict(suggestion.terms)
    parts = [f"{terms.pop('low end'):.1f} at the low end"]
    for term, value in terms.items():
        if abs(value) >= MIN_SHOWN_POINTS:
            assumed = "" if term != "age" or quality.is_age_known else f" ({ASSUMED_AGE})"
            parts.append(f"{value:+.1f} {term}{assumed}")
    yield f"  ranked at {suggestion.worth:.1f}: {', '.join(parts)}"


def _score_words(score: Score, model: str) -> str:
    """'SWE-Bench Pro 50.4 (2026, measured by the vendor; anomalyco/models.dev)'."""
    of = f"{model.rpartition('/')[2]}: " if model else ""
    by = score.measured_by
    by = "measured by: see there" if by == "see source" else f"measured by {by}"
    where = re.split(r"@|:(?!//)", score.source, maxsplit=1)[0]  # owner/repository, or an address
    return f"{of}{score.benchmark} {round(score.score, 1):g} ({score.date[:7]}, {by}; {where})"


def _type_name(suggestion: Suggestion, what: str) -> str:
    return (
        suggestion.plan.variant.name
        if what == "weights"
        else _cache_name(suggestion.plan) or "16 bits"
    )


def quality_json(suggestion: Suggestion) -> Json:
    quality = suggestion.quality
    return {
        "task": quality.task.value,
        "benchmark": reference_benchmark(quality.task),
        **fields(quality, "value low high"),
        "basis": quality.basis.value,
        "scores": [
            fields(score, "benchmark score date setting measured_by source")
            for score in quality.scores
        ],
        "losses": {
            what: {**fields(loss, "value low high source"), "basis": loss.basis.value}
            for what, loss in (("weights", suggestion.loss), ("cache", suggestion.cache_loss))
        },
    }


def parameters_words(parameters: int, active: int | None = None) -> str:
    """'12B', or '122B with 9.8B active'."""
    if active is None or active == parameters:
        return short_count(parameters)
    return f"{short_count(parameters)} with {short_count(active)} active"


def _cache_name(plan: Plan) -> str:
    """The type of the KV cache: 'q8_0'. '' for a model without one."""
    cache = plan.decision(Lever.CACHE)
    if cache is None or not plan.result.estimate.kv_cache_bytes:
        return ""
    facts = dict(plan.result.estimate.facts)
    return str(facts.get("dtype", cache.value)) if cache.value == "auto" else cache.value


def _by_basis(bases: Sequence[Basis | None]) -> str:
    """'exact', or 'exact for 1 and 3, modelled for 2'."""
    return _by_word(["not known" if basis is None else basis.value for basis in bases])


def _by_word(words: Sequence[str]) -> str:
    """'measured', or 'measured for 1 and 3, family for 2'."""
    numbers: dict[str, list[str]] = {}
    for number, word in enumerate(words, start=1):
        numbers.setdefault(word, []).append(str(number))
    if len(numbers) == 1:
        return next(iter(numbers))
    parts = []
    for word, (*first, last) in numbers.items():
        models = f"{', '.join(first)} and {last}" if first else last
        parts.append(f"{word} for {models}")
    return ", ".join(parts)


def _next_lines(
    first: Suggestion, recommendation: Recommendation, words: str, screen: Screen
) -> list[str]:
    """The next command: run the model here, or show the plan for a machine that was only described."""
    name, width = shlex.quote(first.entry.id), screen.width
    plan = f"edgekit plan {name} {words}".strip()
    if not first.plan.fits:
        return command_lines(f"{plan} --why", width)
    is_here = not recommendation.request.find_machine().what_if
    chats = recommendation.purpose is not ModelPurpose.EMBEDDING
    mix = first.plan.variant.name
    if is_here and chats and repository_at(first.entry.id, Form.GGUF, mix) is not None:
        return [*command_lines(f"edgekit run {name}", width), *command_lines(plan, width)]
    return command_lines(plan, width)


def cards_json(recommendation: Recommendation) -> Json:
    """The whole answer, the best first."""
    request = recommendation.request
    machine = request.find_machine()
    return {
        "schema": SCHEMA,
        "task": recommendation.purpose.value,
        **fields(request, "engine context_tokens=wanted_tokens users min_context min_speed"),
        "prefer_accurate_cache": request.prefer_accurate_kv,
        "machine": machine_json(machine),
        "suggestions": [_suggestion_json(suggestion) for suggestion in recommendation.suggestions],
        "nearest": None
        if recommendation.nearest is None
        else _suggestion_json(recommendation.nearest),
        "fastest": None
        if recommendation.fastest is None
        else _suggestion_json(recommendation.fastest),
        "passed_over": [
            {"because": why, "count": count} for why, count in recommendation.passed_over
        ],
        "notes": [*machine.notes, *recommendation.notes],
    }


def _suggestion_json(suggestion: Suggestion) -> Json:
    return {
        "id": suggestion.entry.id,
        "entry": card_entry_json(suggestion.entry),
        **fields(suggestion, "rank worth is_notable is_quick is_preferred"),
        "quality": quality_json(suggestion),
        "plan": plan_fields(suggestion.plan),
    }


def card_entry_json(entry: Entry) -> Json:
    """The fields of the model that a card shows; the rest is in the catalog."""
    return {
        "title": title_of(entry),
        "publisher": publisher_of(entry),
        **fields(entry, "repository family architecture parameters active_parameters"),
        "native_context": entry.native_context,
        "kinds": [kind.value for kind in entry.kinds],
        **fields(entry, "licence released not_before"),
    }


_MERITS = "rank worth is_notable is_quick is_preferred"
_NO_MERIT = {"worth": 0.0, **dict.fromkeys(("is_notable", "is_quick", "is_preferred"), False)}


def card_json(entry: Entry, plan: Plan, ready: Sequence[Command] = ()) -> Json:
    """A card of the page. Recommendations are sorted by `is_notable`, then by `worth`; `for_task` sets these.

    `ready`: the plan's commands.
    """
    result, speed = plan.result, plan_speed(plan)
    tightest = result.tightest
    command, program = command_words(ready if plan.fits else ())
    return {
        **_card_head(entry, plan.task.engine),
        "status": result.status.value,
        "headline": headline(result),
        "told": _card_sentence(headline(result)),
        "variant": plan.variant.name,
        "is_good": plan.variant.is_good,
        **_merits(entry, plan, task_of_entry(entry)),
        "merits": {task.value: _merits(entry, plan, task) for task in _tasks_of(entry)},
        "context_tokens": plan.context_tokens,
        "max_context": result.max_context,
        "cache": _cache_name(plan) or None,
        "download_bytes": download_bytes(result) if plan.task.is_remote else None,
        "required_bytes": tightest.required_bytes,
        "available_bytes": tightest.budget.available_bytes,
        "speed": None if speed is None else {name: speed[name] for name in _CARD_SPEED},
        "way": printable(result.way.because),
        "runs_on": runs_on(result) if plan.fits else "",
        "command": command,
        "program": program,
        "bars": bars_json(result.uses, result.estimate),
        "flags": plan_flags(plan),
    }


def refused_card_json(entry: Entry, engine: str, message: str) -> Json:
    """The card of a model without a plan."""
    tasks = _tasks_of(entry)
    return {
        **_card_head(entry, engine),
        "status": "refused",
        "headline": _card_sentence(message),
        "variant": None,
        "is_good": False,
        "rank": round(rank_of(entry), 3),
        **_NO_MERIT,
        "merits": {
            task.value: {"rank": round(rank_of(entry, task), 3), **_NO_MERIT} for task in tasks
        },
        **dict.fromkeys(("context_tokens", "max_context", "cache", "speed")),
        **dict.fromkeys(("download_bytes", "required_bytes", "available_bytes")),
        **dict.fromkeys(("way", "runs_on", "command", "program"), ""),
        "bars": [],
        "flags": {},
        "told": _card_sentence(message),
    }


def for_task(card: Json, task: ModelPurpose) -> Json:
    """The card with what the model is worth for this task; for a model of other tasks, what it is worth for its own."""
    merits = card["merits"]
    own = {name: card[name] for name in _MERITS.split()}
    fields_of_card = {name: value for name, value in card.items() if name != "merits"}
    return {**fields_of_card, **merits.get(task.value, own)}


def _tasks_of(entry: Entry) -> list[ModelPurpose]:
    return [task for task in ModelPurpose if suits_task(entry, task)]


def _merits(entry: Entry, plan: Plan, task: ModelPurpose) -> Json:
    """What the model is worth for the task on the machine of the plan."""
    suggestion = Suggestion(entry=entry, plan=plan, task=task)
    rounded = {name: round(getattr(suggestion, name), 3) for name in ("rank", "worth")}
    return {**fields(suggestion, _MERITS), **rounded}


def command_words(ready: Sequence[Command]) -> tuple[str, str]:
    """The text to copy that starts the model, and its program; empty if the model's repository is not known.

    Where other commands have to be run first, they are in the lines before it.
    """
    main = main_command(ready)
    if main is None:
        return "", ""
    steps = by_program(ready)[main.program]
    text = "\n".join(step.text for step in steps)
    return text if all(step.is_complete for step in steps) else "", main.program


def _card_head(entry: Entry, engine: str) -> Json:
    """The fields that a card has with and without a plan."""
    return {
        "id": entry.id,
        "title": title_of(entry),
        "publisher": publisher_of(entry),
        "entry": card_entry_json(entry),
        "engine": engine,
    }


def _card_sentence(text: str) -> str:
    text = printable(text)
    return text if len(text) <= MAX_CARD_CHARS else f"{text[: MAX_CARD_CHARS - 3]}..."


def plan_flags(plan: Plan) -> dict[str, str | bool]:
    """Flags with which `check` gives the plan's answer, without those that it would choose by itself."""
    engine = engine_named(plan.task.engine)
    values = engine.values(plan.load, plan.result.way.setup)
    groups = ("weights", "cache")
    keys = [flag.key for group in groups for flag in engine.flags if flag.group == group]
    chosen = {key: values[key] for key in keys if key in values}
    if engine.pins_placement:
        task = replace(with_weights(plan.task, plan.variant), load=plan.load)
        first = first_placement(task)
        placed = engine.placement_flags(task.model, plan.result.way, first.cards)
        if placed != engine.placement_flags(task.model, first, first.cards):
            chosen |= placed
    return typed({"context": plan.result.context_tokens, **chosen})
