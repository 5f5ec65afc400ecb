"""What a person typed -> the model that is meant. Every command, the Python API and the web API resolve names here.

`resolve` decides what a name means: a file, a model of the catalog, or anything that `read` can open. To teach
EdgeKit another spelling, change `resolve`; no caller decides by itself what a name means.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from edgekit.catalog import find_entry, opened, read_catalog
from edgekit.catalog.naming import is_base
from edgekit.catalog.repositories import original_repository
from edgekit.catalog.types import Catalog, Entry, Kind
from edgekit.engine import FROM_GGUF, engine_for, engine_name
from edgekit.engine.llamacpp.as_gguf import convert, default_mix
from edgekit.errors import (
    EdgekitError,
    NotFoundError,
    PrivateAddressError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.estimation import Opened, open_or_download
from edgekit.header.types import Depth
from edgekit.inspection import Inspection, inspect_header, inspect_model
from edgekit.memory.assumed import from_name
from edgekit.memory.names import read_name
from edgekit.plan.assumed import AssumedChoice, assumed_choice
from edgekit.plan.choice import AS_NAMED, as_named
from edgekit.plan.placement import engine_on
from edgekit.plan.types import Start, Variant
from edgekit.plan.variants import (
    accuracy_of,
    at_mixes,
    stored_accuracy,
    usual_variant,
    variants_of,
)
from edgekit.source.folders import is_here
from edgekit.source.naming import MODEL_SUFFIXES, close_names, quant_tag
from edgekit.source.types import Container, ModelFiles, Origin, Reach

if TYPE_CHECKING:
    from edgekit.hardware.types import Machine
    from edgekit.source.download import Download

CATALOG = "catalog:"
LLAMACPP, AUTO = "llama.cpp", "auto"

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(Generic[Read]):
    """A model of the catalog, what was read under the name, or both."""

    name: str
    catalog: Catalog = field(repr=False)
    entry: Entry | None = None
    found: Read | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()


def resolve(
    reference: str | os.PathLike[str], read: Callable[[str], Read], *, absolute: bool = False
) -> Resolved[Read]:
    """What `reference` means: a path first, then a name of the catalog, then whatever `read` finds.

    What the user added to the catalog is read from where it came. A repository that cannot be reached is taken from
    the catalog, if it is there, with a note. `absolute`: only absolute paths are paths. Raises EdgekitError.
    """
    name = os.fspath(reference)
    is_file = is_here(name, whole=absolute)
    catalog = Catalog(entries=()) if is_file else read_catalog()
    entry: Entry | None = None
    is_explicit = name.lower().startswith(CATALOG)
    if is_explicit:
        name = name[len(CATALOG) :]
        entry = find_entry(name, catalog)
    elif not is_file:
        entry = _known(name, catalog)
    if entry is not None and (is_explicit or "/" not in name) and not entry.is_users:
        return Resolved(name=name, catalog=catalog, entry=entry, notes=base_note(entry))
    source = entry.reference if entry is not None and entry.is_users else name
    try:
        found = read(source)
    except NotFoundError as error:
        if entry is not None and entry.is_users:
            note = (
                f"known from the catalog, for {source} is gone (edgekit catalog remove {entry.id})"
            )
            return Resolved(name=name, catalog=catalog, entry=entry, notes=(note,))
        if any(sign in name for sign in "/\\:."):
            raise  # a path, an address, a name with a tag
        raise _with_near(error, name, catalog) from error
    except PrivateAddressError:
        raise  # an answer from the catalog would hide what was refused
    except RemoteInspectError as error:
        said_no = isinstance(error, RemoteNotFoundError | RemoteAccessError)
        if entry is None or (said_no and not entry.is_users):
            raise
        note = f"known from the catalog, for {source} could not be read: {error}"
        return Resolved(name=name, catalog=catalog, entry=entry, notes=(note,))
    return Resolved(name=name, catalog=catalog, entry=entry, found=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel(Resolved[Opened]):
    """A model whose header was read, or one that the catalog knows, before an engine is chosen.

    Or neither: then `assumed` is what its name says, and `missing` why there is no more.
    """

    assumed: AssumedChoice | None = None
    missing: EdgekitError | None = field(default=None, repr=False, compare=False)

    @property
    def files(self) -> ModelFiles | None:
        return self.found.files if self.found is not None else None

    def engine(self, wanted: str, machine: Machine) -> str:
        if wanted.lower() != AUTO:
            return engine_name(wanted)
        return LLAMACPP if self.found is None else engine_on(self.found.model, machine)

    @property
    def first_engine(self) -> str:
        """The one that its files are for."""
        if self.found is not None:
            return engine_for(self.found.model)
        return LLAMACPP if self.entry is not None and self.entry.keys else "vllm"

    def opened(self, engine: str) -> Opened:
        """Raises RefusedError where the entry has nothing that the engine loads."""
        if self.found is None and self.entry is not None:
            return opened(self.entry, engine)
        if self.found is None:
            raise self.missing or UsageError(f"{self.name}: neither opened nor in the catalog")
        return self.found

    def as_file(self, engine: str) -> Opened:
        """As the file that people run: a model of the catalog at its usual quantisation.

        What is known by its config alone is left to llama.cpp to convert, which says so in the bill.
        """
        model = self.opened(engine)
        if self.found is not None or engine not in FROM_GGUF:
            return model
        if model.model.header.container is not Container.GGUF:
            return replace(model, mix=default_mix(model.model))
        usual = usual_variant(variants_of(model.model, engine, settled=False))
        return replace(model, model=convert(model.model, usual.name).model, mix=usual.name)

    def variants(self, model: Opened, engine: str, start: Start) -> tuple[Variant, ...]:
        """The weights to choose from: the files of a repository where none was named, else what can be made of it."""
        files = model.files
        if {"mix", "quantize", "quantization"} & start.settled:
            return as_named(model.model, str(getattr(start.setup, "mix", None) or "as asked"))
        if files is None or files.container is not Container.GGUF or engine != LLAMACPP:
            return variants_of(model.model, engine, settled=False)
        tag = quant_tag(files.label.rpartition(":")[2]) or quant_tag(files.label) or AS_NAMED
        own = as_named(model.model, tag, files.reference)
        if ":" in self.name.rpartition("/")[2] or files.origin is not Origin.HUB:
            return own
        others = at_mixes(model.model, files.alternatives, repository=files.reference)
        mine = replace(own[0], accuracy=accuracy_of(tag) or stored_accuracy(model.model))
        every = (mine, *(one for one in others if one.name != tag))
        return tuple(sorted(every, key=lambda one: -one.accuracy))

    @property
    def embeds(self) -> bool:
        """Whether it is an embedding model, which the engine has to be started for."""
        if self.entry is not None:
            return Kind.EMBEDDING in self.entry.kinds
        return self.found is not None and self.found.model.geometry.embeds


def resolve_model(
    reference: str | os.PathLike[str],
    *,
    depth: Depth = Depth.TENSORS,
    reach: Reach | None = None,
    confirm: Callable[[Download], bool] | None = None,
    assume: bool = False,
) -> ResolvedModel:
    """The model with its header read. `confirm` is asked before a hub model is downloaded; None: never download.

    `assume`: a name that is not found and states a size and a quantisation ("13B at Q5_K_M") is judged by these.
    """

    def read(source: str) -> Opened:
        return open_or_download(source, depth=depth, reach=reach, confirm=confirm)

    absolute = reach is not None and reach.within is not None
    try:
        found = resolve(reference, read, absolute=absolute)
    except NotFoundError as error:
        assumed = _assumed(os.fspath(reference)) if assume else None
        if assumed is None:
            raise
        note = f"nothing of that name was found: {error}"
        return ResolvedModel(
            name=os.fspath(reference),
            catalog=Catalog(entries=()),
            notes=(note,),
            assumed=assumed,
            missing=error,
        )
    return ResolvedModel(
        name=found.name,
        catalog=found.catalog,
        entry=found.entry,
        found=found.found,
        notes=found.notes,
    )


def _assumed(name: str) -> AssumedChoice | None:
    """None for a path, an address or a name with a tag, and where size and quantisation are not both stated."""
    if any(sign in name for sign in "/\\:") or name.lower().endswith(MODEL_SUFFIXES):
        return None
    try:
        stated = read_name(name)
        if stated.mix is None:
            return None
        return assumed_choice(from_name(name), read_catalog().entries)
    except UsageError:
        return None


def inspect_named(
    reference: str | os.PathLike[str], *, depth: Depth = Depth.TENSORS, reach: Reach | None = None
) -> Inspection:
    """What a model is; one of the catalog as it was released, before anybody quantised it."""
    reach = reach or Reach()

    def read(source: str) -> Inspection:
        return inspect_model(source, depth=depth, reach=reach)

    found = resolve(reference, read, absolute=reach.within is not None)
    if found.found is not None:
        return found.found
    model = ResolvedModel(name=found.name, catalog=found.catalog, entry=found.entry)
    header = model.opened(model.first_engine).model.header
    listed = f"edgekit catalog show {header.name} lists its sizes at other quantisations"
    files = ModelFiles(
        reference=os.fspath(reference),
        label=header.name,
        origin=Origin.CATALOG,
        container=header.container,
        notes=(*found.notes, f"from the catalog, no file was read: {listed}"),
    )
    return inspect_header(files, header, reach.traffic)


def _with_near(error: NotFoundError, name: str, catalog: Catalog) -> NotFoundError:
    """The same error with similar names of the catalog, and with what of the catalog could not be read."""
    near = close_names(name.lower(), [entry.id for entry in catalog.entries])
    damaged = "".join(f"; the catalog cannot be read whole: {one}" for one in catalog.problems[:1])
    return NotFoundError(f"{error}{damaged}", candidates=() if error.candidates else near)


def base_note(entry: Entry) -> tuple[str, ...]:
    """A warning that a base model does not answer questions."""
    repository = original_repository(entry.id) or entry.repository
    if repository is None or Kind.CHAT not in entry.kinds or not is_base(repository):
        return ()
    return (
        f"{repository} is the base model: to be answered take its instruct version, of the same shape",
    )


def _known(name: str, catalog: Catalog) -> Entry | None:
    try:
        return find_entry(name, catalog)
    except NotFoundError:
        return None
