"""Looks up models of the index by their names, in any spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from edgekit.errors import AmbiguousNameError, NotFoundError
from edgekit.index import index_problems, users_entries
from edgekit.index.database import index_file
from edgekit.index.typed import TypedName, maker_of_closed, read_name
from edgekit.index.types import FEWER_USES, Entry, Index, ModelPurpose
from edgekit.index.words import (
    ANSWER_WORDS,
    BASE_WORDS,
    is_active,
    is_base,
    is_date,
    is_size,
    says_base,
    words_of,
)
from edgekit.sources.quants import split_quant
from edgekit.units import format_count

if TYPE_CHECKING:
    from edgekit.index.likeness import NamedModel

SHOWN = 6  # names in one message
LEAST_MISSPELT = 75  # percent; a misspelt name that is less like a model's is not taken
MOST_CHOICES = 12  # of one family


# -- look-up -------------------------------------------------------------------------------------


class Match(NamedTuple):
    """What a name means."""

    entry: Entry
    quant: str | None = None  # stated in the name, or by the form of the repository: "Q4_K_M"
    note: str = ""  # how the name was understood, if it is not one that the index has


def find_entry(name: str, index: Index | None = None) -> Entry:
    """The entry of a name in any spelling. See `find_model`."""
    return find_model(name, index).entry


def find_model(name: str, index: Index | None = None) -> Match:
    """The model that a name means, and the quantisation in the name.

    A name is an id ('gemma-3-27b'), a repository of the publisher or of somebody who quantised it
    ('unsloth/Qwen3-8B-GGUF'), an address or a path of one, an Ollama tag ('gemma3:27b'), or any of these in other
    spellings ('Gemma 3 27B', 'qwen3 coder 30b q4_k_m'). `index`: only its entries are searched, in every spelling but
    not for similar names; otherwise the models that the user added and then all that EdgeKit knows. Raises
    AmbiguousNameError with all candidates if several different models match, or NotFoundError with the nearest ids.
    """
    typed = read_name(name)
    if not typed.typed:
        raise NotFoundError("the name is empty: nothing to look for in the index", candidates=())
    for exact in _exact_forms(typed):
        match = _named(exact, 0, index, typed)
        if match is not None:
            is_as_it_stands = index is not None or split_quant(name)[0] == match.entry.id
            match = match if is_as_it_stands else usually_meant(match, typed)
            return match._replace(quant=typed.quant)
    match = _spelled_like(typed, typed, index)
    if match is not None:
        return match
    shown = repr(name[:80])
    if index is not None:
        raise NotFoundError(f"{shown} is not in the index", candidates=())
    return _nearest(typed, shown)


def _spelled_like(reading: TypedName, typed: TypedName, index: Index | None) -> Match | None:
    """The model that has one of the readings in some spelling. Raises AmbiguousNameError."""
    for text in reading.readings():
        for level, spelling in enumerate((text.lower(), *spellings(text))):
            match = _named(spelling, level, index, typed)
            if match is None or not _may_be(match.entry.repository, typed):
                continue
            match = match if index is not None else usually_meant(match, typed)
            note = _change(typed, text, match.entry) or match.note
            return match._replace(quant=typed.quant, note=note)
    return None


def _exact_forms(typed: TypedName) -> list[str]:
    """Names under which the index may have it as it stands, the longest first."""
    whole = typed.typed.lower().removeprefix("ollama://")
    forms = [whole, whole.rpartition("@")[0], typed.repository.lower()]
    if typed.owner and typed.quant:
        forms.append(f"{typed.owner}/{typed.plain}".lower())
    if "/" not in whole or not typed.owner:
        forms.append(typed.name.lower())
        name, _, tag = typed.plain.lower().partition(":")
        forms += [typed.plain.lower()] if tag else []
        forms += [name] if tag in {"latest", "instruct", "chat", "it"} else []
    return [form for form in dict.fromkeys(forms) if form]


def _named(spelling: str, level: int, index: Index | None, typed: TypedName) -> Match | None:
    """The match of one spelling. Raises AmbiguousNameError if models of several shapes have it."""
    if not spelling:
        return None
    matches = _spelled(spelling, level, index)
    if level == 0 and matches and index is None and _is_written_out(typed, spelling):
        # "Mixtral" is a family of models; "mixtral" is also Ollama's name of one of them
        matches = [entry for entry in matches if spelling in _own_names(entry)]
    if not matches:
        return None
    best = _winner(matches)
    if best is None:
        raise _ambiguous(typed.typed, [(entry.id, entry.parameters) for entry in matches])
    return Match(entry=best)


def usually_meant(match: Match, typed: TypedName) -> Match:
    """The match, or the one that the name usually means unless it is the name of a repository.

    That is the original for a copy of it under another publisher, and the instruct model for a base model.
    """
    entry = match.entry
    own = (entry.repository or "").lower()
    if entry.is_users or typed.repository.lower() == own or says_base(typed.name):
        return match
    whole, shape, _ = spellings(entry.id.partition("@")[0])
    for other in _spelled_in_file(whole, 1):
        if other.uses > entry.uses and _answers(other):
            return match._replace(entry=other)
    name = (entry.repository or "").rpartition("/")[2]
    is_file = typed.typed.lower().endswith(".gguf") and words_of(typed.plain) == words_of(name)
    is_title = typed.plain == name != name.lower()  # "Mistral-7B-v0.3", as its publisher writes it
    if typed.owner or _answers(entry) or is_file or is_title:
        return match
    for other in (*_spelled_in_file(shape, 2), *_of_one_shape(entry)):
        if _answers(other):
            note = f"taken to be {other.repository}; {entry.repository} is the base model"
            return match._replace(entry=other, note=note)
    return match


def _answers(entry: Entry) -> bool:
    """Whether it is not a base model."""
    is_chat = ModelPurpose.CHAT in entry.kinds and not is_base(entry.repository or "")
    return is_chat or ModelPurpose.EMBEDDING in entry.kinds


def _of_one_shape(entry: Entry) -> list[Entry]:
    """The publisher's models with this geometry whose names have words such as "instruct" more, the most used first."""
    words = {word for word in words_of(entry.id) if not is_date(word)} - BASE_WORDS
    alike = "WHERE m.geometry = ? AND m.publisher = ? ORDER BY m.uses DESC, m.id"
    return [
        other
        for other in index_file().entries(alike, (entry.geometry, entry.publisher))
        if words == set(words_of(other.id)) - ANSWER_WORDS
    ]


