"""The value types of the index: entries, sizes, measured speeds and sources."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.units import Basis

if TYPE_CHECKING:  # the index does not depend on formats at run time
    from edgekit.formats.types import Value

SQLITE_NAME = "index.sqlite"
SCHEMA = 1  # of that file: PRAGMA user_version, and `schema` in meta


class ModelPurpose(enum.Enum):
    """What a model is for; it may have several purposes."""

    CHAT = "chat"
    CODE = "code"
    REASONING = "reasoning"
    EMBEDDING = "embedding"
    VISION = "vision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The weights at one quantisation, without the header and vocabulary of the file."""

    mix: str  # "Q4_K_M"; "as stored": a repository in another format
    tensor_bytes: int
    basis: Basis


class MeasuredSpeed(NamedTuple):
    """A published speed."""

    device: str
    tokens_per_s: float
    setting: str  # engine, quantisation, context
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a fact comes from."""

    text: str
    basis: Basis
    licence: str | None = None  # of the source; None: not stated, or a measurement of our own
    date: str | None = None  # when it was read


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHeader:
    """What a model is rebuilt from: keys and tensors of a GGUF, keys of a config.json, or both."""

    keys: Mapping[str, Value] = field(default_factory=dict, repr=False)
    tensors: tuple[str, ...] = field(default=(), repr=False)  # lines of tensor_runs.py
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)


NO_HEADER = StoredHeader(keys=MappingProxyType({}), config=MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A known model; fields that are None are unknown."""

    id: str
    repository: str | None = None  # the publisher's, on the hub
    publisher: str | None = None
    family: str
    architecture: str  # as in the file; empty if unknown
    parameters: int | None = None
    active_parameters: int | None = None  # used per token
    native_context: int | None = None
    vocabulary: int | None = None
    kinds: tuple[ModelPurpose, ...] = ()
    licence: str | None = None
    released: str | None = None  # "2025-05-14"
    not_before: str | None = None  # the earliest possible release, from its files
    base_model: str | None = None  # a repository on the hub, if a source states it
    uses: float = 0.0  # how many people use it, from 0 to MAX_USES (see `uses_of_downloads`)
    sizes: tuple[Size, ...] = ()  # the largest first
    speeds: tuple[MeasuredSpeed, ...] = ()
    # EXACT: the geometry is the model's own, or proved equal. ASSUMED: it was put together from partial numbers, or
    # there is none.
    basis: Basis = Basis.EXACT
    forms: tuple[str, ...] = ()  # of the stored header: "gguf", "config"
    header: StoredHeader | None = field(default=None, repr=False, hash=False)  # of a user's entry
    geometry: int | None = None  # number of the header in the index file; None: see `header`
    sources: Mapping[str, Source] = field(default_factory=dict, repr=False, hash=False)  # by field
    reference: str = ""  # the source of a user's entry; empty: EdgeKit's own

    @property
    def is_users(self) -> bool:
        return bool(self.reference)

    @property
    def has_geometry(self) -> bool:
        return self.header is not None or self.geometry is not None

    def size(self, mix: str) -> Size | None:
        return next((size for size in self.sizes if size.mix == mix), None)


MAX_USES = 20.0  # of `Entry.uses`; the most used model of EdgeKit's own index has 18.14
FEWER_USES = 2.0  # on that scale: about a seventh of the users, so the more used model is meant


def uses_of_downloads(downloads: int) -> float:
    """`Entry.uses` of a model of which only the downloads are known: 1,000 -> 4.5, a million -> 11.6.

    EdgeKit's own index ranks models by downloads, likes, pulls at Ollama and the catalogues that list them. This is the
    least-squares line through its 1,849 models with downloads: half of them are within 1.2 of it, and the best known,
    which are in every catalogue, up to 7 above.
    """
    return round(min(max(2.36 * math.log10(downloads + 1) - 2.59, 0.0), MAX_USES), 2)


class Index(NamedTuple):
    """Entries sorted by id, and a sentence for each one that could not be read."""

    entries: tuple[Entry, ...]
    problems: tuple[str, ...] = ()
