"""Opens models by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from edgekit.bill.types import Start, Task, Variant, Verdict
from edgekit.catalog.resolve import Resolved, resolve
from edgekit.engines import (
    default_engine,
    engine_for,
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
from edgekit.model import OpenModel, open_model
from edgekit.plan.choice import Choice, choose
from edgekit.request import Session, takes
from edgekit.sources.filenames import MODEL_SUFFIXES, SHORT_MIXES, quant_tag
from edgekit.sources.types import Container, ModelFiles, Origin, Reach

if TYPE_CHECKING:
    from edgekit.machine.types import Machine
    from edgekit.model.inspect import Inspection
    from edgekit.plan.assumed import AssumedChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel(Resolved[OpenModel]):
    """A model whose header was read, or an entry of the catalog, before an engine is chosen.

    If it is neither, `assumed` is a stand-in made from the size and quantisation in its name, and `missing` is why
    nothing was found.
    """

    assumed: AssumedChoice | None = None
    missing: EdgekitError | None = field(default=None, repr=False, compare=False)

    @property
    def files(self) -> ModelFiles | None:
        return self.found.files if self.found is not None else None

    def engine(self, machine: Machine | None = None) -> str:
        """The engine for its files, on this machine if one is given; llama.cpp for a model of the catalog.

        If that engine does not have the quantisation, the first that does.
        """
        engine, quant = default_engine().name, self.quant
        if self.found is not None:
            model = self.found.model
            engine = engine_for(model) if machine is None else engine_on(model, machine)
        if quant is None or takes(engine, quant):
            return engine
        return next((name for name in engine_names() if takes(name, quant)), engine)

    def opened(self, engine: str) -> OpenModel:
        """The model for this engine. Raises RefusedError if the catalog entry has nothing that the engine loads."""
        if self.found is None and self.entry is not None:
            from edgekit.engines.entries import open_entry

            return open_entry(self.entry, engine)
        if self.found is None:
            raise self.missing or UsageError(f"{self.name}: neither opened nor in the catalog")
        return self.found

    def as_file(self, engine: str) -> OpenModel:
        """The model as the file that people run: one of the catalog at the requested or the usual quantisation.

        A model that is known only by its config is converted in the bill, which says so.
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
        """The weights to choose from: the files of a repository if none was named, else its possible quantisations."""
        files, chosen = model.files, engine_named(engine)
        setup = start.setup
        if setup is not None and getattr(setup, chosen.quant_key, None) is not None:
            quant = chosen.quant_shown(setup) or self.quant or "as requested"
            return as_named(model.model, quant)
        if chosen.streams_weights:
            file = model if files is not None else self.as_file(engine)
            return as_named(file.model, file.mix or AS_NAMED)
        if files is None or files.container is not Container.GGUF or not chosen.loads_gguf:
            catalog_id = self.entry.id if self.entry is not None and files is None else ""
            return chosen.variants(model.model, catalog_id)
        last = self.name.rpartition("/")[2]
        is_file = ":" in last or last.lower().endswith(MODEL_SUFFIXES)
        if is_file or files.origin is not Origin.HUB:
            return as_named(model.model, stored_quant(files), files.reference)
        return chosen.file_variants(model)

    @property
    def embeds(self) -> bool:
        """Whether it is an embedding model: the engine needs other flags for it."""
        if self.entry is not None:
            from edgekit.catalog.types import ModelPurpose

            return ModelPurpose.EMBEDDING in self.entry.kinds
        return self.found is not None and self.found.model.geometry.embeds


Model = TypeVar("Model", bound=ResolvedModel)
Files = TypeVar("Files", bound="ModelFiles | Inspection")


def open_named(
    reference: str | os.PathLike[str],
    session: Session | None = None,
    *,
    depth: Depth = Depth.TENSORS,
    assume: bool = False,
    quant: str | None = None,
) -> ResolvedModel:
    """The model with its header read.

    `quant`: the repository's file at that quantisation; if it has none, the model as if it were quantised like that.
    `assume`: estimate a name that is not found by the size and quantisation in it ("13B at Q5_K_M").
    """
    session = session or Session(reach=Reach())
    reach, confirm = session.reach, session.confirm

    def read(source: str) -> OpenModel:
        return open_model(source, depth=depth, reach=reach, confirm=confirm)

    try:
        resolved = resolve(reference, read, absolute=reach.within is not None)
    except NotFoundError as error:
        name = os.fspath(reference)
        assumed = (
            _assume_from_name(name if quant is None else f"{name} {quant}") if assume else None
        )
        if assumed is None:
            raise
        note = f"estimated from its name alone: {error}"
        return ResolvedModel(name=name, notes=(note,), assumed=assumed, missing=error)
    model = _resolved_model(resolved)
    if quant is None:
        return model
    other_file = file_at(model.name, model.files, quant)
    if other_file is not None:
        return open_named(other_file, session, depth=depth)
    return quantised(model, quant)


def _resolved_model(resolved: Resolved[Any]) -> ResolvedModel:
    """The same attributes, with the methods of a ResolvedModel."""
    names = [attribute.name for attribute in fields(resolved)]
    return ResolvedModel(**{name: getattr(resolved, name) for name in names})


