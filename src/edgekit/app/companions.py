"""A model and what is loaded with it (a projector, adapters, a drafter) -> one bill for all of it."""

from __future__ import annotations

from edgekit.app.open import open_named
from edgekit.bill.types import Price
from edgekit.engines import engine_named
from edgekit.engines.flags import companions_in
from edgekit.engines.protocol import Companions
from edgekit.errors import UsageError
from edgekit.formats import read_header
from edgekit.formats.types import ModelHeader
from edgekit.model.open import Opened
from edgekit.request import Session, Values
from edgekit.sources import locate
from edgekit.sources.types import Container, ModelFiles, Reach

BESIDE_THE_MODEL = "auto"  # the projector: the one next to the model


def price_loads(opened: Opened, engine: str, values: Values, reach: Reach) -> Price:
    """What any load costs, with the files that are loaded next to the model, opened here.

    Raises EdgekitError for a file that cannot be had or is something else.
    """
    one, model = engine_named(engine), opened.model
    if not one.companions & values.keys():
        return lambda load, setup: one.estimate(model, load, setup)
    given, drafter = companions_in(one.flags, values), None
    projector, adapters = given.get("projector"), given.get("adapters", ())
    if (name := given.get("drafter")) is not None:
        drafter = open_named(name, Session(reach=reach)).as_file(engine)
    beside = Companions(
        projector=None if projector is None else _projector(projector, opened, reach),
        adapters=tuple(read_header(locate(name, reach=reach)) for name in adapters),
        drafter=None if drafter is None else drafter.model,
        drafter_mix=None if drafter is None else drafter.mix,
    )
    return lambda load, setup: one.estimate_with(beside, model, load, setup, values)


NO_PROJECTOR_SIZE = (
    "--mmproj auto: the catalog does not have the size of this model's projector: download it and give its path "
    "with --mmproj FILE"
)


def _projector(name: str, opened: Opened, reach: Reach) -> ModelHeader:
    if name != BESIDE_THE_MODEL:
        return read_header(locate(name, reach=reach))
    if opened.files is None:
        raise UsageError(NO_PROJECTOR_SIZE)
    found = opened.files.projectors
    if not found:
        raise UsageError("--mmproj auto: no mmproj file was found next to the model; give its path")
    files = ModelFiles(
        reference=found[0].name,
        label=found[0].name,
        origin=opened.files.origin,
        container=Container.GGUF,
        weights=found[:1],
    )
    return read_header(files)
