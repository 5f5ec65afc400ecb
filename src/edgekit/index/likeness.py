"""Finds the models whose names are nearly what somebody typed, and says when several could be meant.

A name is compared word by word. Every typed word must be in the model's name, except words that say nothing about the
shape ("instruct", a publisher). Words of the model's name that were not typed cost points: few for a release date, more
for a size, most for a word that makes another model of it ("coder", "vl").
"""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.index.database import index_file
from edgekit.index.typed import TUNED_WORDS
from edgekit.index.types import FEWER_USES
from edgekit.index.words import (
    BASE_WORDS,
    MINOR_WORDS,
    SIZE_WORDS,
    billions,
    is_active,
    is_base,
    is_context,
    is_date,
    is_size,
    words_of,
)
from edgekit.sources.quants import MAX_CHARS

if TYPE_CHECKING:
    from edgekit.index.database import IndexFile
    from edgekit.index.types import Entry

SHOWN = 50  # models in one answer
LEAST_LIKE = 45  # percent; less is not worth showing

_SIZE_LETTERS = {"large": "l", "medium": "m", "small": "s"}
_STAGES = frozenset({"sft", "dpo"})
# Words for something else than a tuned model: it has other tensors.
_OTHER_SHAPES = frozenset({
    "draft", "drafter", "speculator", "lora", "qlora", "adapter", "eagle", "medusa", "mmproj", "projector",
    "reap", "pruned", "prune", "vocab", "tokenizer", "encoder", "decoder", "merge", "merged", "moe", "upscaled",
    "frankenmerge", "dflash", "reward", "classifier", "embed", "embedding", "rerank", "reranker", "vision",
    "audio", "tts", "asr", "turbo",
})  # fmt: skip
_EMBED_WORDS = frozenset({"embed", "embedding", "embeddings"})
# Families whose names are also put into the names of models made from them, and publishers.
_FAMILY_WORDS = frozenset({
    "qwen", "llama", "mistral", "gemma", "phi", "distill", "meta", "google", "alibaba", "nvidia", "ibm",
    "microsoft", "openai", "mistralai", "facebook", "cohere", "ca", "c", "zai", "zhipu", "snowflake",
    "deepseek",
})  # fmt: skip
_BUILT_ON = frozenset({"qwen", "llama", "mistral", "gemma", "phi"})  # those that others start from

# -- the models ----------------------------------------------------------------------------------


class NamedModel(NamedTuple):
    """What is needed of a model to compare its name. A tuple: thousands are made at the first comparison."""

    id: str
    repository: str
    parameters: int | None
    active: int | None
    architecture: str
    geometry: int | None
    uses: float
    answers: bool  # not a base model
    names: tuple[tuple[str, ...], ...]  # the words of its id and repository
    owner: frozenset[str]
    assumed: frozenset[str] = frozenset()  # words that people leave out: "embed" in Nomic's names

    @property
    def shape_words(self) -> frozenset[str]:
        """The words that decide what is meant: without dates, tuning and publisher."""
        return frozenset(
            word
            for word in self.names[0]
            if word not in MINOR_WORDS
            and word not in BASE_WORDS
            and not is_date(word)
            and not is_context(word)
            and not is_active(word)
        )


class NameTable(NamedTuple):
    """The names of all models, prepared for comparisons."""

    models: tuple[NamedModel, ...]
    with_word: dict[str, list[int]]  # word -> models
    vocabulary: Counter[str]  # words of letters, with the number of models
    with_start: dict[str, list[str]]  # the first five letters -> words of the vocabulary
    first_letters: dict[str, list[str]]  # -> words that a misspelt one may be: not the shortest
    last_letters: dict[str, list[str]]


