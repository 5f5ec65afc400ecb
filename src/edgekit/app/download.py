"""`download`: a name -> the repository that has it -> its files in the hub's cache."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edgekit.app.open import open_named
from edgekit.app.published import none_found, published_files
from edgekit.engines import default_engine
from edgekit.errors import (
    HeaderError,
    NotFoundError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    SourceError,
    UsageError,
)
from edgekit.index import entry_with_id, index_problems
from edgekit.index.references import entry_named, is_path, with_near
from edgekit.index.repositories import Form, model_at, repositories_of
from edgekit.index.types import Entry, ModelPurpose
from edgekit.machine.probes import detect
from edgekit.request import Request, Session
from edgekit.sources.download import Download, download_model, local_files
from edgekit.sources.local import is_here
from edgekit.sources.locator import hub_model_of
from edgekit.sources.types import Container, ModelFile, ModelFiles, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloaded:
    """The files of a model, which are on this machine now."""

    label: str  # "unsloth/Qwen3-8B-GGUF:Q4_K_M"
    files: tuple[Path, ...]  # the weights, and the image projector of a GGUF
    size_bytes: int  # of all of them
    downloaded_bytes: int  # 0: they were on this machine already


def download(
    reference: str, session: Session, *, quant: str | None = None, projector: bool = True
) -> Downloaded:
    """Download what `reference` means, unless it is on this machine. Raises SourceError or UsageError.

    `quant`: a quantisation of a name of the index. `projector`: a vision model gets the image projector that llama.cpp
    loads with it. `session.notify` is called with how a name was understood that is not spelled like the model's,
    `session.confirm` with what will be downloaded, once the disk has room for it.
    """
    if not reference.strip():
        raise UsageError("give the name of a model: edgekit download qwen3-8b:Q8_0")
    if is_here(reference):
        raise UsageError(f"{reference} is a file or folder on this machine already")
    try:
        entry, references, note = _known_repositories(reference, quant)
    except HeaderError:  # the index cannot be read: the hub still has what is not in it
        entry, references, note = None, (_at(reference, quant),), ""
    for text in (*filter(None, (note,)), *index_problems()):
        session.notify(text)
    fetched = 0

    def confirm(download: Download) -> bool:
        nonlocal fetched
        if session.confirm is not None and not session.confirm(download):
            return False
        fetched = download.size_bytes
        return True

    try:
        files = _first_found(reference, entry, references, session, confirm, projector=projector)
    except (NotFoundError, RemoteInspectError) as error:
        raise error if entry is not None else with_near(error, reference) from error
    if files.origin is Origin.SAMPLE:
        raise UsageError(f"{reference} is a sample header: there is nothing to download")
    paths = [*map(_path_of, (*files.weights, *(files.projectors[:1] if projector else ())))]
    return Downloaded(
        label=files.label,
        files=tuple(paths),
        size_bytes=sum(path.stat().st_size for path in paths),
        downloaded_bytes=fetched,
    )


def _path_of(file: ModelFile) -> Path:
    with closing(file.open()) as opened:
        return Path(opened.name)


def _known_repositories(
    reference: str, quant: str | None
) -> tuple[Entry | None, tuple[str, ...], str]:
    """The model of the index that is meant, the repositories that have it, the best first, and how a misspelt name was
    understood. Any other reference is itself the only repository.

    Raises UsageError if no repository is known.
    """
    match = None
    if "/" not in reference and not is_path(reference):
        match = entry_named(reference, absolute=False)
    if match is None or match.entry.is_users:
        model = hub_model_of(reference)
        known = None if model is None else model_at(model.repo)
        return None if known is None else entry_with_id(known[0]), (_at(reference, quant),), ""
    entry, quant = match.entry, quant or match.quant
    if quant is not None:  # of an engine that loads safetensors: 4bit, AWQ, FP8
        others = [row for row in repositories_of(entry.id) if row.form not in _AS_GGUF]
        names = tuple(row.name for row in others if row.tag(quant) is not None)
        ggufs = repositories_of(entry.id, Form.GGUF)
        if names and all(row.tag(quant) is None for row in ggufs):
            return entry, names, match.note
    request = Request(engines=(default_engine().name,), machine=detect())
    chooses = quant is None and entry.has_geometry  # else its layers are not needed
    resolved = open_named(f"catalog:{entry.id}") if chooses else None
    return entry, published_files(resolved, entry.id, quant, request)[1], match.note


def _at(reference: str, quant: str | None) -> str:
    return reference if quant is None else f"{reference}:{quant}"


_AS_GGUF = (Form.GGUF, Form.OLLAMA, Form.ORIGINAL)  # forms of which a GGUF file is downloaded


def _first_found(
    name: str,
    entry: Entry | None,
    references: tuple[str, ...],
    session: Session,
    confirm: Callable[[Download], bool],
    *,
    projector: bool,
) -> ModelFiles:
    """The files of the first reference that can be had: one that is here already, else one that is downloaded."""
    offline = replace(session.reach, network=False)
    needs_projector = projector and entry is not None and ModelPurpose.VISION in entry.kinds
    for reference in references:
        with suppress(SourceError):
            files = local_files(reference, offline, None)
            if session.reach.network and _lacks_files(files, needs_projector=needs_projector):
                with suppress(RemoteInspectError):  # what is here is better than nothing
                    return _download(reference, session, confirm, projector=projector)
            return files
    last_error: SourceError | None = None
    for reference in references:
        try:
            if hub_model_of(reference) is None or not session.reach.network:
                return local_files(reference, session.reach, confirm)
            return _download(reference, session, confirm, projector=projector)
        except (NotFoundError, RemoteNotFoundError, RemoteAccessError) as error:
            if len(references) == 1:
                raise
            last_error = error  # a repository may be gone, or want a login: try the next
        except RemoteInspectError as error:
            if session.reach.network or len(references) == 1:
                raise
            last_error = error
    raise none_found(name, references, last_error) from last_error


def _lacks_files(files: ModelFiles, *, needs_projector: bool) -> bool:
    """Whether a model in the hub's cache seems to lack what is needed to run it: another program cached it."""
    if files.origin is not Origin.HUB_CACHE:
        return False
    if files.container is Container.GGUF:
        return needs_projector and not files.projectors
    return not files.others


def _download(
    reference: str, session: Session, confirm: Callable[[Download], bool], *, projector: bool
) -> ModelFiles:
    return download_model(
        reference,
        RemoteInspectError(f"{reference} is not on this machine"),
        confirm=confirm,
        reach=session.reach,
        lacking="",
        to_run=True,
        projector=projector,
    )
