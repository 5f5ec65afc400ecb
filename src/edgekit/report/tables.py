"""Several verdicts, on many models or of all engines on one, as a table and as JSON (docs/json.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from edgekit.app.check import Answer, Check, Unanswered
from edgekit.bill.types import Status, Verdict
from edgekit.engines.choices import AS_NAMED
from edgekit.errors import HardwareError, RefusedError, printable
from edgekit.model.types import ModelGeometry
from edgekit.report.check import (
    VERDICTS,
    cache_words,
    check_json,
    context_words,
    is_beyond,
    is_divided,
    rounded_context_words,
)
from edgekit.report.json import SCHEMA, Json, error_json, fields
from edgekit.report.speed import shortfall_words
from edgekit.report.text import (
    FROM_INDEX,
    MIN_WIDTH,
    PLAIN,
    Screen,
    clamp_width,
    fold,
    fold_hanging,
    fullest,
    join_parts,
    memories,
    sizes_words,
)
from edgekit.units import GIB, rate_figure, short_count

# Outcome -> its verb for one model and for several; in the order of the summary.
_COUNTED = {
    "fits": ("fits", "fit"),
    "tight": ("is tight", "are tight"),
    "does not fit": ("does not fit", "do not fit"),
    "cannot run": ("cannot run", "cannot run"),
    "not read": ("could not be read", "could not be read"),
}
FIRST_ROWS = 25  # they determine the layout; later rows are written as they become known
MAX_NAMES = 3  # more models that share a reason are only counted
MIN_NAME = 12  # columns of a shortened name; if there are fewer, a row takes several lines
_OUTCOME, _NAME, _ENGINE, _WEIGHTS, _GIB = "", "model", "engine", "weights", "GiB"
_CONTEXT, _MAX, _USED, _SPEED = "context", "max", "GiB used", "tokens/s"
_COLUMNS = (_OUTCOME, _NAME, _ENGINE, _WEIGHTS, _GIB, _CONTEXT, _MAX, _USED, _SPEED)
_LEFT = frozenset({_OUTCOME, _NAME, _ENGINE, _WEIGHTS})  # aligned to the left
_IF_USED = frozenset({_ENGINE, _GIB})  # left out if empty, even if more rows follow
_NARROW = (_GIB, _MAX, _SPEED)  # left out on a narrow screen, in this order


@dataclass(frozen=True, slots=True)
class _Row:
    cells: dict[str, str]  # by column
    because: str = ""  # what the figures do not show: why it does not load, or where they come from


def check_table(rows: Sequence[Answer], screen: Screen = PLAIN, *, sizes: bool = False) -> str:
    return "".join(table_pieces(rows, screen, sizes=sizes))


def table_pieces(
    rows: Iterable[Answer], screen: Screen = PLAIN, *, sizes: bool = False
) -> Iterator[str]:
    """The table in pieces: the first FIRST_ROWS rows determine the layout, later rows follow as they become known.

    Facts that all rows share come first, reasons for missing answers last. `sizes` adds the parameters and the
    size of the weights.
    """
    width = max(screen.width, MIN_WIDTH)
    later_answers = iter(rows)
    first_answers = list(islice(later_answers, FIRST_ROWS))
    checks = [answer for answer in first_answers if isinstance(answer, Check)]
    labels = {check.bill.reference: check.bill.label for check in checks}
    table_rows = [_row(answer, labels, sizes=sizes) for answer in first_answers]
    references = {
        answer.bill.reference if isinstance(answer, Check) else answer.reference
        for answer in first_answers
    }
    has_one_model = len(first_answers) > 1 and len(references) == 1
    has_one_engine = _has_one_engine(first_answers)
    for row in table_rows:
        if has_one_model:
            row.cells[_NAME] = ""
        if has_one_engine:
            row.cells[_ENGINE] = ""
    columns = _columns(table_rows, width)
    shared: list[str] = []
    if checks:
        shared += [checks[0].bill.label] if has_one_model else []
        shared += [checks[0].bill.engine_title] if has_one_engine else []
        shared.append(checks[0].result.machine.name)
    lines = join_parts(shared, width, f"  {screen.glyphs.separator}  ")
    lines += [""] if lines and table_rows else []
    lines += [_line({name: name for name in columns}, columns)] if columns else []
    lines += [line for row in table_rows for line in _row_lines(row.cells, columns, width)]
    if lines:
        yield "\n".join(lines) + "\n"
    answers = [*first_answers]
    for answer in later_answers:
        row = _row(answer, {}, sizes=sizes)
        if has_one_engine:  # no engine column: a different engine is named next to the model
            engine = row.cells[_ENGINE]
            if engine and not _has_one_engine([*first_answers, answer]):
                row.cells[_NAME] += f" ({engine})"
            row.cells[_ENGINE] = ""
        answers.append(answer)
        table_rows.append(row)
        yield "\n".join(_row_lines(row.cells, columns, width)) + "\n"
    reasons = [
        line for reason in _reasons(table_rows) for line in fold_hanging(reason, clamp_width(width))
    ]
    below = [*([""] if reasons else []), *reasons, "", *fold(summary(answers), width)]
    yield "\n".join(below if lines else below[1:]) + "\n"


def summary(rows: Sequence[Answer]) -> str:
    """'3 fit, 1 is tight, 2 do not fit, 1 could not be read'."""
    counted = counts(rows).items()
    parts = [f"{count} {_COUNTED[outcome][count > 1]}" for outcome, count in counted if count]
    return ", ".join(parts) or "no models"


def counts(rows: Sequence[Answer]) -> dict[str, int]:
    """Outcome -> number of rows, zeros included."""
    outcomes = [outcome_of(row) for row in rows]
    return {outcome: outcomes.count(outcome) for outcome in _COUNTED}


def outcome_of(answer: Answer) -> str:
    """'fits', 'tight', 'does not fit'; without a verdict 'cannot run' or 'not read'."""
    if isinstance(answer, Check):
        return VERDICTS[answer.result.status].lower()
    return "cannot run" if isinstance(answer.error, HardwareError | RefusedError) else "not read"


def _has_one_engine(rows: Sequence[Answer]) -> bool:
    """Whether all rows have the same engine; a file that was not read has none yet."""
    engines = {row.result.engine if isinstance(row, Check) else row.engine for row in rows}
    return len(engines - {None}) <= 1


def _row(answer: Answer, labels: Mapping[str, str], *, sizes: bool) -> _Row:
    """The cells of one answer. `labels` has the names of the models by reference."""
    cells = dict.fromkeys(_COLUMNS, "") | dict.fromkeys((_CONTEXT, _MAX, _USED, _SPEED), "-")
    cells[_OUTCOME] = outcome_of(answer)
    if isinstance(answer, Unanswered):
        cells[_NAME] = printable(labels.get(answer.reference, answer.reference))
        cells[_ENGINE] = answer.engine or ""
        return _Row(cells, str(answer.error))
    result, bill = answer.result, answer.bill
    cells[_NAME], cells[_ENGINE] = printable(bill.label), result.engine
    quantization = result.quantization.removeprefix(AS_NAMED).removesuffix("_MOE")
    counted = _parameters(bill.geometry) if sizes else None
    parameters = "" if counted is None else short_count(counted[0])
    weights = (parameters, quantization.replace(" bit", "-bit"))
    cells[_WEIGHTS] = " ".join(filter(None, weights))
    cells[_GIB] = f"{result.estimate.weights_bytes / GIB:,.1f}" if sizes else ""
    cells[_CONTEXT] = window_words(result, result.context_tokens // result.streams, result.streams)
    longest = result.context_tokens if is_beyond(result) else result.max_context
    if longest:
        cells[_MAX] = rounded_context_words(longest).removesuffix(" tokens")
    cells[_USED] = used_words(result)
    if not result.failed:
        cells[_SPEED] = rate_figure(result.typical_speed)
    # a blocked budget lets no model start, whatever its size
    is_blocked = any(use.budget.blocked for use in result.uses)
    lacks_memory = result.tightest.status is Status.FAILED and not is_blocked
    has_reason = not result.can_load and not lacks_memory
    reasons = (
        *(result.reasons if has_reason else ()),
        *filter(None, [shortfall_words(result)]),
        *([FROM_INDEX] if result.from_index else []),
    )
    return _Row(cells, "; ".join(reasons))


def window_words(result: Verdict, tokens: int, users: int) -> str:
    """'32K', '32K q8_0' if the cache is not the engine's default, '4 x 16K' for several users."""
    context = context_words(tokens).removesuffix(" tokens")
    words = f"{users} x {context}" if users > 1 else context
    return f"{words} {result.cache}" if cache_words(result) else words


