"""A folder of config.json files -> docs/data/configs.tsv: what EdgeKit reads from each.

    python tools/config_table.py FOLDER > docs/data/configs.tsv

Elements are what all layers cache together: per token (windows included), and once per sequence (states).
A config that cannot be read has the reason instead of its layers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edgekit.errors import EdgekitError
from edgekit.formats.types import ModelHeader
from edgekit.model import read_geometry
from edgekit.report.bill import count_kinds, kind_name
from edgekit.sources.types import Container

COLUMNS = ("file", "model_type", "layers", "context", "elements per token", "states", "basis")


def main(folder: Path) -> None:
    """Print the table."""
    print("\t".join(COLUMNS))
    for path in sorted(folder.glob("*.json"), key=lambda p: p.name.lower()):
        print("\t".join(_row(path)))


def _row(path: Path) -> tuple[str, ...]:
    config = json.loads(path.read_text(encoding="utf-8"))
    name = path.stem.replace("__", "/")
    try:
        geometry = read_geometry(
            ModelHeader(name=path.name, container=Container.CONFIG, config=config)
        )
    except EdgekitError as error:
        reason = str(error).removeprefix(f"{path.name}: ").split(". If it")[0]
        return (name, str(config.get("model_type")), reason, "", "", "", "none")
    kinds = ", ".join(f"{n} {kind_name(*kind)}" for kind, n in count_kinds(geometry).items())
    context = f"{geometry.native_context:,}" if geometry.native_context else "unknown"
    streams = [s for layer in geometry.layers for s in layer.mixer.streams]
    per_token = sum(s.elements / s.tokens_per_row for s in streams)
    states = sum(s.elements for layer in geometry.layers for s in layer.mixer.states)
    figures = (f"{per_token:,.0f}", f"{states:,}", geometry.basis.value)
    return (name, geometry.architecture, kinds, context, *figures)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
