"""A catalog entry -> a model, as if its header had been read."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from edgekit.engines import engine_named
from edgekit.errors import RefusedError
from edgekit.formats.types import ModelHeader
from edgekit.index.repositories import original_repository
from edgekit.index.tensor_runs import tensors_of
from edgekit.index.types import Entry
from edgekit.model import OpenModel, open_config, read_geometry
from edgekit.model.types import Model
from edgekit.sources.types import Container

CACHED_ENTRIES = 32  # about 1 MB each


@lru_cache(maxsize=CACHED_ENTRIES)
def open_entry(entry: Entry, engine: str) -> OpenModel:
    """The model of an entry: from its GGUF keys if the engine loads GGUF and the entry has them, else from its config.

    The most recent models are cached, with their prepared results. Raises UsageError for an unknown engine,
    RefusedError if the entry has nothing that the engine loads, HeaderError if the entry is damaged.
    """
    target = engine_named(engine)
    # The repository that people run: a packaged entry may use the config of its base model.
    original = "" if entry.is_users else original_repository(entry.id)
    repository = original or entry.repository or ""
    if entry.keys and target.loads_gguf:
        tensors = tensors_of(entry.tensors, name=entry.id)  # of the recorded quantisation
        header = ModelHeader(
            name=entry.id,
            container=Container.GGUF,
            keys=entry.keys,
            tensors=tensors,
            tensor_count=len(tensors),
            tensor_bytes=sum(tensor.size_bytes for tensor in tensors),
        )
        model = Model(header=header, geometry=read_geometry(header))
        return OpenModel(label=entry.id, model=model, repository=repository)
    if not entry.config:
        raise RefusedError(
            f"the catalog has only the GGUF header of {entry.id}, which {target.name} cannot "
            "load: give its safetensors repository or its config.json"
        )
    return replace(open_config(entry.config, label=entry.id), repository=repository)
