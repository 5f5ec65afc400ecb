r"""The kinds of vocabularies (`tokenizer.ggml.model`), how they split text into words, and the memory of a tokenizer.

The rows are those of llama_vocab::impl::load, src/llama-vocab.cpp @ b21e4de. The pre-tokenizers of BPE vocabularies
are in pretokenizers.json, by their `tokenizer.ggml.pre`. Their patterns match what llama.cpp's match, but are written
for Oniguruma:
- characters outside ASCII are written as \x{...};
- a letter that is not upper case is a class, `[\p{L}&&[^A-Z]]`, not a look-ahead;
- llama.cpp's engine does not know \p{Lu} and takes \p{L} for all five kinds of letters, so it is \p{L} here;
- it counts a space outside ASCII as a letter if its range includes it: `&&[^\s]` where a range does;
- deepseek-llm: \s+$ is `(?<!\s)\s+\z`, which does not start again at each space of a run.

Not supported: `afmoe`, `tiny_aya`, `cohere2moe` and `superbpe` group the digits of a number from its end, which takes
quadratic time. `whitespace` is the pre-tokenizer of jina-embeddings-v2-base-zh.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pkgutil import get_data
from typing import Any, NamedTuple

from edgekit.engines.native.file import FileHeader
from edgekit.errors import UnknownTokenizerError, quoted
from edgekit.formats.types import ModelHeader
from edgekit.units import MIB

TABLE = "engines/native/tokenizer/kinds.py"
PRE_TABLE = "engines/native/tokenizer/pretokenizers.json"
# Ways to build a token from two others: 1.9 on average in Llama 2, 2.0 in Gemma.
SPLITS_PER_TOKEN = 3


class Method(enum.Enum):
    """How a text becomes the tokens of a vocabulary."""

    WORDPIECE = "WordPiece"  # words, each from the left, the longest piece first
    BPE = "BPE"  # words, each by its merges, the lowest first
    SPM = "BPE by scores"  # the whole text: first the pair whose token has the highest score
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


_ROWS = (
    TokenizerFamily(
        model="bert", method=Method.WORDPIECE, bos=101, unknown=100, separator=102, add_bos=True
    ),
    TokenizerFamily(model="gpt2", method=Method.BPE, bos=11, eos=11),
    TokenizerFamily(model="whitespace", method=Method.BPE, bos=11, eos=11),
    TokenizerFamily(model="gemma4", method=Method.BPE),
    TokenizerFamily(
        model="llama", method=Method.SPM, bos=1, eos=2, unknown=0, add_bos=True, space_prefix=True
    ),
    TokenizerFamily(model="t5", method=Method.UNIGRAM, eos=1, unknown=2, add_eos=True),
)
FAMILIES = {row.model: row for row in _ROWS}


def family_of(model: object, file: str) -> TokenizerFamily:
    """Raises UnknownTokenizerError for an unknown kind."""
    row = FAMILIES.get(model) if isinstance(model, str) else None
    if row is None:
        value = "is missing" if model is None else f"is {quoted(model)}"
        raise UnknownTokenizerError(
            f"{file}: tokenizer.ggml.model (the kind of vocabulary) {value}; supported are "
            f"{', '.join(FAMILIES)}. A new kind needs a row in {TABLE}"
        )
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """How a BPE vocabulary splits text into words, before any merge.

    The patterns are applied in order, each to the parts that the one before has left.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token becomes that token
    add_bos: bool = False
    has_bos: bool = True
    raw: bool = False  # merges are over letters, with `▁` for spaces, not over bytes
    newline_runs: bool = False  # a run of line ends that is a token becomes that token
    lists_letters: bool = False  # only listed letters form words with their spaces
    ends_words: bool = True  # a letter or digit before a space always ends a word


@cache
def pre_tokenizers() -> Mapping[str, PreTokenizer]:
    """By name: the rows of pretokenizers.json."""
    data = json.loads(get_data("edgekit.engines.native.tokenizer", "pretokenizers.json") or b"")
    rows: dict[str, PreTokenizer] = {}
    for row in data["rows"]:
        values: dict[str, Any] = {**row, "patterns": tuple(row["patterns"])}
        names = values.pop("names")
        rows |= dict.fromkeys(names, PreTokenizer(**values))
    return rows


def pre_tokenizer_of(name: object, file: str) -> PreTokenizer:
    """Raises UnknownTokenizerError for an unknown name.

    A file without a name is refused too. llama.cpp uses `default` and warns that the output will be worse; in a vector
    that would not be noticed.
    """
    row = pre_tokenizers().get(name) if isinstance(name, str) else None
    if row is not None:
        return row
    if name is None:
        raise UnknownTokenizerError(
            f"{file} does not state its pre-tokenizer (tokenizer.ggml.pre is missing, "
            "because the file was converted before that key existed); convert the model "
            f"again. Supported ones are in {PRE_TABLE}"
        )
    raise UnknownTokenizerError(
        f"{file}: unsupported pre-tokenizer {quoted(name)} (tokenizer.ggml.pre): no row in {PRE_TABLE}"
    )


