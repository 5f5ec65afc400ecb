"""An estimate as text and JSON (docs/json.md): the breakdown by pool, the arithmetic of every line, several engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from edgekit.bill.types import CACHES, Component, MemoryEstimate, MemoryLine, is_asked, weakest
from edgekit.engines import engine_named
from edgekit.errors import EdgekitError, printable
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
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.report.text import (
    FROM_INDEX,
    MAX_WIDTH,
    PARTS,
    PLAIN,
    RAM,
    Screen,
    Section,
    bytes_by_part,
    column_of,
    command_lines,
    fold,
    render,
    table,
)
from edgekit.units import Basis, format_bytes

if TYPE_CHECKING:
    from edgekit.app.compare import EngineComparison
    from edgekit.app.estimate import EstimateAnswer

_KEYS = {
    Component.WEIGHTS: "model_bytes",
    Component.KV_CACHE: "kv_bytes",
    Component.SLIDING_KV_CACHE: "kv_swa_bytes",
    Component.STATE: "recurrent_bytes",
    Component.OUTPUT: "output_bytes",
    Component.COMPUTE: "compute_bytes",
    Component.RUNTIME: "runtime_bytes",
}
# The JSON of every pool and layer has these, even if they are 0.
_POOL_PARTS = ("model", "context", "compute")
_LINE_FIELDS = (
    "component bytes=size_bytes pool=pool.label layer basis within reserved part? because"
)
OUTSIDE = -1  # the number of what belongs to no layer


def bill_text(bill: EstimateAnswer, screen: Screen = PLAIN) -> str:
    """The screen of `estimate`: the total, a table of pools and parts, and how each part is known."""
    estimate = bill.estimate
    total = format_bytes(estimate.total_bytes)
    names, sums = pool_names(estimate), pool_sums(estimate)
    parts = [
        f"{format_bytes(sum(row.values()))} {_in_pool(names[pool])}" for pool, row in sums.items()
    ]
    headline = f"{total}: {', '.join(parts)}" if len(parts) > 1 else "".join(parts) or total
    if bill.geometry is not None and bill.geometry.doubt:
        headline += f" (rough estimate: {printable(bill.geometry.doubt)})"
    if bill.from_index:
        headline += f" ({FROM_INDEX})"
    rows = [(names[pool], row) for pool, row in sums.items()]
    if len(rows) > 1:
        rows.append(("total", {part: sum(row[part] for row in sums.values()) for part in PARTS}))
    cells = [(label, *map(_cell, (*row.values(), sum(row.values())))) for label, row in rows]
    other = (line for line in estimate.lines if line.reserved and column_of(line) == "other")
    sections: list[Section] = [
        (None, [bill.asked]),
        ("", lambda _: table(("", *PARTS, "total"), cells)),
        ("Other", [_line_words(line, names) for line in other if line.size_bytes]),
        ("Later", [_line_words(line, names) for line in later_lines(estimate)]),
        ("Basis", basis_rows(estimate)),
        ("Note", (*bill.notes, *estimate.notes)),
        ("Run", lambda screen: command_lines(bill.command.strip(), screen.width)),
    ]
    title = (bill.label, bill.engine_title, estimate.backend, asked_words(estimate))
    return render(headline, sections, screen, title=title)


def asked_words(estimate: MemoryEstimate) -> str:
    """What marks a bill that the engine reports itself; empty for one of EdgeKit's."""
    return "memory: reported by the engine" if is_asked(estimate) else ""


def _in_pool(name: str) -> str:
    """'in RAM', 'on the GPU', 'on GPU 0'."""
    if name == RAM:
        return "in RAM"
    return f"on {name}" if " " in name else f"on the {name}"


def _cell(size_bytes: int) -> str:
    return format_bytes(size_bytes) if size_bytes else "-"


def _line_words(line: MemoryLine, names: dict[Pool, str]) -> str:
    """'up to 1.20 GiB compute on the GPU: ...'; `names` has the names of the pools."""
    prefix = "" if line.reserved else "up to "
    name = f"{line.part} {line.component.value}" if line.part else line.component.value
    size, pool = format_bytes(line.size_bytes), _in_pool(names[line.pool])
    return f"{prefix}{size} {name} {pool}: {line.because}"


