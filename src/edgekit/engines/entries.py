"""An entry of the index -> a model, as if its header had been read."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from edgekit.engines import engine_named
from edgekit.errors import RefusedError
from edgekit.formats.types import ModelHeader
from edgekit.index.database import header_of
from edgekit.index.repositories import original_repository
from edgekit.index.tensor_runs import tensors_of
from edgekit.index.types import Entry, StoredHeader
from edgekit.model import OpenModel, open_config, read_geometry
from edgekit.model.types import Model
from edgekit.sources.types import Container
from edgekit.units import Basis

CACHED_ENTRIES = 32  # about 1 MB each


@lru_cache(maxsize=CACHED_ENTRIES)
def open_entry(entry: Entry, engine: str) -> OpenModel:
    """The model of an entry: from its GGUF keys if the engine loads GGUF and the entry has them, else from its config.

    The most recent models are cached, with their prepared results. Raises UsageError for an unknown engine,
    RefusedError if the entry has nothing that the engine loads, HeaderError if the entry is damaged.
    """
    target, stored = engine_named(engine), header_of(entry)
    original = "" if entry.is_users else original_repository(entry.id)
    repository = original or entry.repository or ""
    if stored.keys and target.loads_gguf:
        header = gguf_header(entry.id, stored)
        model = Model(header=header, geometry=read_geometry(header))
        return _as_certain(OpenModel(label=entry.id, model=model, repository=repository), entry)
    if not stored.config:
        raise RefusedError(
            f"the index has only the GGUF header of {entry.id}, which {target.name} cannot "
            "load: give its safetensors repository or its config.json"
        )
    opened = open_config(stored.config, label=entry.id)
    source = entry.sources.get("config")  # of one that was put together from the GGUF header
    if source is not None and source.basis is not Basis.EXACT:
        because = "its config.json is made from its GGUF header and one of the same architecture"
        geometry = replace(opened.model.geometry, basis=source.basis, because=because)
        opened = replace(opened, model=Model(header=opened.model.header, geometry=geometry))
    return _as_certain(replace(opened, repository=repository), entry)


def gguf_header(name: str, stored: StoredHeader) -> ModelHeader:
    """The GGUF header that was recorded, with the tensors of the recorded quantisation. Raises HeaderError."""
    tensors = tensors_of(stored.tensors, name=name)
    return ModelHeader(
        name=name,
        container=Container.GGUF,
        keys=stored.keys,
        tensors=tensors,
        tensor_count=len(tensors),
        tensor_bytes=sum(tensor.size_bytes for tensor in tensors),
    )


def _as_certain(opened: OpenModel, entry: Entry) -> OpenModel:
    """The model, with a geometry that is no more certain than the entry's, and the context that the model states."""
    geometry, native = opened.model.geometry, entry.native_context
    is_assumed = entry.basis is Basis.ASSUMED
    if native is not None and (geometry.native_context is None or is_assumed):
        geometry = replace(geometry, native_context=native)
    if is_assumed:
        because = "only some of its numbers are known: the rest as in a model of its architecture"
        geometry = replace(geometry, basis=Basis.ASSUMED, because=because)
    if geometry is opened.model.geometry:
        return opened
    return replace(opened, model=Model(header=opened.model.header, geometry=geometry))
