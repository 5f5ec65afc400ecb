r"""How a BPE vocabulary splits text into words: the rows are in pretokenizers.json, under their tokenizer.ggml.pre.

The patterns are llama.cpp's, written for Oniguruma. They match the same; only the spelling differs:
- characters outside ASCII are written as \x{...};
- a letter that is not upper case is a class, `[\p{L}&&[^A-Z]]`, not a look-ahead;
- llama.cpp's engine does not know \p{Lu} and takes \p{L} for all five kinds of letters, so it is \p{L} here;
- it sees a space outside ASCII as a letter of its range: `&&[^\s]` where a range has some;
- deepseek-llm: \s+$ is `(?<!\s)\s+\z`, which does not start again at each space of a run.

Without a row: `afmoe`, `tiny_aya`, `cohere2moe`, `superbpe` group the digits of a number from its end, which takes
quadratic time. `whitespace` is jina-embeddings-v2-base-zh's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pkgutil import get_data
from typing import Any

from edgekit.errors import UnknownTokenizerError
from edgekit.terminal import quoted

TABLE = "engines/native/tokenizer/pretokenizers.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """How a BPE vocabulary's texts are cut into words, before any merge.

    Each pattern cuts what the one before has left. The patterns are Oniguruma's.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is that token
    add_bos: bool = False
    has_bos: bool = True
    raw: bool = False  # merges are over letters with `▁` for spaces, not over bytes
    newline_runs: bool = False  # a run of line ends that is a token is that token
    lists_letters: bool = False  # some letters are words with their spaces, others are what is left
    ends_words: bool = True  # a letter or digit before a space always ends a word


def _read_rows() -> dict[str, PreTokenizer]:
    data = json.loads(get_data("edgekit.engines.native.tokenizer", "pretokenizers.json") or b"")
    found: dict[str, PreTokenizer] = {}
    for row in data["rows"]:
        values: dict[str, Any] = {**row, "patterns": tuple(row["patterns"])}
        names = values.pop("names")
        found |= dict.fromkeys(names, PreTokenizer(**values))
    return found


PRE_TOKENIZERS = _read_rows()


def pre_tokenizer_of(name: object, file: str) -> PreTokenizer:
    """Raises UnknownTokenizerError for a name without a row.

    A file without a name is refused too: llama.cpp uses `default` and warns that the result will be worse, which
    would not show in a vector.
    """
    row = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if row is not None:
        return row
    if name is None:
        raise UnknownTokenizerError(
            f"{file} does not state its pre-tokenizer (tokenizer.ggml.pre is missing, "
            "because the file was converted before that key existed); convert the model "
            f"again. Supported ones are in {TABLE}"
        )
    raise UnknownTokenizerError(
        f"{file}: unsupported pre-tokenizer {quoted(name)} (tokenizer.ggml.pre): no row in {TABLE}"
    )
