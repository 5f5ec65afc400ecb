"""An estimate as text and JSON (docs/json.md): the breakdown by pool, the arithmetic of every line, several engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from edgekit.app.answers import EngineAnswer, EngineComparison, EstimateAnswer
from edgekit.basis import Basis
from edgekit.bill.types import CACHES, Component, MemoryEstimate, MemoryLine, weakest
from edgekit.engines import engine_named
from edgekit.machine.types import Pool, PoolKind
from edgekit.model.types import (
    Attention,
    CompressedAttention,
    HybridLayer,
    LatentAttention,
    LayerKind,
    ModelGeometry,
    NoCache,
    SharedCache,
)
from edgekit.report.json import SCHEMA
from edgekit.report.text import (
    MOST_WIDTH,
    command_rows,
    figures,
    folded,
    joined,
    placed,
    section,
    within,
)
from edgekit.units import format_bytes

# The columns people know from the engines' own logs.
COLUMNS: tuple[tuple[str, frozenset[Component]], ...] = (
    ("model", frozenset({Component.WEIGHTS})),
    ("context", CACHES),
    ("compute", frozenset({Component.COMPUTE})),
)
RAM = "RAM"
_COLUMN_OF = {component: name for name, parts in COLUMNS for component in parts}


def column_of(line: MemoryLine) -> str:
    """model, context, compute, or other."""
    return _COLUMN_OF.get(line.component, "other")


def pool_sums(estimate: MemoryEstimate) -> dict[Pool, dict[str, int]]:
    """Pool -> column -> bytes of the reserved lines; pools in their order."""
    sums = {
        pool: dict.fromkeys(("model", "context", "compute", "other"), 0) for pool in estimate.pools
    }
    for line in estimate.lines:
        if line.reserved and line.size_bytes:
            sums[line.pool][column_of(line)] += line.size_bytes
    return {pool: row for pool, row in sums.items() if any(row.values())}


def pool_names(estimate: MemoryEstimate) -> dict[Pool, str]:
    """'GPU' and 'RAM'; 'GPU 0', 'GPU 1' if there are several."""
    devices = [pool for pool in estimate.pools if pool.kind is PoolKind.DEVICE]
    gpu = {pool: f"GPU {pool.index}" if len(devices) > 1 else "GPU" for pool in devices}
    return {pool: gpu.get(pool, RAM) for pool in estimate.pools}


def later_lines(estimate: MemoryEstimate) -> tuple[MemoryLine, ...]:
    """What is not taken at the start."""
    return tuple(line for line in estimate.lines if not line.reserved and line.size_bytes)


def how_known(lines: Iterable[MemoryLine]) -> tuple[Basis, float | None]:
    """The weakest basis, and how far the sum may be off as a share of it."""
    counted = [line for line in lines if line.size_bytes]
    basis = weakest(line.basis for line in counted)
    total = sum(line.size_bytes for line in counted)
    if not total or any(line.within is None and line.basis is not Basis.EXACT for line in counted):
        return basis, None
    off = sum(line.size_bytes * line.within for line in counted if line.within is not None)
    return basis, off / total if basis is not Basis.EXACT else None


def known_words(lines: Iterable[MemoryLine]) -> str:
    """'exact', 'modelled, within 3 %', 'assumed'."""
    basis, within = how_known(lines)
    if within is None or basis is Basis.EXACT:
        return basis.value
    return f"{basis.value}, within {percent(within)}"


def percent(part: float) -> str:
    return f"{part * 100:.1f} %" if part < 0.1 else f"{part * 100:.0f} %"


def basis_rows(estimate: MemoryEstimate) -> list[str]:
    """Parts that are known equally well, together."""
    parts: dict[str, list[str]] = {}
    for component in Component:
        lines = [one for one in estimate.lines if one.component is component and one.size_bytes]
        if lines:
            parts.setdefault(known_words(lines), []).append(component.value)
    return [f"{words}: {', '.join(names)}" for words, names in parts.items()]


_COLUMNS = ("model", "context", "compute", "other", "total")


def bill_text(bill: EstimateAnswer, *, bold: bool = False, width: int = MOST_WIDTH) -> str:
    """The screen. `bold` marks the answer for terminals."""
    width = within(width)
    answer = folded(_answer(bill.estimate), width)
    lines = [f"\x1b[1m{line}\x1b[0m" for line in answer] if bold else answer
    lines += [*joined(_title(bill), width), *folded(bill.asked, width), ""]
    lines += _pool_table(bill.estimate)
    for label, rows in _sections(bill):
        lines += section(label, rows, width)
    lines += placed("Run", command_rows(bill.command, width), width)
    return "\n".join(lines) + "\n"


def _answer(estimate: MemoryEstimate) -> str:
    total, names = format_bytes(estimate.total_bytes), pool_names(estimate)
    parts = [
        f"{format_bytes(sum(row.values()))} {_where(names[pool])}"
        for pool, row in pool_sums(estimate).items()
    ]
    return f"{total}: {', '.join(parts)}" if len(parts) > 1 else "".join(parts) or total


def _where(pool: str) -> str:
    """'in RAM', 'on the GPU', 'on GPU 0'."""
    if pool == RAM:
        return "in RAM"
    return f"on {pool}" if " " in pool else f"on the {pool}"


def _title(bill: EstimateAnswer) -> tuple[str, ...]:
    return bill.label, bill.engine_title, bill.estimate.backend


def _pool_table(estimate: MemoryEstimate) -> list[str]:
    sums, names = pool_sums(estimate), pool_names(estimate)
    rows = [(names[pool], row) for pool, row in sums.items()]
    if len(rows) > 1:
        rows.append(
            ("total", {name: sum(row[name] for row in sums.values()) for name in _COLUMNS[:-1]})
        )
    cells = [
        (label, *(_cell(row[name]) for name in _COLUMNS[:-1]), _cell(sum(row.values())))
        for label, row in rows
    ]
    return figures(("", *_COLUMNS), cells)


def _cell(size_bytes: int) -> str:
    return format_bytes(size_bytes) if size_bytes else "-"


def _sections(bill: EstimateAnswer) -> Iterator[tuple[str, Iterable[str]]]:
    estimate, names = bill.estimate, pool_names(bill.estimate)
    yield "Other", [_told(line, names[line.pool]) for line in estimate.lines if _is_other(line)]
    yield "Later", [_told(line, names[line.pool]) for line in later_lines(estimate)]
    yield "Basis", basis_rows(estimate)
    yield "Note", (*bill.notes, *estimate.notes)


def _is_other(line: MemoryLine) -> bool:
    return line.reserved and bool(line.size_bytes) and column_of(line) == "other"


def _told(line: MemoryLine, pool: str) -> str:
    most = "" if line.reserved else "up to "
    what = f"{line.part} {line.component.value}" if line.part else line.component.value
    return f"{most}{format_bytes(line.size_bytes)} {what} {_where(pool)}: {line.because}"


def explain_text(bill: EstimateAnswer) -> str:
    """Component by component; layers that cost the same for the same reason stand together."""
    lines: list[str] = []
    for component in Component:
        found = [
            one for one in bill.estimate.lines if one.component is component and one.size_bytes
        ]
        if found:
            lines += _component_lines(component, found, pool_names(bill.estimate))
    return "\n".join([*lines, *_fact_lines(bill.estimate)]) + "\n"


def _component_lines(
    component: Component, found: list[MemoryLine], names: dict[Pool, str]
) -> list[str]:
    total = format_bytes(sum(line.size_bytes for line in found))
    lines = [f"{component.value}: {total}, {known_words(found)}"]
    for group in grouped(found):
        one = group[0]
        beside = f", {one.part}" if one.part else ""
        told = f"{names[one.pool]}{beside}: {_sum(group)}{_own_basis(one, found)}"
        lines += _indented(told, 2) + _indented(f"= {one.because}" if one.because else "", 4)
        lines += _indented(_layers_of(group), 4)
    return [*lines, ""]


def grouped(lines: Iterable[MemoryLine]) -> list[list[MemoryLine]]:
    """Lines that differ in nothing but their layer, in the order in which they first appear."""
    found: dict[tuple[object, ...], list[MemoryLine]] = {}
    for line in lines:
        key = (line.component, line.pool, line.size_bytes, line.because, line.basis, line.part)
        found.setdefault(key, []).append(line)
    return list(found.values())


def _layers_of(group: list[MemoryLine]) -> str:
    layers = [line.layer for line in group if line.layer is not None]
    return f"{'layer' if len(layers) == 1 else 'layers'} {ranges(layers)}" if layers else ""


def _sum(group: list[MemoryLine]) -> str:
    size, count = group[0].size_bytes, len(group)
    if count == 1:
        return f"{size:,} bytes ({format_bytes(size)})"
    return f"{count} x {size:,} bytes = {size * count:,} ({format_bytes(size * count)})"


def _own_basis(line: MemoryLine, found: list[MemoryLine]) -> str:
    """Said only where the lines of a component are not all known alike."""
    if len({(one.basis, one.within) for one in found}) == 1:
        return ""
    known = line.basis.value
    if line.within is not None and line.basis is not Basis.EXACT:
        known += f", within {percent(line.within)}"
    return f", {known}"


def ranges(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 4, 6, 7] -> '0-2, 4, 6-7'."""
    ordered = sorted(set(numbers))
    runs = groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ends)


