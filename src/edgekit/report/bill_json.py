"""A bill -> the documented JSON (docs/json.md): whole bytes, stable names, null for unknown."""

from __future__ import annotations

from typing import Any

from edgekit.app.answers import EstimateAnswer
from edgekit.bill.types import Component, MemoryEstimate, MemoryLine
from edgekit.engines import engine_named
from edgekit.machine.types import Pool, PoolKind
from edgekit.report.bill import column_of, later_lines

SCHEMA = 1
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
