"""A hub model that ranges cannot show -> its files, whole, in the hub's own cache.

What is to be fetched, and whether there is room for it, is settled before anybody is asked. Files that are
finished stay whatever happens, so the next run goes on there; of others nothing is left.
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
from edgekit.sources import hub_model_of, locate
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
    Trouble,
    bad_certificate,
    offline,
    side_by_side,
    status_error,
    status_trouble,
    unreachable,
)
from edgekit.sources.hub import file_url, locate_hub
from edgekit.sources.reference import HubModel
from edgekit.sources.stores import find_hub_cached, hub_cache_folder, repository_folder
from edgekit.sources.types import MAX_FILE_BYTES, Container, ModelFile, ModelFiles, Origin, Reach
from edgekit.units import MIB, format_bytes

if TYPE_CHECKING:
    import httpx2


SPARE_BYTES = 256 * MIB  # on a disk with less than this, other programs begin to fail
LIGHT_FAILED = "the header alone was not enough"
LISTING_TIMEOUT_S = 20.0  # the hub was asked a moment ago: not another two minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """What is about to be downloaded, for whoever may refuse it."""

    label: str  # the model: "org/name:Q4_K_M"
    files: tuple[HubFile, ...]  # those that are not here yet
    folder: Path  # the hub's cache
    because: str  # why the light inspection was not enough
    lacking: str = LIGHT_FAILED

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def download_model(
    reference: str,
    because: EdgekitError,
    *,
    confirm: Callable[[Download], bool] | None,
    reach: Reach | None = None,
    lacking: str = LIGHT_FAILED,
) -> ModelFiles:
    """The files of a hub model, downloaded where they are not in the hub's cache yet.

    `because` is why the light inspection failed, or what else is `lacking`. It is raised again for everything but a hub
    model, for what the hub does not have, when offline, and with a word about it when `confirm` refuses (None refuses
    unasked).
    SourceError before a byte is fetched when the disk has no room; RemoteAccessError says how to log in.
    """
    reach = reach or Reach()
    model = hub_model_of(reference, reach=reach)
    is_missing = isinstance(because, RemoteNotFoundError)
    if model is None or is_missing or not reach.network or is_offline():
        raise because
    if reach.within is not None:  # whoever asks does not sit at this machine
        by_hand = f"download it on that machine (hf download {model.repo}), and try again"
        _refuse(because, f"Its full files may be enough: {by_hand}")
    if confirm is None or reach.public_only:  # the library follows redirects to wherever they lead
        _refuse(because, _not_allowed("A full download"))
    choice = locate_hub(model, _for_listing(reach))
    files = _describe(model, choice, reach)
    folder = hub_cache_folder()
    download = Download(
        label=choice.label,
        files=tuple(file for file in files if not file.is_in(folder)),
        folder=folder,
        because=str(because),
        lacking=lacking,
    )
    if download.files:
        _require_room(download)
        if not confirm(download):
            _refuse(
                because, _not_allowed(f"The full download of {format_bytes(download.size_bytes)}")
            )
        _announce(download, reach)
    for file in files:  # one that is here costs a look, or a link
        fetch_patiently(file, folder)
    _name_commit(model, files, folder)
    return _found(reference, choice, files[0].model, download)


def _for_listing(reach: Reach) -> Reach:
    """Nothing kept is wanted, and whoever has waited for the hub once need not wait as long again."""
    limit_s = min(reach.total_timeout_s, LISTING_TIMEOUT_S)
    return replace(reach, cache=False, total_timeout_s=limit_s)


def _refuse(because: EdgekitError, told: str) -> NoReturn:
    if not isinstance(because, RemoteInspectError) or isinstance(because, RemoteAccessError):
        raise because  # the same door is closed to a download
    raise type(because)(f"{because}. {told}") from because


def _not_allowed(what: str) -> str:
    return (
        f"{what} may be enough, but was not allowed: --download-up-to SIZE allows it for "
        "one model, allow_download=True in Python"
    )


def _describe(model: HubModel, choice: ModelFiles, reach: Reach) -> list[HubFile]:
    """All files of the choice, at the commit that the first of them is at."""
    beside = filter(None, (choice.config, choice.index, choice.quantization))
    first, *rest = {file.name: file for file in (*beside, *choice.weights)}.values()
    if reach.progress is not None:
        reach.progress(f"{choice.label}: looking up file sizes")
    described = describe_file(model, first, reach)
    more = side_by_side(lambda file: describe_file(described.model, file, reach), rest)
    return [described, *more]


def _require_room(download: Download) -> None:
    free_bytes = _free_bytes(download.folder)
    if free_bytes is not None and free_bytes < download.size_bytes + SPARE_BYTES:
        raise SourceError(
            f"{download.label}: the full download needs "
            f"{format_bytes(download.size_bytes)} plus {format_bytes(SPARE_BYTES)} to "
            f"spare, and the disk with {download.folder} has {format_bytes(free_bytes)} "
            "free: free some space, or set HF_HUB_CACHE to a folder on another disk. "
            f"{download.lacking.capitalize()}: {download.because}"
        )


def _free_bytes(folder: Path) -> int | None:
    """Where `folder` is or will be; None where nobody can tell."""
    for place in (folder, *folder.parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return None


def _announce(download: Download, reach: Reach) -> None:
    if reach.progress is not None:
        reach.progress("")  # the library's bar takes over the terminal
    logging.getLogger("edgekit").warning(
        "%s (%s); downloading %s to %s",
        download.lacking,
        download.because,
        format_bytes(download.size_bytes),
        download.folder,
    )


def _name_commit(model: HubModel, files: list[HubFile], folder: Path) -> None:
    """Until all was there the revision kept its old meaning; now the library may note the new one.

    It does so when it is asked for a file by the revision's name, and fetches nothing: the smallest file, lest
    the revision moved on in the meantime. Without the note the files are found all the same.
    """
    if not is_commit(model.revision):
        smallest = min(files, key=lambda file: file.size_bytes)
        named = replace(model, revision=model.revision or "main")
        with suppress(EdgekitError):
            fetch_file(replace(smallest, model=named), folder)


def _found(reference: str, choice: ModelFiles, pinned: HubModel, download: Download) -> ModelFiles:
    found = find_hub_cached(pinned, download.folder)
    if found is None:
        raise SourceError(
            f"{download.folder} no longer has the files that were just downloaded: try again"
        )
    how = f"downloaded in full ({format_bytes(download.size_bytes)})"
    note = f"{how if download.files else 'read from the hub cache'}: {download.lacking}"
    return replace(
        found,
        reference=reference,
        alternatives=choice.alternatives,
        notes=(*choice.notes, f"{note} ({download.because})"),
    )


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


# What a file system without room answers: no space, no quota, no longer file for this process.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def library_error(
    error: Exception, *, name: str, url: str, token_sent: bool, folder: Path | None = None
) -> SourceError:
    """Whatever huggingface_hub raised for a request or a download to `folder`, in our words."""
    import ssl

    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    causes = list(_causes(error))
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return bad_certificate(url, name=name)
    for cause in causes:
        match cause:
            case OfflineModeIsEnabled():
                return offline(name=name)
            case HfHubHTTPError():
                return _answered(cause.response, name=name, token_sent=token_sent)
            case httpx2.ConnectError() | httpx2.ProxyError():
                return _again(unreachable(_asked(cause, url), str(cause)), name=name)
            case httpx2.TransportError():
                how = (
                    "stopped sending"
                    if isinstance(cause, httpx2.TimeoutException)
                    else "closed the connection"
                )
                return _again(Trouble(what=f"{host_of(_asked(cause, url))} {how}"), name=name)
            case OSError() if cause.errno in _NO_ROOM:
                return _no_room(folder, name=name)
            case OSError() if folder is not None and cause.errno is not None:
                return SourceError(
                    f"{name}: cannot write to {cause.filename or folder} "
                    f"({cause.strerror}); check its permissions, or set HF_HUB_CACHE to "
                    "another folder"
                )
    text = str(error)
    if "No space left" in text:  # hf_xet has words only
        return _no_room(folder, name=name)
    said = "" if "://" in text else f": {text.partition(chr(10))[0][:200]}"  # it may be signed
    return _again(Trouble(what=f"the download failed ({type(error).__name__}{said})"), name=name)


def _no_room(folder: Path | None, *, name: str) -> SourceError:
    return SourceError(
        f"{name}: the disk with {folder} is full, or your quota on it is used up; "
        "unfinished files were removed: free some space, or set HF_HUB_CACHE to a folder "
        "on another disk"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it came from; a chain may be a circle."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        yield cause
        cause = cause.__cause__ or cause.__context__


def _asked(error: httpx2.TransportError, url: str) -> str:
    """The address that failed: the hub's, or the one it led to."""
    try:
        return str(error.request.url)
    except RuntimeError:  # it was not sent yet
        return url


