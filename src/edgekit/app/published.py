"""A catalog name given to `run` or `serve` -> the repositories that have its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from edgekit.app.open import ResolvedModel, open_named
from edgekit.catalog import known_names, read_catalog
from edgekit.catalog.repositories import Form, Repository, repositories_of
from edgekit.engines import default_engine
from edgekit.engines.model_words import gguf_search
from edgekit.engines.variants import accuracy_of
from edgekit.errors import NotFoundError, RemoteNotFoundError, SourceError, UsageError
from edgekit.formats.mixes import mix_by_name
from edgekit.request import Request, Session
from edgekit.sources.finding import Found, find_weights
from edgekit.sources.folders import is_here
from edgekit.sources.types import Reach

if TYPE_CHECKING:
    from edgekit.catalog.types import Entry
    from edgekit.model.open import Opened
    from edgekit.sources.download import Download


def catalog_name(reference: str) -> tuple[Entry, str | None] | None:
    """The entry that a name means and the quantisation it states: qwen3-8b, qwen3-8b:Q8_0. None for everything else."""
    if is_here(reference) or "/" in reference:
        return None
    entry, quant = known_names.known(reference, read_catalog(), absolute=False)
    if entry is None or entry.is_users or (quant is not None and mix_by_name(quant) is None):
        return None
    return entry, quant


def open_published(
    entry: Entry, quant: str | None, request: Request
) -> tuple[tuple[str, ...], Opened]:
    """The repositories that have the model, and the model as it would be downloaded. Nothing is fetched yet.

    Without a quantisation it is chosen for this machine. UsageError where no repository is known.
    """
    named = open_named(f"catalog:{entry.id}")
    known = repositories_of(entry.id, Form.GGUF)
    mix = quant.upper() if quant is not None else _published_mix(_chosen_mix(named, request), known)
    found = [one for one in known if mix is not None and one.tag(mix) is not None]
    if mix is None or not found:
        raise UsageError(_no_repository(entry.id, quant, known))
    (engine,) = request.engines
    model = named.opened(engine)
    opened = replace(model, model=default_engine().at_quant(model.model, mix), mix=mix)
    return tuple(f"{one.name}:{one.tag(mix)}" for one in found), opened


def _chosen_mix(named: ResolvedModel, request: Request) -> str:
    """As `check` chooses with the same flags; where nothing fits, the usual one, whose figures the verdict shows."""
    from edgekit.app.answers import Check
    from edgekit.app.check import check_named

    (found,) = check_named(named, request, Session(reach=Reach(network=False)))
    if not isinstance(found, Check):
        raise found.error
    fits = found.result.can_load
    return found.result.quantization if fits else named.as_file(found.result.engine).mix


def _published_mix(mix: str, known: tuple[Repository, ...]) -> str | None:
    """The mix, or the most accurate smaller one that a repository has."""
    if any(one.tag(mix) is not None for one in known):
        return mix
    most = accuracy_of(mix) or 0
    tags = {tag.upper().removeprefix("UD-") for one in known for tag in one.quants}
    below = [tag for tag in tags if (accuracy_of(tag) or most) < most]
    return max(below, key=lambda tag: accuracy_of(tag) or 0, default=None)


def _no_repository(name: str, quant: str | None, known: tuple[Repository, ...]) -> str:
    at = "" if quant is None else f" at {quant}"
    tags = dict.fromkeys(tag for one in known for tag in one.quants)
    others = f" (known: {', '.join(tags)})" if tags else ""
    return (
        f"no known repository has a GGUF of {name}{at}{others}. Search {gguf_search(name)} and name what you find:"
        " edgekit run ORG/REPOSITORY:QUANT, or a file"
    )


def find_published(
    name: str,
    references: tuple[str, ...],
    reach: Reach,
    confirm: Callable[[Download], bool] | None,
    *,
    several: bool,
) -> Found:
    """The file of the first repository that has it: on this machine if possible, else downloaded."""
    for reference in references:
        try:
            return find_weights(reference, reach=replace(reach, network=False), several=several)
        except SourceError:
            continue
    missing: SourceError | None = None
    for reference in references:
        try:
            return find_weights(reference, reach=reach, confirm=confirm, several=several)
        except (NotFoundError, RemoteNotFoundError) as error:
            missing = error
            if not reach.network:
                break
    tried = ", ".join(references)
    raise NotFoundError(
        f"{name}: none of {tried} could be read ({missing}). Search {gguf_search(name)}"
    ) from missing