def quantised(model: Model, quant: str) -> Model:
    """The same model at this quantisation. Raises UsageError if its name states another one."""
    if model.quant is not None and model.quant.upper() != quant.upper():
        raise UsageError(f"{model.name} and --quant {quant} name two quantisations: give one")
    is_stored = _stated_quant(model.files) == quant.upper()
    return replace(model, quant=None if is_stored else quant)


def file_at(name: str, files: ModelFiles | None, quant: str) -> str | None:
    """The reference of the file at this quantisation in the repository `name`; None if there is none."""
    if files is None or files.origin not in {Origin.HUB, Origin.HUB_CACHE}:
        return None
    name_of_mix = SHORT_MIXES.get(quant.upper(), quant.upper())
    for tag in (name_of_mix, f"UD-{name_of_mix}"):
        if tag in files.alternatives and ":" not in name.rpartition("/")[2]:
            return f"{name}:{tag}"
    return None


def open_as_stored(
    reference: str | os.PathLike[str],
    read: Callable[[str], Files],
    reach: Reach,
    *,
    quant: str | None,
    verb: str,
) -> Files | ResolvedModel:
    """The result of `read`, for commands that take files as they are; or a model of the catalog.

    Raises UsageError if the model has no file at this quantisation.
    """
    resolved = resolve(reference, read, absolute=reach.within is not None)
    if resolved.found is None:
        model = _resolved_model(resolved)
        return model if quant is None else quantised(model, quant)
    files = resolved.found if isinstance(resolved.found, ModelFiles) else resolved.found.files
    if quant is None or _stated_quant(files) == quant.upper():
        return resolved.found
    other_file = file_at(resolved.name, files, quant)
    if other_file is None:
        raise UsageError(f"{resolved.name} has no file at {quant}: {verb} files as they are")
    return read(other_file)


def _stated_quant(files: ModelFiles | None) -> str | None:
    """The quantisation in the header, or else in the file's name; None without files."""
    if files is None:
        return None
    stored = stored_quant(files)
    return quant_tag(files.weights[0].name) if stored == AS_NAMED and files.weights else stored


def _assume_from_name(name: str) -> AssumedChoice | None:
    """None for a path, a URL or a name with a tag, or if the name does not state both size and quantisation."""
    if any(sign in name for sign in "/\\:") or name.lower().endswith(MODEL_SUFFIXES):
        return None
    from edgekit.catalog import read_catalog
    from edgekit.plan.assumed import UNSTATED_MIX, assumed_choice, from_name

    try:
        model = from_name(name)
    except UsageError:
        return None
    return None if model.mix == UNSTATED_MIX else assumed_choice(model, read_catalog().entries)


Answer = TypeVar("Answer")


def answer_with_fallback(
    resolved: ResolvedModel,
    machine: Machine,
    ask: Callable[[str], Answer],
    result_of: Callable[[Answer], Verdict],
) -> tuple[Answer, str]:
    """The answer of the engine for these files, and a note.

    If the model does not fit there, or the engine cannot run it, llama.cpp is tried, which can quantise a model and
    split it between GPU and CPU; the note says why. `ask` takes the name of an engine; its errors are passed on.
    """
    engine = resolved.engine(machine)
    fallback_engine = default_engine().name
    if engine == fallback_engine:
        return ask(engine), ""
    note = f"checked for {fallback_engine}, because {engine} cannot run it here: "
    try:
        first = ask(engine)
    except (RefusedError, HardwareError) as error:
        fallback = _ask_fallback(ask, result_of)
        if fallback is None:
            raise
        return fallback, f"{note}{error}"
    result = result_of(first)
    fallback = None if result.can_load else _ask_fallback(ask, result_of)
    if fallback is None:
        return first, ""
    return fallback, f"{note}{'; '.join(result.reasons)}"


def _ask_fallback(
    ask: Callable[[str], Answer], result_of: Callable[[Answer], Verdict]
) -> Answer | None:
    """llama.cpp's answer; None if the model does not fit there either, or llama.cpp refuses the request."""
    try:
        answer = ask(default_engine().name)
    except CancelledError:
        raise
    except EdgekitError:
        return None
    return answer if result_of(answer).can_load else None


def choose_file(
    opened: OpenModel, task: Task, reach: Reach | None
) -> tuple[OpenModel, Task, Choice]:
    """The best weights (SPEC A4). If they are another file of the repository, its header is read too.

    Such a file may be larger or smaller than its name suggests, so the choice is repeated with what was read, until
    the chosen file is one whose header was read.
    """
    files = {}
    while True:
        choice = choose(task)
        chosen = choice.candidate.variant
        if not chosen.reference or not chosen.changes:
            break
        files[chosen.name] = open_model(chosen.reference, reach=reach)
        read = replace(chosen, model=files[chosen.name].model, changes={})
        variants = (read if variant is chosen else variant for variant in task.variants)
        task = replace(task, variants=tuple(variants))
    chosen_file = files.get(chosen.name, opened)
    return chosen_file, replace(task, model=chosen.model), choice