def used_words(result: Verdict) -> str:
    """'10.2 of 10.5' GiB of the memory that decides the verdict, a device's if possible.

    '+RAM' marks a model that is partly in RAM.
    """
    all_memories = memories(result)
    devices = [memory for memory in all_memories if not memory.is_ram] if result.way.cards else []
    a_device_decides = any(memory.use.status is result.status for memory in devices)
    shown = fullest(devices if a_device_decides else all_memories)
    words = sizes_words(shown.required_bytes, shown.usable_bytes)
    words = words if "MiB" in words else words.removesuffix(" GiB")
    return f"{words} +RAM" if is_divided(result) and not shown.is_ram else words


def _reasons(rows: Sequence[_Row]) -> Iterator[str]:
    """Each reason once, with the models that share it."""
    names_by_reason: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.because:
            names_by_reason.setdefault((row.cells[_ENGINE], row.because), []).append(
                row.cells[_NAME]
            )
    for (engine, because), names in names_by_reason.items():
        models = (
            f"{len(names)} models" if len(names) > MAX_NAMES else ", ".join(filter(None, names))
        )
        subject = " on ".join(filter(None, (models, engine)))
        yield because if subject and because.startswith(f"{subject}:") else f"{subject}: {because}"


def _columns(rows: Sequence[_Row], width: int) -> dict[str, int]:
    """Column -> its width; empty if every row has to take several lines.

    Names are shortened to fit the width. If that leaves too little of them, columns are left out one by one. Empty
    columns are left out too; if more rows may follow, only those in _IF_USED.
    """
    goes_on = len(rows) >= FIRST_ROWS
    widths = {
        name: max(len(name), *(len(printable(row.cells[name])) for row in rows))
        for name in _COLUMNS
        if any(row.cells[name] for row in rows) or (goes_on and name not in _IF_USED)
    }
    for count in range(len(_NARROW) + 1):
        columns = {name: size for name, size in widths.items() if name not in _NARROW[:count]}
        over = sum(columns.values()) + 2 * (len(columns) - 1) - width
        if over <= 0:
            return columns
        name_width = columns.get(_NAME, 0) - over
        if name_width >= MIN_NAME:
            return {**columns, _NAME: name_width}
    return {}


