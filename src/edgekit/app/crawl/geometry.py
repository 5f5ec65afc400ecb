"""The geometry of a model from its config.json or from the header of one GGUF, in as few requests as possible."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from edgekit.app.crawl.types import CrawledGeometry, FetchTask, GeometrySource, Outcome, Status
from edgekit.app.index import facts_of
from edgekit.errors import (
    EdgekitError,
    HeaderError,
    PrivateAddressError,
    RemoteAccessError,
    RemoteBusyError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
    check_limit,
)
from edgekit.formats import limits
from edgekit.formats.gguf import read_gguf, read_gguf_model
from edgekit.formats.types import Depth, ModelHeader
from edgekit.index.merge import FACTS_OF_GEOMETRY, check_cells, check_geometry
from edgekit.index.tables import as_json
from edgekit.index.tensor_runs import runs_of
from edgekit.model import not_a_language_model, open_config, read_geometry
from edgekit.model.types import Model
from edgekit.sources.async_http import MAX_MALFORMED, AsyncTransport, pause_s
from edgekit.sources.filenames import CONFIG_NAME, quant_tag
from edgekit.sources.http import ResponseHead
from edgekit.sources.hub import file_url
from edgekit.sources.reference import HubModel
from edgekit.sources.remote import Piece, announced_piece
from edgekit.sources.types import MAX_HEADER_BYTES, Container, ModelFile, ModelFiles, Origin
from edgekit.units import KIB, MIB

# Of a GGUF's header: the first has small vocabularies whole, the second nearly all, the third the largest known.
STEPS = (512 * KIB, 6 * MIB, 20 * MIB, MAX_HEADER_BYTES)
MAX_RANGE_BYTES = 8 * MIB
MAX_SHARDS_READ = 16  # of one GGUF: every shard has a part of the tensors
# Parts of a config.json that nothing reads, and that differ between copies of one model.
_NOT_READ = ("_name_or_path", "transformers_version")
# A geometry takes 1 to 10 KB, the largest that an index may have 1 MB: these are at least 6,000 of the usual ones,
# and a small part of a crawl's memory, of which every worker on Ray has its own.
MAX_CACHED_BYTES = 64 * MIB
_TEXTS = ("general.", "tokenizer.chat_template")
_TEXTS_READ = frozenset({"general.architecture", "general.type"})
_CACHE_ROW_BYTES = 1_024  # of its key, its fingerprint and the Python objects
_NAME = "model"  # the facts of a geometry do not depend on what a model is called


async def read_task(task: FetchTask, transport: AsyncTransport) -> Outcome:
    """The geometry of the first candidate that can be read, or why the last one could not be."""
    status, detail = Status.UNREADABLE, "no file to read"
    for candidate in task.candidates:
        try:
            geometry = await read_candidate(candidate, transport)
        except RemoteBusyError as error:
            # Do not try the next candidate: the result would depend on outages.
            return Outcome(
                kind=task.kind, name=task.name, status=Status.UNREACHABLE, detail=str(error)
            )
        except (EdgekitError, RecursionError) as error:
            status, detail = _status_of(error), str(error)
            continue
        except Exception as error:  # noqa: BLE001 - a fault of ours in one repository must not stop two million
            status, detail = Status.UNREADABLE, f"{type(error).__name__}: {error}"
            continue
        found = as_json(
            {
                "fingerprint": geometry.fingerprint,
                "repository": candidate.repository,
                "path": candidate.paths[0],
            }
        )
        return Outcome(
            kind=task.kind, name=task.name, status=Status.DONE, found=found, geometry=geometry
        )
    return Outcome(kind=task.kind, name=task.name, status=status, detail=detail)


def _status_of(error: BaseException) -> Status:
    if isinstance(error, RemoteAccessError):
        return Status.GATED
    if isinstance(error, RemoteNotFoundError):
        return Status.MISSING
    return Status.NOT_A_MODEL if isinstance(error, UsageError) else Status.UNREADABLE


async def read_candidate(candidate: GeometrySource, transport: AsyncTransport) -> CrawledGeometry:
    """Raises EdgekitError if the file cannot be fetched or is not a model."""
    if candidate.paths[0] == CONFIG_NAME:
        config = await _read_config(candidate.repository, transport)
        return _of_config(config, candidate.repository)
    return _of_header(await _read_gguf(candidate, transport))


async def _read_config(repository: str, transport: AsyncTransport) -> Mapping[str, Any]:
    """The config.json, without what nothing reads. HeaderError if it is not an object."""
    name = f"{repository}/{CONFIG_NAME}"
    answer = await transport.get_json(
        file_url(HubModel(repo=repository), CONFIG_NAME),
        name=name,
        limit_bytes=limits.CONFIG_BYTES,
        limit_values=limits.CONFIG_VALUES,
    )
    if not isinstance(answer.value, dict):
        raise HeaderError(f"holds a {type(answer.value).__name__}, not an object", file=name)
    return {key: value for key, value in answer.value.items() if key not in _NOT_READ}


class _Described:
    """The geometries described last, by the hash of what each is made of."""

    def __init__(self) -> None:
        self._geometries: OrderedDict[bytes, CrawledGeometry] = OrderedDict()
        self._bytes = 0

    def get(self, key: bytes) -> CrawledGeometry | None:
        return self._geometries.get(key)

    def add(self, key: bytes, geometry: CrawledGeometry) -> None:
        self._geometries[key] = geometry
        self._bytes += _cached_bytes(geometry)
        while self._bytes > MAX_CACHED_BYTES:
            _, oldest = self._geometries.popitem(last=False)
            self._bytes -= _cached_bytes(oldest)


def _cached_bytes(geometry: CrawledGeometry) -> int:
    return _CACHE_ROW_BYTES + len(geometry.header) + len(geometry.facts)


_described = _Described()


def _described_once(content: object, build: Callable[[], Model]) -> CrawledGeometry:
    """The geometry of this content. Describing takes a tenth of a second, and many repositories are alike."""
    key = hashlib.sha256(as_json(content).encode("utf-8", "surrogatepass")).digest()
    geometry = _described.get(key)
    if geometry is None:
        geometry = describe(build())
        _described.add(key, geometry)
    return geometry


def _of_config(config: Mapping[str, Any], repository: str) -> CrawledGeometry:
    label = f"{repository}/{CONFIG_NAME}"
    return _described_once(config, lambda: open_config(config, label=label).model)


def _of_header(header: ModelHeader) -> CrawledGeometry:
    other = not_a_language_model(header)
    if other is not None:
        raise UsageError(f"{header.name} is {other}")
    # Names, authors and templates differ between files of one model, and nothing here reads them.
    keys = {
        key: value
        for key, value in header.keys.items()
        if not (isinstance(value, str) and key.startswith(_TEXTS) and key not in _TEXTS_READ)
    }
    arrays = {key: [array.element, array.count] for key, array in header.arrays.items()}
    content = [
        keys,
        arrays,
        runs_of(header.tensors or ()),
        header.tensor_bytes,
        quant_tag(header.name),
    ]
    return _described_once(content, lambda: Model(header=header, geometry=read_geometry(header)))


def describe(model: Model) -> CrawledGeometry:
    """The row of a geometry and the facts that every model with it shares.

    Raises EdgekitError, also for a geometry that the readers of an index would refuse.
    """
    geometry = model.geometry
    facts = facts_of(model, _NAME, found=_NAME)
    content = {
        "keys": dict(facts.get("keys", {})),
        "tensors": list(facts.get("tensors", ())),
        "config": dict(facts.get("config", {})),
    }
    sizes = {size.mix: [size.tensor_bytes, size.basis.value] for size in facts["sizes"]}
    shared = {
        "architecture": facts["architecture"],
        "parameters": facts["parameters"],
        "active_parameters": facts["active_parameters"],
        "native_context": facts["native_context"],
        "vocabulary": facts["vocabulary"],
        "basis": geometry.basis.value,
        "causal": geometry.causal,
        "pooled": geometry.pooling not in {None, "none"},
        "sees": any(tower.kind == "vision" for tower in geometry.towers),
        "sizes": sizes,
        "forms": [form for form, part in (("gguf", "keys"), ("config", "config")) if content[part]],
    }
    try:
        text = json.dumps([content, sizes], sort_keys=True, separators=(",", ":"), allow_nan=False)
        packed = json.dumps(content, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise HeaderError(
            f"a value that cannot be stored: {error}", file=model.header.name
        ) from error
    header = zlib.compress(packed.encode(), 9)
    try:  # readers refuse a whole index for one row beyond their limits
        check_geometry(header, ",".join(shared["forms"]))
        check_cells("geometries", {"sizes": json.dumps(sizes)})
        check_cells("models", {fact: shared[fact] for fact in FACTS_OF_GEOMETRY})
    except HeaderError as error:
        raise HeaderError(f"cannot be in an index: {error.what}", file=model.header.name) from error
    return CrawledGeometry(
        fingerprint=hashlib.sha256(text.encode()).hexdigest(), header=header, facts=as_json(shared)
    )


# -- the header of a GGUF ------------------------------------------------------------------------


class _MoreBytesError(Exception):
    """The header goes on beyond what was fetched, at least to this offset."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


