"""The text that names a model -> that model. Every command, the Python API and the web API resolve names here.

`resolve` decides what a name means: a file, a model of the catalog, or anything that `read` can open. To teach
EdgeKit another spelling, change `resolve` or `catalog.naming.spellings`; callers never interpret names themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from edgekit.bill.assumed import from_name
from edgekit.bill.names import read_name
from edgekit.bill.task import Start, Task, Variant
from edgekit.bill.verdict import Verdict
from edgekit.catalog import find_entry, near_ids, read_catalog
from edgekit.catalog.naming import is_base, names_instruct, ollama_latest, split_quant
from edgekit.catalog.repositories import original_repository
from edgekit.catalog.types import Catalog, Entry, ModelPurpose
from edgekit.engines import (
    default_engine,
    engine_for,
    engine_name,
    engine_named,
    engine_names,
    engine_on,
)
from edgekit.engines.entries import opened
from edgekit.engines.llamacpp.as_gguf import MADE_IN_MXFP4, convert, default_mix
from edgekit.engines.llamacpp.variants import at_mixes
from edgekit.engines.llamacpp.variants import variants as mixes_of
from edgekit.engines.quant_names import read_quant, takes
from edgekit.engines.variants import (
    AS_NAMED,
    accuracy_of,
    as_named,
    stored_accuracy,
    usual_variant,
)
from edgekit.errors import (
    CancelledError,
    EdgekitError,
    HardwareError,
    NotFoundError,
    PrivateAddressError,
    RefusedError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.formats.types import Depth
from edgekit.model.inspect import Inspection, inspect_header, inspect_model
from edgekit.model.open import Opened, open_model, open_or_download
from edgekit.plan.assumed import AssumedChoice, assumed_choice
from edgekit.plan.choice import Choice, choose
from edgekit.sources import hub_model_of, locate, path_of
from edgekit.sources.folders import is_here
from edgekit.sources.naming import MODEL_SUFFIXES, SHORT_MIXES, quant_tag
from edgekit.sources.types import Container, ModelFiles, Origin, Reach

if TYPE_CHECKING:
    from edgekit.machine.types import Machine
    from edgekit.sources.download import Download

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
    quant: str | None = None  # requested in the name or with --quant, and not yet that of a file
    notes: tuple[str, ...] = ()


def resolve(
    reference: str | os.PathLike[str], read: Callable[[str], Read], *, absolute: bool = False
) -> Resolved[Read]:
    """The model that `reference` means: a path first, then a name of the catalog, then whatever `read` finds.

    A catalog name may be spelt in any way and may state a quantisation: "Gemma 3 27B", qwen3-8b:Q8_0. A model that
    another program has on this machine under such a spelling goes first. Models that the user added to the catalog are
    read from their source. Names on the network that cannot be read are answered from the catalog, with a note.
    `absolute`: only absolute paths are paths. Raises EdgekitError.
    """
    name = os.fspath(reference)
    if is_here(name, whole=absolute):
        return Resolved(name=name, catalog=Catalog(entries=()), found=read(name))
    catalog = read_catalog()
    is_explicit = name.lower().startswith(CATALOG)
    entry: Entry | None
    if is_explicit:
        name = name[len(CATALOG) :]
        entry, quant = find_quantised(name, catalog)
    else:
        entry, quant = _known(name, catalog, absolute=absolute)
    known: Resolved[Read] = Resolved(name=name, catalog=catalog, entry=entry, quant=quant)
    is_users = entry is not None and entry.is_users
    is_explicit = is_explicit and not is_users
    if entry is not None and (is_explicit or _is_catalog_first(name, entry, absolute=absolute)):
        return replace(known, notes=() if names_instruct(name) else base_note(entry))
    source = entry.reference if entry is not None and is_users else name
    try:
        found = read(source)
    except PrivateAddressError:
        raise  # an answer from the catalog would hide what was refused
    except (NotFoundError, RemoteInspectError) as error:
        if entry is None or not (is_users or _may_stand_in(name, error)):
            raise _with_near(error, name, catalog) from error
        if is_users and isinstance(error, NotFoundError):
            note = f"taken from the catalog, because {source} is gone (edgekit catalog remove {entry.id})"
        else:
            note = (
                f"taken from the catalog ({entry.id}), because {source} could not be read: {error}"
            )
        return replace(known, notes=(note,))
    return replace(known, found=found, quant=quant if is_users else None)


def find_quantised(name: str, catalog: Catalog) -> tuple[Entry, str | None]:
    """The entry that a name means and the quantisation that it states. Raises NotFoundError."""
    try:
        return find_entry(name, catalog), None
    except NotFoundError:
        plain, quant = split_quant(name)
        if quant is None:
            raise
        return find_entry(plain, catalog), quant


def _known(name: str, catalog: Catalog, *, absolute: bool) -> tuple[Entry | None, str | None]:
    """Nothing for a path, even one that does not exist, and for an address outside the hub."""
    try:
        is_file = name.lower().endswith(MODEL_SUFFIXES) or path_of(name, whole=absolute) is not None
        if is_file or ("://" in name and hub_model_of(name) is None):
            return None, None
        entry, quant = find_quantised(ollama_latest(name) or name, catalog)
    except (NotFoundError, UsageError, ValueError):  # ValueError: a NUL in the name
        return None, None
    exact = {entry.id.lower(), (entry.repository or "").lower()}
    if entry.is_users and may_be_elsewhere(name) and split_quant(name.lower())[0] not in exact:
        return None, None  # a hub id is not the user's model of a similar name
    return entry, quant


def may_be_elsewhere(name: str) -> bool:
    """Whether a name means a file of the hub or of Ollama's registry: org/name, gemma3:27b, llama3.3."""
    return "/" in name or ":" in split_quant(name)[0] or ollama_latest(name) is not None


