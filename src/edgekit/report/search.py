"""The answer of `search` as a table and as JSON (docs/json.md)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from edgekit.app.search import Figures, Found, SearchAnswer
from edgekit.errors import printable
from edgekit.index.quality import reference_benchmark
from edgekit.report.cards import (
    card_entry_json,
    machine_words,
    quality_range,
    unmeasured_notes,
)
from edgekit.report.check import DEFAULT_CACHES, context_words
from edgekit.report.hardware import machine_json
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.report.tables import MIN_NAME, shorten
from edgekit.report.text import PLAIN, Screen, Sections, clamp_width, fold, render, table
from edgekit.units import GIB, format_download, min_speed_words, rate_figure, short_count

_MODEL, _NO_FIGURE = "model", "-"
SHORT_NAME = 24  # columns: a shorter name is hard to recognise
_HEAD = (
    "model", "size", "weights", "download", "context", "GiB", "tokens/s", "quality", "runs on", "licence",
)  # fmt: skip
_LEFT = frozenset({"model", "weights", "runs on", "licence"})
_NARROW = ("licence", "size", "runs on", "download")  # left out, in this order
_SHORTENED_FROM = 2  # so many columns are left out before names are shortened
_MAX_LICENCE_CHARS = 12
_ONLY_PLAN = frozenset({"--prefer-accurate-kv"})  # a flag that `check` does not have


def search_text(answer: SearchAnswer, screen: Screen = PLAIN, *, words: Sequence[str] = ()) -> str:
    """The screen: how many match, the table, and what the filters left out if nothing matches.

    `words`: the flags of the request, for the next command.
    """
    unmeasured = unmeasured_notes(found.quality for found in answer.models)
    machine_notes = answer.request.find_machine().notes if answer.models else ()
    sections: Sections = [
        ("", lambda screen: _table_lines(answer.models, screen.width) if answer.models else []),
        ("", [_skipped(answer)] if answer.passed_over else []),
        ("Filters", _count_rows(answer) if not answer.matching else []),
        ("Near", [", ".join(answer.near)] if answer.near else []),
        ("Relax", _relaxed(answer)),
        ("Note", [*answer.notes, *unmeasured, *machine_notes]),
        ("Next", _next_rows(answer, words)),
    ]
    return render(search_headline(answer), sections, screen)


def search_headline(answer: SearchAnswer) -> str:
    """'The 10 best of 35 models that match, on RTX 4090 + 64 GiB RAM'."""
    question, shown = answer.question, len(answer.models)
    machine = machine_words(answer.request.find_machine())
    typed = question.filters.words.strip()
    words = f'"{typed}"' if typed else "the filters"
    if typed and any(not count.text.startswith('"') for count in answer.counts):
        words += " and the filters"
    if not answer.matching:
        return printable(f"None of the {answer.known:,} models of the index matches {words}")
    if not shown:
        wanted = answer.request.min_speed
        fast = "" if wanted is None else f" at {min_speed_words(wanted)} tokens/s or more"
        return printable(f"None of the {answer.matching:,} matching models fits {machine}{fast}")
    of = f"{shown:,} of {answer.matching:,}" if shown < answer.matching else f"{shown:,}"
    models = "matching model" if answer.matching == 1 else "matching models"
    where = "fits" if shown == 1 else "fit"
    where = f"that {where}" if question.fits else "on"
    return printable(f"{of} {models}, by {question.sort.value}, {where} {machine}")


def _skipped(answer: SearchAnswer) -> str:
    counts = ", ".join(f"{count:,} {reason}" for reason, count in answer.passed_over)
    return f"skipped: {counts}"


def _count_rows(answer: SearchAnswer) -> list[str]:
    """How many models each filter lets pass, and how many more match without it."""
    rows = []
    for text, met, removed in answer.counts:
        more = f"; without it {removed:,} match" if removed else ""
        rows.append(f"{text}: {met:,} {'model' if met == 1 else 'models'}{more}")
    return rows


def _relaxed(answer: SearchAnswer) -> list[str]:
    """What to change if models match, but none fits."""
    if answer.models or not answer.matching:
        return []
    asked = answer.question.filters.min_context
    shorter = "" if asked is None else f"a shorter context than {asked:,} tokens, "
    if answer.request.min_speed is not None:
        return [f"{shorter}a lower --min-speed, or another --device"]
    return [f"{shorter}another --device, or no --fits: then the table has what each needs"]


def _next_rows(answer: SearchAnswer, words: Sequence[str]) -> list[str]:
    """The command for the first model that fits, else the first: only `check` estimates one without known layers."""
    if not answer.models:
        return []
    entry = next((found.entry for found in answer.models if found.fits), answer.models[0].entry)
    is_known = entry.has_geometry or entry.parameters is not None
    name = entry.id if is_known else entry.repository or entry.id
    if entry.has_geometry:
        return [shlex.join(("edgekit", "plan", name, *words))]
    taken = [word for word in words if word not in _ONLY_PLAN]
    return [shlex.join(("edgekit", "check", name, *taken))]


def _table_lines(models: Sequence[Found], width: int) -> list[str]:
    """A row per model. A narrow screen drops columns, then the middle of names; on the narrowest, a model takes several
    lines.
    """
    width = clamp_width(width)
    rows = [_cells(found) for found in models]
    longest = max(len(row[_MODEL]) for row in rows)
    for count in range(len(_NARROW) + 1):
        names = [name for name in _HEAD if name not in _NARROW[:count]]
        lines = _lines(rows, names, longest)
        name_width = longest - (max(map(len, lines)) - width)
        if name_width >= longest:
            return lines
        if name_width >= SHORT_NAME and count >= _SHORTENED_FROM:
            break
    if name_width >= MIN_NAME:
        return _lines(rows, names, name_width)
    stacked = []
    for row in rows:
        figures = ", ".join(f"{row[name]} {name}" for name in names[2:] if row[name])
        stacked += fold(row[_MODEL], width)
        stacked += [f"  {line}" for line in fold(f"{row['weights']} {figures}".strip(), width - 2)]
    return stacked


def _lines(rows: Sequence[dict[str, str]], names: Sequence[str], name_width: int) -> list[str]:
    left = [i for i, name in enumerate(names) if name in _LEFT]
    short = [{**row, _MODEL: shorten(row[_MODEL], name_width)} for row in rows]
    return table(names, [[row[name] for name in names] for row in short], left)


def _cells(found: Found) -> dict[str, str]:
    entry, figures = found.entry, found.figures
    cells = dict.fromkeys(_HEAD, _NO_FIGURE) | {
        "model": printable(entry.id),
        "size": "?" if entry.parameters is None else short_count(entry.parameters),
        "weights": "",
        "quality": quality_range(found.quality, found.loss),
        "runs on": "",
        "licence": shorten(entry.licence or "?", _MAX_LICENCE_CHARS),
    }
    if figures is None:
        return cells | {
            "tokens/s": found.because.removeprefix("of ").removesuffix(" by the engine")
        }
    about = "" if entry.has_geometry else "~"
    context = context_words(figures.context_tokens).removesuffix(" tokens")
    cache = "" if figures.cache in DEFAULT_CACHES else figures.cache
    return cells | {
        "weights": printable(figures.quant).replace(" bit", "-bit").removesuffix("_MOE"),
        "download": "?"
        if figures.download_bytes is None
        else format_download(figures.download_bytes),
        "context": f"{context} {cache}".strip(),
        "GiB": f"{about}{figures.required_bytes / GIB:.1f}",
        "tokens/s": rate_figure(figures.tokens_per_s) if figures.fits else "too large",
        "runs on": figures.runs_on if figures.fits else "",
    }


def search_json(answer: SearchAnswer) -> Json:
    """The whole answer, in its order."""
    request, question, machine = answer.request, answer.question, answer.request.find_machine()
    return {
        "schema": SCHEMA,
        "question": {
            **fields(question.filters, "words family publisher licence exact"),
            **fields(question.filters, "min_parameters max_parameters min_context released_after"),
            "task": None if request.purpose is None else request.purpose.value,
            **fields(question, "fits sort"),
        },
        **fields(request, "engine context_tokens=wanted_tokens users quant min_speed"),
        "machine": machine_json(machine),
        "models": [_found_json(found) for found in answer.models],
        **fields(answer, "matching known"),
        "filters": [fields(count, "filter=text met removed") for count in answer.counts],
        "passed_over": [{"because": why, "count": count} for why, count in answer.passed_over],
        "near": list(answer.near),
        "notes": [*machine.notes, *answer.notes],
    }


def _found_json(found: Found) -> Json:
    quality = found.quality
    return {
        "id": found.entry.id,
        "entry": card_entry_json(found.entry),
        "quality": {
            "task": quality.task.value,
            "benchmark": reference_benchmark(quality.task),
            **fields(quality, "value low high basis"),
        },
        "fits": found.fits,
        "because": found.because or None,
        "plan": None if found.figures is None else _figures_json(found.figures),
    }


def _figures_json(figures: Figures) -> Json:
    return fields(
        figures,
        "status quant context_tokens cache download_bytes required_bytes available_bytes tokens_per_s"
        " runs_on loss basis",
    )