class _Prefix:
    """The start of a remote file. Reading beyond it raises _MoreBytesError."""

    def __init__(self, repository: str, path: str) -> None:
        self.name = f"{repository}/{path}"
        self.url = file_url(HubModel(repo=repository), path)
        self.data = bytearray()
        self.piece: Piece | None = None  # the last one: its version is the file's

    @property
    def size_bytes(self) -> int:
        assert self.piece is not None  # noqa: S101 - set by the first request
        return self.piece.version.total_bytes

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:
        end = min(offset + length, self.size_bytes)
        if end > len(self.data):
            raise _MoreBytesError(min(end + ahead, self.size_bytes))
        return bytes(self.data[offset:end])

    def close(self) -> None:
        pass

    async def extend(self, stop: int, transport: AsyncTransport) -> None:
        """Fetch up to `stop` or the end of the file."""
        while self.piece is None or len(self.data) < min(stop, self.size_bytes):
            start, known = len(self.data), None if self.piece is None else self.piece.version
            end = min(
                stop if known is None else min(stop, known.total_bytes), start + MAX_RANGE_BYTES
            )
            headers = {"range": f"bytes={start}-{end - 1}"}
            if known is not None and known.validator is not None:
                headers["if-range"] = known.validator

            def limit(head: ResponseHead, start: int = start, end: int = end) -> int:
                self.piece = announced_piece(
                    head,
                    start=start,
                    requested_bytes=end - start,
                    max_whole_file_bytes=STEPS[0],
                    known_version=None if self.piece is None else self.piece.version,
                    name=self.name,
                )
                return self.piece.length

            reply = await transport.get(self.url, name=self.name, body_limit=limit, headers=headers)
            if reply.overrun or not reply.body:
                if self.piece is not None and not self.size_bytes:
                    return  # an empty file
                raise RemoteInspectError(f"{self.name}: another number of bytes than was announced")
            self.data += reply.body