def _is_catalog_first(name: str, entry: Entry, *, absolute: bool) -> bool:
    """Whether the entry answers without a look at the network.

    So do its id, with or without a quantisation, and other spellings that are not found on this machine. A hub id and
    one of Ollama's (gemma3:27b) mean a file that exists, and so does an entry of the user's: that is read if possible.
    """
    if entry.is_users:
        return False
    plain = split_quant(name)[0]
    if entry.id.lower() in {name.strip().lower(), plain.strip().lower()}:
        return True
    if may_be_elsewhere(name):
        return False
    try:
        locate(name, reach=Reach(network=False, within=() if absolute else None))
    except EdgekitError:
        return True
    return False


def _may_stand_in(name: str, error: NotFoundError | RemoteInspectError) -> bool:
    """Whether the catalog answers for a name that could not be read.

    Not for a hub id that the hub refuses, or of which something else is here: another quantisation, for instance.
    """
    refused = NotFoundError | RemoteNotFoundError | RemoteAccessError
    return not ("/" in name and isinstance(error, refused))


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
        if quant is None or takes(engine, quant):
            return engine
        return next((one for one in engine_names() if takes(one, quant)), engine)

    def opened(self, engine: str) -> Opened:
        """Raises RefusedError where the entry has nothing that the engine loads."""
        if self.found is None and self.entry is not None:
            return opened(self.entry, engine)
        if self.found is None:
            raise self.missing or UsageError(f"{self.name}: neither opened nor in the catalog")
        return self.found

    def as_file(self, engine: str) -> Opened:
        """As the file that people run: a model of the catalog at the quantisation that was named, else its usual one.

        What is known by its config alone is left to llama.cpp to convert, which says so in the bill.
        """
        model = self.opened(engine)
        if self.found is not None or not engine_named(engine).loads_gguf:
            return model
        if model.model.header.container is not Container.GGUF:
            return replace(model, mix=self.quant or default_mix(model.model))
        usual = usual_variant(mixes_of(model.model))
        mix = self.quant or usual.name
        return replace(model, model=convert(model.model, mix).model, mix=mix)

    def variants(self, model: Opened, engine: str, start: Start) -> tuple[Variant, ...]:
        """The weights to choose from: the files of a repository where none was named, else what can be made of it."""
        files = model.files
        if {"mix", "quantize", "quantization"} & start.settled:
            return as_named(model.model, self._quantisation(start.setup))
        chosen = engine_named(engine)
        if chosen.streams_weights:
            file = model if files is not None else self.as_file(engine)
            return as_named(file.model, file.mix or AS_NAMED)
        if files is None or files.container is not Container.GGUF or not chosen.loads_gguf:
            known = self.entry.id if self.entry is not None and files is None else ""
            return chosen.variants(model.model, known)
        title, last = files.label.rpartition(":")[2], self.name.rpartition("/")[2]
        tag = stored_quant(files)
        own = as_named(model.model, tag, files.reference)
        is_named = ":" in last or last.lower().endswith(MODEL_SUFFIXES)
        released = model.model.geometry.architecture in MADE_IN_MXFP4  # nothing is better than that
        if is_named or released or files.origin is not Origin.HUB:
            return own
        repository = files.reference.removesuffix(f":{title}")
        others = at_mixes(model.model, files.alternatives, repository=repository)
        mine = replace(own[0], accuracy=accuracy_of(tag) or stored_accuracy(model.model))
        every = (mine, *(one for one in others if one.name != tag))
        return tuple(sorted(every, key=lambda one: -one.accuracy))

    def _quantisation(self, setup: Any) -> str:
        """The one that was asked for, as reports name it: 'Q4_K_M', '4 bit', 'fp8'."""
        packed: Any = getattr(setup, "quantize", None)
        if hasattr(packed, "packing") and packed.rest and packed.recipe is None:  # MLX
            mode = packed.packing.mode.value
            return f"{packed.packing.bits} bit" if mode == "affine" else str(mode)
        options = ("mix", "quantization")
        found = next(filter(None, (getattr(setup, name, None) for name in options)), self.quant)
        return found or "as requested"

    @property
    def embeds(self) -> bool:
        """Whether it is an embedding model, which the engine has to be started for."""
        if self.entry is not None:
            return ModelPurpose.EMBEDDING in self.entry.kinds
        return self.found is not None and self.found.model.geometry.embeds


