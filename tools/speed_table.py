"""Measured speeds -> docs/data/speeds.tsv: those that may be shipped, in the columns of speed_rows.py.

Rows under MIT, Apache-2.0 and our own are all taken. Of sources without a licence single facts are cited: of a large
one at most FEW_FACTS, which differ in machine, model and setting as much as possible. Rows that EdgeKit has no
prediction for, because it does not know the model, the device or the quantisation, are left out.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.score_speed import Scored
from tools.speed_rows import COLUMNS, row_line

TABLE = Path(__file__).parents[1] / "docs" / "data" / "speeds.tsv"
LICENCES = ("MIT", "Apache-2.0", "the project")
LARGE_SOURCES = ("github.com/kyuz0/", "github.com/XiongjieDai/")
FEW_FACTS = 25
# What the rows of a large source are to differ in, besides the machine.
_DIFFERENT = ("gpu_count", "backend", "model", "file", "quant", "context_depth")
# Names that earlier versions of the page gave to a source.
_NUMBERED = re.compile(r"edgekit docs/speed\.md source \d+ \((.*)\)")
_MEASURED_HERE = "measured for that table, made-up weights"


def speed_table(scored: list[Scored]) -> str:
    """The table of the rows behind these points."""
    rows = list({id(one.point.row): one.point.row for one in scored}.values())
    shipped = [id(row) for row in rows if not _large_source(row)]
    for source in LARGE_SOURCES:
        own = [row for row in rows if _large_source(row) == source]
        shipped += [id(row) for row in spread_out(own, FEW_FACTS)]
    lines = [row_line(_as_shipped(row)) for row in rows if id(row) in set(shipped)]
    return "\t".join(COLUMNS) + "\n" + "".join(lines)


def _large_source(row: dict[str, Any]) -> str | None:
    """The source of which only some rows are taken."""
    if row["licence"] in LICENCES:
        return None
    return next((name for name in LARGE_SOURCES if str(row["source"]).startswith(name)), None)


def spread_out(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """`count` rows over all machines, each with the values that the rows before have least; of equal ones the first."""
    chosen: list[dict[str, Any]] = []
    used: Counter[tuple[str, str]] = Counter()

    def rarity(row: dict[str, Any]) -> tuple[int, int]:
        machine, *others = _values(row)
        return used[machine], sum(used[value] for value in others)

    left = list(rows)
    while left and len(chosen) < count:
        row = min(left, key=rarity)
        left.remove(row)
        chosen.append(row)
        used.update(_values(row))
    return chosen


def _values(row: dict[str, Any]) -> list[tuple[str, str]]:
    named = [(name, str(row.get(name))) for name in ("hardware", *_DIFFERENT)]
    return [*named, ("prompt", str(bool(row.get("pp_tok_s"))))]


def _as_shipped(row: dict[str, Any]) -> dict[str, Any]:
    """The row with short texts: a column says what the note repeats, the model is named once."""
    shipped = dict(row)
    named = _NUMBERED.fullmatch(str(row["source"]))
    if named is not None:
        shipped["source"] = named[1]
    if shipped["source"] == _MEASURED_HERE:
        shipped["source"] = (
            "measured for this table with generated weights (benchmarks/decode_speed.py)"
        )
    if row.get("e2e") or row.get("note") == "per user":
        shipped["note"] = None
    if row.get("model"):
        shipped["file"] = None
    return shipped