async def _read_gguf(candidate: GeometrySource, transport: AsyncTransport) -> ModelHeader:
    """The whole header. HeaderError if it is damaged, or in too many shards.

    A header that cannot be read is fetched again: the answer may have been damaged, not the file.
    """
    check_limit("shards", len(candidate.paths), MAX_SHARDS_READ, file=candidate.repository)
    attempts = 0
    while True:
        try:
            return await _read_shards(candidate, transport)
        except (RemoteAccessError, RemoteNotFoundError, RemoteBusyError, PrivateAddressError):
            raise
        except (HeaderError, RemoteInspectError):
            attempts += 1
            transport.tally.faults["malformed"] += 1
            if attempts >= MAX_MALFORMED:
                raise
            await asyncio.sleep(pause_s(attempts - 1))


async def _read_shards(candidate: GeometrySource, transport: AsyncTransport) -> ModelHeader:
    shards = [_Prefix(candidate.repository, path) for path in candidate.paths]
    headers = [await _read_shard(shard, transport) for shard in shards]
    if len(shards) == 1:
        return headers[0]
    files = tuple(
        ModelFile(
            name=shard.name, open=functools.partial(_identity, shard), size_bytes=shard.size_bytes
        )
        for shard in shards
    )
    joined = ModelFiles(
        label=shards[0].name, origin=Origin.HUB, container=Container.GGUF, weights=files
    )
    return read_gguf_model(joined, Depth.TENSORS)


async def _read_shard(shard: _Prefix, transport: AsyncTransport) -> ModelHeader:
    """The header of one file, of which more is fetched until it is whole."""
    steps = iter(STEPS)
    stop = next(steps)
    while True:
        await shard.extend(stop, transport)
        try:
            return read_gguf(shard)
        except _MoreBytesError as more:
            if more.end > MAX_HEADER_BYTES:
                raise HeaderError("its header is too long", file=shard.name) from more
            stop = next((step for step in steps if step >= more.end), MAX_HEADER_BYTES)
        await asyncio.sleep(0)  # other requests have waited for the parser


def _identity(shard: _Prefix) -> _Prefix:
    return shard
