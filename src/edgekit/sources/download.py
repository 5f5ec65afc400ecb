"""A hub model that ranges cannot show -> its files, whole, in the hub's own cache.

What is to be fetched, and whether there is room for it, is settled before anybody is asked. Files that are
finished stay whatever happens, so the next run goes on there; of others nothing is left.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from edgekit.errors import (
    EdgekitError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    SourceError,
)
from edgekit.sources import hub_model_of
from edgekit.sources.endpoint import is_offline
from edgekit.sources.fetch import (
    HubFile,
    describe_file,
    fetch_file,
    fetch_patiently,
    is_commit,
)
from edgekit.sources.hub import locate_hub
from edgekit.sources.reference import HubModel
from edgekit.sources.side_by_side import side_by_side
from edgekit.sources.stores import find_hub_cached, hub_cache_folder
from edgekit.sources.types import ModelFiles, Reach
from edgekit.units import MIB, format_bytes

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
