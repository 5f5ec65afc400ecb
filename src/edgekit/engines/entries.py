"""A catalog entry -> a model, as if its header had been read."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from edgekit.catalog.repositories import original_repository
from edgekit.catalog.tensor_runs import tensors_of
from edgekit.catalog.types import Entry
from edgekit.engines import engine_named
from edgekit.errors import RefusedError
from edgekit.formats.types import ModelHeader
from edgekit.model import OpenModel, open_config, read_geometry
from edgekit.model.types import Model
from edgekit.sources.types import Container

KEPT = 32  # some 1 MB each


@lru_cache(maxsize=KEPT)
def open_entry(entry: Entry, engine: str) -> OpenModel:
    """As a GGUF for engines that load GGUF if the entry has its keys, else from its config. The label is the entry's
    id. The last few are cached, with their prepared results. Raises UsageError for an unknown engine, RefusedError
    if the entry has nothing that the engine loads, HeaderError if it is damaged.
    """
    target = engine_named(engine)
    if entry.keys and target.loads_gguf:
        return OpenModel(label=entry.id, model=_as_gguf(entry), repository=_repository(entry))
    if not entry.config:
        raise RefusedError(
            f"the catalog has only the GGUF header of {entry.id}, which {target.name} cannot "
            "load: give its safetensors repository or its config.json"
        )
    found = open_config(entry.config, label=entry.id)
    return replace(found, repository=_repository(entry))


def _repository(entry: Entry) -> str:
    """The repository that people run: a packaged entry may use the config of its base model."""
    known = "" if entry.is_users else original_repository(entry.id)
    return known or entry.repository or ""


def _as_gguf(entry: Entry) -> Model:
    """The entry as a GGUF with its recorded tensor types; setup.mix selects others."""
    tensors = tensors_of(entry.tensors, name=entry.id)
    header = ModelHeader(
        name=entry.id,
        container=Container.GGUF,
        keys=entry.keys,
        tensors=tensors,
        tensor_count=len(tensors),
        tensor_bytes=sum(tensor.size_bytes for tensor in tensors),
    )
    return Model(header=header, geometry=read_geometry(header))