def _fact_lines(estimate: MemoryEstimate) -> Iterator[str]:
    if not estimate.facts:
        return
    yield f"what {estimate.engine} resolved:"
    width = max(len(name) for name, _ in estimate.facts)
    for name, value in estimate.facts:
        first, *rest = folded(_fact(value), MOST_WIDTH - width - 4)
        yield f"  {name:<{width}}  {first}"
        yield from (" " * (width + 4) + more for more in rest)


def _fact(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}"
        case tuple() | list():
            return ", ".join(map(_fact, value))
        case None:
            return "-"
        case _:
            return str(value)


def _indented(text: str, indent: int) -> list[str]:
    return [" " * indent + line for line in folded(text, MOST_WIDTH - indent)] if text else []


def layers_table(bill: EstimateAnswer) -> str:
    """One row a layer, and one for what belongs to none."""
    rows: dict[int, list[MemoryLine]] = {}
    for line in bill.estimate.lines:
        if line.reserved and line.size_bytes:
            rows.setdefault(-1 if line.layer is None else line.layer, []).append(line)
    names = pool_names(bill.estimate)
    kinds = {layer.index: layer.mixer for layer in (bill.geometry.layers if bill.geometry else ())}
    cells = []
    for index in sorted(rows, key=lambda index: (index < 0, index)):
        kind = kinds.get(index)
        name = kind_name(kind.label, window_of(kind)) if kind is not None else ""
        cells.append(("outside" if index < 0 else str(index), name, *_shares(rows[index], names)))
    head = ("layer", "kind", "weights", "cache", "rest", "pool")
    return "\n".join(figures(head, cells, words=2)) + "\n"


