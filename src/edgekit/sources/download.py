"""Full downloads: the files of a hub model, into the hub's own cache, by huggingface_hub itself.

The list of files and the disk space are checked before the user is asked. Finished files always stay, so the next run
continues from there; unfinished ones are removed.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from edgekit import __version__
from edgekit.errors import (
    EdgekitError,
    HeaderError,
    RemoteAccessError,
    RemoteChangedError,
    RemoteInspectError,
    RemoteNotFoundError,
    SourceError,
    UsageError,
)
from edgekit.sources.address import (
    host_of,
    hub_endpoint,
    hub_library,
    is_hub,
    is_offline,
    token_for,
)
from edgekit.sources.http import (
    ResponseHead,
    TransientFailure,
    causes,
    certificate_error,
    connection_failure,
    is_certificate_error,
    offline_error,
    side_by_side,
    status_error,
    transient_status,
)
from edgekit.sources.hub import file_url, locate_hub
from edgekit.sources.locator import hub_model_of, locate
from edgekit.sources.reference import HubModel
from edgekit.sources.stores import find_hub_cached, hub_cache_folder, repository_folder
from edgekit.sources.types import MAX_FILE_BYTES, Container, ModelFile, ModelFiles, Origin, Reach
from edgekit.units import MIB, format_bytes

if TYPE_CHECKING:
    import httpx2

SPARE_BYTES = 256 * MIB  # with less free disk space, other programs begin to fail
LIGHT_FAILED = "the header alone was not enough"
LISTING_TIMEOUT_S = 20.0  # short, because the hub was queried a moment ago


# -- the file to run -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGguf:
    label: str
    path: Path  # of the first file
    projector: Path | None = None  # next to it
    notes: tuple[str, ...] = ()


def find_weights(
    reference: str | os.PathLike[str],
    *,
    reach: Reach | None = None,
    confirm: Callable[[Download], bool] | None = None,
    several: bool = False,
    projector: bool = False,
) -> LocalGguf:
    """The GGUF file on this machine that `reference` means: a path, a name in a local store, or a hub id.

    `several`: return the first file of a split model; otherwise split models are refused. A hub id that is not in the
    hub's cache is downloaded if `confirm` agrees; with `projector`, also the image projector of its repository.
    """
    text = os.fspath(reference)
    files = local_files(text, reach or Reach(), confirm, projector=projector)
    if files.origin is Origin.SAMPLE:
        raise UsageError(
            f"{text}: a built-in sample is only a header, without weights, so there is nothing to run"
        )
    if files.container is not Container.GGUF or not files.weights:
        raise HeaderError(
            "this is not a GGUF file, but one is needed: convert it "
            "(convert_hf_to_gguf.py FOLDER --outtype f16), or give a GGUF repository",
            file=files.label,
        )
    if len(files.weights) > 1 and not several:
        raise UsageError(
            f"{files.label} is split into {len(files.weights)} files: merge them "
            f"(llama-gguf-split --merge {files.weights[0].name} MODEL.gguf) and give the "
            "result"
        )
    with closing(files.weights[0].open()) as opened:
        path = Path(opened.name)
    companion: Path | None = None
    if files.projectors:
        with closing(files.projectors[0].open()) as opened:
            companion = Path(opened.name)
    return LocalGguf(label=files.label, path=path, projector=companion, notes=files.notes)


def local_files(
    text: str,
    reach: Reach,
    confirm: Callable[[Download], bool] | None,
    *,
    to_run: bool = False,
    projector: bool = False,
) -> ModelFiles:
    """The model's files on this machine; a hub model that is not here yet is downloaded if `confirm` agrees.

    `to_run`: also the tokenizer and what else engines read next to safetensors. `projector`: also an image projector;
    one that the hub's cache lacks is downloaded.
    """
    try:
        files = locate(text, reach=replace(reach, network=False))
    except SourceError as error:
        if not reach.network:
            raise
        if hub_model_of(text) is None:
            if not isinstance(error, RemoteInspectError):
                raise
            raise RemoteInspectError(
                f"{text} is not on this machine: download the file and give its path"
            ) from error
        missing: SourceError = error
    else:
        may_lack = projector and reach.network and files.origin is Origin.HUB_CACHE
        if not files.origin.is_remote and not (may_lack and not files.projectors):
            return files
        # Only the header of a hub model is cached, not its weights; or only its weights, not its projector.
        missing = RemoteInspectError(f"{files.label} is not on this machine")
    because = RemoteInspectError(
        f"the weights of {text} are needed, but they are not on this machine"
    )
    because.__cause__ = missing
    return download_model(
        text,
        because,
        confirm=confirm,
        reach=reach,
        lacking="the weights are needed",
        to_run=to_run,
        projector=projector,
    )


# -- a whole model -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """What is about to be downloaded, for the user to confirm."""

    label: str  # the model: "org/name:Q4_K_M"
    size_bytes: int  # of the files that are not there yet
    folder: Path  # the hub's cache, or the store of the program that downloads it
    because: str  # why the light inspection was not enough
    lacking: str = LIGHT_FAILED  # empty: a download was asked for


def require_consent(
    label: str,
    *,
    size_bytes: int,
    folder: Path,
    reach: Reach,
    confirm: Callable[[Download], bool] | None,
) -> None:
    """Raises RemoteInspectError unless a program may download a model into its own store."""
    because = RemoteInspectError(f"{label} is not in {folder}")
    if not reach.network or is_offline():
        raise RemoteInspectError(f"{because}, and the network is off (--offline or HF_HUB_OFFLINE)")
    planned = Download(
        label=label, size_bytes=size_bytes, folder=folder, because=str(because), lacking=""
    )
    if confirm is None or not confirm(planned):
        _refuse(because, _not_allowed(f"The full download of {format_bytes(size_bytes)}"))


def download_model(
    reference: str,
    because: EdgekitError,
    *,
    confirm: Callable[[Download], bool] | None,
    reach: Reach | None = None,
    lacking: str = LIGHT_FAILED,
    to_run: bool = False,
    projector: bool = False,
) -> ModelFiles:
    """The files of a hub model, downloaded if they are not in the hub's cache yet.

    `to_run`: also the tokenizer and what else engines read next to safetensors; `projector`: also the one that
    llama.cpp would load with a GGUF. The weights come last: where they are, all is there.

    `because` is the error of the light inspection; `lacking` says why files are needed, and is empty if a download was
    asked for. `because` is raised again for anything except a hub model, for a model that the hub does not have, when
    offline, and with advice if `confirm` refuses (None always refuses). SourceError if the disk is too full;
    RemoteAccessError says how to log in.
    """
    reach = reach or Reach()
    model = hub_model_of(reference, reach=reach)
    is_missing = isinstance(because, RemoteNotFoundError)
    if model is None or is_missing or not reach.network or is_offline():
        raise because
    if reach.within is not None:  # the request came from another machine
        by_hand = f"download it on that machine (hf download {model.repo}), and try again"
        _refuse(because, f"Its full files may be enough: {by_hand}")
    if confirm is None or reach.public_only:  # the library follows redirects anywhere
        _refuse(because, _not_allowed("A full download"))
    # Bypass cached responses, and use a shorter timeout than before.
    listing_s = min(reach.total_timeout_s, LISTING_TIMEOUT_S)
    choice = locate_hub(model, replace(reach, cache=False, total_timeout_s=listing_s))
    if reach.progress is not None:
        reach.progress(f"{choice.label}: looking up file sizes")
    companions = [*filter(None, (choice.config, choice.index, choice.quantization))]
    companions += choice.others if to_run else ()
    companions += choice.projectors[:1] if projector else ()
    first, *rest = {file.name: file for file in (*companions, *choice.weights)}.values()
    described = describe_file(model, first, reach)
    pinned = described.model  # all files at the commit of the first
    files = [described, *side_by_side(lambda file: describe_file(pinned, file, reach), rest)]
    folder = hub_cache_folder()
    missing = [file for file in files if not file.is_cached]
    download = Download(
        label=choice.label,
        size_bytes=sum(file.size_bytes for file in missing),
        folder=folder,
        because=str(because),
        lacking=lacking,
    )
    if missing:
        _require_space(download)
        size = format_bytes(download.size_bytes)
        if not confirm(download):
            _refuse(because, _not_allowed(f"The full download of {size}"))
        if reach.progress is not None:
            reach.progress("")  # the library's bar takes over the terminal
        if lacking:
            logging.getLogger("edgekit").warning(
                "%s (%s); downloading %s to %s", lacking, download.because, size, folder
            )
    for file in files:  # cheap for files that are already in the cache
        _with_retries(partial(fetch_file, file))
    _record_commit(model, files)
    downloaded = find_hub_cached(pinned)
    if downloaded is None:
        raise SourceError(f"{folder} no longer has the files that were just downloaded: try again")
    how = "read from the hub cache"
    if missing:
        how = f"downloaded in full ({format_bytes(download.size_bytes)})"
    return replace(
        downloaded,
        reference=reference,
        alternatives=choice.alternatives,
        notes=(*choice.notes, f"{how}: {lacking} ({download.because})" if lacking else how),
    )


def _refuse(because: EdgekitError, advice: str) -> NoReturn:
    """Raise `because` again; with the advice, unless a download would fail the same way."""
    if not isinstance(because, RemoteInspectError) or isinstance(because, RemoteAccessError):
        raise because
    raise type(because)(f"{because}. {advice}") from because


def _not_allowed(what: str) -> str:
    return (
        f"{what} may be enough, but was not allowed: --download-up-to SIZE allows it for "
        "one model, allow_download=True in Python"
    )


def _require_space(download: Download) -> None:
    """Raises SourceError if the disk has too little free space for the download."""
    free_bytes = None
    for folder in (download.folder, *download.folder.parents):  # the folder may not exist yet
        with suppress(OSError):
            free_bytes = shutil.disk_usage(folder).free
            break
    if free_bytes is not None and free_bytes < download.size_bytes + SPARE_BYTES:
        raise SourceError(
            f"{download.label}: the full download needs "
            f"{format_bytes(download.size_bytes)} plus {format_bytes(SPARE_BYTES)} to "
            f"spare, and the disk with {download.folder} has {format_bytes(free_bytes)} "
            "free: free some space, or set HF_HUB_CACHE to a folder on another disk"
            f"{download.lacking and f'. {download.lacking.capitalize()}: {download.because}'}"
        )


def _record_commit(model: HubModel, files: list[HubFile]) -> None:
    """Make the library record which commit the revision means, now that all files are in the cache.

    The library does so when a file is requested by the revision's name. The smallest file is requested, because the
    library fetches it again if the revision has moved. Errors are ignored: the files are found even without the record.
    """
    if not is_commit(model.revision):
        smallest = min(files, key=lambda file: file.size_bytes)
        by_name = replace(model, revision=model.revision or "main")
        with suppress(EdgekitError):
            fetch_file(replace(smallest, model=by_name))


# -- one file ------------------------------------------------------------------------------------
# The library works in the caller's thread, so that Ctrl-C reaches it, and removes unfinished files after any failure.
# It resumes a file after a lost connection. When it gives up, the next try starts that file from the beginning, because
# each unfinished file has a new name.

MAX_TRIES = 3  # of one file; in each of them the library resumes up to five times
FIRST_PAUSE_S = 1.0  # before the second try; doubled before each further one
MAX_RESTARTS = 3  # for servers that restart from byte 0 after a lost connection

_COMMIT = re.compile(r"[0-9a-f]{40}")
_BLOB_NAME = re.compile(r"[A-Za-z0-9_+=-][A-Za-z0-9_.+=-]{0,127}")
_SIGNED_ADDRESS = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]*")
_Result = TypeVar("_Result")
_LIBRARY_LOGS = ("huggingface_hub.file_download", "huggingface_hub.utils._http")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file as the hub describes it."""

    model: HubModel  # its revision is a commit
    name: str
    size_bytes: int
    etag: str  # what the library calls the file in its cache
    by_xet: bool  # fetched by hf_xet, which gets the length from the content hash

    @property
    def is_cached(self) -> bool:
        """Whether the hub's cache has the file's content, of this or another commit; only a link may be missing."""
        repository = repository_folder(self.model)
        link = repository / "snapshots" / str(self.model.revision) / self.name
        return link.is_file() or (repository / "blobs" / self.etag).is_file()


