"""A model and what is loaded with it (llama.cpp's --mmproj, --lora and --model-draft) -> one bill for all of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from edgekit.app.open import open_named
from edgekit.bill.cache_types import cache_type
from edgekit.bill.types import Load, MemoryEstimate
from edgekit.engines import engine_named
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.companions import adapter_lines, projector_lines, with_drafter
from edgekit.engines.llamacpp.placement import place
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.errors import UsageError
from edgekit.formats import read_header
from edgekit.formats.types import ModelHeader
from edgekit.model.open import Opened
from edgekit.request import Price, Session, Values
from edgekit.sources import locate
from edgekit.sources.types import Container, ModelFiles, Reach

BESIDE_THE_MODEL = "auto"


def price_loads(opened: Opened, engine: str, values: Values, reach: Reach) -> Price:
    """What any load costs, with the files that are loaded next to the model, opened here."""
    one = engine_named(engine)
    if one.companions:
        return LoadedBeside.of(opened, engine, values, reach).bill
    return lambda load, setup: one.estimate(opened.model, load, setup)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBeside:
    """A model and all that is loaded with it, opened once: every load has its bill."""

    opened: Opened
    values: Values
    projector: ModelHeader | None = None
    adapters: tuple[ModelHeader, ...] = ()
    drafter: Opened | None = None

    @classmethod
    def of(cls, opened: Opened, engine: str, values: Values, reach: Reach) -> LoadedBeside:
        """Raises EdgekitError for a file that cannot be had or is something else."""
        return cls(
            opened=opened,
            values=values,
            projector=_projector(values["mmproj"], opened, reach) if "mmproj" in values else None,
            adapters=tuple(
                read_header(locate(name, reach=reach)) for name in values.get("lora", ())
            ),
            drafter=open_named(values["draft_model"], Session(reach=reach)).as_file(engine)
            if "draft_model" in values
            else None,
        )

    def bill(self, load: Load, setup: LlamaCppSetup) -> MemoryEstimate:
        """Raises RefusedError for what llama.cpp would not load."""
        model = self.opened.model
        bill = llamacpp.estimate(model, load, setup)
        if self.projector is not None:
            lines = tuple(projector_lines(self.projector, setup))
            bill = replace(bill, lines=(*bill.lines, *lines))
        if self.adapters:
            facts: dict[str, Any] = dict(bill.facts)
            more = adapter_lines(list(self.adapters), place(model, setup), facts["n_ubatch"])
            bill = replace(bill, lines=(*bill.lines, *more))
        if self.drafter is None:
            return bill
        key, value = self.values.get("draft_type_k"), self.values.get("draft_type_v")
        own = replace(
            load,
            cache_k=None if key is None else cache_type(key),
            cache_v=None if value is None else cache_type(value),
        )
        draft = self.drafter.model
        is_gguf = draft.header.container is Container.GGUF  # its tensors have their types already
        return with_drafter(bill, draft, own, setup, mix=None if is_gguf else self.drafter.mix)


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