@cache
def _table_of(file: IndexFile) -> NameTable:
    models: list[NamedModel] = []
    with_word: dict[str, list[int]] = {}
    vocabulary: Counter[str] = Counter()
    embeds: dict[str, bool] = {}  # first word of a name -> whether its family embeds texts
    query = (
        "SELECT id, repository, parameters, active_parameters, architecture, geometry, uses, kinds, publisher "
        "FROM models ORDER BY uses DESC, id"
    )
    for row in file.rows(query):
        model = _named_model(row)
        if not model.names:
            continue
        # The most used model of a family, which comes first, says whether its names may leave out "embed".
        if embeds.setdefault(model.names[0][0], "embedding" in (row[7] or "")):
            model = model._replace(assumed=_EMBED_WORDS)
        every_word = {word for words in model.names for word in words}
        for word in every_word:
            with_word.setdefault(word, []).append(len(models))
        vocabulary.update(word for word in every_word if word.isalpha())
        models.append(model)
    table = NameTable(tuple(models), with_word, vocabulary, {}, {}, {})
    for word, count in vocabulary.items():
        table.with_start.setdefault(word[:5], []).append(word)
        if len(word) > 5 or (len(word) > 3 and count > 1):
            table.first_letters.setdefault(word[0], []).append(word)
            table.last_letters.setdefault(word[-1], []).append(word)
    return table


def _named_model(row: tuple[Any, ...]) -> NamedModel:
    name, repository, parameters, active, architecture, geometry, uses, kinds, publisher = row
    owner, _, own_name = (repository or "").partition("/")
    texts = dict.fromkeys(((own_name or name).lower(), name.partition("@")[0]))
    return NamedModel(
        id=name,
        repository=repository or "",
        parameters=parameters,
        active=active,
        architecture=architecture or "",
        geometry=geometry,
        uses=uses or 0.0,
        answers="embedding" in (kinds or "")
        or ("chat" in (kinds or "") and not is_base(repository or "")),
        names=tuple(dict.fromkeys(filter(None, map(words_of, texts)))),
        owner=frozenset(re.findall("[a-z]+", f"{owner} {publisher}".lower())),
    )


def named(entry: Entry) -> NamedModel:
    """The entry as names are compared."""
    kinds = ",".join(kind.value for kind in entry.kinds)
    return _named_model((
        entry.id, entry.repository, entry.parameters, entry.active_parameters, entry.architecture,
        entry.geometry, entry.uses, kinds, entry.publisher,
    ))  # fmt: skip


def name_table() -> NameTable:
    return _table_of(index_file())


SAME_SIZE = 1.02  # models whose parameters differ by no more than this factor may be the same model
RENAMED_SIZE = (
    1.05  # and models of one name with different dates: with layers for drafting, or without
)


def is_alike(model: NamedModel, other: NamedModel) -> bool:
    """Whether both need the same memory: equal geometry, or equal names and sizes, or architecture and size."""
    if model.id == other.id:
        return True
    if model.geometry is not None and model.geometry == other.geometry:
        return True
    same_words = model.shape_words == other.shape_words
    if not model.parameters or not other.parameters:
        return same_words
    architectures = {model.architecture, other.architecture} - {""}
    if not same_words and len(architectures) > 1:
        return False
    factor = RENAMED_SIZE if same_words else SAME_SIZE
    return max(model.parameters, other.parameters) <= factor * min(model.parameters, other.parameters)  # fmt: skip


# -- likeness ------------------------------------------------------------------------------------


class Likeness(NamedTuple):
    """How much like the typed name a model's name is."""

    model: NamedModel
    score: int  # percent
    extra: tuple[str, ...] = ()  # typed words that its name does not have
    is_another: bool = (
        False  # of another size or version, or with words that make another model of it
    )
    lacks_size: bool = False  # its name states a size, which was not typed
    lacks_version: bool = False
    is_stage: bool = False  # a stage of its training, which was not typed