Model = TypeVar("Model", bound=ResolvedModel)


def resolve_model(
    reference: str | os.PathLike[str],
    *,
    depth: Depth = Depth.TENSORS,
    reach: Reach | None = None,
    confirm: Callable[[Download], bool] | None = None,
    assume: bool = False,
    quant: str | None = None,
) -> ResolvedModel:
    """The model with its header read. `confirm` is asked before a hub model is downloaded; None: never download.

    `quant`: the file of a repository at that quantisation; where there is none, the model as if it were quantised so.
    `assume`: a name that is not found and states a size and a quantisation ("13B at Q5_K_M") is judged by these.
    """

    def read(source: str) -> Opened:
        return open_or_download(source, depth=depth, reach=reach, confirm=confirm)

    absolute = reach is not None and reach.within is not None
    try:
        found = resolve(reference, read, absolute=absolute)
    except NotFoundError as error:
        name = os.fspath(reference)
        assumed = _assumed(name if quant is None else f"{name} {quant}") if assume else None
        if assumed is None:
            raise
        note = f"estimated from its name alone: {error}"
        return ResolvedModel(
            name=name,
            catalog=Catalog(entries=()),
            notes=(note,),
            assumed=assumed,
            missing=error,
        )
    model = ResolvedModel(**{one.name: getattr(found, one.name) for one in fields(found)})
    if quant is None:
        return model
    other = file_at(model, quant)
    if other is not None:
        return resolve_model(other, depth=depth, reach=reach, confirm=confirm)
    return quantised(model, quant)


def stored_quant(files: ModelFiles) -> str:
    """The quantisation that the name of a file or repository states."""
    return quant_tag(files.label.rpartition(":")[2]) or quant_tag(files.label) or AS_NAMED


