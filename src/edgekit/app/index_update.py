"""`index update`: a published index, fetched, checked and merged into the user's copy."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urljoin, urlsplit

from edgekit.errors import HeaderError, OutputError, SourceError, UsageError, check_limit
from edgekit.index import database
from edgekit.index.merge import MAX_FILE_BYTES, CheckedIndex, check_index, merge
from edgekit.index.tables import CHECKSUMS_NAME, sha256_of
from edgekit.index.types import SQLITE_NAME
from edgekit.sources.address import is_loopback, redact, site_of
from edgekit.sources.folders import create_data_folder, data_folder
from edgekit.sources.http import Transport
from edgekit.sources.local import expand_home, move_aside, open_regular, try_lock

if TYPE_CHECKING:
    from edgekit.index.merge import Merged
    from edgekit.sources.types import Reach

ADDRESS_VARIABLE = "EDGEKIT_INDEX_URL"
NAMESPACE = "edgekit-index"  # of a signature, as ssh-keygen -Y sign -n takes it
SIGNATURE_SUFFIX, CHECKSUM_SUFFIX = ".sig", ".sha256"
MAX_SMALL_BYTES = 1024 * 1024  # of a checksum file or a signature
LOCK_NAME = "index.lock"
WAIT_S = 120.0  # for another update, which takes a few seconds
_POLL_S = 0.1
_SSH_S = 30.0
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Where an index is published, and how it is verified."""

    address: str  # URL or path
    sha256: str | None = None  # None: the checksum file next to it
    signers: Path | None = None  # OpenSSH's allowed_signers; None: the signature is not checked


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexUpdate:
    """A merged index."""

    merged: Merged
    address: str | None  # None: only EdgeKit's own index and the user's copy were merged
    built: str | None  # of the published index
    sha256: str | None
    signed_by: str | None
    path: Path
    moved_aside: Path | None = None  # the user's copy, if it could not be read


def is_address(text: str) -> bool:
    """Whether it is the address or path of an index, not the id of a model."""
    return "://" in text or "/" in text or os.sep in text or text.lower().endswith(".sqlite")


def is_copy_outdated() -> bool:
    """Whether EdgeKit's own index is newer than the user's copy, which is then not used."""
    folder = data_folder()
    is_there = folder is not None and os.path.lexists(folder / SQLITE_NAME)
    return is_there and database.index_problem() is not None


