"""What a server or the network answered, turned into the error that says what to do about it."""

from __future__ import annotations

import errno
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.errors import (
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    SourceError,
)
from edgekit.sources.address import host_of
from edgekit.sources.endpoint import is_hub

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import httpx2

# Worth another try; every other status is an answer.
PASSING_STATUSES = frozenset({429, 500, 502, 503, 504})

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
_NO_ACCESS = (
    "the token has no access to it: request access on the model's page, or use another token"
)

# The hub's X-Error-Code says more than its status: it answers 401 for a repository that does not
# exist. Names from huggingface_hub/utils/_http.py, hf_raise_for_status @ 2.4.0.
_MISSING = {
    "RepoNotFound": "model not found (no such repository, or a private one)",
    "RevisionNotFound": "no such revision in the repository",
    "EntryNotFound": "no such file in the repository",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHead:
    """The head of an HTTP answer."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    url: str  # may carry a signature: use it, never show or store it
    token_sent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why a request has to be made again."""

    what: str
    advice: str = "try again later"
    timed_out: bool = False
    retry_after_s: float | None = None  # what the server asked for


def status_error(answer: ResponseHead, *, name: str) -> RemoteInspectError:
    """The error for a status that another try will not change."""
    code = answer.headers.get("x-error-code", "")
    if code in _MISSING:
        return _missing(answer, _MISSING[code], name=name)
    if code == "GatedRepo" or answer.status in {401, 403}:
        return _refused(answer, gated=code == "GatedRepo", name=name)
    if answer.status in {404, 410}:
        return _missing(answer, "not found", name=name)
    return RemoteInspectError(
        f"{name}: {host_of(answer.url)} answered {answer.status} instead of sending a "
        "model file; check the address, or download the file and give its path"
    )


def _missing(answer: ResponseHead, what: str, *, name: str) -> RemoteNotFoundError:
    advice = "check the spelling"
    if "private" in what:
        no_access = "your token has no access to it"
        advice += f"; if it is private, {no_access if answer.token_sent else _LOG_IN}"
    return RemoteNotFoundError(f"{name}: {what} on {host_of(answer.url)}; {advice}")


def _refused(answer: ResponseHead, *, gated: bool, name: str) -> RemoteAccessError:
    what = "the model is gated" if gated else "the model is private or gated"
    where = f"{name}: {what} ({host_of(answer.url)} answered {answer.status})"
    if answer.token_sent:
        return RemoteAccessError(f"{where}; {_NO_ACCESS}")
    if is_hub(answer.url):
        return RemoteAccessError(f"{where}; accept its terms on the model's page, then {_LOG_IN}")
    return RemoteAccessError(f"{where}; no token was sent, because tokens only go to Hugging Face")


def status_trouble(answer: ResponseHead) -> Trouble | None:
    """For a status that may pass: what to say, and how long the server asks us to wait."""
    if answer.status not in PASSING_STATUSES:
        return None
    too_many = " (too many requests)" if answer.status == 429 else ""
    return Trouble(
        what=f"{host_of(answer.url)} answered {answer.status}{too_many}",
        retry_after_s=_retry_after_s(answer.headers),
    )


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Retry-After in seconds or as a date, else the time to the next window of the rate limit."""
    from email.utils import parsedate_to_datetime

    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,20}", text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        pass
    # The hub's own form: RateLimit: "api";r=0;t=55
    limit = re.search(r";\s*t\s*=\s*([0-9]{1,9})\b", headers.get("ratelimit", "")[:1000])
    return float(limit[1]) if limit else None


def lost(url: str, received_bytes: int, *, timed_out: bool = False) -> Trouble:
    how = "stopped sending" if timed_out else "closed the connection"
    return Trouble(what=f"{host_of(url)} {how} after {received_bytes:,} bytes", timed_out=timed_out)


def unreachable(url: str, reason: str) -> Trouble:
    printable = "".join(letter for letter in reason if letter.isprintable())[:120]
    return Trouble(
        what=f"cannot reach {host_of(url)} ({printable or 'no reason given'})",
        advice="check the network, the host name and whether a proxy is needed (HTTPS_PROXY); "
        "models already on this machine still work",
    )


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


def bad_certificate(url: str, *, name: str) -> RemoteInspectError:
    return RemoteInspectError(
        f"{name}: the certificate of {host_of(url)} is not trusted; if you trust it, set "
        "SSL_CERT_FILE to the file of its certificate authority"
    )


def encoded(answer: ResponseHead, *, name: str) -> RemoteInspectError:
    return RemoteInspectError(
        f"{name}: {host_of(answer.url)} sends the file compressed although we asked for "
        "it uncompressed, so byte offsets in it cannot be used; download the file and "
        "give its path"
    )


def offline(*, name: str) -> RemoteInspectError:
    return RemoteInspectError(
        f"{name}: not on this machine, and the network is off (HF_HUB_OFFLINE); turn it "
        "on, or give a path"
    )
