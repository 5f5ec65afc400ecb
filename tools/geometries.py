"""Gathered configs and stated relations between models -> tools/index_data/geometries.jsonl.gz.

Usage: python tools/geometries.py FILE...

Each FILE (JSON lines) has rows of one or more kinds; they are added to the rows that are there, or replace them:

- {hub_id, config, source, licence, basis}: the content of a model's own config.json; basis "assumed" if a number in it
  was inferred. The defaults of a configuration class of transformers, and the numbers that another project or a
  conversion script states for the model, count as that if no number of the model's is another one, and the parameters
  that follow are the publisher's to the last one. Buffers that no engine loads (attention masks, rotary frequencies),
  prediction layers and encoders are counted then
- {hub_id, like, relation, relation_source, differs}: a model that a source states to be based on, or a variant of,
  another one whose numbers are equal
- {template, config, source, licence}: the defaults of the configuration class of a model_type, for models of which only
  some numbers are known

Of a config only the keys that EdgeKit reads are kept. A row is left out, with the reason, if its config does not open
or its source states no licence.
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
KEPT = ("hub_id", "template", "source", "licence", "basis")
RELATION = ("hub_id", "like", "relation", "relation_source", "differs", "licence")


def trimmed(row: dict[str, Any]) -> dict[str, Any] | str:
    """The row with the keys of its config that are needed; the reason why it has none."""
    name = row.get("hub_id") or row.get("template")
    if row["licence"].startswith("none stated"):
        return f"{name}: its source states no licence"
    try:
        kept = {key: row[key] for key in KEPT if key in row}
        return {**kept, "config": needed_config(row["config"])}
    except (EdgekitError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        return f"{name}: {error!r}"


def kind_and_name(row: dict[str, Any]) -> tuple[str, str]:
    """What tells the rows apart: a model has one config and one relation, a model_type one template."""
    if "template" in row:
        return "template", row["template"]
    return ("like" if "like" in row else "config"), row["hub_id"].lower()


def main(paths: list[Path]) -> None:
    with gzip.open(TARGET, "rt", encoding="utf-8") as file:
        rows = {kind_and_name(row): row for row in map(json.loads, file)}
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    new = [row for row in map(json.loads, lines) if row.get("agrees") is not False]
    relations = [row for row in new if "like" in row]
    with ProcessPoolExecutor() as pool:
        configs = list(pool.map(trimmed, (row for row in new if "config" in row), chunksize=8))
    for row in relations:
        rows[kind_and_name(row)] = {name: row[name] for name in RELATION if name in row}
    for result in configs:
        if isinstance(result, str):
            print(f"left out: {result}")
        else:
            rows[kind_and_name(result)] = result
    ordered = [rows[key] for key in sorted(rows, key=lambda key: (key[1], key[0]))]
    text = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in ordered)
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as target:
        target.write(text.encode())
    TARGET.write_bytes(buffer.getvalue())
    print(f"{len(ordered)} rows, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
