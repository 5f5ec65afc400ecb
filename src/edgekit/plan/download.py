"""A verdict -> how much has to be downloaded to run it."""

from __future__ import annotations

from edgekit.bill.verdict import Verdict
from edgekit.engines import engine_named


def download_bytes(result: Verdict) -> int | None:
    """The weights that were judged, as a file or repository holds them; None where that is not known.

    Of a repository that was read its own size, else what a quantisation of the model's tensors takes.
    """
    if result.variant is None:
        return None
    engine = engine_named(result.engine)
    return engine.download_bytes(result.variant.model, result.way.setup, result.estimate)