def _own_names(entry: Entry) -> set[str]:
    return {entry.id.lower(), (entry.repository or "").lower()}


def _is_written_out(typed: TypedName, spelling: str) -> bool:
    """Whether the name has capitals and neither size nor tag: the title of a family, not a name of Ollama's."""
    is_title = typed.typed != typed.typed.lower() and ":" not in typed.typed and "/" not in spelling
    return is_title and not any(map(is_size, words_of(spelling)))


def _change(typed: TypedName, reading: str, entry: Entry) -> str:
    """A note if the typed name is a repository or a tuning that the index does not have."""
    tuned = [word for word in typed.tuned if word not in reading.lower() and word != "qat"]
    owners = {(entry.repository or "").partition("/")[0].lower(), (entry.publisher or "").lower()}
    if typed.is_path:
        return (
            f"{typed.typed[-80:]} is not a file on this machine; taken to be {entry.id} by its name"
        )
    if tuned:
        return (
            f"{typed.typed[:80]} is taken to be {entry.id}, of the same shape ({', '.join(tuned)})"
        )
    if typed.owner and typed.owner.lower() not in owners and entry.repository:
        by = f" quantised by {typed.owner}" if typed.quant else f" from {typed.owner}"
        return f"{typed.typed[:80]} is not in the index; taken to be {entry.repository}{by}"
    return ""


def _may_be(repository: str | None, typed: TypedName) -> bool:
    """Whether somebody else's repository may have this model: its name says "instruct" if the typed one does."""
    if not typed.owner or not repository:
        return True
    stated = {"instruct", "it", "chat", "thinking"}.intersection(words_of(typed.plain))
    owner = repository.partition("/")[0]
    return stated <= set(words_of(repository)) or typed.owner.lower() == owner.lower()


