"""A model on the hub -> its files, from the repository's listing."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from edgekit.errors import EdgekitError, RemoteInspectError, RemoteNotFoundError, UsageError
from edgekit.sources import cache
from edgekit.sources.address import (
    has_secrets,
    host_of,
    hub_endpoint,
    hub_library,
    redirect_target,
    site_of,
)
from edgekit.sources.cache import Version
from edgekit.sources.filenames import SHOWN, choose_files, close_names, shard_names
from edgekit.sources.http import Transport
from edgekit.sources.reference import MAX_PATH_CHARS
from edgekit.sources.remote import HttpFile, opened_file, stride_of
from edgekit.sources.types import MAX_FILE_BYTES, ByteSource, ModelFile, ModelFiles, Origin, Reach
from edgekit.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from edgekit.sources.reference import HubModel


# A page of the listing is 1,000 files of about 400 bytes each.
MAX_PAGE_BYTES = 2 * MIB
# The largest public model repositories list some 2,000 files.
MAX_PAGES = 20
MAX_ENTRIES = 20_000  # as many as in a local folder; the largest model repositories have hundreds

_NEXT = re.compile(r"<([^>]{1,4096})>\s*;\s*rel=\"?next\"?")
_REPO = re.compile(r"[A-Za-z0-9_.-]{1,96}/[A-Za-z0-9_.-]{1,96}")


def locate_hub(model: HubModel, reach: Reach) -> ModelFiles:
    """The files of a repository that make the model. A GGUF that is named needs no listing."""
    _check_repo(model)
    transport = Transport(reach)
    if (filename := _named_gguf(model)) is None:
        return _chosen(model, _listed_files(model, transport))
    files = list(_named_files(model, filename, transport))
    if reach.cache and cache.holds(file_url(model, files[0].name)):
        # Where there is something to fall back to, a silent hub is noticed here, not when it is read.
        files[0] = opened_file(files[0].name, files[0].open(), files[0].open)
    return _chosen(model, files)


def locate_kept(model: HubModel, reach: Reach, because: RemoteInspectError) -> ModelFiles | None:
    """As the hub answered an earlier time, from the disk alone; None when nothing is kept of that.

    What is not among the kept bytes ends, when it is read, with the error that is `because`.
    """
    if not reach.cache:
        return None
    _check_repo(model)
    transport = Transport(reach, cut_off=because)
    filename = _named_gguf(model)
    listing = kept_listing(_tree_url(model))
    if filename is None and listing is not None:
        files, kept_at = _model_files(model, listing.entries, transport), listing.kept_at
    elif filename is not None and (header := _kept_header(model, filename)) is not None:
        files, kept_at = list(_named_files(model, filename, transport)), header
    else:
        return None
    found = _chosen(model, files)
    return replace(found, notes=(*found.notes, _kept_note(kept_at, reach, because)))


def _kept_note(kept_at: int, reach: Reach, because: RemoteInspectError) -> str:
    day = time.strftime("%Y-%m-%d", time.localtime(kept_at))
    silent = (
        f"could not reach Hugging Face ({because})" if Transport(reach).is_online else "offline"
    )
    return f"{silent}: using the answer cached on {day}, which may be out of date"


def _kept_header(model: HubModel, filename: str) -> int | None:
    """Since when the first bytes of the file, or of its first shard, are kept."""
    names = shard_names(filename)
    entry = cache.load(file_url(model, (names[1:] or names)[0]))
    if entry is None:
        return None
    entry.prefix.close()
    return entry.kept_at


def _named_gguf(model: HubModel) -> str | None:
    """Its name needs no listing."""
    name = model.filename
    return name if name is not None and name.lower().endswith(".gguf") else None


def _chosen(model: HubModel, files: list[ModelFile]) -> ModelFiles:
    return choose_files(
        files,
        reference=_spelt(model),
        label=model.repo,
        origin=Origin.HUB,
        quant=model.quant,
        filename=model.filename,
    )


def _check_repo(model: HubModel) -> None:
    """The hub's own rules: no "--", no dot at an end."""
    hub_library()  # says it in words when it cannot be imported
    from huggingface_hub.errors import HFValidationError

    try:
        file_url(model, "config.json")
    except HFValidationError as error:
        raise UsageError(f"{model.repo} is not a valid repository name: {error}") from error


def _spelt(model: HubModel) -> str:
    revision = f"@{model.revision}" if model.revision else ""
    tag = f":{model.quant}" if model.quant else ""
    path = f"/{model.filename}" if model.filename else ""
    return f"{model.repo}{revision}{tag}{path}"


def file_url(model: HubModel, path: str) -> str:
    url: str = hub_library().hf_hub_url(
        model.repo, path, revision=model.revision, endpoint=hub_endpoint()
    )
    return url


def _open(
    model: HubModel, path: str, transport: Transport, size_bytes: int | None = None
) -> HttpFile:
    return HttpFile(
        transport,
        file_url(model, path),
        name=f"{model.repo}/{path}",
        stride=stride_of(path),
        expected_bytes=size_bytes,
    )


def _named_files(model: HubModel, filename: str, transport: Transport) -> Iterator[ModelFile]:
    """The file, or all shards of its set: GGUF sets count from 1."""
    names = shard_names(filename)
    for name in names[1:] or names:
        yield ModelFile(name=name, open=partial(_open_named, model, name, transport))


