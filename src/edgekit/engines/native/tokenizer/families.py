"""The table of vocabularies: one row for each `tokenizer.ggml.model` that can be read.

The rows are those of llama_vocab::impl::load, src/llama-vocab.cpp @ b21e4de.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from edgekit.errors import UnknownTokenizerError
from edgekit.terminal import quoted

TABLE = "engines/native/tokenizer/families.py"
SPLITS_PER_TOKEN = 3  # ways to make a token of two others: 1.9 on average in Llama 2, 2.0 in Gemma


class Method(enum.Enum):
    """How a text is cut into the tokens of a vocabulary."""

    WORDPIECE = "WordPiece"  # words, each from the left, the longest piece first
    BPE = "BPE"  # words, each by its merges, the lowest first
    SPM = (
        "BPE by scores"  # the whole text, each time the pair that makes the token of highest score
    )
    UNIGRAM = "Unigram"  # the whole text, the tokens of the highest sum of scores


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFamily:
    """What `tokenizer.ggml.model` says, and what is assumed where the file is silent."""

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
    """UnknownTokenizerError for what has no row, with the name of the table."""
    row = FAMILIES.get(model) if isinstance(model, str) else None
    if row is None:
        said = "is missing" if model is None else f"is {quoted(model)}"
        raise UnknownTokenizerError(
            f"{file}: tokenizer.ggml.model (the kind of vocabulary) {said}; supported are "
            f"{', '.join(FAMILIES)}. A new kind needs a row in {TABLE}"
        )
    return row