def _nearest(typed: TypedName, shown: str) -> Match:
    """The model whose name is nearest, if that is clear. Raises AmbiguousNameError or NotFoundError."""
    from edgekit.index.likeness import corrected, meant  # an exact name does not need it

    refuse_closed(typed.typed)
    text, misspelt = corrected(typed.plain)
    if misspelt:
        match = _spelled_like(read_name(text), typed, None)
        if match is not None:
            score = max(50, 100 - 8 * misspelt)
            note = f"understood {shown} as {match.entry.id} ({score} % alike)"
            return match._replace(note=note)
    answer = meant(text)
    taken = answer.taken
    score = taken.score - 8 * misspelt if taken is not None else 0
    is_near = score >= (LEAST_MISSPELT if misspelt else 0)
    if taken is not None and is_near and _may_be(taken.model.repository, typed):
        entry = _at_ollama(typed, taken.model) or _entry(taken.model.id)
        note = f"understood {shown} as {entry.id} ({max(50, score)} % alike)"
        if taken.extra:
            note = f"{shown} is not in the index; taken to be {entry.repository} in another tuning"
        elif typed.owner or typed.is_path:
            note = _change(typed, typed.plain, entry) or note
        return usually_meant(Match(entry=entry, quant=typed.quant, note=note), typed)
    if answer.choices:
        raise _ambiguous(
            typed.typed,
            [(model.id, model.parameters) for model in answer.choices],
            most=MOST_CHOICES,
        )
    problems = "".join(f"; {problem}" for problem in index_problems())
    raise NotFoundError(
        f"{shown} is not in the index (edgekit index list shows all models){problems}",
        candidates=tuple(model.id for model in answer.near[:SHOWN]),
    )


def refuse_closed(name: str) -> None:
    """Raises NotFoundError for a model whose weights are not published, and names the open ones of its maker."""
    maker = maker_of_closed(split_quant(name)[0])
    if maker is None:
        return
    query = "SELECT id FROM models WHERE publisher LIKE ? AND kinds LIKE '%chat%' ORDER BY uses DESC LIMIT 2"
    models = ", ".join(str(row[0]) for row in index_file().rows(query, (f"%{maker}%",)))
    others = f"; open models of {maker}: {models}" if models else ""
    raise NotFoundError(
        f"{name[:80]!r} is a closed model: {maker} does not publish its weights, so it cannot run here{others}",
        candidates=(),
    )


def _at_ollama(typed: TypedName, model: NamedModel) -> Entry | None:
    """The model that Ollama has under the name with hyphens, if it has this shape: "mistral large"."""
    from edgekit.index.likeness import is_alike, named

    found = _spelled_in_file(re.sub(r"[\s_]+", "-", typed.plain.lower()), 0)
    return next((entry for entry in found if is_alike(named(entry), model)), None)


def _entry(model: str) -> Entry:
    return index_file().entries("WHERE m.id = ?", (model,))[0]


def _ambiguous(
    name: str, models: Iterable[tuple[str, int | None]], *, most: int = SHOWN
) -> AmbiguousNameError:
    shown = list(models)[:most]
    sizes = ", ".join(
        f"{model} ({format_count(size).replace(' ', '')})" if size else model
        for model, size in shown
    )
    return AmbiguousNameError(
        f"{name[:80]!r} matches several models: {sizes}. Give one of these",
        candidates=tuple(model for model, _ in shown),
    )


def _spelled(spelling: str, level: int, index: Index | None) -> list[Entry]:
    """The entries with this spelling, the most used first. Level 0: exact names; 1 to 3: those of `spellings`."""
    if index is None:
        users = users_entries()
        own = _spelled(spelling, level, Index(entries=users)) if users else []
        return own or _spelled_in_file(spelling, level)
    matches = []
    for entry in index.entries:
        known = tuple(filter(None, (entry.id, entry.repository)))
        if level == 0:
            is_match = spelling in {text.lower() for text in known}
        else:
            is_match = any(spellings(text)[level - 1] == spelling for text in known)
        if is_match:
            matches.append(entry)
    return sorted(matches, key=lambda entry: -entry.uses)