def pool_sums(estimate: MemoryEstimate) -> dict[Pool, dict[str, int]]:
    """Pool -> PARTS -> bytes of the reserved lines; without pools that have none."""
    sums = {
        pool: bytes_by_part(line for line in estimate.lines if line.pool == pool)
        for pool in estimate.pools
    }
    return {pool: row for pool, row in sums.items() if any(row.values())}


def pool_names(estimate: MemoryEstimate) -> dict[Pool, str]:
    """'GPU' and 'RAM'; 'GPU 0', 'GPU 1' if there are several."""
    devices = [pool for pool in estimate.pools if pool.kind is PoolKind.DEVICE]
    gpu = {pool: f"GPU {pool.index}" if len(devices) > 1 else "GPU" for pool in devices}
    return {pool: gpu.get(pool, RAM) for pool in estimate.pools}


def later_lines(estimate: MemoryEstimate) -> tuple[MemoryLine, ...]:
    """Lines that are not allocated at start."""
    return tuple(line for line in estimate.lines if not line.reserved and line.size_bytes)


def how_known(lines: Iterable[MemoryLine]) -> tuple[Basis, float | None]:
    """The weakest basis, and the bound on the error of the sum as a share of it."""
    sized_lines = [line for line in lines if line.size_bytes]
    basis = weakest(line.basis for line in sized_lines)
    total = sum(line.size_bytes for line in sized_lines)
    if not total or any(
        line.within is None and line.basis is not Basis.EXACT for line in sized_lines
    ):
        return basis, None
    off = sum(line.size_bytes * line.within for line in sized_lines if line.within is not None)
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
    """A row for each basis with the parts that have it."""
    parts: dict[str, list[str]] = {}
    for component in Component:
        lines = [line for line in estimate.lines if line.component is component and line.size_bytes]
        if lines:
            parts.setdefault(known_words(lines), []).append(component.value)
    return [f"{words}: {', '.join(names)}" for words, names in parts.items()]


def explain_text(bill: EstimateAnswer) -> str:
    """The arithmetic of every line, component by component; layers with the same arithmetic are grouped."""
    estimate, names = bill.estimate, pool_names(bill.estimate)
    lines: list[str] = []
    for component in Component:
        part_lines = [
            line for line in estimate.lines if line.component is component and line.size_bytes
        ]
        if not part_lines:
            continue
        total = format_bytes(sum(line.size_bytes for line in part_lines))
        lines.append(f"{component.value}: {total}, {known_words(part_lines)}")
        known_alike = len({(line.basis, line.within) for line in part_lines}) == 1
        for group in group_lines(part_lines):
            first_line, part = group[0], f", {group[0].part}" if group[0].part else ""
            basis = "" if known_alike else f", {known_words([first_line])}"
            size, count = first_line.size_bytes, len(group)
            words = f"{size:,} bytes ({format_bytes(size)})"
            if count > 1:
                words = (
                    f"{count} x {size:,} bytes = {size * count:,} ({format_bytes(size * count)})"
                )
            lines += _indent_lines(f"{names[first_line.pool]}{part}: {words}{basis}", 2)
            lines += _indent_lines(f"= {first_line.because}" if first_line.because else "", 4)
            layers = [line.layer for line in group if line.layer is not None]
            plural = "layer" if len(layers) == 1 else "layers"
            lines += _indent_lines(f"{plural} {ranges(layers)}" if layers else "", 4)
        lines.append("")
    if estimate.facts:
        lines.append(f"what {estimate.engine} resolved:")
        width = max(len(name) for name, _ in estimate.facts)
        for name, value in estimate.facts:
            first, *rest = fold(_fact(value), MAX_WIDTH - width - 4)
            lines += [f"  {name:<{width}}  {first}", *(" " * (width + 4) + line for line in rest)]
    return "\n".join(lines) + "\n"