def _again(trouble: Trouble, *, name: str) -> RemoteInspectError:
    return RemoteInspectError(f"{name}: {trouble.what}; {trouble.advice}")


def _answered(response: httpx2.Response, *, name: str, token_sent: bool) -> RemoteInspectError:
    headers = {key.lower(): value for key, value in response.headers.items()}
    url = str(response.request.url)
    answer = ResponseHead(
        status=response.status_code, headers=headers, url=url, token_sent=token_sent and is_hub(url)
    )
    trouble = status_trouble(answer)
    if trouble is None and not is_hub(url) and answer.status in {401, 403}:
        trouble = Trouble(
            what=f"{host_of(url)} answered {answer.status}: the download link has expired"
        )
    return status_error(answer, name=name) if trouble is None else _again(trouble, name=name)


_WITHOUT_WEIGHTS = {Origin.SAMPLE: "a built-in sample is only a header, without weights"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    label: str
    path: Path
    notes: tuple[str, ...] = ()


def find_weights(
    reference: str | os.PathLike[str],
    *,
    reach: Reach | None = None,
    confirm: Callable[[Download], bool] | None = None,
    several: bool = False,
) -> Found:
    """The file itself: a path, a name in one of the stores on this machine, or a hub id.

    `several`: of a model in several files, the first. Else such a one is refused.
    A hub id that is not in the hub's cache is downloaded to it when `confirm` says so.
    """
    text = os.fspath(reference)
    reach = reach or Reach()
    files = _on_this_machine(text, reach, confirm)
    if (why := _WITHOUT_WEIGHTS.get(files.origin)) is not None:
        raise UsageError(f"{text}: {why}, so there is nothing to run")
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
    return Found(label=files.label, path=path, notes=files.notes)


def _on_this_machine(
    text: str, reach: Reach, confirm: Callable[[Download], bool] | None
) -> ModelFiles:
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
        if not files.origin.is_remote:
            return files
        # What is kept of a hub model is its header: the weights are not here.
        missing = RemoteInspectError(f"{files.label} is not on this machine")

    because = RemoteInspectError(
        f"the weights of {text} are needed, but they are not on this machine"
    )
    because.__cause__ = missing
    return download_model(
        text, because, confirm=confirm, reach=reach, lacking="the weights are needed"
    )
