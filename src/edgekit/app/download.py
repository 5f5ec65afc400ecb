"""`download`: a name -> the repository that has it -> its files in the hub's cache."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edgekit.app.open import open_named
from edgekit.app.run import catalog_name, published_files
from edgekit.engines import default_engine
from edgekit.errors import NotFoundError, RemoteNotFoundError, SourceError, UsageError
from edgekit.machine.probes import detect
from edgekit.request import Request, Session
from edgekit.sources.download import Download, local_files
from edgekit.sources.local import is_here
from edgekit.sources.types import ModelFiles, Origin

USUAL_MIX = "Q4_K_M"  # of a model whose memory is not known well enough to choose for the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloaded:
    """The files of a model, which are on this machine now."""

    label: str  # "unsloth/Qwen3-8B-GGUF:Q4_K_M"
    files: tuple[Path, ...]
    size_bytes: int  # of all files of weights
    downloaded_bytes: int  # 0: they were on this machine already


def download(reference: str, session: Session) -> Downloaded:
    """Download what `reference` means, unless it is on this machine. Raises SourceError or UsageError.

    `session.confirm` is called with what will be downloaded, once the disk has room for it.
    """
    if is_here(reference):
        raise UsageError(f"{reference} is a file or folder on this machine already")
    named = catalog_name(reference)
    if named is None:
        references: tuple[str, ...] = (reference,)
    else:
        entry, quant = named.entry, named.quant
        if quant is None and not entry.has_geometry:
            quant = USUAL_MIX
        request = Request(engines=(default_engine().name,), machine=detect())
        resolved = open_named(f"catalog:{entry.id}")
        references = published_files(resolved, entry.id, quant, request)[1]
    fetched = 0

    def confirm(download: Download) -> bool:
        nonlocal fetched
        if session.confirm is not None and not session.confirm(download):
            return False
        fetched = download.size_bytes
        return True

    files = _first_found(references, session, confirm)
    if files.origin is Origin.SAMPLE:
        raise UsageError(f"{reference} is a sample header: there is nothing to download")
    paths = []
    for weights in files.weights:
        with closing(weights.open()) as opened:
            paths.append(Path(opened.name))
    return Downloaded(
        label=files.label,
        files=tuple(paths),
        size_bytes=sum(path.stat().st_size for path in paths),
        downloaded_bytes=fetched,
    )


def _first_found(
    references: tuple[str, ...], session: Session, confirm: Callable[[Download], bool]
) -> ModelFiles:
    """The files of the first reference that can be had: one that is here already, else one that is downloaded."""
    offline = replace(session.reach, network=False)
    for reference in references:
        with suppress(SourceError):
            return local_files(reference, offline, None)
    for reference in references[:-1]:
        with suppress(NotFoundError, RemoteNotFoundError):  # a repository may be gone: try the next
            return local_files(reference, session.reach, confirm)
    return local_files(references[-1], session.reach, confirm)