def _spelled_in_file(spelling: str, level: int) -> list[Entry]:
    """`_spelled` for the models of the index file."""
    file, order = index_file(), "ORDER BY m.uses DESC, m.id LIMIT 50"
    if level == 0:
        if "/" in spelling:
            exact = file.entries(f"WHERE lower(m.repository) = ? {order}", (spelling,))
            if exact:
                return exact
            from edgekit.index.repositories import model_at  # most names are no repositories

            known = model_at(spelling)
            if known is not None:
                return [_entry(known[0])]
        exact = file.entries("WHERE m.id = ?", (spelling,))
        if exact:
            return exact
    same = "SELECT model FROM names WHERE spelling = ? AND level "
    if level > 0:
        same += " BETWEEN 1 AND ? AND (scheme IS NULL OR spelling GLOB '*[0-9]*')"
        return file.entries(f"WHERE m.id IN ({same}) {order}", (spelling, level))
    ollama = file.entries(f"WHERE m.id IN ({same} = 0 AND scheme = 'ollama') {order}", (spelling,))
    if ollama or not any(map(str.isdigit, spelling)):  # "deepseek" is the name of a family
        return ollama
    return file.entries(f"WHERE m.id IN ({same} = 0) {order}", (spelling,))


def _winner(matches: list[Entry]) -> Entry | None:
    """The entry that people mean, the most used one first; None if models of several shapes match."""
    best, *others = matches
    others = [other for other in others if other.uses > best.uses - FEWER_USES]
    if others:
        from edgekit.index.likeness import is_alike, named

        if not all(is_alike(named(best), named(other)) for other in others):
            return None
    return best


def near_ids(name: str) -> tuple[str, ...]:
    """The ids of the models whose names are most like this one."""
    from edgekit.index.likeness import corrected, meant

    answer = meant(corrected(read_name(name).plain)[0])
    first = (answer.taken.model,) if answer.taken is not None else answer.choices
    ids = dict.fromkeys(model.id for model in (*first, *answer.near))
    return tuple(ids)[:SHOWN]


# -- spellings ---------------------------------------------------------------------------------

# Words that do not affect memory: tuning, container, Ollama's default tag.
_SAME_SHAPE = frozenset({"instruct", "it", "chat", "hf", "gguf", "latest"})
# Publisher names that people put in front: "Meta-Llama-3.1-8B", "Google Gemma 3 27B".
_PUBLISHERS = frozenset({
    "alibaba", "google", "ibm", "meta", "microsoft", "mistralai", "nvidia", "openai",
})  # fmt: skip
_MAX_CHARS = 200  # of a name; the longest on the hub have 96


@lru_cache(maxsize=16_384)
def spellings(name: str) -> tuple[str, str, str]:
    """The name in three spellings, each looser than the one before; equal ones mean the same model.

    1. without capitals, separators and publisher: 'google/Gemma-3-27B-it', 'gemma3:27b_it'
    2. also without words such as 'it' and 'instruct', which do not change the shape: 'Gemma 3 27B'
    3. also without the number of active parameters: 'qwen3-30b' for 'qwen3-30b-a3b'

    >>> spellings("Qwen/Qwen3-30B-A3B-Instruct")
    ('qwen 3 30 ba 3 binstruct', 'qwen 3 30 ba 3 b', 'qwen 3 30 b')
    """
    text = name.rstrip("/").rpartition("/")[2][:_MAX_CHARS].lower()
    words = re.findall(r"[a-z0-9]+(?:\.[0-9]+[a-z]*)*", text)
    if len(words) > 1 and words[0] in _PUBLISHERS:
        words = words[1:]
    shape = [word for word in words if word not in _SAME_SHAPE]
    size = [word for word in shape if not is_active(word)]
    return _join_letters(words), _join_letters(shape), _join_letters(size)


def _join_letters(words: list[str]) -> str:
    """Joins adjacent words of letters: 'gpt-oss-20b' and 'gptoss 20B' both become 'gptoss 20 b'."""
    parts = [part for word in words for part in re.findall(r"[0-9]+(?:\.[0-9]+)?|[a-z]+", word)]
    return re.sub(r"(?<=[a-z]) (?=[a-z])", "", " ".join(parts))
