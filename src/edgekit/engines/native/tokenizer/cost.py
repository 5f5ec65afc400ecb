"""The kinds of vocabularies that can be read (`tokenizer.ggml.model`), one row each, and the memory of a tokenizer.

The rows are those of llama_vocab::impl::load, src/llama-vocab.cpp @ b21e4de.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from edgekit.engines.native.file import FileHeader
from edgekit.errors import UnknownTokenizerError
from edgekit.formats.types import ModelHeader
from edgekit.terminal import quoted
from edgekit.units import MIB

TABLE = "engines/native/tokenizer/cost.py"
SPLITS_PER_TOKEN = (
    3  # ways to build a token from two others: 1.9 on average in Llama 2, 2.0 in Gemma
)


class Method(enum.Enum):
    """How a text becomes the tokens of a vocabulary."""

    WORDPIECE = "WordPiece"  # words, each from the left, the longest piece first
    BPE = "BPE"  # words, each by its merges, the lowest first
    SPM = "BPE by scores"  # the whole text: always the pair whose token has the highest score
    UNIGRAM = "Unigram"  # the whole text: the tokens with the highest sum of scores


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFamily:
    """A kind of vocabulary, and its defaults for keys that a file lacks."""

    model: str
    method: Method
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    separator: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    space_prefix: bool = False


FAMILIES: dict[str, TokenizerFamily] = {
    row.model: row
    for row in (
        TokenizerFamily(
            model="bert",
            method=Method.WORDPIECE,
            bos=101,
            unknown=100,
            separator=102,
            add_bos=True,
        ),
        TokenizerFamily(model="gpt2", method=Method.BPE, bos=11, eos=11),
        TokenizerFamily(model="whitespace", method=Method.BPE, bos=11, eos=11),
        TokenizerFamily(model="gemma4", method=Method.BPE),
        TokenizerFamily(
            model="llama",
            method=Method.SPM,
            bos=1,
            eos=2,
            unknown=0,
            add_bos=True,
            space_prefix=True,
        ),
        TokenizerFamily(model="t5", method=Method.UNIGRAM, eos=1, unknown=2, add_eos=True),
    )
}


def family_of(model: object, file: str) -> TokenizerFamily:
    """Raises UnknownTokenizerError for a kind without a row."""
    row = FAMILIES.get(model) if isinstance(model, str) else None
    if row is None:
        found = "is missing" if model is None else f"is {quoted(model)}"
        raise UnknownTokenizerError(
            f"{file}: tokenizer.ggml.model (the kind of vocabulary) {found}; supported are "
            f"{', '.join(FAMILIES)}. A new kind needs a row in {TABLE}"
        )
    return row


# --- memory
#
# `tokenizers` has three hash tables, whose sizes are powers of two of which at most 7/8 are used; a text takes two
# allocations. Measured with 9 vocabularies of 30,522 to 262,144 tokens (test_tokenizer_cost.py): what stays is
# 7 to 40 % below the model, the peak 10 to 60 %, most where merges are rebuilt from scores and only their largest
# number is known.

_LIBRARY_BYTES = 10 * MIB  # the code of `tokenizers` itself, and what any tokenizer needs
_CUTTING_BYTES = 10 * MIB  # the longest stretch of text at once, all letters as bytes
_NAME_PLACE_BYTES = 33 + 33  # name -> number and number -> name, with a byte of control each
_MERGE_PLACE_BYTES = 17  # two numbers -> rank and number
_TEXT_BYTES = 32  # of the smallest allocation: 24 letters and less
_USUAL_TEXT_BYTES = 24  # in a file, with its length: 14 to 19 in real ones
_SPARE = 1.3  # of the heap: gaps that cannot be used
_READ_MERGE_BYTES = 48  # two texts to be looked up, without the texts themselves
_OBJECT_TOKEN_BYTES = 250  # as Python objects: a text, a number, their places in two dicts
_OBJECT_MERGE_BYTES = 64  # a pair and its place in a list
_SCORES_BYTES = 2 * MIB  # left over from merges made from scores
_UNIGRAM_TOKEN_BYTES = 160  # text, number, score and their places in one dict
_UNIGRAM_BYTES = 6 * MIB  # its code, its map of letters, and the longest stretch of text


class TokenizerCost(NamedTuple):
    """How much a process grows: permanently, and at most while the tokenizer is built."""

    resident_bytes: int
    peak_bytes: int


def tokenizer_cost_bytes(header: FileHeader) -> TokenizerCost:
    """From the lengths of the arrays alone. MODELLED, never too low. Raises UnknownTokenizerError."""
    family = family_of(header.keys.get("tokenizer.ggml.model"), header.name)
    return _cost(family, _size(header, "tokens"), _size(header, "merges"))


def vocabulary_bytes(header: ModelHeader, tokens: int) -> int:
    """The most that a process grows while it builds the tokenizer; an unknown kind counts as the most expensive.

    `tokens`: how many the model has, for a header that was read without its vocabulary.
    """
    model = header.keys.get("tokenizer.ggml.model")
    known = FAMILIES.get(model) if isinstance(model, str) else None
    found = _size(header, "tokens")
    counted = found if found[0] else (tokens, tokens * _USUAL_TEXT_BYTES)
    return _cost(known or FAMILIES["llama"], counted, _size(header, "merges")).peak_bytes


def _cost(
    family: TokenizerFamily, tokens_of: tuple[int, int], merges_of: tuple[int, int]
) -> TokenizerCost:
    (tokens, token_bytes), (merges, merge_bytes) = tokens_of, merges_of
    read_bytes = token_bytes + merge_bytes + 8 * tokens
    if family.method is Method.UNIGRAM:
        resident = _UNIGRAM_BYTES + tokens * _UNIGRAM_TOKEN_BYTES + 2 * token_bytes
        return TokenizerCost(resident, resident + read_bytes)
    if family.method is Method.SPM:
        merges = SPLITS_PER_TOKEN * tokens
    tables = _places(tokens) * _NAME_PLACE_BYTES + _places(merges) * _MERGE_PLACE_BYTES
    texts = 2 * tokens * _TEXT_BYTES
    resident = _LIBRARY_BYTES + int(_SPARE * (tables + texts)) + 2 * token_bytes
    if family.method is Method.SPM:
        resident += _SCORES_BYTES
    building = read_bytes + 2 * _TEXT_BYTES * merges + _places(merges) * _READ_MERGE_BYTES
    if family.method is not Method.BPE or family.model == "gemma4":  # through Python objects
        building += tokens * _OBJECT_TOKEN_BYTES + merges * _OBJECT_MERGE_BYTES
    return TokenizerCost(resident + _CUTTING_BYTES, resident + max(building, _CUTTING_BYTES))


def _size(header: FileHeader | ModelHeader, key: str) -> tuple[int, int]:
    place = header.arrays.get(f"tokenizer.ggml.{key}")
    if place is None:
        return 0, 0
    return place.count, place.end - place.offset if place.end else place.count * _USUAL_TEXT_BYTES


def _places(entries: int) -> int:
    return 1 << max(entries * 8 // 7, 1).bit_length()