def _compare(typed: Sequence[str], known: Sequence[str], model: NamedModel) -> Likeness | None:
    """How well the typed words match one name of a model; None if it is not worth showing."""
    left, others = list(known), []
    for word in typed:
        if word in left:
            left.remove(word)
        else:
            others.append(word)
    cost, extra, is_another = 0.0, [], False
    has_size = any(map(is_size, typed))
    for word in others:
        if is_active(word):
            if any(map(is_active, left)) or not _is_about(word, model.active, 0.25):
                is_another = True
            cost += 2
        elif is_size(word):
            if f"e{word}" in left:
                left.remove(f"e{word}")
                cost += 3
            elif any(map(is_size, left)) or not _is_about(word, model.parameters, 0.05):
                cost, is_another = cost + _size_cost(word, model.parameters), True
        elif word[0].isdigit():
            if f"{word}b" in left and not has_size:
                left.remove(f"{word}b")
                cost += 4
            elif is_context(word):
                cost, is_another = cost + 10, True
            else:
                version = next(filter(_is_version, left), "") if _is_version(word) else ""
                if version:  # the nearest version is the most similar
                    left.remove(version)
                    cost += 20 + min(abs(float(version) - float(word)), 5)
                else:
                    cost += 30
                is_another = True
        else:
            close = _SIZE_LETTERS.get(word, "")
            if close not in left:
                close = next((other for other in left if _is_form(word, other)), "")
            if close:
                left.remove(close)
                cost += 2
            elif word in MINOR_WORDS or word in BASE_WORDS or word in model.owner:
                cost += 1
            else:
                cost += 25 if len(word) > 1 else 12
                extra.append(word)
        if cost > 100 - LEAST_LIKE:
            return None
    lacks = set()
    for word in left:
        if word not in model.assumed:
            missing = _OWN if word in model.owner else _missing(word)
            cost += missing.cost
            lacks.add(missing.kind)
    score = round(100 - cost)
    if score < LEAST_LIKE:
        return None
    return Likeness(
        model=model,
        score=score,
        extra=tuple(extra),
        is_another=is_another or "variant" in lacks,
        lacks_size="size" in lacks,
        lacks_version="version" in lacks,
        is_stage=not _STAGES.isdisjoint(left),
    )


@lru_cache(maxsize=16_384)
def _is_version(word: str) -> bool:
    return re.fullmatch(r"\d(?:\.\d+)?", word) is not None


def _size_cost(word: str, parameters: int | None) -> float:
    """More for a size that is further away: 28b is nearer to 27b than to 12b."""
    size = billions(word)
    if not parameters or not size:
        return 35
    return 20 + min(15, 15 * abs(math.log2(parameters / 1e9 / size)))


class _Missing(NamedTuple):
    """What it means that a word of a model's name was not typed."""

    cost: int
    kind: str = (
        ""  # "size", "version" (from 2 on: people leave out the first), "variant": another model
    )


_OWN = _Missing(cost=1)  # the publisher's name


@lru_cache(maxsize=16_384)
def _missing(word: str) -> _Missing:
    if word in BASE_WORDS or is_date(word) or is_context(word):
        return _Missing(cost=2)
    if word in TUNED_WORDS:
        return _Missing(cost=12, kind="variant")
    if word in MINOR_WORDS or is_active(word):
        return _Missing(cost=1)
    if word in _FAMILY_WORDS:
        return _Missing(cost=3)
    if is_size(word) or word in SIZE_WORDS:
        return _Missing(cost=8, kind="size")
    number = re.match(r"\d+(?:\.\d+)?", word)
    if number is not None:
        return _Missing(cost=5, kind="version" if float(number[0]) >= 2 else "")
    return _Missing(cost=4) if len(word) == 1 else _Missing(cost=14, kind="variant")


def _is_about(word: str, parameters: int | None, share: float) -> bool:
    """Whether a model of this many parameters may be called so."""
    size = billions(word)
    if parameters is None:
        return word.startswith("a")
    return size > 0 and abs(parameters / 1e9 - size) <= max(share * size, 0.5 if size >= 5 else 0.05)  # fmt: skip


@lru_cache(maxsize=16_384)
def _is_form(word: str, other: str) -> bool:
    """Whether the words are forms of one: rerank, reranker; embed, embedding."""
    if word[:5] != other[:5] or min(len(word), len(other)) < 5 or abs(len(word) - len(other)) > 3:
        return False
    return word.startswith(other) or other.startswith(word)


def similar(name: str) -> list[Likeness]:
    """The models whose names are like this one, the best first."""
    table = name_table()
    best: dict[int, Likeness] = {}
    for typed in _variants(words_of(name), table):
        letters = [word for word in typed if word.isalpha() and word not in MINOR_WORDS]
        rows: Counter[int] = Counter()
        for word in letters:
            for form in (word, *_forms(word, table)):
                rows.update(table.with_word.get(form, ()))
        least = max(rows.values(), default=0) / 2
        for row, shared in rows.items():
            if shared < least:
                continue
            model = table.models[row]
            for known in model.names:
                likeness = _compare(typed, known, model)
                if likeness and (row not in best or likeness.score > best[row].score):
                    best[row] = likeness
    return sorted(best.values(), key=lambda item: (-item.score, -item.model.uses, item.model.id))[
        :SHOWN
    ]