# --- memory
#
# `tokenizers` has three hash tables. Their sizes are powers of two, and at most 7/8 of the slots are used; each text
# takes two allocations. The estimate was compared with 9 vocabularies of 30,522 to 262,144 tokens
# (tests/unit/engines/native/tokenizer/test_cost.py): the measured resident memory is 7 to 40 % below the estimate,
# and the measured peak 10 to 60 %. The difference is largest where merges are rebuilt from scores, because only their
# largest possible number is known.

_LIBRARY_BYTES = 10 * MIB  # the code of `tokenizers` itself, and what any tokenizer needs
# To tokenize the longest piece of text that is tokenized at once, with every letter spelled as bytes.
_CUTTING_BYTES = 10 * MIB
_NAME_SLOT_BYTES = 33 + 33  # name -> number and number -> name, with a control byte each
_MERGE_SLOT_BYTES = 17  # two numbers -> rank and number
_TEXT_BYTES = 32  # of the smallest allocation: up to 24 letters
_USUAL_TEXT_BYTES = 24  # in a file, with its length: 14 to 19 in real ones
_SPARE = 1.3  # the heap is larger than what is in it, because of gaps that cannot be used
_READ_MERGE_BYTES = 48  # two text objects to be looked up, without their letters
_OBJECT_TOKEN_BYTES = 250  # as Python objects: a text, a number, their slots in two dicts
_OBJECT_MERGE_BYTES = 64  # a pair and its slot in a list
_SCORES_BYTES = 2 * MIB  # left over from merges made from scores
_UNIGRAM_TOKEN_BYTES = 160  # text, number, score and their slots in one dict
_UNIGRAM_BYTES = 6 * MIB  # its code, its map of letters, and the longest piece of text


class TokenizerCost(NamedTuple):
    """How much a process grows: permanently, and at most while the tokenizer is built."""

    resident_bytes: int
    peak_bytes: int


def tokenizer_cost_bytes(header: FileHeader) -> TokenizerCost:
    """What a file's tokenizer takes, estimated from the lengths of its arrays. MODELLED, and never too low.

    Raises UnknownTokenizerError.
    """
    family = family_of(header.keys.get("tokenizer.ggml.model"), header.name)
    return _cost(family, _array_size(header, "tokens"), _array_size(header, "merges"))


def vocabulary_bytes(header: ModelHeader, tokens: int) -> int:
    """The most that a process grows while it builds the tokenizer; an unknown kind counts as the most expensive one.

    `tokens` is the size of the vocabulary, used if the header was read without it.
    """
    model = header.keys.get("tokenizer.ggml.model")
    family = FAMILIES.get(model) if isinstance(model, str) else None
    size = _array_size(header, "tokens")
    if not size[0]:
        size = (tokens, tokens * _USUAL_TEXT_BYTES)
    return _cost(family or FAMILIES["llama"], size, _array_size(header, "merges")).peak_bytes


def _cost(
    family: TokenizerFamily, token_array: tuple[int, int], merge_array: tuple[int, int]
) -> TokenizerCost:
    """`token_array` and `merge_array`: number of entries and bytes."""
    (tokens, token_bytes), (merges, merge_bytes) = token_array, merge_array
    read_bytes = token_bytes + merge_bytes + 8 * tokens
    if family.method is Method.UNIGRAM:
        resident = _UNIGRAM_BYTES + tokens * _UNIGRAM_TOKEN_BYTES + 2 * token_bytes
        return TokenizerCost(resident, resident + read_bytes)
    if family.method is Method.SPM:
        merges = SPLITS_PER_TOKEN * tokens
    tables = _slots(tokens) * _NAME_SLOT_BYTES + _slots(merges) * _MERGE_SLOT_BYTES
    texts = 2 * tokens * _TEXT_BYTES
    resident = _LIBRARY_BYTES + int(_SPARE * (tables + texts)) + 2 * token_bytes
    if family.method is Method.SPM:
        resident += _SCORES_BYTES
    building = read_bytes + 2 * _TEXT_BYTES * merges + _slots(merges) * _READ_MERGE_BYTES
    if family.method is not Method.BPE or family.model == "gemma4":  # through Python objects
        building += tokens * _OBJECT_TOKEN_BYTES + merges * _OBJECT_MERGE_BYTES
    return TokenizerCost(resident + _CUTTING_BYTES, resident + max(building, _CUTTING_BYTES))


def _array_size(header: FileHeader | ModelHeader, key: str) -> tuple[int, int]:
    """The number of entries of an array, and its bytes in the file."""
    fact = header.arrays.get(f"tokenizer.ggml.{key}")
    if fact is None:
        return 0, 0
    return fact.count, fact.end - fact.offset if fact.end else fact.count * _USUAL_TEXT_BYTES


def _slots(entries: int) -> int:
    """The size of a hash table with this many entries."""
    return 1 << max(entries * 8 // 7, 1).bit_length()
