"""Gathered configs and stated relations between models -> tools/index_data/geometries.jsonl.gz.

Usage: python tools/geometries.py CONFIGS SIBLINGS

CONFIGS has rows {hub_id, config, source, licence}: the content of a model's own config.json. SIBLINGS has rows
{hub_id, like, relation, relation_source, differs}: models that a source states to be based on, or a variant of,
another one whose numbers are equal. Of a config only the keys that EdgeKit reads are kept. A row is left out, with the
reason, if its config does not open or its source states no licence.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from edgekit.app.index import needed_config
from edgekit.errors import EdgekitError

TARGET = Path(__file__).parent / "index_data" / "geometries.jsonl.gz"
KEPT = ("hub_id", "source", "licence")
RELATION = ("hub_id", "like", "relation", "relation_source", "differs", "licence")


def trimmed(row: dict[str, Any]) -> dict[str, Any] | str:
    """The row with the keys of its config that are needed; the reason why it has none."""
    if row["licence"].startswith("none stated"):
        return f"{row['hub_id']}: its source states no licence"
    try:
        return {**{name: row[name] for name in KEPT}, "config": needed_config(row["config"])}
    except (EdgekitError, KeyError, TypeError, ValueError) as error:
        return f"{row.get('hub_id')}: {error!r}"


def main(configs: Path, siblings: Path) -> None:
    rows = [json.loads(line) for line in configs.read_text(encoding="utf-8").splitlines()]
    by_id = {row["hub_id"].lower(): row for row in rows if row.get("agrees") is not False}
    with ProcessPoolExecutor() as pool:
        results = list(pool.map(trimmed, by_id.values(), chunksize=8))
    kept = [row for row in results if isinstance(row, dict)]
    for reason in results:
        if isinstance(reason, str):
            print(f"left out: {reason}")
    if siblings.exists():
        relations = [json.loads(line) for line in siblings.read_text(encoding="utf-8").splitlines()]
        kept += [{name: row[name] for name in RELATION if name in row} for row in relations]
    kept.sort(key=lambda row: (row["hub_id"].lower(), "like" in row))
    text = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in kept)
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        file.write(text.encode())
    TARGET.write_bytes(buffer.getvalue())
    print(f"{len(kept)} rows, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
