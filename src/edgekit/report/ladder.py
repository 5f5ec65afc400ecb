"""The quantisations of a model as a table and as JSON (docs/json.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from edgekit.app.check import Check
from edgekit.app.ladder import QuantLadder, Rung
from edgekit.bill.types import Verdict
from edgekit.errors import printable
from edgekit.index.quality import Loss, LossBasis
from edgekit.report.check import (
    VERDICTS,
    headline,
    is_beyond,
    needs_words,
    rounded_context_words,
    rule_broken,
)
from edgekit.report.hardware import machine_json
from edgekit.report.json import SCHEMA, Json, error_json, fields
from edgekit.report.speed import interval_words
from edgekit.report.tables import used_words, window_words
from edgekit.report.text import (
    PLAIN,
    Screen,
    clamp_width,
    fold,
    fold_hanging,
    join_parts,
    paint,
    table,
)
from edgekit.units import format_download, rate_figure

_HEAD = ("", "weights", "size", "", "tokens/s", "", "context", "max", "GiB used", "runs on", "loss")
_LEFT = frozenset({0, 1, 3, 5, 9})
_WEIGHTS, _SPEED_ENDS, _MAX, _USED, _RUNS_ON, _SIZE = 1, 5, 7, 8, 9, 2
_DROPPED = (_SPEED_ENDS, _MAX, _RUNS_ON, _USED, _SIZE)  # on a narrow screen, in this order
_CHOSEN = ">"
_LOSS_NOTE = (
    "loss: points of quality (0 to 100) lost against the released weights, measured on other models"
)
_ABOUT_NOTE = (
    "~ not measured for this type: between the measured types with the nearest number of bits"
)


def ladder_text(ladder: QuantLadder, screen: Screen = PLAIN) -> str:
    """The screen of `check --ladder`: the chosen one in a sentence, one row per quantisation, and notes."""
    width = clamp_width(screen.width)
    chosen = ladder.chosen
    lines: list[str] = []
    if chosen.result is not None:
        lines = fold(headline(chosen.result), width)
        if screen.colour:
            lines = [paint(line, chosen.status, bold=True) for line in lines]
    title = (ladder.label, ladder.engine, ladder.machine.name)
    lines += join_parts(title, width, f"  {screen.glyphs.separator}  ")
    lines += ["", *_table_lines(ladder.rungs, screen.width)]
    rows = [row for note in _notes(ladder) for row in fold_hanging(note, width)]
    return "\n".join([*lines, "", *rows]) + "\n"


def _table_lines(rungs: Collection[Rung], width: int) -> list[str]:
    """One row per quantisation. A narrow screen drops columns; the narrowest has two lines for each."""
    rows = [_row(rung) for rung in rungs]
    empty = {column for column in range(1, len(_HEAD)) if not any(row[column] for row in rows)}
    for count in range(len(_DROPPED) + 1):
        kept = [i for i in range(len(_HEAD)) if i not in {*_DROPPED[:count], *empty}]
        left = {place for place, column in enumerate(kept) if column in _LEFT}
        cells = [tuple(row[column] for column in kept) for row in rows]
        lines = table([_HEAD[column] for column in kept], cells, left)
        if max(map(len, lines)) <= width:
            return lines
    lines = []
    for row in rows:
        mark, weights, size, verdict, speed, _, context, *_, loss = row
        lines += fold(" ".join(filter(None, (mark, weights, size, verdict))), width)
        figures = f"{speed} tokens/s, {context}, loss {loss}"
        lines += [f"  {line}" for line in fold(figures, width - 2)]
    return lines


def _row(rung: Rung) -> tuple[str, ...]:
    """The cells of the table's columns, _HEAD."""
    result = rung.result
    size = "?" if rung.size_bytes is None else format_download(rung.size_bytes)
    start = (_CHOSEN if rung.is_chosen else "", printable(rung.quant).replace(" bit", "-bit"), size)
    if result is None:
        return (*start, "cannot run", "-", "", "-", "-", "-", "-", loss_words(rung.loss))
    ends = None if result.failed or result.speed is None else result.speed.decode
    longest = result.context_tokens if is_beyond(result) else result.max_context
    return (
        *start,
        VERDICTS[result.status].lower(),
        "-" if result.failed else rate_figure(result.typical_speed),
        f"({interval_words(ends)})" if ends and not result.way.setup.embeddings else "",
        window_words(result, result.context_tokens // result.streams, result.streams),
        rounded_context_words(longest).removesuffix(" tokens") if longest else "-",
        used_words(result).removesuffix(" +RAM"),
        rung.runs_on or "-",
        loss_words(rung.loss),
    )


def loss_words(loss: Loss | None) -> str:
    """'1.4', '~5.1' for a type that was not measured, 'none', '?' if unknown."""
    if loss is None:
        return "?"
    if loss.basis is LossBasis.NONE:
        return "none"
    return f"{'~' if loss.basis is LossBasis.NEIGHBOUR else ''}{loss.value:.1f}"


def _notes(ladder: QuantLadder) -> Iterator[str]:
    losses = [rung.loss.basis for rung in ladder.rungs if rung.loss is not None]
    if len(ladder.rungs) > 1:
        yield f"{_CHOSEN} what edgekit chooses without --quant"
    if any(basis is not LossBasis.NONE for basis in losses):
        yield _LOSS_NOTE
    if LossBasis.NEIGHBOUR in losses:
        yield _ABOUT_NOTE
    for rung in ladder.rungs:
        if not isinstance(rung.answer, Check):
            yield f"{printable(rung.quant)}: {printable(str(rung.answer.error))}"
        elif rung.answer.result.failed and rule_broken(rung.answer.result):
            yield f"{printable(rung.quant)}: {printable(rule_broken(rung.answer.result))}"
    unread = [printable(rung.quant) for rung in ladder.rungs if rung.because]
    if unread:
        yield f"estimated from the names of the files, whose headers were not read: {', '.join(unread)}"
    yield from map(printable, ladder.notes)


def why_not(result: Verdict) -> str:
    """Why it does not load, in short: 'needs 30.1 GiB, 22.5 GiB usable'; '' if it loads."""
    return (rule_broken(result) or needs_words(result)) if result.failed else ""


def ladder_json(ladder: QuantLadder) -> Json:
    """One object per quantisation, the largest first."""
    return {
        "schema": SCHEMA,
        **fields(ladder, "model=label reference"),
        "engine": {"name": ladder.engine, "version": ladder.version or None},
        "machine": machine_json(ladder.machine),
        "chosen": ladder.chosen.quant,
        "rows": [_rung_json(rung) for rung in ladder.rungs],
        "notes": list(ladder.notes),
    }


def _rung_json(rung: Rung) -> Json:
    result, loss = rung.result, rung.loss
    shown: Json = {
        "quant": rung.quant,
        "bits": None if rung.bits is None else round(rung.bits, 2),
        **fields(rung, "size_bytes download_bytes status"),
        "can_load": result is not None and result.can_load,
        "loss": None
        if loss is None
        else {**fields(loss, "value low high source?"), "basis": loss.basis.value},
        **fields(rung, "is_chosen repository? because?"),
        "flags": dict(rung.flags),
    }
    if result is None:
        error = getattr(rung.answer, "error", None)
        figures: Json = dict.fromkeys(
            ("headline", "speed", "context_tokens", "max_context", "cache", "way", "runs_on",
             "required_bytes", "available_bytes"),
        )  # fmt: skip
        return {
            **shown,
            **figures,
            "told": str(error) or None,
            "error": None if error is None else error_json(error),
        }
    speed = result.speed
    return {
        **shown,
        "headline": headline(result),
        "told": why_not(result) or None,
        "speed": None
        if speed is None
        else {
            "typical": round(speed.typical, 2),
            "decode": [round(rate, 2) for rate in speed.decode],
            "prefill_typical": None
            if speed.typical_prefill is None
            else round(speed.typical_prefill, 2),
            "basis": speed.basis.value,
        },
        **fields(result, "context_tokens max_context cache? way=way.because"),
        "runs_on": rung.runs_on or None,
        **fields(result, "required_bytes available_bytes"),
        "error": None,
    }
