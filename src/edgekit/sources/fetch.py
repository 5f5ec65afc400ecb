"""One file of a repository -> in the hub's cache, by huggingface_hub itself.

The library works in the caller's thread, so Ctrl-C reaches it, and it removes what it has not finished, as after
every failure. It resumes a file after a cut. When it gives up, another try starts that file again: its
unfinished files have a name of their own each, and nobody picks them up.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from edgekit import __version__
from edgekit.errors import (
    EdgekitError,
    RemoteAccessError,
    RemoteChangedError,
    RemoteInspectError,
    RemoteNotFoundError,
)
from edgekit.sources.endpoint import hub_endpoint, hub_library, token_for
from edgekit.sources.failures import library_error
from edgekit.sources.hub import file_url
from edgekit.sources.reference import HubModel
from edgekit.sources.stores import repository_folder
from edgekit.sources.types import MAX_FILE_BYTES, ModelFile, Reach

MAX_TRIES = 3  # of one file; before each ends, the library has tried to go on up to six times
FIRST_PAUSE_S = 1.0  # doubled each time
MAX_RESTARTS = 3  # of a server that starts from byte 0 after every cut

_COMMIT = re.compile(r"[0-9a-f]{40}")
_BLOB_NAME = re.compile(r"[A-Za-z0-9_+=-][A-Za-z0-9_.+=-]{0,127}")
_SIGNED = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]*")
_Result = TypeVar("_Result")
_LIBRARY_LOGS = ("huggingface_hub.file_download", "huggingface_hub.utils._http")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file as the hub describes it."""

    model: HubModel  # its revision is a commit
    name: str
    size_bytes: int
    etag: str  # what the library calls the file in its cache
    by_xet: bool  # fetched by hf_xet, which knows the length by the hash of the content

    def is_in(self, hub_cache: Path) -> bool:
        """At this commit, or at another with the same content: then it is only linked."""
        repository = repository_folder(self.model, hub_cache)
        link = repository / "snapshots" / str(self.model.revision) / self.name
        return link.is_file() or (repository / "blobs" / self.etag).is_file()


def is_commit(revision: str | None) -> bool:
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def describe_file(model: HubModel, file: ModelFile, reach: Reach) -> HubFile:
    """By a HEAD request. What the hub says must agree with its own listing."""
    told = _patiently(lambda: _metadata(model, file.name, reach))
    name = f"{model.repo}/{file.name}"
    commit = told.commit_hash
    is_other = is_commit(model.revision) and commit != model.revision
    if not is_commit(commit) or is_other or not _BLOB_NAME.fullmatch(told.etag or ""):
        raise RemoteInspectError(
            f"{name}: {hub_endpoint()} does not report the commit and hash of its files, "
            "so nothing can be downloaded from it; check HF_ENDPOINT"
        )
    size_bytes = file.size_bytes if told.size is None else told.size
    if size_bytes is None or not 0 <= size_bytes <= MAX_FILE_BYTES:
        raise RemoteInspectError(
            f"{name}: not downloaded, because Hugging Face does not report its size"
        )
    if file.size_bytes not in {None, size_bytes}:
        raise RemoteChangedError(
            f"{name}: listed with {file.size_bytes:,} bytes, but the server sends "
            f"{size_bytes:,}; it may just be changing: try again later"
        )
    return HubFile(
        model=replace(model, revision=commit),
        name=file.name,
        size_bytes=size_bytes,
        etag=told.etag,
        by_xet=told.xet_file_data is not None and _has_xet(),
    )


def _metadata(model: HubModel, filename: str, reach: Reach) -> Any:
    """The library's HfFileMetadata."""
    url = file_url(model, filename)
    token = token_for(url)
    with _translated(model, filename, token=token):
        return hub_library().get_hf_file_metadata(
            url,
            token=token or False,
            timeout=reach.read_timeout_s,
            endpoint=hub_endpoint(),
        )


def _has_xet() -> bool:
    return find_spec("hf_xet") is not None and not hub_library().constants.HF_HUB_DISABLE_XET


def fetch_patiently(file: HubFile, hub_cache: Path) -> None:
    """Tried again after troubles that may pass. Raises RemoteInspectError or SourceError."""
    _patiently(lambda: fetch_file(file, hub_cache))


def _patiently(action: Callable[[], _Result]) -> _Result:
    for tried in range(1, MAX_TRIES):
        try:
            return action()
        except (RemoteNotFoundError, RemoteAccessError, RemoteChangedError):
            raise  # another try will not change it
        except RemoteInspectError:
            time.sleep(FIRST_PAUSE_S * 2 ** (tried - 1))
    return action()


def fetch_file(file: HubFile, hub_cache: Path) -> None:
    """Into the cache, unless it is there; no more of it is written than its size."""
    model, token = file.model, token_for(file_url(file.model, file.name))
    with _translated(model, file.name, token=token, hub_cache=hub_cache), _unsigned_logs():
        path = hub_library().hf_hub_download(
            model.repo,
            file.name,
            revision=model.revision,
            cache_dir=hub_cache,
            token=token or False,
            endpoint=hub_endpoint(),
            library_name="edgekit",
            library_version=__version__,
            tqdm_class=None if file.by_xet else _bounded_bar(file),
        )
        size_bytes = Path(path).stat().st_size
    if size_bytes != file.size_bytes:
        raise RemoteChangedError(
            f"{path} has {size_bytes:,} bytes, but Hugging Face lists "
            f"{file.size_bytes:,}: delete it and try again"
        )


def _bounded_bar(file: HubFile) -> type:
    """The library's progress bar. It hears of every piece before that is written, and may object."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, **settings: Any) -> None:
            self._left_bytes = file.size_bytes
            self._restarts = 0
            settings["desc"] = file.name  # the library would show the end of a signed address
            super().__init__(**settings)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> Any:
            self._left_bytes -= int(n or 0)
            self._restarts += (n or 0) < 0  # taken back: the server starts again from byte 0
            if self._left_bytes < 0:
                raise RemoteChangedError(
                    f"{file.name}: the server sends more than the {file.size_bytes:,} "
                    "bytes it lists; nothing was saved, try again later"
                )
            if self._restarts > MAX_RESTARTS:
                raise RemoteChangedError(
                    f"{file.name}: the connection was lost {self._restarts} times, and "
                    "this server cannot resume a download; nothing was saved, try again "
                    "on a better connection"
                )
            return super().update(n)

    return Bar


@contextmanager
def _translated(
    model: HubModel, filename: str, *, token: str | None, hub_cache: Path | None = None
) -> Iterator[None]:
    """Whatever comes out of the library -> an error of ours."""
    try:
        yield
    except EdgekitError:
        raise
    except Exception as error:  # hf_xet's errors share no class but this
        raise library_error(
            error,
            name=f"{model.repo}/{filename}",
            url=file_url(model, filename),
            token_sent=token is not None,
            folder=hub_cache,
        ) from error


@contextmanager
def _unsigned_logs() -> Iterator[None]:
    """The library logs the address of a cut download with its signature: here without."""

    def unsigned(record: logging.LogRecord) -> bool:
        record.msg, record.args = _SIGNED.sub(r"\1", record.getMessage()), ()
        return True

    loggers = [logging.getLogger(name) for name in _LIBRARY_LOGS]
    for logger in loggers:
        logger.addFilter(unsigned)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(unsigned)