def group_lines(lines: Iterable[MemoryLine]) -> list[list[MemoryLine]]:
    """Lines that differ only in their layer, in the order in which they first appear."""
    groups: dict[tuple[object, ...], list[MemoryLine]] = {}
    for line in lines:
        key = (line.component, line.pool, line.size_bytes, line.because, line.basis, line.part)
        groups.setdefault(key, []).append(line)
    return list(groups.values())


def _indent_lines(text: str, indent: int) -> list[str]:
    return [" " * indent + line for line in fold(text, MAX_WIDTH - indent)] if text else []


def ranges(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 4, 6, 7] -> '0-2, 4, 6-7'."""
    ordered = sorted(set(numbers))
    runs = groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ends)


def _fact(value: object) -> str:
    """A fact that the engine resolved, as text: 'yes', '4,096', '0.90', '1, 2'."""
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


def layers_table(bill: EstimateAnswer) -> str:
    """One row per layer, and one for everything outside the layers."""
    names, by_layer = pool_names(bill.estimate), _lines_by_layer(bill.estimate)
    kinds = {layer.index: layer.mixer for layer in (bill.geometry.layers if bill.geometry else ())}
    cells = []
    for index in (*sorted(by_layer.keys() - {OUTSIDE}), *(by_layer.keys() & {OUTSIDE})):
        lines, kind = by_layer[index], kinds.get(index)
        weights = sum(line.size_bytes for line in lines if line.component is Component.WEIGHTS)
        cache = sum(line.size_bytes for line in lines if line.component in CACHES)
        rest = sum(line.size_bytes for line in lines) - weights - cache
        used = {line.pool for line in lines}
        cells.append(
            (
                "outside" if index == OUTSIDE else str(index),
                "" if kind is None else kind_name(kind.label, window_of(kind)),
                *(f"{size:,}" if size else "-" for size in (weights, cache, rest)),
                " + ".join(name for pool, name in names.items() if pool in used),
            )
        )
    head = ("layer", "kind", "weights", "cache", "rest", "pool")
    return "\n".join(table(head, cells, left=(0, 1))) + "\n"


def _lines_by_layer(estimate: MemoryEstimate) -> dict[int, list[MemoryLine]]:
    """Layer, or OUTSIDE -> its reserved lines that have a size."""
    by_layer: dict[int, list[MemoryLine]] = {}
    for line in estimate.lines:
        if line.reserved and line.size_bytes:
            layer = OUTSIDE if line.layer is None else line.layer
            by_layer.setdefault(layer, []).append(line)
    return by_layer


def count_kinds(geometry: ModelGeometry) -> dict[tuple[str, int], int]:
    """(kind, its window) -> number of layers, in the order in which they first appear."""
    counts: dict[tuple[str, int], int] = {}
    for layer in geometry.layers:
        kind = (layer.mixer.label, window_of(layer.mixer))
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def kind_name(label: str, window: int) -> str:
    return f"{label} {window:,}" if window else label


def window_of(kind: LayerKind) -> int:
    """Number of tokens back that a layer sees; 0 if unlimited."""
    match kind:
        case SharedCache() | HybridLayer() | NoCache():
            return kind.attention.span_tokens if kind.attention is not None else 0
        case Attention() | LatentAttention():
            return kind.span_tokens
        case CompressedAttention():
            return 0 if kind.ratio else kind.window_tokens
        case _:
            return 0


def compare_text(comparison: EngineComparison, screen: Screen = PLAIN) -> str:
    """A row for each engine, then the request to each, then the engines that refuse."""

    def lines(screen: Screen) -> Iterator[str]:
        width = screen.width
        if billed:
            yield from table(("", *PARTS, "total", "basis"), map(_comparison_row, billed))
        for bill in billed:
            yield ""
            yield from fold(f"{bill.engine_title}, {bill.estimate.backend}: {bill.asked}", width)
            for note in bill.estimate.notes:
                yield from (f"  {line}" for line in fold(note, width - 2))
        for engine, answer in comparison.answers.items():
            if isinstance(answer, EdgekitError):
                yield from ("", *fold(f"{engine}: no estimate: {answer}", width))
        if comparison.hint:
            yield from ("", *fold(comparison.hint, width))

    billed = [bill for bill in comparison.answers.values() if not isinstance(bill, EdgekitError)]
    sequences = "one sequence" if comparison.users == 1 else f"{comparison.users} sequences"
    headline = f"{comparison.label}  ·  {sequences} of {comparison.context_tokens:,} tokens"
    if any(bill.from_index for bill in billed):
        headline += f" ({FROM_INDEX})"
    return render(headline, [("", lines), ("Note", comparison.notes)], screen)


def _comparison_row(bill: EstimateAnswer) -> tuple[str, ...]:
    sums = pool_sums(bill.estimate).values()
    sizes = [sum(row[part] for row in sums) for part in PARTS]
    total = format_bytes(bill.estimate.total_bytes)
    return bill.estimate.engine, *map(_cell, sizes), total, bill.estimate.basis.value


def compare_json(comparison: EngineComparison, reference: str) -> Json:
    engines = {
        engine: {"error": str(answer), "type": type(answer).__name__}
        if isinstance(answer, EdgekitError)
        else bill_json(answer)
        for engine, answer in comparison.answers.items()
    }
    return {
        "schema": SCHEMA,
        "model": comparison.label,
        "reference": reference,
        **fields(comparison, "context_tokens users"),
        "engines": engines,
    }


def bill_json(bill: EstimateAnswer, *, layers: bool = False) -> Json:
    """The whole answer, every line included."""
    estimate = bill.estimate
    answer: Json = {
        "schema": SCHEMA,
        **fields(bill, "model=label reference engine=estimate.engine engine_version=version?"),
        **fields(bill, "backend=estimate.backend? asked command?"),
        **sums_json(estimate),
        "later_bytes": sum(line.size_bytes for line in later_lines(estimate)),
        "facts": dict(estimate.facts),
        "notes": [*bill.notes, *estimate.notes],
        "lines": [fields(line, _LINE_FIELDS) for line in estimate.lines],
    }
    if layers:
        by_layer = _lines_by_layer(estimate)
        rows = []
        for layer in bill.geometry.layers if bill.geometry else ():
            lines = by_layer.get(layer.index, [])
            rows.append(
                {
                    "layer": layer.index,
                    "kind": layer.mixer.label,
                    **dict.fromkeys(_POOL_PARTS, 0),
                    "pools": list(dict.fromkeys(line.pool.label for line in lines)),
                    **{part: size for part, size in bytes_by_part(lines).items() if size},
                }
            )
        answer["layer_list"] = rows
    return answer


def sums_json(estimate: MemoryEstimate) -> Json:
    """The sums of an estimate: the answer to a row of a batch."""
    reserved = [line for line in estimate.lines if line.reserved]
    sums = Counter[Component]()
    for line in reserved:
        sums[line.component] += line.size_bytes
    pools: Json = {
        kind.value: _pool_json(line for line in reserved if line.pool.kind is kind)
        for kind in PoolKind
    }
    devices = {line.pool for line in reserved if line.pool.kind is PoolKind.DEVICE}
    if len(devices) > 1:
        pools["devices"] = [
            _pool_json(line for line in reserved if line.pool == device)
            for device in sorted(devices, key=lambda pool: pool.index)
        ]
    return {
        **{key: sums[component] for component, key in _KEYS.items()},
        **fields(estimate, "total_bytes basis"),
        "pools": pools,
        **engine_named(estimate.engine).answer_facts(estimate),
    }


def _pool_json(lines: Iterable[MemoryLine]) -> Json:
    """Part -> bytes of one pool. The output buffer is left out: it has a key of its own."""
    sums: Json = dict.fromkeys(_POOL_PARTS, 0)
    for line in lines:
        part = "runtime" if line.component is Component.RUNTIME else column_of(line)
        if part != "other":
            sums[part] = sums.get(part, 0) + line.size_bytes
    return sums
