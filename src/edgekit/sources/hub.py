"""The files of models on the hub, from the repository's current or last cached listing."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from edgekit.errors import EdgekitError, RemoteInspectError, RemoteNotFoundError, UsageError
from edgekit.sources import cache
from edgekit.sources.address import (
    host_of,
    hub_endpoint,
    hub_library,
    is_offline,
    redirect_target,
    site_of,
)
from edgekit.sources.cache import Version
from edgekit.sources.filenames import SHOWN, choose_files, close_names, shard_names
from edgekit.sources.http import Transport
from edgekit.sources.reference import MAX_PATH_CHARS, HubModel
from edgekit.sources.remote import HttpFile, opened_file, stride_of
from edgekit.sources.types import MAX_FILE_BYTES, ByteSource, ModelFile, ModelFiles, Origin, Reach
from edgekit.units import MIB

MAX_PAGE_BYTES = 2 * MIB  # a page of the listing is 1,000 files of about 400 bytes each
MAX_PAGES = 20  # the largest public model repositories list about 2,000 files
MAX_ENTRIES = 20_000  # the limit of a local folder
MAX_LISTING_BYTES = 4 * MIB  # 20,000 files with names of 150 letters; a longer one is not cached

NEXT_PAGE = re.compile(r"<([^>]{1,4096})>\s*;\s*rel=\"?next\"?")
_REPO = re.compile(r"[A-Za-z0-9_.-]{1,96}/[A-Za-z0-9_.-]{1,96}")
_ODD_PATH = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|(?:^|/)\.{0,2}(?:/|$)")

FileEntry = tuple[str, int | None]  # path in the repository, size in bytes if it is stated


def locate_hub(model: HubModel, reach: Reach) -> ModelFiles:
    """The files of a repository that make up the model. A GGUF given by name needs no listing."""
    repository = _Repository(model, Transport(reach))
    files = repository.named_files()
    if files is None:
        return repository.choose(repository.listed_files())
    if reach.cache and cache.holds(file_url(model, files[0].name)):
        # Request the file now, so that an unresponsive hub fails here, where the caller can use the cache instead.
        files[0] = opened_file(files[0].name, files[0].open(), files[0].open)
    return repository.choose(files)


def locate_cached(model: HubModel, reach: Reach, because: RemoteInspectError) -> ModelFiles | None:
    """The model from the disk cache of earlier responses; None if it is not cached.

    Reading bytes that are not cached raises `because`.
    """
    if not reach.cache:
        return None
    repository = _Repository(model, Transport(reach, cut_off=because))
    files = repository.named_files()
    if files is None:
        listing = cached_listing(repository.tree_url)
        if listing is None:
            return None
        entries, cached_at = listing
        files = repository.model_files(entries)
    else:
        entry = cache.load(file_url(model, files[0].name))
        if entry is None:
            return None
        entry.prefix.close()
        cached_at = entry.cached_at
    chosen = repository.choose(files)
    is_online = reach.network and not is_offline()
    reason = f"could not reach Hugging Face ({because})" if is_online else "offline"
    day = time.strftime("%Y-%m-%d", time.localtime(cached_at))
    note = f"{reason}: using the answer cached on {day}, which may be out of date"
    return replace(chosen, notes=(*chosen.notes, note))


def file_url(model: HubModel, path: str) -> str:
    url: str = hub_library().hf_hub_url(
        model.repo, path, revision=model.revision, endpoint=hub_endpoint()
    )
    return url


@dataclass(frozen=True, slots=True)
class _Repository:
    """The repository of a model, and the connection to it."""

    model: HubModel
    transport: Transport

    @property
    def tree_url(self) -> str:
        revision = quote(self.model.revision or "main", safe="")
        return f"{hub_endpoint()}/api/models/{quote(self.model.repo)}/tree/{revision}"

    def choose(self, files: list[ModelFile]) -> ModelFiles:
        model = self.model
        return choose_files(
            files, label=model.repo, origin=Origin.HUB, quant=model.quant, filename=model.filename
        )

    def named_files(self) -> list[ModelFile] | None:
        """The GGUF that the user named, or all shards of its set; None if none was named."""
        filename = self.model.filename
        if filename is None or not filename.lower().endswith(".gguf"):
            return None
        names = shard_names(filename)
        if len(names) > 1:
            names = names[1:]  # shards of a GGUF count from 1
        return [ModelFile(name=name, open=partial(self._open_named, name)) for name in names]

    def listed_files(self) -> list[ModelFile]:
        """Every file of the repository, by the hub's listing, which is cached."""
        try:
            entries = self._tree_entries()
        except RemoteNotFoundError as error:
            similar = _repos_like(self.model.repo, self.transport)
            raise _with_candidates(error, similar) from error
        if self.transport.reach.cache:
            store_listing(self.tree_url, entries)
        return self.model_files(entries)

    def model_files(self, entries: Iterable[FileEntry]) -> list[ModelFile]:
        return [
            ModelFile(name=path, open=partial(self._open, path, size_bytes), size_bytes=size_bytes)
            for path, size_bytes in entries
        ]

    def _open(self, path: str, size_bytes: int | None = None) -> HttpFile:
        return HttpFile(
            self.transport,
            file_url(self.model, path),
            name=f"{self.model.repo}/{path}",
            stride=stride_of(path),
            expected_bytes=size_bytes,
        )

    def _open_named(self, name: str) -> ByteSource:
        """Open a file by the name that the user typed; if it does not exist, suggest files of the listing."""
        try:
            return self._open(name)
        except RemoteNotFoundError as error:
            try:
                known = [file.name for file in self.listed_files()]
            except EdgekitError as listing_error:
                raise listing_error from error
            ggufs = [path for path in known if path.lower().endswith(".gguf")]
            similar_names = close_names(name, ggufs) or tuple(ggufs[:SHOWN])
            raise _with_candidates(error, similar_names) from error

    def _tree_entries(self) -> list[FileEntry]:
        """Every file of the repository. The listing has several pages, each with a link to the next (RFC 8288)."""
        repo, revision = self.model.repo, self.model.revision
        name = f"{repo}@{revision}" if revision else repo
        url = f"{self.tree_url}?recursive=true"
        entries: list[FileEntry] = []
        for _ in range(MAX_PAGES):
            reply = self.transport.get(url, name=name, limit_bytes=MAX_PAGE_BYTES)
            items = _json_list(reply.body)
            if items is None:
                raise RemoteInspectError(
                    f"{name}: {host_of(url)} did not answer with a file list; check HF_ENDPOINT, "
                    "or give one file of the repository"
                )
            entries += filter(None, map(_file_entry, items))
            if len(entries) > MAX_ENTRIES:
                break
            links = reply.head.headers.get("link", "") if reply.head else ""
            next_link = NEXT_PAGE.search(links)
            if next_link is None:
                return entries
            target = redirect_target(url, next_link[1], name=name)
            if site_of(target) != site_of(url):
                raise RemoteInspectError(
                    f"{name}: the file list continues on another host ({host_of(target)}), "
                    "which is not followed; give one file of the repository instead"
                )
            url = target
        raise RemoteInspectError(
            f"{name}: the file list has more than {MAX_PAGES} pages or {MAX_ENTRIES:,} files; "
            "give one file of the repository instead"
        )


