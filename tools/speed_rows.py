"""Rows of measured speeds: JSON lines, or a table (.tsv) with `COLUMNS`, in the files that the speed tools take."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from pathlib import Path
from typing import Any

# The columns of a table of points. An empty cell is a value that the row does not have.
COLUMNS: dict[str, type] = {
    "hardware": str, "gpu_count": int, "vram_gb": float, "ram_gb": float, "host_gb_s": float, "cores": int,
    "engine": str, "engine_version": str, "backend": str, "model": str, "file": str, "quant": str, "kv_type": str,
    "context_depth": int, "users": int, "prompt_tokens": int, "gen_tokens": int, "ubatch": int, "ngl": int,
    "ncmoe": int, "placement": str, "e2e": bool, "pp_tok_s": float, "tg_tok_s": float, "note": str, "source": str,
    "licence": str,
}  # fmt: skip
MAX_LINE_CHARS = 64 * 1024  # a row has less than 2,000
MAX_LINES = 100_000  # all are held in memory


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, or of a .tsv with `COLUMNS`, compressed (.gz) or not.

    Raises ValueError with the line's number.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    is_table = path.name.removesuffix(".gz").endswith(".tsv")
    names: list[str] = []
    rows: list[dict[str, Any]] = []
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            while line := file.readline(MAX_LINE_CHARS + 1):
                number += 1
                _check_size(line, number)
                if not line.strip():
                    continue
                if not is_table:
                    rows.append(_object(line))
                elif not names:
                    names = _header(line)
                else:
                    rows.append(_row(names, line))
    except (ValueError, RecursionError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}, line {number}: {error}") from error
    return rows


def _check_size(line: str, number: int) -> None:
    if len(line) > MAX_LINE_CHARS:
        raise ValueError(f"longer than {MAX_LINE_CHARS:,} characters")
    if number > MAX_LINES:
        raise ValueError(f"more than {MAX_LINES:,} lines")


def _object(line: str) -> dict[str, Any]:
    row = json.loads(line)
    if isinstance(row, dict):
        return row
    raise ValueError("not an object")


def _header(line: str) -> list[str]:
    names = line.rstrip("\n").split("\t")
    unknown = sorted(set(names) - set(COLUMNS))
    if unknown or len(set(names)) < len(names) or "hardware" not in names:
        raise ValueError(f"the columns must be some of {', '.join(COLUMNS)}; got {names}")
    return names


def _row(names: list[str], line: str) -> dict[str, Any]:
    cells = line.rstrip("\n").split("\t")
    if len(cells) != len(names):
        raise ValueError(f"{len(cells)} cells, but {len(names)} columns")
    return {name: _value(name, cell) for name, cell in zip(names, cells, strict=True)}


def _value(name: str, cell: str) -> Any:
    kind = COLUMNS[name]
    if kind is bool:
        if cell not in {"", "yes"}:
            raise ValueError(f"{name} must be yes or empty (got {cell!r})")
        return cell == "yes"
    if not cell:
        return None
    value = kind(cell)
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{name} must be a number (got {cell!r})")
    return value


def row_line(row: dict[str, Any]) -> str:
    """The row as a line of a .tsv, which read_rows reads back."""
    return "\t".join(_cell(row.get(name)) for name in COLUMNS) + "\n"


def _cell(value: Any) -> str:
    if value is None or value is False:
        return ""
    return "yes" if value is True else " ".join(str(value).split())
