"""Where this platform keeps what a program must not lose."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from edgekit.errors import SourceError


def data_folder() -> Path | None:
    """EDGEKIT_DATA, or where this platform keeps what a program must not lose; None without a home."""
    if named := os.environ.get("EDGEKIT_DATA"):
        return Path(named)
    try:
        return _platform_folder() / "edgekit"
    except RuntimeError:  # Path.home() knows no home
        return None


def _platform_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def made_data_folder(what: str) -> Path:
    """The same, there to be written to. Raises SourceError, with the way out."""
    folder = data_folder()
    if folder is None:
        raise SourceError(f"no home folder found: set EDGEKIT_DATA to a folder for {what}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(
            f"cannot create {folder} ({error.strerror}): set EDGEKIT_DATA to another folder"
        ) from error
    return folder


def try_lock(descriptor: int) -> bool:
    """Whether this process has the file now: the system's own lock, which dies with its process."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 2**40, os.SEEK_SET)  # far behind what is written
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
