"""`inspect`: what a model is, from its header alone."""

from __future__ import annotations

import os

from edgekit.app.open import open_as_stored
from edgekit.engines import default_engine
from edgekit.formats.types import Depth
from edgekit.model.inspect import Inspection, inspect_header, inspect_model
from edgekit.request import Session, read_quant
from edgekit.sources.types import ModelFiles, Origin, Reach


def inspect(
    reference: str | os.PathLike[str],
    session: Session | None = None,
    *,
    depth: Depth = Depth.TENSORS,
    quant: str | None = None,
) -> Inspection:
    """What a model is. A model of the catalog is shown as released, or at the requested quantisation."""
    reach = Reach() if session is None else session.reach

    def read(source: str) -> Inspection:
        return inspect_model(source, depth=depth, reach=reach)

    model = open_as_stored(reference, read, reach, quant=quant, verb="inspect shows")
    if isinstance(model, Inspection):
        return model
    opened = model.opened(model.engine())
    header, at_mix = opened.model.header, ""
    if model.quant is not None:
        mix = read_quant(default_engine().name, model.quant)
        header, at_mix = default_engine().at_quant(opened.model, mix).header, f" at {mix}"
    listed = f"edgekit index show {header.name} lists its sizes at other quantisations"
    files = ModelFiles(
        reference=os.fspath(reference),
        label=header.name,
        origin=Origin.CATALOG,
        container=header.container,
        notes=(*model.notes, f"from the index{at_mix}, no file was read: {listed}"),
    )
    return inspect_header(files, header, reach.traffic)