def is_commit(revision: str | None) -> bool:
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def describe_file(model: HubModel, file: ModelFile, reach: Reach) -> HubFile:
    """The file as a HEAD request describes it, which must agree with the hub's listing."""
    metadata = _with_retries(lambda: _fetch_metadata(model, file.name, reach))
    name = f"{model.repo}/{file.name}"
    commit = metadata.commit_hash
    is_other_commit = is_commit(model.revision) and commit != model.revision
    if not is_commit(commit) or is_other_commit or not _BLOB_NAME.fullmatch(metadata.etag or ""):
        raise RemoteInspectError(
            f"{name}: {hub_endpoint()} does not report the commit and hash of its files, "
            "so nothing can be downloaded from it; check HF_ENDPOINT"
        )
    size_bytes = file.size_bytes if metadata.size is None else metadata.size
    if size_bytes is None or not 0 <= size_bytes <= MAX_FILE_BYTES:
        raise RemoteInspectError(
            f"{name}: not downloaded, because Hugging Face does not report its size"
        )
    if file.size_bytes not in {None, size_bytes}:
        raise RemoteChangedError(
            f"{name}: listed with {file.size_bytes:,} bytes, but the server sends "
            f"{size_bytes:,}; it may just be changing: try again later"
        )
    has_xet = find_spec("hf_xet") is not None and not hub_library().constants.HF_HUB_DISABLE_XET
    return HubFile(
        model=replace(model, revision=commit),
        name=file.name,
        size_bytes=size_bytes,
        etag=metadata.etag,
        by_xet=metadata.xet_file_data is not None and has_xet,
    )


