"""Opens models by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from edgekit.bill.types import Start, Task, Variant, Verdict
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
from edgekit.index.resolve import Resolved, resolve
from edgekit.model import OpenModel, open_model
from edgekit.plan.choice import Choice, choose
from edgekit.request import Session, takes
from edgekit.sources.filenames import MODEL_SUFFIXES, quant_tag
from edgekit.sources.quants import SHORT_MIXES
from edgekit.sources.types import Container, ModelFiles, Origin, Reach

if TYPE_CHECKING:
    from edgekit.index.types import Entry
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

    @classmethod
    def of(cls, resolved: Resolved[Any], **more: Any) -> Self:
        """A model with the attributes of `resolved`, and with `more` that only this class has."""
        names = [attribute.name for attribute in fields(resolved)]
        return cls(**{name: getattr(resolved, name) for name in names}, **more)

    @property
    def files(self) -> ModelFiles | None:
        return self.found.files if self.found is not None else None

    def engine(self, machine: Machine | None = None) -> str:
        """The engine for the model's files, on the machine if one is given; llama.cpp for a model of the catalog.

        If that engine does not have the requested quantisation, it is the first engine that has it.
        """
        engine, quant = default_engine().name, self.quant
        if self.found is not None:
            model = self.found.model
            engine = engine_for(model) if machine is None else engine_on(model, machine)
        if quant is None or takes(engine, quant):
            return engine
        able = [name for name in engine_names() if takes(name, quant)]
        return next((name for name in able if _runs_on(name, machine)), next(iter(able), engine))

    def at_checkpoint(self, engine: str) -> Self:
        """The same with the repository that is published at the requested quantisation, if the engine loads no other.

        vLLM cannot make AWQ weights: `qwen3-8b:AWQ` is Qwen/Qwen3-8B-AWQ.
        """
        entry, quant = self.entry, self.quant
        if self.found is not None or entry is None or quant is None or not entry.has_geometry:
            return self
        opened = self.opened(engine)
        variant = engine_named(engine).checkpoint(opened.model, entry.id, quant, self.name)
        if variant is None:
            return self
        found = replace(opened, model=variant.model, repository=variant.reference, mix=quant)
        return replace(self, found=found, quant=None)

    def opened(self, engine: str) -> OpenModel:
        """The model as this engine loads it. Raises RefusedError if the catalog entry has no such files."""
        if self.found is None and self.entry is not None:
            if not self.entry.has_geometry:
                raise unknown_layers(self.entry)
            from edgekit.engines.entries import open_entry

            return open_entry(self.entry, engine)
        if self.found is None:
            raise self.missing or UsageError(f"{self.name}: neither opened nor in the index")
        return self.found

    def as_file(self, engine: str) -> OpenModel:
        """The model as the file that people run.

        If there is no file, an engine that loads GGUF files gets the requested quantisation, or the usual one. Of a
        model whose config alone is known, only the name of the quantisation is set: the estimate converts it.
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
        """The weights that a plan may choose from.

        There is only one choice if a flag names the quantisation, if the engine streams the weights of one file, or if
        the model's name names a file. Otherwise they are the files of the repository, or, for a model that has none of
        this engine's files yet, the quantisations that can be made of it.
        """
        files, setup, rules = model.files, start.setup, engine_named(engine)
        if setup is not None and getattr(setup, rules.quant_key, None) is not None:
            requested = rules.quant_shown(setup) or self.quant or "as requested"
            return as_named(model.model, requested)
        if rules.streams_weights:
            file = model if files is not None else self.as_file(engine)
            return as_named(file.model, file.mix or AS_NAMED)
        if files is None or files.container is not Container.GGUF or not rules.loads_gguf:
            if self.found is not None and self.found.mix:
                return as_named(model.model, self.found.mix)
            index_id = self.entry.id if self.entry is not None and files is None else ""
            return rules.variants(model.model, index_id)
        last_part = self.name.rpartition("/")[2]
        names_a_file = ":" in last_part or last_part.lower().endswith(MODEL_SUFFIXES)
        if names_a_file or files.origin is not Origin.HUB:
            return as_named(model.model, stored_quant(files), files.reference)
        return rules.file_variants(model)

    @property
    def embeds(self) -> bool:
        """Whether it is an embedding model, which engines start with other flags."""
        if self.entry is not None:
            from edgekit.index.types import ModelPurpose

            return ModelPurpose.EMBEDDING in self.entry.kinds
        return self.found is not None and self.found.model.geometry.embeds


