"""Filters over the models of the index, and how many models each of them left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from edgekit.errors import printable
from edgekit.index.types import Entry, ModelPurpose
from edgekit.index.words import is_size, words_of
from edgekit.units import Basis, short_count

# What people call a purpose. A word that is none of these is looked for in the names.
PURPOSE_WORDS = {
    **dict.fromkeys(("code", "coder", "coding", "programming"), ModelPurpose.CODE),
    **dict.fromkeys(("embed", "embedding", "embeddings", "embedder"), ModelPurpose.EMBEDDING),
    **dict.fromkeys(("reasoning", "reason", "thinking"), ModelPurpose.REASONING),
    **dict.fromkeys(("vision", "multimodal", "image", "images"), ModelPurpose.VISION),
    **dict.fromkeys(("chat", "assistant"), ModelPurpose.CHAT),
}
_EMPTY_WORDS = frozenset({
    "a", "and", "best", "by", "for", "from", "gguf", "llm", "llms", "mlx", "model", "models", "of", "the", "with",
})  # fmt: skip
_SHORT = 2  # letters: such a word has to be a whole word of the name, as the R of DeepSeek-R1


class Condition(NamedTuple):
    """A filter as it was given: '--licence mit', and whether a model meets it."""

    text: str
    is_met: Callable[[Entry], bool]


class Counted(NamedTuple):
    """A condition, how many models meet it, and how many it leaves out of those that meet all others."""

    text: str
    met: int
    removed: int


class Selection(NamedTuple):
    """The models that meet all conditions."""

    entries: list[Entry]
    counts: tuple[Counted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What is asked of models, whatever the machine. A filter that was not given is None or empty."""

    words: str = ""  # all of them in its names, publisher or purposes
    kind: ModelPurpose | None = None
    family: str | None = None  # how the family's name begins
    publisher: str | None = None  # part of the publisher's name, or of its account on the hub
    licence: str | None = None  # how the licence's name begins
    exact: bool = False  # only models with a geometry of their own, or one proved equal
    min_parameters: int | None = None
    max_parameters: int | None = None
    min_context: int | None = None  # tokens
    released_after: str | None = None  # "2025-06": in that month or later

    def conditions(self) -> Iterator[Condition]:
        """A condition for each filter that was given."""
        if self.words.strip() and not words_of(self.words):  # nothing to compare: "%", "日本語"
            yield Condition(printable(f'"{self.words.strip()}"'), lambda _entry: False)
        for word in typed_words(self.words):
            yield Condition(f'"{word}"', partial(has_word, word))
        if (kind := self.kind) is not None:
            yield Condition(f"--kind {kind.value}", lambda entry: kind in entry.kinds)
        if family := (self.family or "").lower():
            begins = partial(_begins, family)
            yield Condition(f"--family {self.family}", lambda entry: begins(entry.family))
        if publisher := (self.publisher or "").lower():
            yield Condition(
                f"--publisher {self.publisher}", lambda entry: publisher in _makers(entry)
            )
        if licence := (self.licence or "").lower():
            yield Condition(
                f"--licence {self.licence}", lambda entry: _begins(licence, entry.licence or "")
            )
        if self.exact:
            yield Condition(
                "--exact", lambda entry: entry.has_geometry and entry.basis is Basis.EXACT
            )
        if (least := self.min_parameters) is not None:
            yield Condition(
                f"--min-params {short_count(least)}", lambda entry: (entry.parameters or 0) >= least
            )
        if (most := self.max_parameters) is not None:
            yield Condition(
                f"--max-params {short_count(most)}",
                lambda entry: 0 < (entry.parameters or 0) <= most,
            )
        if (tokens := self.min_context) is not None:
            yield Condition(
                f"a context of {tokens:,} tokens",
                lambda entry: (entry.native_context or 0) >= tokens,
            )
        if (after := self.released_after) is not None:
            yield Condition(
                f"--released-after {after}",
                lambda entry: (entry.released or entry.not_before or "") >= after,
            )


def _begins(start: str, name: str) -> bool:
    return name.lower().startswith(start)


def _makers(entry: Entry) -> str:
    account = (entry.repository or "").rpartition("/")[0]
    return f"{entry.publisher or ''} {account}".lower()


def select(entries: Iterable[Entry], conditions: Iterable[Condition]) -> Selection:
    """The models that meet every condition, in their order."""
    conditions = tuple(conditions)
    selected: list[Entry] = []
    met, removed = [0] * len(conditions), [0] * len(conditions)
    for entry in entries:
        failed = []
        for i, condition in enumerate(conditions):
            if condition.is_met(entry):
                met[i] += 1
            else:
                failed.append(i)
        if not failed:
            selected.append(entry)
        elif len(failed) == 1:
            removed[failed[0]] += 1
    texts = [condition.text for condition in conditions]
    return Selection(selected, tuple(map(Counted, texts, met, removed)))


def typed_words(text: str) -> tuple[str, ...]:
    """The words of a question: 'Qwen-3 coder, 30B' -> qwen, 3, coder, 30b."""
    return tuple(word for word in words_of(text) if word not in _EMPTY_WORDS)


def has_word(word: str, entry: Entry) -> bool:
    """Whether the word says something about the model.

    Letters may be anywhere in its names. A number has to be a whole one: 3 is in Qwen3 and, as a version, in Qwen3.5,
    but not in 30B; 27 is in 27B.
    """
    if PURPOSE_WORDS.get(word) in entry.kinds:
        return True
    if word.isalpha() and len(word) > _SHORT:
        names = (entry.id, entry.repository, entry.family, entry.architecture, entry.publisher)
        text = " ".join(filter(None, names)).lower()
        return word in text or word in re.sub(r"[^a-z]", "", text)
    parts = {*words_of(entry.id), *words_of(entry.repository or "")}
    if word in parts:
        return True
    return not word.isalpha() and any(_is_number(word, part) for part in parts)


def _is_number(typed: str, part: str) -> bool:
    """Whether a part of a name is this number: '3' is the version '3.5', '27' the size '27b'."""
    if part.startswith(f"{typed}."):
        return not is_size(part)
    return len(typed) > 1 and is_size(part) and part[:-1] == typed