def _fetch_metadata(model: HubModel, filename: str, reach: Reach) -> Any:
    """The library's HfFileMetadata, from a HEAD request."""
    url = file_url(model, filename)
    token = token_for(url)
    with _translate_errors(model, filename, token=token):
        return hub_library().get_hf_file_metadata(
            url, token=token or False, timeout=reach.read_timeout_s, endpoint=hub_endpoint()
        )


def _with_retries(action: Callable[[], _Result]) -> _Result:
    """The result of `action`, which is retried after transient errors. Raises the last one."""
    for attempt in range(MAX_TRIES - 1):
        try:
            return action()
        except (RemoteNotFoundError, RemoteAccessError, RemoteChangedError):
            raise  # not transient
        except RemoteInspectError:
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    return action()


def fetch_file(file: HubFile) -> None:
    """Download the file into the hub's cache unless it is there already. Never writes more than its listed size."""
    model, folder = file.model, hub_cache_folder()
    token = token_for(file_url(model, file.name))
    with _translate_errors(model, file.name, token=token, folder=folder), _redact_logs():
        path = hub_library().hf_hub_download(
            model.repo,
            file.name,
            revision=model.revision,
            cache_dir=folder,
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
    """A progress bar for the library, which updates it before every write: by raising, the bar stops a download that
    exceeds the listed size or restarts too often.
    """
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, **settings: Any) -> None:
            self._left_bytes = file.size_bytes
            self._restarts = 0
            settings["desc"] = file.name  # the library would show the end of a signed address
            super().__init__(**settings)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> Any:
            self._left_bytes -= int(n or 0)
            if n is not None and n < 0:  # the server restarts from byte 0
                self._restarts += 1
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
def _redact_logs() -> Iterator[None]:
    """Remove signatures from the addresses that the library logs after a lost connection."""

    def redact(record: logging.LogRecord) -> bool:
        record.msg, record.args = _SIGNED_ADDRESS.sub(r"\1", record.getMessage()), ()
        return True

    loggers = [logging.getLogger(name) for name in _LIBRARY_LOGS]
    for logger in loggers:
        logger.addFilter(redact)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(redact)


