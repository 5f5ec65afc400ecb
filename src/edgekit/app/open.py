"""A reference -> a model that engines can be asked about. Commands, the Python API and the page open models here."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from edgekit.bill.types import Start, Task, Variant
from edgekit.bill.verdict import Verdict
from edgekit.catalog.resolve import Resolved, resolve
from edgekit.engines import (
    default_engine,
    engine_for,
    engine_name,
    engine_named,
    engine_names,
    engine_on,
)
from edgekit.engines.choices import AS_NAMED, as_named, stored_quant, usual_variant
from edgekit.errors import (
    CancelledError,
    EdgekitError,
    HardwareError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from edgekit.formats.types import Depth
from edgekit.model.open import OpenModel, open_model
from edgekit.plan.choice import Choice, choose
from edgekit.request import AUTO, Session
from edgekit.sources.filenames import MODEL_SUFFIXES, SHORT_MIXES, quant_tag
from edgekit.sources.types import Container, ModelFiles, Origin, Reach

if TYPE_CHECKING:
    from edgekit.machine.types import Machine
    from edgekit.plan.assumed import AssumedChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel(Resolved[OpenModel]):
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
        return self._quantising(
            default_engine().name if self.found is None else engine_on(self.found.model, machine)
        )

    @property
    def first_engine(self) -> str:
        """The one that its files are for; llama.cpp for a name without files."""
        return self._quantising(
            default_engine().name if self.found is None else engine_for(self.found.model)
        )

    def _quantising(self, engine: str) -> str:
        """The engine, or the first that has the quantisation where this one lacks it."""
        quant = self.quant
        if quant is None:
            return engine
        from edgekit.engines.options import takes

        if takes(engine, quant):
            return engine
        return next((one for one in engine_names() if takes(one, quant)), engine)

    def opened(self, engine: str) -> OpenModel:
        """Raises RefusedError where the entry has nothing that the engine loads."""
        if self.found is None and self.entry is not None:
            from edgekit.engines.entries import open_entry

            return open_entry(self.entry, engine)
        if self.found is None:
            raise self.missing or UsageError(f"{self.name}: neither opened nor in the catalog")
        return self.found

    def as_file(self, engine: str) -> OpenModel:
        """As the file that people run: a model of the catalog at the quantisation that was named, else its usual one.

        A model known by its config alone is converted in the bill, which says so.
        """
        model = self.opened(engine)
        if self.found is not None or not engine_named(engine).loads_gguf:
            return model
        maker = default_engine()
        quant = self.quant or usual_variant(maker.variants(model.model)).name
        if model.model.header.container is not Container.GGUF:
            return replace(model, mix=quant)
        return replace(model, model=maker.at_quant(model.model, quant), mix=quant)

    def variants(self, model: OpenModel, engine: str, start: Start) -> tuple[Variant, ...]:
        """The weights to choose from: the files of a repository if none was named, else what can be made of it."""
        files, chosen = model.files, engine_named(engine)
        if getattr(start.setup, chosen.quant_key, None) is not None:
            shown = chosen.quant_shown(start.setup) or self.quant or "as requested"
            return as_named(model.model, shown)
        if chosen.streams_weights:
            file = model if files is not None else self.as_file(engine)
            return as_named(file.model, file.mix or AS_NAMED)
        if files is None or files.container is not Container.GGUF or not chosen.loads_gguf:
            known = self.entry.id if self.entry is not None and files is None else ""
            return chosen.variants(model.model, known)
        last = self.name.rpartition("/")[2]
        is_file = ":" in last or last.lower().endswith(MODEL_SUFFIXES)
        if is_file or files.origin is not Origin.HUB:
            return as_named(model.model, stored_quant(files), files.reference)
        return chosen.file_variants(model)

    @property
    def embeds(self) -> bool:
        """Whether it is an embedding model, which the engine has to be started for."""
        if self.entry is not None:
            from edgekit.catalog.types import ModelPurpose

            return ModelPurpose.EMBEDDING in self.entry.kinds
        return self.found is not None and self.found.model.geometry.embeds


Model = TypeVar("Model", bound=ResolvedModel)
Files = TypeVar("Files")


def open_named(
    reference: str | os.PathLike[str],
    session: Session | None = None,
    *,
    depth: Depth = Depth.TENSORS,
    assume: bool = False,
    quant: str | None = None,
) -> ResolvedModel:
    """The model with its header read.

    `quant`: the file of a repository at that quantisation; where there is none, the model as if it were quantised so.
    `assume`: a name that is not found and states a size and a quantisation ("13B at Q5_K_M") is judged by these.
    """
    session = session or Session(reach=Reach())
    reach, confirm = session.reach, session.confirm

    def read(source: str) -> OpenModel:
        return open_model(source, depth=depth, reach=reach, confirm=confirm)

    try:
        found = resolve(reference, read, absolute=reach.within is not None)
    except NotFoundError as error:
        name = os.fspath(reference)
        assumed = _assumed(name if quant is None else f"{name} {quant}") if assume else None
        if assumed is None:
            raise
        note = f"estimated from its name alone: {error}"
        return ResolvedModel(
            name=name,
            notes=(note,),
            assumed=assumed,
            missing=error,
        )
    model = ResolvedModel(**{one.name: getattr(found, one.name) for one in fields(found)})
    if quant is None:
        return model
    other = file_at(model, quant)
    if other is not None:
        return open_named(other, session, depth=depth)
    return quantised(model, quant)


def quantised(model: Model, quant: str) -> Model:
    """The same model, to be quantised so. Raises UsageError where its name states another quantisation."""
    if model.quant is not None and model.quant.upper() != quant.upper():
        raise UsageError(f"{model.name} and --quant {quant} name two quantisations: give one")
    is_stored = _stated_quant(model.files) == quant.upper()
    return replace(model, quant=None if is_stored else quant)


def file_at(model: Resolved[Any], quant: str) -> str | None:
    """The reference of the file that the model's repository has at this quantisation; None where it has none."""
    files = _files_of(model)
    if files is None or files.origin not in {Origin.HUB, Origin.HUB_CACHE}:
        return None
    wanted = quant.upper()
    wanted = SHORT_MIXES.get(wanted, wanted)
    for tag in (wanted, f"UD-{wanted}"):
        if tag in files.alternatives and ":" not in model.name.rpartition("/")[2]:
            return f"{model.name}:{tag}"
    return None