def update_index(published: Published | None, reach: Reach) -> IndexUpdate:
    """Merge a published index, EdgeKit's own and the user's copy into a new copy, which replaces the old one at once.

    Raises UsageError if nothing verifies the published index, HeaderError if it is not what its checksum or signature
    says, or is damaged. Nothing is changed then. A copy of the user's that cannot be read is kept under another name.
    """
    folder = create_data_folder("the index")
    target = folder / SQLITE_NAME
    with _lock(folder / LOCK_NAME), _temporary_folder(folder) as temporary:
        used = check_index(database.index_file().path)
        files = [used]
        is_damaged = False
        for path in (target, database.PACKAGED):
            if path != used.path and os.path.lexists(path):
                checked = _checked(path)
                if checked is not None:
                    files.append(checked)
                is_damaged = is_damaged or (checked is None and path == target)
        fetched: CheckedIndex | None = None
        sha256, signed_by = None, None
        if published is not None:
            path, sha256, signed_by = _verified(published, reach, temporary)
            try:
                fetched = check_index(path)
            except HeaderError as error:
                raise HeaderError(error.what, file=redact(published.address)) from error
            files.append(fetched)
        draft = temporary / SQLITE_NAME
        merged = merge(files, used, draft)
        moved_aside = move_aside(target) if is_damaged else None
        try:
            draft.replace(target)
        except OSError as error:
            raise OutputError(f"{target}: cannot be written ({error.strerror})") from error
    return IndexUpdate(
        merged=merged,
        address=None if published is None else redact(published.address),
        built=None if fetched is None else fetched.built,
        sha256=sha256,
        signed_by=signed_by,
        path=target,
        moved_aside=moved_aside,
    )


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one update run at a time. The system releases the lock of a process that is killed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _not_writable(path.parent, error) from error
    try:
        deadline = time.monotonic() + WAIT_S
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise SourceError(f"another update of the index is running ({path} is locked)")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    """A folder on the same disk, deleted at the end; those of killed updates are deleted too. Only under the lock."""
    prefix = f"{SQLITE_NAME}."
    for left in folder.glob(f"{prefix}*.part"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        temporary = tempfile.TemporaryDirectory(dir=folder, prefix=prefix, suffix=".part")
    except OSError as error:
        raise _not_writable(folder, error) from error
    with temporary as name:
        yield Path(name)


def _not_writable(folder: Path, error: OSError) -> SourceError:
    return SourceError(
        f"cannot write to {folder} ({error.strerror}): set EDGEKIT_DATA to another folder"
    )


def _checked(path: Path) -> CheckedIndex | None:
    """The index in this file; None if it is damaged, or not a regular file: opening a pipe would never end."""
    try:
        return check_index(path) if path.is_file() else None
    except HeaderError:
        return None


def _verified(published: Published, reach: Reach, folder: Path) -> tuple[Path, str, str | None]:
    """A copy of the published file, its checksum, and who signed it."""
    address, source = published.address, _Source(published.address, reach)
    if source.is_open_to_change and not (published.sha256 or published.signers):
        raise UsageError(
            f"{redact(address)}: its checksum would come over the same unprotected connection: use https://, --sha256 "
            "or --signers"
        )
    if published.sha256 is not None and not _SHA256.fullmatch(published.sha256):
        raise UsageError("--sha256 must be 64 hexadecimal digits")
    expected = published.sha256 or source.stated_checksum()
    path = folder / "published.sqlite"
    source.copy_to(path, MAX_FILE_BYTES)
    found = sha256_of(path)
    if found != expected.lower():
        raise HeaderError(f"its SHA-256 is {found}, not {expected.lower()}", file=redact(address))
    signed_by = None
    if published.signers is not None:
        signature = source.read(SIGNATURE_SUFFIX, MAX_SMALL_BYTES)
        if signature is None:
            raise HeaderError(f"no signature ({SIGNATURE_SUFFIX}) next to it", file=redact(address))
        signature_path = folder / f"published{SIGNATURE_SUFFIX}"
        signature_path.write_bytes(signature)
        signed_by = _signer(path, signature_path, published.signers, name=redact(address))
    return path, found, signed_by


class _Source:
    """A URL or a path, and the files next to it. Raises UsageError or SourceError if it is neither."""

    def __init__(self, address: str, reach: Reach) -> None:
        self._address = address
        self._path = expand_home(address)
        self._is_url = "://" in address
        self._transport = Transport(reach)
        if not self._is_url:
            with self._opened(self._path, MAX_FILE_BYTES):
                return
        try:
            site_of(address)
        except ValueError as error:
            message = f"{redact(address)[:80]}: only https://, http:// and paths"
            raise UsageError(message) from error

    @property
    def is_open_to_change(self) -> bool:
        """Whether others on the network could replace both the file and its checksum."""
        if not self._is_url or urlsplit(self._address).scheme == "https":
            return False
        return not is_loopback(site_of(self._address))

    def stated_checksum(self) -> str:
        """From NAME.sha256 or SHA256SUMS next to the file. Raises UsageError if there is neither."""
        name = (urlsplit(self._address).path if self._is_url else self._address).rpartition("/")[2]
        name = Path(name).name
        for suffix, sibling in ((CHECKSUM_SUFFIX, ""), ("", CHECKSUMS_NAME)):
            raw = self.read(suffix, MAX_SMALL_BYTES, sibling=sibling)
            for line in (raw or b"").decode("utf-8", "replace").splitlines():
                digest, _, file = line.strip().partition(" ")
                is_its = not sibling or file.strip().lstrip("*") == name
                if is_its and _SHA256.fullmatch(digest):
                    return digest
        raise UsageError(
            f"{redact(self._address)}: no {name}{CHECKSUM_SUFFIX} or {CHECKSUMS_NAME} next to it: give --sha256"
        )

    def copy_to(self, target: Path, limit_bytes: int) -> None:
        """Copy the file without holding it in memory. Raises SourceError, HeaderError if it is too large."""
        try:
            with target.open("wb") as copy:
                if self._is_url:
                    name = redact(self._address)
                    self._transport.get(
                        self._address, name=name, limit_bytes=limit_bytes, sink=copy
                    )
                    return
                with self._opened(self._path, limit_bytes) as file:
                    shutil.copyfileobj(file, copy)
        except OSError as error:
            raise OutputError(f"{target}: cannot be written ({error.strerror})") from error

    @contextlib.contextmanager
    def _opened(self, path: Path, limit_bytes: int) -> Iterator[BinaryIO]:
        descriptor, status = open_regular(path)
        with os.fdopen(descriptor, "rb") as file:
            check_limit("bytes", status.st_size, limit_bytes, file=str(path))
            yield file

    def read(self, suffix: str, limit_bytes: int, *, sibling: str = "") -> bytes | None:
        """The small file with this suffix, or another one in its folder; None if there is none. Raises SourceError."""
        from edgekit.errors import RemoteNotFoundError

        if not self._is_url:
            path = self._path.with_name(sibling or f"{self._path.name}{suffix}")
            try:
                with self._opened(path, limit_bytes) as file:
                    return file.read(limit_bytes)
            except SourceError:
                return None
        parts = urlsplit(self._address)
        url = parts._replace(path=f"{parts.path}{suffix}").geturl()
        if sibling:
            url = urljoin(parts._replace(query="", fragment="").geturl(), sibling)
        try:
            reply = self._transport.get(url, name=redact(url), limit_bytes=limit_bytes)
        except RemoteNotFoundError:
            return None
        return bytes(reply.body)


def _signer(path: Path, signature: Path, signers: Path, *, name: str) -> str:
    """Who signed the file, checked by OpenSSH. Raises HeaderError if no key in the list of signers matches."""
    program = shutil.which("ssh-keygen")
    if program is None:
        raise UsageError("--signers needs ssh-keygen (OpenSSH 8.2 or newer) on the PATH")
    if not signers.is_file():
        raise SourceError(f"{signers}: no such file (a list as ssh-keygen's allowed_signers)")
    verify = [program, "-Y", "verify", "-n", NAMESPACE, "-f", str(signers), "-s", str(signature)]
    find = [program, "-Y", "find-principals", "-f", str(signers), "-s", str(signature)]
    try:
        found = subprocess.run(  # noqa: S603 - a list, no shell
            find,
            capture_output=True,
            text=True,
            timeout=_SSH_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        for signer in found.stdout.splitlines() if found.returncode == 0 else ():
            with path.open("rb") as file:
                checked = subprocess.run(  # noqa: S603 - a list, no shell
                    [*verify, "-I", signer],
                    stdin=file,
                    capture_output=True,
                    timeout=_SSH_S,
                    check=False,
                )
            if checked.returncode == 0:
                return signer
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"ssh-keygen could not check the signature: {error}") from error
    raise HeaderError(f"its signature matches no key in {signers}", file=name)
