"""A model and flags -> the prediction next to what the engine on this machine reports."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from edgekit.app.calibrate import remember_load
from edgekit.app.open import ResolvedModel, open_as_stored
from edgekit.engines import engine_named
from edgekit.errors import EdgekitError
from edgekit.machine.probes import detect
from edgekit.request import Request, Session, read_quant
from edgekit.sources.locator import locate

if TYPE_CHECKING:
    from edgekit.app.calibrate import Remembered
    from edgekit.engines.program import Verification
    from edgekit.sources.types import ModelFiles


class Verified(NamedTuple):
    found: Verification
    asked: str  # the requested flags as text
    # What a real load saved, or why it could not be saved; None if nothing was loaded.
    saved: Remembered | EdgekitError | None = None
    from_index: bool = False  # the index answers for a repository that could not be read


def verify(
    reference: str,
    request: Request,
    session: Session,
    *,
    really: bool = False,
    timeout_s: float | None = None,
) -> Verified:
    """What the engine on this machine reports for a model, next to the prediction. Raises EdgekitError.

    `really` also loads the model, and saves the measured overhead for later estimates on this machine.
    """
    (engine,), quant, reach = request.engines, request.quant, session.reach
    program = engine_named(engine).program("verify")
    verifier = program.verifier(request.values(engine), really=really, timeout_s=timeout_s)

    def read(source: str) -> ModelFiles:
        return locate(source, reach=reach)

    files, from_index = (
        open_as_stored(reference, read, reach, quant=quant, verb="verify loads"),
        False,
    )
    if isinstance(files, ResolvedModel):  # a model of the catalog: the header is generated
        resolved, opened = files, files.as_file(engine)
        model, mix = opened.model, None
        if resolved.quant is not None:
            mix = read_quant(engine, resolved.quant)
            model = resolved.opened(engine).model
        generated = verifier.generate_files(model, opened.label, mix)
        note = f"header generated from the index, at {mix or opened.mix}"
        files, from_index = (
            replace(generated, notes=(*resolved.notes, note)),
            bool(resolved.from_index),
        )
    verification = verifier.verify(files)
    asked = verifier.describe_flags(verification)
    if not really:
        return Verified(verification, asked, from_index=from_index)
    saved: Remembered | EdgekitError
    try:
        saved = remember_load(verification, detect())
    except EdgekitError as error:
        saved = error
    return Verified(verification, asked, saved, from_index)
