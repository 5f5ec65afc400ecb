"""The tokenizer of a GGUF file, from the file's own keys. See docs/embed.md."""

from __future__ import annotations

import contextlib
from pathlib import Path

from edgekit.engines.native.tokenizer.cost import TokenizerCost, tokenizer_cost_bytes
from edgekit.engines.native.tokenizer.families import Method
from edgekit.engines.native.tokenizer.text import TextTokenizer, cut_by
from edgekit.engines.native.tokenizer.types import Vocabulary
from edgekit.engines.native.tokenizer.vocabulary import read_vocabulary

__all__ = [
    "TextTokenizer",
    "TokenizerCost",
    "Vocabulary",
    "build_tokenizer",
    "read_vocabulary",
    "tokenizer_cost_bytes",
]


def build_tokenizer(vocabulary: Vocabulary, *, cache: Path | None = None) -> TextTokenizer:
    """What cuts texts into this vocabulary's tokens.

    `cache` is a folder in which the form that `tokenizers` reads may stay for the next time; what
    is broken there is written anew. HeaderError where tokens and merges contradict each other.
    """
    from edgekit.engines.native.tokenizer.models import make_bpe, make_wordpiece
    from edgekit.engines.native.tokenizer.unigram import Unigram

    method = vocabulary.family.method
    if method is Method.UNIGRAM:
        return TextTokenizer(vocabulary, Unigram(vocabulary).cut)
    made = make_wordpiece(vocabulary) if method is Method.WORDPIECE else make_bpe(vocabulary, cache)
    _hand_back_freed()
    return TextTokenizer(vocabulary, cut_by(made, vocabulary))


def _hand_back_freed() -> None:
    """What building has freed, 15 MB for Llama 3's vocabulary, is kept by glibc until it is asked."""
    with contextlib.suppress(ImportError, AttributeError, TypeError, OSError):
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