def _shares(lines: list[MemoryLine], names: dict[Pool, str]) -> tuple[str, ...]:
    weights = sum(line.size_bytes for line in lines if line.component is Component.WEIGHTS)
    cache = sum(line.size_bytes for line in lines if line.component in CACHES)
    rest = sum(line.size_bytes for line in lines) - weights - cache
    pools = " + ".join(
        name for pool, name in names.items() if any(line.pool == pool for line in lines)
    )
    return (*(f"{size:,}" if size else "-" for size in (weights, cache, rest)), pools)


_COMPARED = ("model", "context", "compute", "other")


def compare_text(
    found: EngineComparison,
    *,
    width: int = 100,
) -> str:
    """A row for each engine, then what each was asked, then those that refuse."""
    width = within(width)
    billed = [answer.bill for answer in found.answers if answer.bill is not None]
    each = "one sequence" if found.users == 1 else f"{found.users} sequences"
    lines = [*folded(f"{found.label}  ·  {each} of {found.context_tokens:,} tokens", width), ""]
    if billed:
        lines += figures(("", *_COMPARED, "total", "basis"), [_row(bill) for bill in billed])
    for bill in billed:
        asked = f"{bill.engine_title}, {bill.estimate.backend}: {bill.asked}"
        lines += ["", *folded(asked, width)]
        lines += [f"  {line}" for note in bill.estimate.notes for line in folded(note, width - 2)]
    for answer in found.answers:
        if answer.error is not None:
            lines += ["", *folded(f"{answer.engine}: no estimate: {answer.error}", width)]
    lines += ["", *folded(found.hint, width)] if found.hint else []
    return "\n".join(lines) + "\n"


def _row(bill: EstimateAnswer) -> tuple[str, ...]:
    sums = pool_sums(bill.estimate).values()
    sizes = [sum(row[name] for row in sums) for name in _COMPARED]
    cells = [format_bytes(size) if size else "-" for size in sizes]
    total = format_bytes(bill.estimate.total_bytes)
    return (bill.estimate.engine, *cells, total, bill.estimate.basis.value)


def compare_json(found: EngineComparison, reference: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": found.label,
        "reference": reference,
        "context_tokens": found.context_tokens,
        "users": found.users,
        "engines": {answer.engine: _one(answer) for answer in found.answers},
    }


def _one(answer: EngineAnswer) -> dict[str, Any]:
    if answer.bill is not None:
        return bill_json(answer.bill)
    return {"error": str(answer.error), "type": type(answer.error).__name__}


_KEYS = {
    Component.WEIGHTS: "model_bytes",
    Component.KV_CACHE: "kv_bytes",
    Component.SLIDING_KV_CACHE: "kv_swa_bytes",
    Component.STATE: "recurrent_bytes",
    Component.OUTPUT: "output_bytes",
    Component.COMPUTE: "compute_bytes",
    Component.RUNTIME: "runtime_bytes",
}


