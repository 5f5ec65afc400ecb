"""A folder of config.json files -> docs/configs.md: what was read from each.

Usage: python tools/config_table.py FOLDER > docs/configs.md
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from edgekit.errors import EdgekitError
from edgekit.formats.types import ModelHeader
from edgekit.model import read_geometry
from edgekit.model.types import ModelGeometry
from edgekit.report.kinds import count_kinds, kind_name
from edgekit.sources.types import Container

_HEAD = """\
# What was read from {count} real config.json files

Made by `tools/config_table.py` from config.json files found in public repositories: {known} have a
geometry, {refused} a reason. Elements are what all layers together remember: for each token (of every
layer, windows included), and once for a sequence (states).

| file | model_type | layers | context | elements per token | states | basis |
|---|---|---|---|---|---|---|
"""


def main(folder: Path) -> None:
    rows: list[str] = []
    tally: Counter[bool] = Counter()
    for path in sorted(folder.glob("*.json"), key=lambda p: p.name.lower()):
        row, known = _row(path)
        rows.append(row)
        tally[known] += 1
    print(_HEAD.format(count=len(rows), known=tally[True], refused=tally[False]) + "\n".join(rows))


def _row(path: Path) -> tuple[str, bool]:
    config = json.loads(path.read_text(encoding="utf-8"))
    name = path.stem.replace("__", "/")
    try:
        geometry = read_geometry(
            ModelHeader(name=path.name, container=Container.CONFIG, config=config)
        )
    except EdgekitError as error:
        reason = str(error).removeprefix(f"{path.name}: ").split(". If it")[0]
        return f"| {name} | {config.get('model_type')} | {reason} | | | | none |", False
    return _known(name, geometry), True


def _known(name: str, geometry: ModelGeometry) -> str:
    kinds = ", ".join(f"{n} {kind_name(*kind)}" for kind, n in count_kinds(geometry).items())
    context = f"{geometry.native_context:,}" if geometry.native_context else "unknown"
    streams = [s for layer in geometry.layers for s in layer.mixer.streams]
    per_token = sum(s.elements / s.tokens_per_row for s in streams)
    states = sum(s.elements for layer in geometry.layers for s in layer.mixer.states)
    return (
        f"| {name} | {geometry.architecture} | {kinds} | {context} | {per_token:,.0f} "
        f"| {states:,} | {geometry.basis.value} |"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