def _row_lines(cells: Mapping[str, str], columns: Mapping[str, int], width: int) -> list[str]:
    """The row in one line, with its name shortened if needed; in several lines if that is not enough."""
    if not columns:
        return _stacked_lines(cells, width)
    texts = {name: printable(cell) for name, cell in cells.items()}
    over = len(_line(texts, columns)) - width
    if over > 0:
        name_width = len(texts[_NAME]) - over
        if name_width < MIN_NAME:
            return _stacked_lines(cells, width)
        texts[_NAME] = shorten(texts[_NAME], name_width)
    return [_line(texts, columns)]


def _line(cells: Mapping[str, str], columns: Mapping[str, int]) -> str:
    return "  ".join(
        f"{cells[name]:<{width}}" if name in _LEFT else f"{cells[name]:>{width}}"
        for name, width in columns.items()
    ).rstrip()


def shorten(name: str, width: int) -> str:
    """The name without its middle: the start identifies the model, the end the quantisation."""
    if len(name) <= width:
        return name
    head = (width - 3) // 2
    return f"{name[:head]}...{name[head + 3 - width :]}"


def _stacked_lines(cells: Mapping[str, str], width: int) -> list[str]:
    """A row in several lines."""
    names = (cells[_OUTCOME], cells[_NAME], cells[_ENGINE])
    lines = fold("  ".join(filter(None, names)), width)
    if cells[_USED] == "-":
        return lines
    used, _, ram = cells[_USED].partition(" +")
    used += "" if "iB" in used else " GiB"
    gib = f"{cells[_GIB]} GiB" if cells[_GIB] else ""
    longest = "" if cells[_MAX] == "-" else f" (max {cells[_MAX]})"
    speed = "" if cells[_SPEED] in {"-", "?"} else f"{cells[_SPEED]} tokens/s"
    parts = (
        f"{cells[_WEIGHTS]} {gib}".strip(),
        f"{cells[_CONTEXT]}{longest}",
        " + ".join(filter(None, (used, ram))),
        speed,
    )
    return lines + [f"  {line}" for line in fold(", ".join(filter(None, parts)), width - 2)]


def unanswered_json(unanswered: Unanswered) -> Json:
    return {**fields(unanswered, "reference engine"), "error": error_json(unanswered.error)}


def models_json(rows: Sequence[Answer]) -> Json:
    """The object of `check --json` for each row, with the figures of the table."""
    models = []
    for row in rows:
        if isinstance(row, Unanswered):
            models.append(unanswered_json(row))
            continue
        total, active = _parameters(row.bill.geometry) or (None, None)
        estimate = row.result.estimate
        models.append(
            {
                **check_json(row),
                "parameters": total,
                "active_parameters": active,
                "weights_bytes": estimate.weights_bytes,
                "cache_bytes": estimate.kv_cache_bytes,
                "total_bytes": estimate.total_bytes,
            }
        )
    return {"schema": SCHEMA, "models": models}


def checks_json(rows: Sequence[Answer]) -> Json:
    """Many models, or all engines of one, in the order of the request."""
    return {
        "schema": SCHEMA,
        "models": [
            check_json(row) if isinstance(row, Check) else unanswered_json(row) for row in rows
        ],
        "summary": {name.replace(" ", "_"): count for name, count in counts(rows).items()},
    }


def answers_json(answers: Sequence[Answer]) -> Json:
    """A single answer by itself, several as a list. If the only answer is an error, raises it."""
    if len(answers) > 1:
        return checks_json(answers)
    if isinstance(answers[0], Unanswered):
        raise answers[0].error
    return check_json(answers[0])


def _parameters(geometry: ModelGeometry | None) -> tuple[int, int] | None:
    """The numbers of all and of active parameters; None if the geometry is unknown."""
    from edgekit.model.inspect import count_parameters  # only `models` needs it

    return None if geometry is None else count_parameters(geometry)