def _runs_on(engine: str, machine: Machine | None) -> bool:
    try:
        if machine is not None:
            engine_named(engine).check_runs(machine)
    except HardwareError:
        return False
    return True


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
    """The model that a name, path or address means, with its header read. Raises EdgekitError.

    `quant` selects the file of a repository at that quantisation; if there is none, the model is treated as if it were
    quantised like that. With `assume`, a name that is not found but states a size and a quantisation ("13B at Q5_K_M")
    is estimated from these.
    """
    session = session or Session(reach=Reach())
    reach, confirm = session.reach, session.confirm

    def read(source: str) -> OpenModel:
        return open_model(source, depth=depth, reach=reach, confirm=confirm)

    try:
        resolved = resolve(reference, read, absolute=reach.within is not None)
    except NotFoundError as error:
        name = os.fspath(reference)
        with_quant = name if quant is None else f"{name} {quant}"
        assumed = _assume_from_name(with_quant) if assume else None
        if assumed is None:
            raise
        note = f"estimated from its name alone: {error}"
        return ResolvedModel(name=name, notes=(note,), assumed=assumed, missing=error)
    model = ResolvedModel.of(resolved)
    if resolved.found is None and resolved.entry is not None and not resolved.entry.has_geometry:
        return assume_from_parameters(resolved, resolved.entry, quant)
    if quant is None:
        return model
    other_file = file_at(model.name, model.files, quant)
    if other_file is not None:
        return open_named(other_file, session, depth=depth)
    return quantised(model, quant)


def quantised(model: Model, quant: str) -> Model:
    """The same model at this quantisation. Raises UsageError if its name states another one."""
    if model.quant is not None and model.quant.upper() != quant.upper():
        raise UsageError(f"{model.name} and --quant {quant} name two quantisations: give one")
    if _stated_quant(model.files) != quant.upper():
        return replace(model, quant=quant)
    name, files = model.name, model.files
    # The name of a repository alone would let a plan choose another of its files.
    last_part = name.rpartition("/")[2]
    names_a_file = ":" in last_part or last_part.lower().endswith(MODEL_SUFFIXES)
    if files is not None and files.origin in _ON_HUB and not names_a_file:
        name = f"{name}:{quant.upper()}"
    return replace(model, quant=None, name=name)


def file_at(name: str, files: ModelFiles | None, quant: str) -> str | None:
    """The reference of the file at this quantisation in the repository `name`; None if there is none."""
    if files is None or files.origin not in _ON_HUB:
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
    """What `read` returns for the model's files, or the entry of the catalog if there are none.

    For commands that never quantise a file themselves: raises UsageError if no file has this quantisation. `verb`
    ("inspect shows") begins that message.
    """
    resolved = resolve(reference, read, absolute=reach.within is not None)
    if resolved.found is None:
        model = ResolvedModel.of(resolved)
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


def assume_from_parameters(
    resolved: Resolved[OpenModel], entry: Entry, quant: str | None
) -> ResolvedModel:
    """A stand-in for a model of the index of which only the number of parameters is known.

    Raises UsageError if not even that is known.
    """
    from edgekit.index import read_index
    from edgekit.plan.assumed import AssumedModel, assumed_choice, bits_of

    if not entry.parameters:
        raise unknown_layers(entry)
    mix = quant or resolved.quant or DEFAULT_MIX
    model = AssumedModel(
        name=entry.id,
        parameters=entry.parameters,
        has_experts=entry.active_parameters != entry.parameters,
        bits_per_weight=bits_of(mix),
        mix=mix,
        active_parameters=entry.active_parameters,
        is_known=True,
    )
    choice = assumed_choice(model, read_index().entries)
    return ResolvedModel.of(resolved, assumed=choice, missing=unknown_layers(entry))


