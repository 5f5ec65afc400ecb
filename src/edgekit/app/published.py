"""Repositories that have a model of the index: which quantisation of which, and where its file is."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from edgekit.app.check import Check, check_named
from edgekit.app.open import DEFAULT_MIX, ResolvedModel, open_named
from edgekit.engines import default_engine
from edgekit.engines.choices import accuracy_of
from edgekit.engines.commands import gguf_search
from edgekit.errors import NotFoundError, RemoteNotFoundError, SourceError, UsageError
from edgekit.formats.mixes import mix_by_name, plain_mix
from edgekit.index.names import Match
from edgekit.index.references import entry_named, is_path
from edgekit.index.repositories import Form, repositories_of
from edgekit.request import Request, Session
from edgekit.sources.download import LocalGguf, find_weights
from edgekit.sources.local import is_here
from edgekit.sources.types import Reach

if TYPE_CHECKING:
    from edgekit.index.types import Entry
    from edgekit.model import OpenModel


def index_match(reference: str) -> Match | None:
    """The model of the index that a name such as qwen3-8b:Q8_0 means. None for any other reference."""
    if is_here(reference) or "/" in reference or is_path(reference):
        return None
    match = entry_named(reference, absolute=False)
    if match is None or match.entry.is_users:
        return None
    if match.quant is not None and mix_by_name(plain_mix(match.quant)) is None:
        return None
    return match


def open_published(
    entry: Entry, quant: str | None, request: Request
) -> tuple[tuple[str, ...], OpenModel]:
    """The repositories that have the model, and the model as it would be downloaded. Downloads nothing.

    Without a quantisation, one is chosen for this machine. Raises UsageError if no repository is known.
    """
    resolved = open_named(f"catalog:{entry.id}")
    mix, references = published_files(resolved, entry.id, quant, request)
    (engine,) = request.engines
    model = resolved.opened(engine)
    return references, replace(model, model=default_engine().at_quant(model.model, mix), mix=mix)


def published_files(
    resolved: ResolvedModel | None, name: str, quant: str | None, request: Request
) -> tuple[str, tuple[str, ...]]:
    """A quantisation, and the repositories that have a GGUF of the model at it, the best first: "org/name:Q4_K_M".

    Without `quant`, one is chosen for the machine, or DEFAULT_MIX if `resolved` is None: the index knows too little of
    the model to choose. Raises UsageError if no repository is known.
    """
    repositories = repositories_of(name, Form.GGUF)
    tags = dict.fromkeys(tag for repository in repositories for tag in repository.quants)
    mix: str | None = None if quant is None else quant.upper()
    if mix is None:
        if resolved is None:
            mix = DEFAULT_MIX
        else:  # as in `check` with the same flags; if nothing fits, the usual quantisation
            (answer,) = check_named(resolved, request, Session(reach=Reach(network=False)))
            if not isinstance(answer, Check):
                raise answer.error
            result = answer.result
            mix = result.quantization if result.can_load else resolved.as_file(result.engine).mix
        if all(repository.tag(mix) is None for repository in repositories):
            # No repository has this quantisation: take the most accurate one below it.
            accuracy = accuracy_of(mix) or 0
            published = {tag.upper().removeprefix("UD-") for tag in tags}
            below = [name for name in published if (accuracy_of(name) or accuracy) < accuracy]
            mix = max(below, key=lambda name: accuracy_of(name) or 0, default=None)
    references = tuple(
        f"{repository.name}:{tag}"
        for repository in repositories
        if mix is not None and (tag := repository.tag(mix)) is not None
    )
    if mix is None or not references:
        at_quant = "" if quant is None else f" at {quant}"
        known_quants = f" (known: {', '.join(tags)})" if tags else ""
        raise UsageError(
            f"no known repository has a GGUF of {name}{at_quant}{known_quants}. Search {gguf_search(name)}"
            " and give what you find: edgekit run ORG/REPOSITORY:QUANT, or a file"
        )
    return mix, references


def find_published(
    name: str,
    references: tuple[str, ...],
    session: Session,
    *,
    several: bool,
    projector: bool = False,
) -> LocalGguf:
    """The file from the first repository that has it: on this machine if possible, else downloaded."""
    reach, offline = session.reach, replace(session.reach, network=False)
    for reference in references:
        with suppress(SourceError):
            found = find_weights(reference, reach=offline, several=several)
            if found.projector is not None or not projector:
                return found
    last_error: SourceError | None = None
    for reference in references:
        try:
            return find_weights(
                reference,
                reach=reach,
                confirm=session.confirm,
                several=several,
                projector=projector,
            )
        except (NotFoundError, RemoteNotFoundError) as error:
            last_error = error
            if not reach.network:
                break
    raise none_found(name, references, last_error) from last_error


def none_found(
    name: str, references: tuple[str, ...], last_error: SourceError | None
) -> NotFoundError:
    """The error for a model of which no known repository could be read."""
    tried = ", ".join(references)
    return NotFoundError(
        f"{name}: none of {tried} could be read ({last_error}). Search {gguf_search(name)}"
    )
