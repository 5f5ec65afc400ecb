"""`index add` and `index update`: the header of a model -> its entry, with the source of every fact."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from edgekit.bill.types import weakest
from edgekit.engines import default_engine, every_engine
from edgekit.errors import EdgekitError, UsageError
from edgekit.formats.mixes import stated_mix
from edgekit.formats.quantization import count_weights
from edgekit.formats.types import ModelHeader
from edgekit.index.ids import family_of, id_of, kinds_of
from edgekit.index.records import forms_of
from edgekit.index.store import save_entry
from edgekit.index.tensor_runs import runs_of
from edgekit.index.types import NO_HEADER, Entry, Size, Source, StoredHeader
from edgekit.model import OpenModel, open_config, open_model
from edgekit.model.inspect import active_elements
from edgekit.model.tensors import expected_tensors
from edgekit.model.types import Model
from edgekit.sources.filenames import quant_tag
from edgekit.sources.local import expand_home
from edgekit.sources.locator import hub_model_of
from edgekit.sources.types import ModelFiles, Origin, Reach
from edgekit.units import Basis

AS_STORED = "as stored"
_OUTSIDE_KEYS = ("general.architecture", "general.type")
_HEADER = ("keys", "tensors", "config")
_LISTED = 64  # at most this many of a repository's quantisations are read
_COMPARED = (
    "architecture", "parameters", "active_parameters", "native_context", "vocabulary", "kinds", "sizes",
    "repository",
)  # fmt: skip


def add(reference: str, reach: Reach, *, name: str | None = None) -> tuple[Entry, bool]:
    """Save the model in the user's index. Returns its entry and whether it is new. Raises EdgekitError.

    Opens the file or repository itself, never an entry of the index.
    """
    entry = entry_of(open_model(reference, reach=reach), reference, name=name)
    return entry, save_entry(entry)


def update(entry: Entry, reach: Reach) -> Mapping[str, tuple[Any, Any]]:
    """Read a user's entry again. Returns the facts that changed, each with both values. Raises EdgekitError.

    Differences in `sources` alone do not count.
    """
    new = entry_of(open_model(entry.reference, reach=reach), entry.reference, name=entry.id)
    both = {field: (getattr(entry, field), getattr(new, field)) for field in _COMPARED}
    old_header, new_header = entry.header or NO_HEADER, new.header or NO_HEADER
    both |= {field: (getattr(old_header, field), getattr(new_header, field)) for field in _HEADER}
    changes = {field: pair for field, pair in both.items() if pair[0] != pair[1]}
    if changes:
        save_entry(new)
    return changes


def entry_of(opened: OpenModel, reference: str, *, name: str | None = None) -> Entry:
    """The entry that `index add` stores. Raises EdgekitError if the model cannot be described."""
    entry_id, files = name or id_of(opened.label), opened.files
    quantisations = files.alternatives[:_LISTED] if files is not None else ()
    hub = hub_model_of(reference)
    header = f"the header of {opened.label}"
    facts = facts_of(opened.model, entry_id, also=quantisations, found=header)
    stored = StoredHeader(**{name: facts.pop(name) for name in _HEADER if name in facts})
    return Entry(
        header=stored,
        forms=forms_of(stored),
        id=entry_id,
        repository=hub.repo if hub is not None else None,
        reference=_stored_reference(reference, files),
        **facts,
    )


def _stored_reference(reference: str, files: ModelFiles | None) -> str:
    """A reference that works from any folder, without credentials or query."""
    if files is not None and files.origin is Origin.LOCAL:
        return os.path.abspath(expand_home(reference.strip()))  # noqa: PTH100 - keeps links
    if "://" not in reference:
        return reference.strip()
    parts = urlsplit(reference.strip())
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def facts_of(
    model: Model, name: str, *, found: str, also: tuple[str, ...] = (), with_header: bool = True
) -> dict[str, Any]:
    """The facts of an entry that can be read from its header, with the source of each.

    `found` describes that header in the sources ("the header of org/name"). `also` are quantisations whose sizes are
    listed in addition to the usual ones. `with_header`: also what the model can be rebuilt from.
    """
    header, geometry = model.header, model.geometry
    total, active, sources = _parameters(model, found)
    read = Source(text=found, basis=geometry.basis)
    facts: dict[str, Any] = {
        "family": family_of(name),
        "architecture": geometry.architecture,
        "parameters": total,
        "active_parameters": active,
        "native_context": geometry.native_context,
        "vocabulary": geometry.vocabulary,
        "kinds": kinds_of(
            name,
            causal=geometry.causal,
            pooled=geometry.pooling not in {None, "none"},
            sees=any(tower.kind == "vision" for tower in geometry.towers),
        ),
        "sizes": tuple(sizes_of(model, also)),
        **(_stored_facts(header) if with_header else {}),
    }
    sources |= {field: read for field in ("native_context", "vocabulary") if facts[field]}
    by_name = Source(text="its name, and what its header says it is", basis=Basis.ASSUMED)
    sources |= {"kinds": by_name, "family": by_name}
    if facts["sizes"] and header.keys:
        text = f"{found}; other mixes as llama-quantize would make them"
        basis = weakest(size.basis for size in facts["sizes"])
        sources["sizes"] = Source(text=text, basis=basis)
    elif facts["sizes"]:
        text = f"tensors implied by {found}, as llama-quantize would mix them"
        sources["sizes"] = Source(text=text, basis=Basis.MODELLED)
    facts["sources"] = dict(sorted(sources.items()))
    return facts


def _stored_facts(header: ModelHeader) -> dict[str, Any]:
    """The part of the header that is needed to open the model again: of a GGUF keys and tensors, else the config."""
    if header.config:
        return {"config": needed_config(header.config)}
    if header.tensors is None:
        raise UsageError(f"{header.name}: its tensor directory was not read")
    prefix = f"{header.keys.get('general.architecture')}."
    keys = {
        key: value
        for key, value in header.keys.items()
        if key.startswith((prefix, "llama.")) or key in _OUTSIDE_KEYS
    }
    return {"keys": keys, "tensors": runs_of(header.tensors)}


def _parameters(model: Model, found: str) -> tuple[int | None, int | None, dict[str, Source]]:
    """How many parameters the model has, how many of them one token uses, and the sources of both figures.

    They are counted in the header, or else in the tensors that the geometry implies. A figure that neither can tell is
    None.
    """
    header, geometry = model.header, model.geometry
    total = count_weights(header.tensors, header.quantization) if header.tensors else None
    source = Source(text=found, basis=Basis.EXACT)
    expected = None
    with contextlib.suppress(EdgekitError):
        expected = expected_tensors(geometry, header.config or None)
    if total is None:
        if expected is None:
            return None, None, {}
        total = sum(tensor.elements for tensor in expected)
        source = Source(text=f"tensors implied by {found}, without towers", basis=Basis.MODELLED)
    if expected is None and any(layer.experts for layer in geometry.layers):
        return total, None, {"parameters": source}
    unused = sum(tensor.elements - active_elements(geometry, tensor) for tensor in expected or ())
    active_source = source
    if unused:
        text = "all but the experts that are not chosen"
        active_source = Source(text=text, basis=Basis.MODELLED)
    return total, total - unused, {"parameters": source, "active_parameters": active_source}


def sizes_of(model: Model, also: tuple[str, ...] = ()) -> Iterator[Size]:
    """The sizes as stored, at the usual quantisations and at those of `also`, the largest first."""
    header = model.header
    stated = stated_mix(header.keys) or quant_tag(header.name)
    stored = stated if header.keys and stated else AS_STORED
    sizes: dict[str, Size] = {}
    if header.tensor_bytes is not None and header.tensors is not None:
        sizes[stored] = Size(mix=stored, tensor_bytes=header.tensor_bytes, basis=Basis.EXACT)
    for size in default_engine().sizes(model, also):
        sizes.setdefault(size.mix, size)
    yield from sorted(sizes.values(), key=lambda size: -size.tensor_bytes)


class _Watched(dict[str, Any]):
    """A JSON object that records which of its keys are read; iterating over it reads all of them."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        super().__init__({key: _watch(value) for key, value in raw.items()})
        self.seen: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.seen.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self.seen.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        return list(self)

    def values(self) -> Any:
        return [super(_Watched, self).__getitem__(key) for key in self]

    def items(self) -> Any:
        return [(key, super(_Watched, self).__getitem__(key)) for key in self]

    def read_keys(self) -> dict[str, Any]:
        """The keys that were read. An object that was only tested for being non-empty gets one key."""
        all_keys = list(dict.keys(self))
        keys = [key for key in all_keys if key in self.seen] or all_keys[:1]
        return {key: _keys_read(dict.get(self, key)) for key in keys}


def _watch(value: Any) -> Any:
    """The JSON value with every object in it replaced by a `_Watched`."""
    if isinstance(value, list):
        return [_watch(item) for item in value]
    return _Watched(value) if isinstance(value, dict) else value


def _keys_read(value: Any) -> Any:
    """The opposite of `_watch`: plain objects again, with only the keys that were read."""
    if isinstance(value, list):
        return [_keys_read(item) for item in value]
    return value.read_keys() if isinstance(value, _Watched) else value


def needed_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config.json that any engine reads, found by watching them estimate.

    Raises EdgekitError if it is not the config of a language model.
    """
    watched = _Watched(config)
    model = open_config(watched).model
    for engine in every_engine():
        for load, setup in engine.config_probes():
            uncached = Model(header=model.header, geometry=model.geometry)
            with contextlib.suppress(EdgekitError):
                engine.estimate(uncached, load, setup)
        engine.known_projector(OpenModel(label="", model=model), {})
    return watched.read_keys()
