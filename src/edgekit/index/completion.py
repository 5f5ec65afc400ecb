"""Completions for a search box: the models that a name, in any spelling, may mean."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from edgekit.index import index_entries, users_entries
from edgekit.index.database import IndexFile, index_file
from edgekit.index.names import near_ids, spellings
from edgekit.index.titles import title_of
from edgekit.index.typed import read_name
from edgekit.index.types import Entry
from edgekit.index.words import words_of
from edgekit.sources.quants import MAX_CHARS

MOST_COMPLETED = 50
_SHORTEST_INSIDE = 3  # letters: shorter ones are looked for at the start of words only
# How well a model matches; the best first.
_SAME, _STARTS, _IN_ORDER, _HAS_WORDS = range(4)


class _Names(NamedTuple):
    """What a model is called."""

    entry: Entry
    exact: frozenset[str]  # in lower case: id, repository, title, Ollama's names
    spelled: tuple[str, ...]  # the same without capitals and separators
    words: tuple[str, ...]  # of all its names and of its publisher


def complete_name(text: str, limit: int = 8) -> tuple[Entry, ...]:
    """The models that a name, or the start of one, may mean: the best match first, of equal ones the most used.

    'llama3.1', 'Llama 3.1 8', 'gemma3:27b', 'coder qwen', an id or an address. If nothing matches, models whose names
    are similar.
    """
    typed = read_name(text[:MAX_CHARS])
    if not typed.typed:
        return ()
    limit = min(limit, MOST_COMPLETED)
    plain = typed.plain.lower()
    spelled = [words for words in dict.fromkeys(spellings(plain)[:2]) if words]
    words = words_of(plain)
    exact = {typed.typed.lower(), typed.repository.lower(), plain} - {""}
    found: list[tuple[int, bool, float, str, Entry]] = []
    users = (_names_of(entry, ()) for entry in users_entries())
    for names in (*users, *_known(index_file())):
        level = _level(names, exact, spelled, words)
        if level is not None:
            entry = names.entry
            found.append((level, not entry.is_users, -entry.uses, entry.id, entry))
    found.sort(key=lambda row: row[:-1])
    if found:
        by_id = {entry.id: entry for *_, entry in reversed(found)}  # a user's replaces EdgeKit's
        return tuple(by_id[name] for name in dict.fromkeys(row[3] for row in found))[:limit]
    near = near_ids(text[:MAX_CHARS])
    known = {entry.id: entry for entry in index_entries() if entry.id in near}
    return tuple(known[name] for name in near if name in known)[:limit]


def _level(
    names: _Names, exact: set[str], spelled: Iterable[str], words: tuple[str, ...]
) -> int | None:
    """How well the model matches what was typed; None if it does not."""
    is_same = not exact.isdisjoint(names.exact) or any(text in names.spelled for text in spelled)
    # Ollama has a model named "gemma": without a number, people mean all of them.
    if is_same and (names.entry.id in exact or any(map(_has_digit, exact))):
        return _SAME
    if any(name.startswith(text) for text in spelled for name in names.spelled):
        return _STARTS
    if not words or not all(_has(word, names.words) for word in words):
        return None
    joined = " ".join(names.words)
    return _IN_ORDER if " ".join(words) in joined else _HAS_WORDS


def _has_digit(text: str) -> bool:
    return any(letter.isdigit() for letter in text)


def _has(typed: str, words: tuple[str, ...]) -> bool:
    if any(word.startswith(typed) for word in words):
        return True
    is_inside = typed.isalpha() and len(typed) >= _SHORTEST_INSIDE
    return is_inside and any(typed in word for word in words)


@cache
def _known(file: IndexFile) -> tuple[_Names, ...]:
    """The names of every model of the index file."""
    ollama: dict[str, list[str]] = {}
    query = "SELECT model, spelling FROM names WHERE level = 0 AND scheme = 'ollama'"
    for model, spelling in file.rows(query):
        ollama.setdefault(model, []).append(spelling)
    return tuple(_names_of(entry, ollama.get(entry.id, ())) for entry in index_entries())


def _names_of(entry: Entry, others: Iterable[str]) -> _Names:
    title = title_of(entry)
    called = [name for name in (entry.id, entry.repository, title, *others) if name]
    spelled = dict.fromkeys(text for name in called for text in spellings(name)[:2] if text)
    owner = (entry.repository or "").partition("/")[0]
    texts = (entry.repository or entry.id, title, entry.id, owner, entry.publisher or "")
    words = tuple(dict.fromkeys(word for text in texts for word in words_of(text)))
    return _Names(entry, frozenset(name.lower() for name in called), tuple(spelled), words)