def answer_json(estimate: MemoryEstimate) -> dict[str, Any]:
    """The sums of a bill: what a batch answers for a row."""
    lines = [line for line in estimate.lines if line.reserved]
    sums = dict.fromkeys(_KEYS.values(), 0)
    for line in lines:
        key = _KEYS.get(line.component)
        if key is not None:
            sums[key] += line.size_bytes
    return {
        **sums,
        "total_bytes": estimate.total_bytes,
        "basis": estimate.basis.value,
        "pools": _pools(lines),
        **engine_named(estimate.engine).answer_facts(estimate),
    }


def _pools(lines: list[MemoryLine]) -> dict[str, Any]:
    """Both kinds, whether or not there is anything; each device by itself where there are several."""
    by_pool: dict[Pool, dict[str, int]] = {}
    for line in lines:
        row = by_pool.setdefault(line.pool, {})
        column = "runtime" if line.component is Component.RUNTIME else column_of(line)
        row[column] = row.get(column, 0) + line.size_bytes
    pools: dict[str, Any] = {
        kind.value: _merged([row for pool, row in by_pool.items() if pool.kind is kind])
        for kind in PoolKind
    }
    devices = sorted((p for p in by_pool if p.kind is PoolKind.DEVICE), key=lambda p: p.index)
    if len(devices) > 1:
        pools["devices"] = [_merged([by_pool[pool]]) for pool in devices]
    return pools


def _merged(rows: list[dict[str, int]]) -> dict[str, int]:
    sums = {"model": 0, "context": 0, "compute": 0}
    for row in rows:
        for column, size_bytes in row.items():
            if column != "other":  # output: has a key of its own
                sums[column] = sums.get(column, 0) + size_bytes
    return sums


def bill_json(bill: EstimateAnswer, *, layers: bool = False) -> dict[str, Any]:
    """The whole answer, every line included."""
    estimate = bill.estimate
    answer: dict[str, Any] = {
        "schema": SCHEMA,
        "model": bill.label,
        "reference": bill.reference,
        "engine": estimate.engine,
        "engine_version": bill.version or None,
        "backend": estimate.backend or None,
        "asked": bill.asked,
        "command": bill.command or None,
        **answer_json(estimate),
        "later_bytes": sum(line.size_bytes for line in later_lines(estimate)),
        "facts": dict(estimate.facts),
        "notes": [*bill.notes, *estimate.notes],
        "lines": [_line(line) for line in estimate.lines],
    }
    if layers:
        answer["layer_list"] = _layers(bill)
    return answer


def _line(line: MemoryLine) -> dict[str, Any]:
    return {
        "component": line.component.value,
        "bytes": line.size_bytes,
        "pool": line.pool.label,
        "layer": line.layer,
        "basis": line.basis.value,
        "within": line.within,
        "reserved": line.reserved,
        "part": line.part or None,
        "because": line.because,
    }


def _layers(bill: EstimateAnswer) -> list[dict[str, Any]]:
    """What each layer of the geometry takes."""
    rows: dict[int, dict[str, Any]] = {
        layer.index: {
            "layer": layer.index, "kind": layer.mixer.label, "model": 0, "context": 0, "compute": 0,
            "pools": [],
        }
        for layer in (bill.geometry.layers if bill.geometry else ())
    }  # fmt: skip
    for line in bill.estimate.lines:
        row = rows.get(-1 if line.layer is None else line.layer)
        if row is None or not line.reserved or not line.size_bytes:
            continue
        row[column_of(line)] = row.get(column_of(line), 0) + line.size_bytes
        if line.pool.label not in row["pools"]:
            row["pools"].append(line.pool.label)
    return list(rows.values())


def count_kinds(geometry: ModelGeometry) -> dict[tuple[str, int], int]:
    """(kind, its window) -> how many layers, in the order in which they first appear."""
    counts: dict[tuple[str, int], int] = {}
    for layer in geometry.layers:
        kind = (layer.mixer.label, window_of(layer.mixer))
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def kind_name(label: str, window: int) -> str:
    return f"{label} {window:,}" if window else label


def window_of(kind: LayerKind) -> int:
    """How many tokens back a layer sees, 0 where that has no end."""
    match kind:
        case SharedCache() | HybridLayer() | NoCache():
            return kind.attention.span_tokens if kind.attention is not None else 0
        case Attention() | LatentAttention():
            return kind.span_tokens
        case CompressedAttention():
            return 0 if kind.ratio else kind.window_tokens
        case _:
            return 0
