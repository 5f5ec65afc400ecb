"""The words of a model's name, and what they say: sizes, dates, tuning, base and instruct models."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from edgekit.index.typed import TUNED_WORDS

MAX_WORDS = 24  # of a name; the longest on the hub have about 20

_ACTIVE = r"a\d+(?:\.\d+)?[bm]"  # A3B: the active parameters
_SIZE = r"(?:\d+x)?e?\d+(?:\.\d+)?[bmt]"
_WORD = rf"(?:{_ACTIVE}|{_SIZE})(?![a-z])|\d+[ke](?![a-z0-9])|\d+(?:\.\d+)*|t5|[a-z]+"
_CONTEXT = r"\d+k|[1-9]m|10m|\d+e"  # 128k, 1m; 16e: the number of experts
_DATE = r"\d{4}|0\d+"  # 2507, 08, v02
# Words that stand for a size.
SIZE_WORDS = frozenset({
    "mini", "small", "medium", "large", "nano", "super", "ultra", "tiny", "micro", "lite", "flash", "pro",
    "max", "scout", "maverick", "air", "plus", "xs", "xl", "s", "m", "l",
})  # fmt: skip
# Words that people leave out, or add, without meaning another model.
MINOR_WORDS = frozenset({
    "instruct", "it", "chat", "hf", "gguf", "latest", "model", "models", "preview", "text", "mlx",
    "transformers", "llm", "bf", "experimental", "exp", "the", "dense", "moe", "version", "cloud", "ai", "dpo",
    "sft", "local", "alpha", "beta", "en",
}) | TUNED_WORDS  # fmt: skip
BASE_WORDS = frozenset({"base", "pt", "pretrained", "pretrain", "foundation"})
# Words of models that answer. "small" and "medium": Mistral's names, whose base models say so; "r": Falcon-H1R.
ANSWER_WORDS = frozenset({
    "it", "instruct", "chat", "thinking", "think", "reasoning", "devstral", "magistral", "codestral", "mathstral",
    "pixtral", "voxtral", "bloomz", "mix", "ft", "reward", "guard", "llamaguard", "shieldgemma", "intern", "small",
    "medium", "r", "tulu", "molmo", "olmocr",
    "wildguard",
})  # fmt: skip
# How the repositories begin whose plain names mean base models: the instruct versions have longer names.
_BASE_NAMES = (
    "01-ai/", "allenai/", "bigcode/", "bigscience/", "codellama/", "databricks/", "google/", "internlm/",
    "meta-llama/", "mistralai/", "swiss-ai/apertus-8b-", "swiss-ai/apertus-70b-", "tiiuae/",
)  # fmt: skip


@lru_cache(maxsize=16_384)
def words_of(name: str) -> tuple[str, ...]:
    """The parts of a name in lower case: 'DeepSeek-R1-Distill-Qwen-32B' -> deepseek, r, 1, distill, qwen, 32b.

    >>> words_of("Qwen1_5-0_5b v2.0")
    ('qwen', '1.5', '0.5b', '2')
    """
    text = name[:400] if name.isascii() else unicodedata.normalize("NFKC", name[:400])
    text = text.lower().replace("'s ", " ").replace("c4ai-", "")
    if "_" in text:  # 1_5: a decimal point, except before a size where all words are joined by "_"
        end = r"(?![\d.]*[bm])" if re.search(r"[-\s.]", text) is None else ""
        text = re.sub(rf"(\d+)_(\d+){end}", r"\1.\2", text)
    if "*" in text or "x" in text:
        text = re.sub(r"(?<![\d.])(\d+(?:\.\d+)?b) ?[*x] ?(\d+)(?!\w)", r"\2x\1", text)
        text = re.sub(r"(?<![\w.])(\d+x\d+)(?![\w.])", r"\1b", text)
    if "v" in text:
        text = re.sub(r"(?<![a-z0-9])v(?=\d)", "", text)
    return tuple(word.removesuffix(".0") for word in re.findall(_WORD, text)[:MAX_WORDS])


@lru_cache(maxsize=16_384)
def is_size(word: str) -> bool:
    return re.fullmatch(_SIZE, word) is not None and re.fullmatch(_CONTEXT, word) is None


@lru_cache(maxsize=16_384)
def is_active(word: str) -> bool:
    return re.fullmatch(_ACTIVE, word) is not None


@lru_cache(maxsize=16_384)
def is_context(word: str) -> bool:
    return re.fullmatch(_CONTEXT, word) is not None


@lru_cache(maxsize=16_384)
def is_date(word: str) -> bool:
    return re.fullmatch(_DATE, word) is not None


@lru_cache(maxsize=16_384)
def billions(word: str) -> float:
    """The size that a word states: '30b' -> 30, '8x7b' -> 0 (experts share weights)."""
    match = re.fullmatch(r"[ae]?(\d+(?:\.\d+)?)([bmt])", word)
    if match is None:
        return 0.0
    return float(match[1]) * {"b": 1.0, "m": 1e-3, "t": 1e3}[match[2]]


def says_base(name: str) -> bool:
    """Whether the name is that of a base model: 'Qwen3-8B-Base', and Ollama's 'llama3:8b-text'.

    >>> says_base("gemma-3-4b-pt"), says_base("Foundation-Sec-8B-Instruct"), says_base("nomic-embed-text")
    (True, False, False)
    """
    words = words_of(name.rpartition("/")[2])
    if not BASE_WORDS.isdisjoint(words):
        return ANSWER_WORDS.isdisjoint(words)
    return "text" in words_of(name.partition(":")[2])


def is_base(repository: str) -> bool:
    """Whether a repository has a base model, by its name and its publisher's habits: meta-llama/Llama-2-7b-hf."""
    if says_base(repository):
        return True
    has_plain_name = ANSWER_WORDS.isdisjoint(words_of(repository.rpartition("/")[2]))
    return has_plain_name and repository.lower().startswith(_BASE_NAMES)