def _with_candidates(error: RemoteNotFoundError, names: tuple[str, ...]) -> RemoteNotFoundError:
    """The error with names to try instead, if there are any."""
    return RemoteNotFoundError(f"{error}. Did you mean: {', '.join(names)}?") if names else error


def _file_entry(item: Any) -> FileEntry | None:
    """Path and size of a file in a tree; None for a folder, and for a path that is invalid in a repository."""
    is_file = isinstance(item, dict) and item.get("type") == "file"
    return stated_file(item, item.get("path")) if is_file else None


def stated_file(item: Mapping[str, Any], path: Any) -> FileEntry | None:
    """Path and size of a file that the hub describes; None for a path that is invalid in a repository."""
    lfs = item.get("lfs")
    if not isinstance(path, str) or len(path) > MAX_PATH_CHARS or _ODD_PATH.search(path):
        return None
    # For a large file `size` may be the size of its Git LFS pointer.
    size_bytes = lfs.get("size") if isinstance(lfs, dict) else item.get("size")
    is_valid_size = type(size_bytes) is int and 0 <= size_bytes <= MAX_FILE_BYTES
    return path, size_bytes if is_valid_size else None


def _json_list(body: bytes | bytearray) -> list[Any] | None:
    """The list in the JSON text; None if it is anything else."""
    try:
        items = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return items if isinstance(items, list) else None