def unknown_layers(entry: Entry) -> UsageError:
    """The error for a model of the index whose layers are not known, and what to do."""
    from edgekit.index.repositories import Form, repositories_of

    files = next((row.name for row in repositories_of(entry.id, Form.GGUF)), None)
    names = " or ".join(filter(None, (files, entry.repository)))
    advice = f"name its repository instead ({names})" if names else "name a file of it"
    if files is not None:
        advice += f", or get a file with edgekit download {entry.id}"
    unknown = (
        "does not know the layers" if entry.parameters else "knows neither the layers nor the size"
    )
    return UsageError(f"the index {unknown} of {entry.id}: {advice}")


_ON_HUB = frozenset({Origin.HUB, Origin.HUB_CACHE})
DEFAULT_MIX = "Q4_K_M"  # of a model of which only the number of parameters is known


def _assume_from_name(name: str) -> AssumedChoice | None:
    """A stand-in for a model of which only this name is known; None if it does not state size and quantisation.

    Also None for a path, a URL or a name with a tag: these name files, which are missing.
    """
    if any(sign in name for sign in "/\\:") or name.lower().endswith(MODEL_SUFFIXES):
        return None
    from edgekit.index import read_index
    from edgekit.plan.assumed import UNSTATED_MIX, assumed_choice, from_name

    try:
        model = from_name(name)
    except UsageError:
        return None
    return None if model.mix == UNSTATED_MIX else assumed_choice(model, read_index().entries)


Answer = TypeVar("Answer")


def answer_with_fallback(
    resolved: ResolvedModel,
    machine: Machine,
    ask: Callable[[str], Answer],
    result_of: Callable[[Answer], Verdict],
) -> tuple[Answer, str]:
    """The answer of the engine for the model's files, or of llama.cpp if only that can run the model here.

    llama.cpp can quantise a model and split it between GPU and CPU. The second value is a note that says why llama.cpp
    answers in place of the other engine; empty if it does not. `ask` takes the name of an engine.
    """
    engine = resolved.engine(machine)
    fallback_engine = default_engine().name
    if engine == fallback_engine:
        return ask(engine), ""
    refusal: EdgekitError | None = None
    try:
        answer = ask(engine)
        if result_of(answer).can_load:
            return answer, ""
        reason = "; ".join(result_of(answer).reasons)
    except (RefusedError, HardwareError) as error:
        refusal, reason = error, str(error)
    try:
        fallback = ask(fallback_engine)
        if result_of(fallback).can_load:
            note = f"checked for {fallback_engine}, because {engine} cannot run it here: {reason}"
            return fallback, note
    except CancelledError:
        raise
    except EdgekitError:
        pass  # both refuse it: the answer is that of the first engine
    if refusal is not None:
        raise refusal
    return answer, ""


def choose_file(
    opened: OpenModel, task: Task, reach: Reach | None
) -> tuple[OpenModel, Task, Choice]:
    """The file with the best weights (SPEC A4), the task with the model of that file, and the choice itself.

    The other files of a repository are first estimated from their names. When one of them is chosen, its header is
    read and the choice is repeated, until it falls on a file whose header was read.
    """
    files: dict[str, OpenModel] = {}
    choice = choose(task)
    while (chosen := choice.candidate.variant).reference and chosen.changes:
        files[chosen.name] = open_model(chosen.reference, reach=reach)
        as_read = replace(chosen, model=files[chosen.name].model, changes={})
        variants = (as_read if variant is chosen else variant for variant in task.variants)
        task = replace(task, variants=tuple(variants))
        choice = choose(task)
    return files.get(chosen.name, opened), replace(task, model=chosen.model), choice