# -- errors of the library -----------------------------------------------------------------------

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def _translate_errors(
    model: HubModel, filename: str, *, token: str | None, folder: Path | None = None
) -> Iterator[None]:
    """Turn every error that the library raises in the block into an EdgekitError."""
    try:
        yield
    except EdgekitError:
        raise
    except Exception as error:  # the only base class that hf_xet's errors share
        raise library_error(
            error,
            name=f"{model.repo}/{filename}",
            url=file_url(model, filename),
            token_sent=token is not None,
            folder=folder,
        ) from error


def library_error(
    error: Exception, *, name: str, url: str, token_sent: bool, folder: Path | None = None
) -> SourceError:
    """The EdgekitError for an error of huggingface_hub during a request or a download to `folder`."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    disk_full = SourceError(
        f"{name}: the disk with {folder} is full, or your quota on it is used up; "
        "unfinished files were removed: free some space, or set HF_HUB_CACHE to a folder "
        "on another disk"
    )
    if is_certificate_error(error):
        return certificate_error(url, name=name)
    for cause in causes(error):
        match cause:
            case OfflineModeIsEnabled():
                return offline_error(name=name)
            case HfHubHTTPError():
                return _response_error(cause.response, name=name, token_sent=token_sent)
            case httpx2.TransportError():
                with suppress(RuntimeError):  # the error has no request
                    url = str(cause.request.url)  # the hub may have redirected
                return _transient_error(connection_failure(cause, url), name=name)
            case OSError() if cause.errno in _DISK_FULL:
                return disk_full
            case OSError() if folder is not None and cause.errno is not None:
                return SourceError(
                    f"{name}: cannot write to {cause.filename or folder} "
                    f"({cause.strerror}); check its permissions, or set HF_HUB_CACHE to "
                    "another folder"
                )
    text = str(error)
    if "No space left" in text:  # hf_xet has no error number
        return disk_full
    first_line = text.partition("\n")[0][:200]
    reason = "" if "://" in text else f": {first_line}"  # an address may be signed: do not show it
    what = f"the download failed ({type(error).__name__}{reason})"
    return _transient_error(TransientFailure(what=what), name=name)


def _response_error(
    response: httpx2.Response, *, name: str, token_sent: bool
) -> RemoteInspectError:
    """The error for a response of the hub, or of the server that it redirected to."""
    headers = {key.lower(): value for key, value in response.headers.items()}
    url = str(response.request.url)
    head = ResponseHead(
        status=response.status_code, headers=headers, url=url, token_sent=token_sent and is_hub(url)
    )
    failure = transient_status(head)
    if failure is None and not is_hub(url) and head.status in {401, 403}:
        what = f"{host_of(url)} answered {head.status}: the download link has expired"
        failure = TransientFailure(what=what)
    if failure is None:
        return status_error(head, name=name)
    return _transient_error(failure, name=name)


def _transient_error(failure: TransientFailure, *, name: str) -> RemoteInspectError:
    return RemoteInspectError(f"{name}: {failure.what}; {failure.advice}")