def quantised(model: Model, quant: str) -> Model:
    """The same model, to be quantised so. Raises UsageError where its name states another quantisation."""
    if model.quant is not None and model.quant.upper() != quant.upper():
        raise UsageError(f"{model.name} and --quant {quant} name two quantisations: give one")
    files = model.files
    stored = None if files is None else quant_tag(files.label) or quant_tag(_file_name(files))
    return replace(model, quant=None if stored == quant.upper() else quant)


def file_at(model: Resolved[Any], quant: str) -> str | None:
    """The reference of the file that the model's repository has at this quantisation; None where it has none."""
    found = model.found
    files = found if isinstance(found, ModelFiles) else getattr(found, "files", None)
    if files is None or files.origin not in {Origin.HUB, Origin.HUB_CACHE}:
        return None
    wanted = quant.upper()
    wanted = SHORT_MIXES.get(wanted, wanted)
    for tag in (wanted, f"UD-{wanted}"):
        if tag in files.alternatives and ":" not in model.name.rpartition("/")[2]:
            return f"{model.name}:{tag}"
    return None


def _file_name(files: ModelFiles) -> str:
    return files.weights[0].name if files.weights else ""


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


def choose_file(opened: Opened, question: Task, reach: Reach | None) -> tuple[Opened, Task, Choice]:
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


def inspect_named(
    reference: str | os.PathLike[str],
    *,
    depth: Depth = Depth.TENSORS,
    reach: Reach | None = None,
    quant: str | None = None,
) -> Inspection:
    """What a model is. One of the catalog is shown as it was released, or at the quantisation that is asked for."""
    reach = reach or Reach()

    def read(source: str) -> Inspection:
        return inspect_model(source, depth=depth, reach=reach)

    found = resolve(reference, read, absolute=reach.within is not None)
    if found.found is not None and quant is not None:
        other = file_at(found, quant)
        if other is None:
            raise UsageError(
                f"{found.name} has no file at {quant}: inspect shows files as they are"
            )
        return read(other)
    if found.found is not None:
        return found.found
    model = ResolvedModel(
        name=found.name, catalog=found.catalog, entry=found.entry, quant=found.quant
    )
    if quant is not None:
        model = quantised(model, quant)
    opened = model.opened(model.first_engine)
    header, at = opened.model.header, ""
    if model.quant is not None:
        mix = read_quant(LLAMACPP, model.quant)
        header, at = convert(opened.model, mix).model.header, f" at {mix}"
    listed = f"edgekit catalog show {header.name} lists its sizes at other quantisations"
    files = ModelFiles(
        reference=os.fspath(reference),
        label=header.name,
        origin=Origin.CATALOG,
        container=header.container,
        notes=(*found.notes, f"from the catalog{at}, no file was read: {listed}"),
    )
    return inspect_header(files, header, reach.traffic)


def _with_near(
    error: NotFoundError | RemoteInspectError, name: str, catalog: Catalog
) -> NotFoundError | RemoteInspectError:
    """The same error with the catalog's nearest names, and with what of the catalog could not be read."""
    near = near_ids(split_quant(name)[0], catalog.entries)
    if isinstance(error, RemoteInspectError):
        is_answer = isinstance(error, RemoteNotFoundError | RemoteAccessError)
        if is_answer or not near or "://" in name:
            return error
        return type(error)(f"{error}. Similar names in the catalog: {', '.join(near)}")
    if any(sign in name for sign in "/\\") or name.lower().endswith(MODEL_SUFFIXES):
        return error
    if name.lower().startswith("sample:"):
        return error
    here = tuple(one for one in error.candidates if not one.startswith("sample:"))
    damaged = "".join(f"; part of the catalog is unreadable: {one}" for one in catalog.problems[:1])
    message = str(error).partition(". Did you mean: ")[0]
    return NotFoundError(f"{message}{damaged}", candidates=tuple(dict.fromkeys((*here, *near))))


def base_note(entry: Entry) -> tuple[str, ...]:
    """A warning that a base model does not answer questions."""
    repository = original_repository(entry.id) or entry.repository
    if repository is None or ModelPurpose.CHAT not in entry.kinds or not is_base(repository):
        return ()
    return (f"{repository} is a base model; for chat use its instruct version (same size)",)