def _forms(word: str, table: NameTable) -> tuple[str, ...]:
    """Other forms of the word in the names of models."""
    alike = table.with_start.get(word[:5], ()) if len(word) >= 5 else ()
    return tuple(other for other in alike if other != word and _is_form(word, other))


def _variants(typed: tuple[str, ...], table: NameTable) -> Iterable[tuple[str, ...]]:
    """The words, and with words split or joined as the names of models have them: gptoss, 'code llama'."""
    variants = [typed]
    split: list[str] = []
    for word in typed:
        cut = 0
        if word.isalpha() and word not in table.vocabulary and 5 <= len(word) <= 24:
            cut = max(
                (
                    i
                    for i in range(2, len(word) - 1)
                    if table.vocabulary[word[:i]] > 1 and table.vocabulary[word[i:]] > 1
                ),
                key=lambda i: table.vocabulary[word[:i]] + table.vocabulary[word[i:]],
                default=0,
            )
        split += [word[:cut], word[cut:]] if cut else [word]
    variants.append(tuple(split))
    if "mistral" in typed and any(re.fullmatch(r"\d+x\d+b", word) for word in typed):
        # Mistral's mixtures of experts are called Mixtral
        variants.append(tuple("mixtral" if word == "mistral" else word for word in typed))
    for i in range(len(typed) - 1):
        joined = typed[i] + typed[i + 1]
        if re.fullmatch(r"\d\d", joined) and f"{typed[i]}.{typed[i + 1]}" in table.with_word:
            variants.append((*typed[:i], f"{typed[i]}.{typed[i + 1]}", *typed[i + 2 :]))
        if typed[i].isalpha() and joined in table.vocabulary:
            variants.append((*typed[:i], joined, *typed[i + 2 :]))
    return dict.fromkeys(variants)


# -- typing errors -------------------------------------------------------------------------------


def corrected(name: str) -> tuple[str, int]:
    """The name with misspelt words replaced by words of models' names, and the number of words that were.

    A word is replaced if exactly one word is nearest, with at most one letter wrong, or two in long words.
    """
    table = name_table()
    changed = 0
    words = words_of(name)
    joined = {
        word for a, b in itertools.pairwise(words) if a + b in table.vocabulary for word in (a, b)
    }

    def correct(match: re.Match[str]) -> str:
        nonlocal changed
        word = match[0].lower()
        if (
            len(word) < 3
            or len(word) > 24
            or word in table.vocabulary
            or word in MINOR_WORDS
            or word in joined
        ):
            return match[0]
        best = _nearest(word, table)
        changed += best is not None
        return best or match[0]

    def separate(match: re.Match[str]) -> str:
        nonlocal changed
        parts = _separated(match[1].lower(), match[2], (match[3] or "").lower(), table)
        changed += parts is not None
        return parts or match[0]

    text = re.sub(r"[A-Za-z]+", correct, unicodedata.normalize("NFKC", name))
    text = re.sub(
        r"(?<![A-Za-z])([A-Za-z]+)[-_ ]?(\d{2,6})([bBmM]?)(?![A-Za-z0-9.])", separate, text
    )
    return text, changed


def _separated(family: str, digits: str, unit: str, table: NameTable) -> str | None:
    """The family, version and size in digits run together: llama 31 -> llama 3.1, qwen257b -> qwen 2.5 7b.

    None if a model has the number as it stands, or if it may be separated in several ways.
    """

    def is_known(*words: str) -> bool:
        rows = [set(table.with_word.get(word, ())) for word in (family, *words)]
        return bool(set.intersection(*rows))

    if is_known(f"{digits}{unit}"):
        return None
    found = []
    for end in range(1, min(2, len(digits)) + 1):
        version, size = ".".join(digits[:end]), digits[end:]
        words = (version, f"{size}{unit}") if size else (version,)
        if bool(size) == bool(unit) and is_known(*words):
            found.append(f"{family}{version} {size}{unit}".strip())
    return found[0] if len(found) == 1 else None


