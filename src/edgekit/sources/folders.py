"""EdgeKit's own folders. Cheap to import: a look-up of a name asks for the data folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from edgekit.errors import SourceError


def user_folder(variable: str, *, macos: str, xdg: str, linux: str) -> Path | None:
    """The folder that the environment variable names, else EdgeKit's folder in the platform's usual place; None without
    a home.
    """
    if folder := os.environ.get(variable):
        return Path(folder)
    try:
        if sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / macos
        else:
            base = os.environ.get(xdg) or Path.home() / linux
    except RuntimeError:  # Path.home() finds none
        return None
    return Path(base) / "edgekit"


def cache_root() -> Path | None:
    """EdgeKit's folder for what may be deleted at any time; None without a home."""
    return user_folder("EDGEKIT_CACHE", macos="Caches", xdg="XDG_CACHE_HOME", linux=".cache")


def data_folder() -> Path | None:
    """EdgeKit's folder for data that must not be lost; None without a home."""
    return user_folder(
        "EDGEKIT_DATA", macos="Application Support", xdg="XDG_DATA_HOME", linux=".local/share"
    )


def create_data_folder(what: str) -> Path:
    """The data folder, created if it does not exist. `what` is what it is for, for the error message (SourceError)."""
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
