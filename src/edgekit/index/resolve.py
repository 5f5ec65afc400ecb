"""The resolver of model names. Every command, the Python API and the web API resolve names here.

`resolve` decides what a name means: a file, a model of the index, or anything that `read` can open. To support another
spelling, change `resolve` or `index.names.find_model`; callers never interpret names themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from edgekit.errors import (
    AmbiguousNameError,
    HeaderError,
    NotFoundError,
    PrivateAddressError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.index import index_problems
from edgekit.sources.local import is_here

if TYPE_CHECKING:
    from edgekit.index.types import Entry

CATALOG = "catalog:"  # a prefix: only the index is asked; "index:" too
_PREFIXES = (CATALOG, "index:")

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(Generic[Read]):
    """What a name refers to: an entry of the index, a model that was read, or both."""

    name: str
    is_path: bool = False
    entry: Entry | None = None
    found: Read | None = field(default=None, repr=False)  # what `read` returned
    quant: str | None = None  # requested in the name or with --quant, not yet matched to a file
    from_index: str = (
        ""  # why the index answers for a name that means files elsewhere; empty if it does not
    )
    notes: tuple[str, ...] = ()


def resolve(
    reference: str | os.PathLike[str], read: Callable[[str], Read], *, absolute: bool = False
) -> Resolved[Read]:
    """The model that `reference` means: a path, else a name of the index, else whatever `read` finds.

    A name of the index may have any spelling and may include a quantisation: "Gemma 3 27B", qwen3-8b:Q8_0. A model of
    that name that another program stored on this machine takes precedence. Models that the user added to the index are
    read from their source. A hub id or an Ollama tag is looked up there; if that cannot be read, the index answers, and
    `from_index` says why. So it does for a file of a model that it knows, if not even the file's folder is on this
    machine. `absolute`: only absolute paths are paths. Raises EdgekitError, and AmbiguousNameError with the candidates
    for a name that several models have.
    """
    name = os.fspath(reference)
    if not absolute and " " in name and not is_here(name):  # a server's caller may not name paths
        from edgekit.index.typed import without_command

        name = without_command(name)
    if is_here(name, absolute_only=absolute):
        return Resolved(name=name, is_path=True, found=read(name))
    from edgekit.index import names, references  # not needed for a path

    prefix = next((word for word in _PREFIXES if name.lower().startswith(word)), "")
    name = name[len(prefix) :]
    match, ambiguous = None, None
    problems: tuple[str, ...] = ()  # of the index
    damage: HeaderError | None = None
    try:
        problems = index_problems()
        match = (
            names.find_model(name) if prefix else references.entry_named(name, absolute=absolute)
        )
    except AmbiguousNameError as error:
        if prefix:
            raise
        ambiguous = error
    except HeaderError as error:  # the index cannot be read: what is not in it still can
        if prefix:
            raise
        problems, damage = (str(error),), error
    if match is None:
        try:
            return Resolved(name=name, found=read(name), notes=problems)
        except PrivateAddressError:
            raise  # a list of candidates would hide the refusal
        except (NotFoundError, RemoteInspectError) as error:
            if ambiguous is not None and "/" not in name:
                raise ambiguous from error
            if damage is not None and "/" not in name:  # only the index could have it
                raise damage from error
            raise _with_problems(references.with_near(error, name), problems) from error
    entry = match.entry
    if not prefix and references.is_path(name, absolute=absolute):
        try:
            return Resolved(name=name, found=read(name))
        except (NotFoundError, RemoteNotFoundError, UsageError) as error:
            if getattr(error, "candidates", ()) or references.is_folder_here(
                name, absolute=absolute
            ):
                raise
            reason = f"{name[-80:]} is not on this machine"
            return Resolved(
                name=name, entry=entry, quant=match.quant, from_index=reason, notes=problems
            )
    notes = (*((match.note,) if match.note else ()), *problems)
    resolved: Resolved[Read] = Resolved(name=name, entry=entry, quant=match.quant, notes=notes)
    if not entry.is_users and (prefix or references.is_index_first(name, match, absolute=absolute)):
        return replace(resolved, notes=(*notes, *references.base_note(entry, name)))
    source = entry.reference if entry.is_users else name
    try:
        found = read(source)
    except PrivateAddressError:
        raise  # an answer from the index would hide the refusal
    except (NotFoundError, RemoteInspectError) as error:
        if not entry.is_users and not _may_answer(name, error):
            raise references.with_near(error, name) from error
        if entry.is_users and isinstance(error, NotFoundError):
            reason = f"{source} is gone (edgekit index remove {entry.id})"
        else:
            reason = f"{source} could not be read: {error}"
        notes = (*notes, f"answered from the index, because {reason}")
        return replace(resolved, from_index=reason, notes=notes)
    return replace(resolved, found=found, quant=match.quant if entry.is_users else None)


def _with_problems(
    error: NotFoundError | RemoteInspectError, problems: tuple[str, ...]
) -> NotFoundError | RemoteInspectError:
    """The error with what could not be read of the index: the name may have been there."""
    if not problems:
        return error
    complete = type(error)(". ".join((str(error).removesuffix("."), *problems)))
    if isinstance(error, NotFoundError) and isinstance(complete, NotFoundError):
        complete.candidates = error.candidates
    return complete


def _may_answer(name: str, error: NotFoundError | RemoteInspectError) -> bool:
    """Whether the index may answer for a name that could not be read.

    Not if the hub says that the repository does not exist, or if this machine has it in another quantisation only. A
    repository that the hub does not show without a licence or a token is answered.
    """
    if isinstance(error, RemoteAccessError):
        return True
    return not ("/" in name and isinstance(error, NotFoundError | RemoteNotFoundError))