def _repos_like(repo: str, transport: Transport) -> tuple[str, ...]:
    """Repositories to suggest; none if the hub cannot search."""
    author, _, name = repo.rpartition("/")
    for query in ({"search": name, "limit": 5}, {"author": author, "limit": 200}):
        url = f"{hub_endpoint()}/api/models?{urlencode(query)}"
        try:
            reply = transport.request(url, {}, name=repo, body_limit=lambda _: MAX_PAGE_BYTES)
        except RemoteInspectError:
            return ()
        items = _json_list(reply.body)
        if items is None:
            return ()
        known = [str(item.get("id")) for item in items if isinstance(item, dict)]
        known = [name for name in known if _REPO.fullmatch(name) and name != repo]
        similar = close_names(repo, known)
        if not similar and "search" in query:  # the hub's own search considers these similar
            similar = tuple(known[:SHOWN])
        if similar:
            return similar
    return ()


# -- search --------------------------------------------------------------------------------------

MAX_SEARCH_CHARS = 100
MOST_FOUND = 50
MAX_SEARCH_BYTES = 512 * 1024  # 50 models of about 2 KB: most of it are tags
_MAX_TAGS = 200  # of one model
_LARGEST_COUNT = 2**53  # as far as JavaScript counts


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRepository:
    """A repository that the hub found. What it did not state is 0 or empty."""

    id: str
    downloads: int = 0  # of the last 30 days
    likes: int = 0
    pipeline: str = ""  # the hub's name of the task: "text-generation"
    tags: tuple[str, ...] = ()


def search_hub(text: str, limit: int, reach: Reach) -> tuple[FoundRepository, ...]:
    """The models that the hub finds for these words, the most downloaded first. Private ones are left out.

    Raises UsageError for words that cannot be searched for, and RemoteInspectError, also if the network is off.
    """
    words = text.strip()
    if not words or len(words) > MAX_SEARCH_CHARS or not words.isprintable():
        raise UsageError(f"q: give 1 to {MAX_SEARCH_CHARS} characters to search the hub for")
    if not 1 <= limit <= MOST_FOUND:
        raise UsageError(f"limit: must be 1 to {MOST_FOUND} (got {limit})")
    transport = Transport(reach)
    if not transport.is_online:
        raise RemoteInspectError(
            "Hugging Face was not searched, because the network is off (--offline or HF_HUB_OFFLINE): "
            "models of the index are found without it"
        )
    query = urlencode({"search": words, "limit": limit, "sort": "downloads", "direction": -1})
    url = f"{hub_endpoint()}/api/models?{query}"
    name = "the search on Hugging Face"
    reply = transport.get(url, name=name, limit_bytes=MAX_SEARCH_BYTES)
    items = _json_list(reply.body)
    if items is None:
        raise RemoteInspectError(
            f"{name}: {host_of(url)} did not answer with a list of models; check HF_ENDPOINT"
        )
    return tuple(filter(None, map(_found_repository, items)))[:limit]


def _found_repository(item: Any) -> FoundRepository | None:
    """What the hub says of a model; None if that is not a public repository."""
    if not isinstance(item, dict) or item.get("private"):
        return None
    name = item.get("id")
    if not isinstance(name, str) or _REPO.fullmatch(name) is None:
        return None
    counts = {
        key: value
        for key in ("downloads", "likes")
        if type(value := item.get(key)) is int and 0 <= value <= _LARGEST_COUNT
    }
    pipeline, tags = item.get("pipeline_tag"), item.get("tags")
    return FoundRepository(
        id=name,
        pipeline=pipeline if isinstance(pipeline, str) else "",
        tags=tuple(tag for tag in tags[:_MAX_TAGS] if isinstance(tag, str))
        if isinstance(tags, list)
        else (),
        **counts,
    )


# -- cached listings, for when the hub cannot be reached -----------------------------------------


def store_listing(url: str, entries: Iterable[FileEntry]) -> None:
    """Store a listing in the hub's format, so that it is validated like a response when it is read."""
    items = [{"type": "file", "path": path, "size": size_bytes} for path, size_bytes in entries]
    body = json.dumps(items).encode()
    if len(body) <= MAX_LISTING_BYTES:
        entry = cache.CachedRange(
            version=Version(total_bytes=len(body)),
            linked_etag=None,
            prefix=io.BytesIO(body),
            length=len(body),
        )
        cache.store(url, entry)


def cached_listing(url: str) -> tuple[tuple[FileEntry, ...], int] | None:
    """The files, and when the hub listed them in seconds since 1970; None if nothing valid is cached."""
    entry = cache.load(url)
    if entry is None:
        return None
    with entry.prefix as prefix:
        prefix.seek(0)
        items = _json_list(prefix.read(MAX_LISTING_BYTES))
    entries = tuple(filter(None, map(_file_entry, items or ())))
    return (entries, entry.cached_at) if entries else None