def open_as_stored(
    reference: str | os.PathLike[str],
    read: Callable[[str], Files],
    reach: Reach,
    *,
    quant: str | None,
    verb: str,
) -> Files | ResolvedModel:
    """What `read` finds under the name, for verbs that take files as they are; or a model of the catalog.

    Raises UsageError if the model has no file at this quantisation.
    """
    found = resolve(reference, read, absolute=reach.within is not None)
    if found.found is None:
        known = ResolvedModel(**{one.name: getattr(found, one.name) for one in fields(found)})
        return known if quant is None else quantised(known, quant)
    if quant is None or _stated_quant(_files_of(found)) == quant.upper():
        return found.found
    other = file_at(found, quant)
    if other is None:
        raise UsageError(f"{found.name} has no file at {quant}: {verb} files as they are")
    return read(other)


def _files_of(model: Resolved[Any]) -> ModelFiles | None:
    found = model.found
    return found if isinstance(found, ModelFiles) else getattr(found, "files", None)


def _stated_quant(files: ModelFiles | None) -> str | None:
    if files is None:
        return None
    stored = stored_quant(files)
    return quant_tag(files.weights[0].name) if stored == AS_NAMED and files.weights else stored


def _assumed(name: str) -> AssumedChoice | None:
    """None for a path, an address or a name with a tag, and where size and quantisation are not both stated."""
    if any(sign in name for sign in "/\\:") or name.lower().endswith(MODEL_SUFFIXES):
        return None
    from edgekit.catalog import read_catalog
    from edgekit.plan.assumed import assumed_choice, from_name, read_name

    try:
        stated = read_name(name)
        if stated.mix is None:
            return None
        return assumed_choice(from_name(name), read_catalog().entries)
    except UsageError:
        return None


Answer = TypeVar("Answer")


def automatic(
    named: ResolvedModel,
    machine: Machine,
    ask: Callable[[str], Answer],
    result_of: Callable[[Answer], Verdict],
) -> tuple[Answer, str]:
    """The answer of the engine that the files are for; where it does not fit there, or the engine cannot run it, that
    of llama.cpp, which quantises and divides a model, with a note that says why. `ask` takes the name of an engine.

    Raises what `ask` raises: a mistake in the question is one for every engine.
    """
    engine = named.engine(AUTO, machine)
    other_engine = default_engine().name
    if engine == other_engine:
        return ask(engine), ""
    note = f"checked for {other_engine}, because {engine} cannot run it here: "
    try:
        first = ask(engine)
    except (RefusedError, HardwareError) as error:
        other = _fitting(ask, result_of)
        if other is None:
            raise
        return other, f"{note}{error}"
    result = result_of(first)
    other = None if result.can_load else _fitting(ask, result_of)
    return (first, "") if other is None else (other, f"{note}{'; '.join(result.reasons)}")


def _fitting(ask: Callable[[str], Answer], result_of: Callable[[Answer], Verdict]) -> Answer | None:
    """llama.cpp's answer; None where it does not fit either, or llama.cpp does not take the question."""
    try:
        found = ask(default_engine().name)
    except CancelledError:
        raise
    except EdgekitError:
        return None
    return found if result_of(found).can_load else None


def choose_file(
    opened: OpenModel, question: Task, reach: Reach | None
) -> tuple[OpenModel, Task, Choice]:
    """What SPEC A4 chooses. Where that is another file of the repository, its header is read too.

    Such a file may be larger or smaller than its name says: the choice is made again with what was read, until it is
    a file whose header was read.
    """
    files = {}
    while True:
        choice = choose(question)
        chosen = choice.candidate.variant
        if not chosen.reference or not chosen.changes:
            break
        files[chosen.name] = open_model(chosen.reference, reach=reach)
        read = replace(chosen, model=files[chosen.name].model, changes={})
        variants = (read if one is chosen else one for one in question.variants)
        question = replace(question, variants=tuple(variants))
    found = files.get(chosen.name, opened)
    return found, replace(question, model=chosen.model), choice
