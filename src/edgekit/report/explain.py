"""A bill -> every line's arithmetic with this model's numbers, and a table of its layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from edgekit.app.answers import EstimateAnswer
from edgekit.basis import Basis
from edgekit.bill.types import CACHES, Component, MemoryEstimate, MemoryLine
from edgekit.machine.types import Pool
from edgekit.report.bill import known_words, percent, pool_names
from edgekit.report.kinds import kind_name, window_of
from edgekit.report.lines import figures
from edgekit.report.screen import MOST_WIDTH, folded
from edgekit.units import format_bytes


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
        lines += _indented(_where(group), 4)
    return [*lines, ""]


def grouped(lines: Iterable[MemoryLine]) -> list[list[MemoryLine]]:
    """Lines that differ in nothing but their layer, in the order in which they first appear."""
    found: dict[tuple[object, ...], list[MemoryLine]] = {}
    for line in lines:
        key = (line.component, line.pool, line.size_bytes, line.because, line.basis, line.part)
        found.setdefault(key, []).append(line)
    return list(found.values())


def _where(group: list[MemoryLine]) -> str:
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
