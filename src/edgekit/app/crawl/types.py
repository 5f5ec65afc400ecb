"""The values of a crawl: what to build, a listed repository, a task and its outcome, the report."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

AT_ONCE = 16  # requests in flight: hides a round trip of 0.2 s at 80 requests per second


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What to crawl and where to write it. The hub is HF_ENDPOINT's."""

    folder: Path
    date: str  # of the index, ISO; a crawl that is continued keeps its own
    author: str | None = None
    search: str | None = None
    filters: tuple[str, ...] = ()  # the hub's tags, all of which a repository must have
    limit: int | None = None  # the most downloaded; None: all
    sizes: bool = True  # one more request for each repository whose sizes are not listed
    restart: bool = False  # discard an unfinished crawl in the folder
    rate: float | None = None  # requests per second, of all workers together
    at_once: int = AT_ONCE
    ray: str | None = None
    workers: int | None = None  # on Ray
    progress: Callable[[str], None] | None = field(default=None, compare=False)
    notify: Callable[[str], None] | None = field(default=None, compare=False)  # of long waits
    cancelled: Event | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A repository as the hub lists it; only what the index needs, checked."""

    name: str
    downloads: int = 0
    created: str | None = None  # ISO date; None: unknown, or before the hub recorded it
    gated: bool = False
    licence: str | None = None
    library: str | None = None
    task: str | None = None  # pipeline_tag
    tags: tuple[str, ...] = ()  # without those of the form name:value
    bases: tuple[tuple[str, str], ...] = ()  # (relation or "", repository)
    model_type: str | None = None
    quantisation: str | None = None  # quant_method of its config
    dtypes: tuple[tuple[str, int], ...] = ()  # of its safetensors: type, elements
    files: tuple[tuple[str, int | None], ...] | None = None  # path, size; None: not listed


class Status(enum.Enum):
    """What became of a task, or why a repository has no part in the index."""

    DONE = "done"
    GATED = "gated"  # 401, 403
    MISSING = "missing"  # 404
    UNREADABLE = "unreadable"  # not a model file, or none that is understood
    UNREACHABLE = "unreachable"  # the server kept failing: the next run tries again
    NOT_A_MODEL = "not a model"  # an adapter, a pipeline, no weights: found without a request
    INVALID = "invalid"  # the hub's own entry is malformed


class TaskKind(enum.Enum):
    FILES = "files"
    GEOMETRY = "geometry"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometrySource:
    """Where the geometry of a model may be read."""

    repository: str
    paths: tuple[str, ...]  # config.json, or the shards of one GGUF


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTask:
    """Something to fetch: the files of a repository, or the geometry of a model from the first usable candidate."""

    kind: TaskKind
    name: str  # the repository; of a geometry the model's
    candidates: tuple[GeometrySource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawledGeometry:
    """A distinct geometry, as the table has it, and the facts of every model with it."""

    fingerprint: str
    header: bytes
    facts: str  # JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a task."""

    kind: TaskKind
    name: str
    status: Status
    detail: str = ""  # why it failed
    found: str = "{}"  # JSON: the files; of a geometry the fingerprint and its repository
    geometry: CrawledGeometry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What a build did; the counts of the traffic are of this run alone."""

    folder: Path
    files: tuple[str, ...]
    repositories: int  # that the hub listed
    models: int
    geometries: int
    rows: Mapping[str, int]  # by table
    problems: Mapping[str, int]  # by status
    requests: int
    received_bytes: int
    faults: Mapping[str, int]  # that were survived, by kind
    seconds: float