def _nearest(word: str, table: NameTable) -> str | None:
    """The word of models' names that is the nearest; None if none is near, or several are equally near and common."""
    most = 1 if len(word) < 8 else 2
    near: dict[int, list[str]] = {}
    letters = set(word)
    starts, ends = table.first_letters.get(word[0], ()), table.last_letters.get(word[-1], ())
    for other in dict.fromkeys((*starts, *ends)):
        if abs(len(other) - len(word)) > most:
            continue
        if len(letters.symmetric_difference(other)) > 2 * most:
            continue
        edits = _edits(word, other, most)
        if edits <= most:
            near.setdefault(edits, []).append(other)
    for edits in sorted(near):
        ranked = sorted(near[edits], key=lambda other: -table.vocabulary[other])
        if len(ranked) == 1 or table.vocabulary[ranked[0]] >= 4 * table.vocabulary[ranked[1]]:
            return ranked[0]
        return None
    return None


def _edits(word: str, other: str, most: int) -> int:
    """Letters added, left out, changed or swapped between two words; any number above `most` if there are more."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(word, 1):
        after = [i]
        for j, b in enumerate(other, 1):
            edits = min(row[j] + 1, after[j - 1] + 1, row[j - 1] + (a != b))
            if before and j > 1 and a == other[j - 2] and word[i - 2] == b:
                edits = min(edits, before[j - 2] + 1)
            after.append(edits)
        if min(after) > most:
            return most + 1
        before, row = row, after
    return row[-1]


# -- decisions -----------------------------------------------------------------------------------

CLEARLY_LIKE = 75  # percent; a model that is this much alike, and alone, is taken
SAME_SCORE = 8  # percent; a difference that says less than how much the models are used
FEW_MODELS = 20  # with one word in their names: a rare word identifies one of these models
WELL_KNOWN = 9.0  # uses of a model that is meant by a name without its version


class Meant(NamedTuple):
    """What a name that no model has may mean."""

    taken: Likeness | None = None
    choices: tuple[NamedModel, ...] = ()  # several models of different shapes fit equally well
    near: tuple[NamedModel, ...] = ()  # otherwise: the most similar ones


def meant(name: str) -> Meant:
    """The model that a name which no model has means, if that is clear; else those it may mean.

    A single letter means none, as in "b.gguf".
    """
    if len(re.findall("[a-z0-9]", name.lower())) < 2:
        return Meant()
    return _meant_in(index_file(), name[:MAX_CHARS])


@lru_cache(maxsize=256)  # an error asks again, for its suggestions
def _meant_in(_: IndexFile, name: str) -> Meant:
    ranked = similar(name)
    near = tuple(item.model for item in ranked)
    typed = words_of(name)
    fitting = [item for item in ranked if not item.extra and not item.is_another]
    if not fitting:
        return Meant(taken=_only_one(typed, ranked) or _tuned(typed, ranked), near=near)
    wants_base = any(word in BASE_WORDS for word in typed)
    if wants_base and not any(BASE_WORDS.intersection(item.model.names[0]) for item in fitting):
        fitting = [item for item in fitting if not item.model.answers] or fitting
    best = fitting[0]
    group = [item for item in fitting if item.score >= best.score - (25 if best.lacks_size else 20)]
    # "vicuna 13b" is not a LLaVA with Vicuna in it
    group = [item for item in group if _is_of_family(item.model, typed)] or group
    margin = SAME_SCORE if best.score < 100 else 3
    best = group[0]
    # a model with a word like "plus", which was not typed, is meant only if it is used much more
    top = max(
        (item for item in group if item.score >= best.score - margin),
        key=lambda item: item.model.uses - (item.lacks_size and not best.lacks_size),
    )
    first = max(
        (item for item in group if item is top or is_alike(item.model, top.model)),
        key=lambda item: (item.model.answers != wants_base, not item.is_stage, item.model.uses),
    )
    others = [item for item in group if not is_alike(item.model, first.model)]
    if not others:
        least = WELL_KNOWN if any(map(is_size, typed)) else WELL_KNOWN / 2
        is_known = not first.lacks_version or first.model.uses >= least
        is_clear = is_known and first.score >= CLEARLY_LIKE
        return Meant(taken=first if is_clear else _only_one(typed, ranked), near=near)
    is_family = len([word for word in typed if word not in MINOR_WORDS]) == 1  # "glm", "bge"
    is_clear = (
        not is_family and not best.lacks_size and all(_is_less(item, first) for item in others)
    )
    if (
        is_clear
        and first.score >= CLEARLY_LIKE
        and (first.model.uses >= WELL_KNOWN or first.score >= 95)
    ):
        return Meant(taken=first, near=near)
    return Meant(choices=_distinct(group), near=near)


def _only_one(typed: Sequence[str], ranked: Sequence[Likeness]) -> Likeness | None:
    """The only model, or shape, whose name has all typed words: 'dolphin venice', 'nemotron super 49b'.

    None if the words are too common to say that no other model was meant, as in 'qwen 28b'.
    """
    table = name_table()
    words = {word for word in typed if word not in MINOR_WORDS and word not in BASE_WORDS}
    letters = [word for word in words if word.isalpha()]
    rare = [word for word in letters if len(word) > 3 and table.vocabulary[word] <= FEW_MODELS]
    is_only_word = len(words) == 1 and any(
        table.vocabulary[word] == 1 and len(word) > 5 for word in rare
    )
    has_enough = len(words) > 1 and (
        rare or len(letters) > 2 or (len(letters) > 1 and any(map(is_size, words)))
    )
    holders = [
        item for item in ranked if words <= {*itertools.chain(*item.model.names), *item.model.owner}
    ]
    if not holders or not (has_enough or is_only_word):
        return None
    first = max(holders, key=lambda item: (not item.is_stage, item.model.uses))
    if first.lacks_version and len(words) < 3:
        named = [table.models[row] for word in rare for row in table.with_word[word]]
        relatives = [model for model in named if model.names[0][0] in rare] or named
        if len({_versions(model) for model in relatives}) != 1:
            return None
    return first if all(is_alike(item.model, first.model) for item in holders) else None


def _is_of_family(model: NamedModel, typed: Sequence[str]) -> bool:
    """Whether the name starts with a typed word, or with one that is put in front of names."""
    word = model.names[0][0]
    return word in typed or word in _FAMILY_WORDS or word in MINOR_WORDS or word in model.owner


def _versions(model: NamedModel) -> frozenset[str]:
    return frozenset(filter(_is_version, model.names[0]))


def _is_less(other: Likeness, first: Likeness) -> bool:
    """Whether the other is so much less used, or so much less alike, that the first is meant."""
    bases = (
        _BUILT_ON.intersection(first.model.names[0]),
        _BUILT_ON.intersection(other.model.names[0]),
    )
    if all(bases) and bases[0] != bases[1]:  # R1 8B: distilled into Llama, or into Qwen
        return False
    if other.model.uses <= first.model.uses - FEWER_USES:
        return other.score <= first.score + SAME_SCORE
    if (
        other.lacks_size and not other.lacks_version and other.score <= first.score - 5
    ):  # "command a" is not "command a plus"
        return True
    return other.score <= first.score - 10 and other.model.uses <= first.model.uses + 1


def _distinct(group: Sequence[Likeness]) -> tuple[NamedModel, ...]:
    """One model of each name and shape, the most used first."""
    chosen: list[NamedModel] = []
    for item in sorted(group, key=lambda item: (-item.model.uses, item.model.id)):
        if not any(
            item.model.shape_words == other.shape_words and is_alike(item.model, other)
            for other in chosen
        ):
            chosen.append(item.model)
    return tuple(chosen)


def _tuned(typed: Sequence[str], ranked: Sequence[Likeness]) -> Likeness | None:
    """A model of which the typed name is plainly another tuning: 'Qwen3.6-35B-A3B-Aggressive'.

    The name starts with the model's own, size and all, and goes on with words that no model of the index has.
    """
    vocabulary = name_table().vocabulary
    for item in ranked:
        known = item.model.names[0]
        own = [word for word in known if word not in MINOR_WORDS and not is_date(word)]
        size = any(is_size(word) or word in SIZE_WORDS for word in own)
        is_start = list(typed[: len(own)]) == own
        rest = [word for word in typed[len(own) :] if word not in MINOR_WORDS and word not in known]
        if size and is_start and item.extra and not item.is_another and all(
            word.isalpha() and vocabulary[word] < 2 and word not in _OTHER_SHAPES for word in rest
        ):  # fmt: skip
            return item
    return None