def _open_named(model: HubModel, name: str, transport: Transport) -> ByteSource:
    """A name that was typed may be wrong: then the listing says what there is."""
    try:
        return _open(model, name, transport)
    except RemoteNotFoundError as error:
        try:
            known = [file.name for file in _listed_files(model, transport)]
        except EdgekitError as closer:
            raise closer from error
        ggufs = [one for one in known if one.lower().endswith(".gguf")]
        near = close_names(name, ggufs) or tuple(ggufs[:SHOWN])
        raise _with_candidates(error, near) from error


def _tree_url(model: HubModel) -> str:
    revision = quote(model.revision or "main", safe="")
    return f"{hub_endpoint()}/api/models/{quote(model.repo)}/tree/{revision}"


def _listed_files(model: HubModel, transport: Transport) -> list[ModelFile]:
    url = _tree_url(model)
    try:
        entries = list(_tree_entries(f"{url}?recursive=true", model, transport))
    except RemoteNotFoundError as error:
        raise _with_candidates(error, _repos_like(model.repo, transport)) from error
    if transport.reach.cache:
        keep_listing(url, entries)
    return _model_files(model, entries, transport)


def _model_files(
    model: HubModel, entries: Iterable[FileEntry], transport: Transport
) -> list[ModelFile]:
    return [
        ModelFile(
            name=path,
            open=partial(_open, model, path, transport, size_bytes),
            size_bytes=size_bytes,
        )
        for path, size_bytes in entries
    ]


def _tree_entries(url: str, model: HubModel, transport: Transport) -> Iterator[FileEntry]:
    """Every file; pages are linked, RFC 8288."""
    name = f"{model.repo}@{model.revision}" if model.revision else model.repo
    seen = 0
    for _ in range(MAX_PAGES):
        reply = transport.get(url, name=name, limit_bytes=MAX_PAGE_BYTES)
        for item in _json_list(reply.body, url, name=name):
            if (entry := file_entry(item)) is not None:
                seen += 1
                yield entry
        if seen > MAX_ENTRIES:
            break
        links = reply.answer.headers.get("link", "") if reply.answer else ""
        following = _NEXT.search(links)
        if following is None:
            return
        target = redirect_target(url, following[1], name=name)
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


def _json_list(body: bytes | bytearray, url: str, *, name: str) -> list[Any]:
    try:
        items = json.loads(body)
    except (ValueError, RecursionError):
        items = None
    if not isinstance(items, list):
        raise RemoteInspectError(
            f"{name}: {host_of(url)} did not answer with a file list; check HF_ENDPOINT, "
            "or give one file of the repository"
        )
    return items


def _repos_like(repo: str, transport: Transport) -> tuple[str, ...]:
    """Names to suggest; none is fine, and so is a hub that cannot search."""
    author, _, name = repo.rpartition("/")
    for query in ({"search": name, "limit": 5}, {"author": author, "limit": 200}):
        url = f"{hub_endpoint()}/api/models?{urlencode(query)}"
        try:
            reply = transport.ask(url, {}, name=repo, want=lambda _: MAX_PAGE_BYTES)
            items = _json_list(reply.body, url, name=repo)
        except RemoteInspectError:
            return ()
        known = [str(item.get("id")) for item in items if isinstance(item, dict)]
        known = [one for one in known if _REPO.fullmatch(one) and one != repo]
        if found := close_names(repo, known) or (tuple(known[:SHOWN]) if "search" in query else ()):
            return found
    return ()


def _with_candidates(error: RemoteNotFoundError, names: tuple[str, ...]) -> RemoteNotFoundError:
    return RemoteNotFoundError(f"{error}. Did you mean: {', '.join(names)}?") if names else error


MAX_LISTING_BYTES = 4 * MIB  # 20,000 files with names of 150 letters; a longer one is not kept

_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|(?:^|/)\.{0,2}(?:/|$)")

FileEntry = tuple[str, int | None]  # path in the repository, size in bytes where it is stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    entries: tuple[FileEntry, ...]
    kept_at: int  # seconds since 1970: when the hub said so


def file_entry(item: Any) -> FileEntry | None:
    """None for a folder, and for a path that no file in a repository can have."""
    if not isinstance(item, dict) or item.get("type") != "file":
        return None
    path, lfs = item.get("path"), item.get("lfs")
    if not isinstance(path, str) or len(path) > MAX_PATH_CHARS or _ODD.search(path):
        return None
    # For a large file `size` may be that of its pointer.
    size_bytes = lfs.get("size") if isinstance(lfs, dict) else item.get("size")
    is_size = type(size_bytes) is int and 0 <= size_bytes <= MAX_FILE_BYTES
    return path, size_bytes if is_size else None


def keep_listing(url: str, entries: Iterable[FileEntry]) -> None:
    """In the hub's own form, so that it is checked like one when it is read again."""
    if has_secrets(url):
        return
    items = [{"type": "file", "path": path, "size": size_bytes} for path, size_bytes in entries]
    body = json.dumps(items).encode()
    if len(body) <= MAX_LISTING_BYTES:
        version = Version(total_bytes=len(body))
        prefix = io.BytesIO(body)
        cache.store(
            url,
            cache.CachedRange(version=version, linked_etag=None, prefix=prefix, length=len(body)),
        )


def kept_listing(url: str) -> Listing | None:
    entry = None if has_secrets(url) else cache.load(url)
    if entry is None:
        return None
    with entry.prefix as prefix:
        prefix.seek(0)
        body = prefix.read(MAX_LISTING_BYTES)
    try:
        items = json.loads(body)
    except (ValueError, RecursionError):
        return None
    found = map(file_entry, items if isinstance(items, list) else ())
    entries = tuple(entry for entry in found if entry is not None)
    return Listing(entries=entries, kept_at=entry.kept_at) if entries else None
