"""Vocabularies as in GGUF files: small ones that tokenize real words, and a generated one of Qwen2's size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, product
from string import ascii_letters, ascii_lowercase, digits, punctuation
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
QWEN2_TOKENS, QWEN2_NORMAL = 152_064, 151_643

WORDS = (
    *("the", "a", "of", "and", "to", "in", "is", "it", "that", "on", "with", "for", "as", "was"),
    *(
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "lazy",
        "dog",
        "cat",
        "sat",
        "mat",
        "hello",
        "world",
    ),
    *("text", "vector", "search", "memory", "model", "small", "large", "embed", "token", "edge"),
)
_ENDINGS = ("s", "ed", "ing", "er", "ly", "ding", "ens", "ory")
_LETTERS = "éèüöäßñçøåαβγабвгд中文日本語한국اللغةहिन्दी😀"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    model: str  # tokenizer.ggml.model
    pre: str = "default"
    tokens: tuple[str, ...] = field(repr=False)
    types: tuple[int, ...] = field(repr=False)
    scores: tuple[float, ...] = field(default=(), repr=False)
    merges: tuple[str, ...] = field(default=(), repr=False)
    extra_keys: tuple[tuple[str, Any], ...] = ()  # keys after "tokenizer.ggml."

    def keys(self) -> dict[str, Any]:
        """The keys of the file that describe the vocabulary."""
        arrays = {
            "tokens": self.tokens,
            "scores": self.scores,
            "token_type": self.types,
            "merges": self.merges,
        }
        result: dict[str, Any] = {"model": self.model, "pre": self.pre, **dict(self.extra_keys)}
        result |= {name: values for name, values in arrays.items() if values}
        return {f"tokenizer.ggml.{name}": value for name, value in result.items()}


def wordpiece() -> Vocabulary:
    """BERT's kind: the first piece of a word begins with U+2581, the others have no prefix (## is removed)."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    letters = ascii_lowercase + digits + _LETTERS
    starts = ("\u2581" + piece for piece in chain(letters, punctuation, WORDS))
    tokens = _unique(chain(special, starts, letters, _ENDINGS))
    return Vocabulary(
        model="bert",
        pre="jina-v2-en",  # llama.cpp's converter's name for BERT's own
        tokens=tokens,
        types=(CONTROL,) * len(special) + (NORMAL,) * (len(tokens) - len(special)),
        extra_keys=(
            ("token_type_count", 2),
            ("padding_token_id", 0),
            ("unknown_token_id", 1),
            ("cls_token_id", 2),
            ("bos_token_id", 2),
            ("seperator_token_id", 3),  # GGUF's spelling
            ("mask_token_id", 4),
        ),
    )


def byte_bpe(pre: str = "qwen2", *, bos: bool = False, eos: bool = False) -> Vocabulary:
    """GPT-2's kind: 256 bytes as letters, merges, three control tokens; `bos`, `eos`: whether they are added to a text."""
    merges = tuple(_merges_of(WORDS))
    tokens = _unique(chain(_byte_letters(), (pair.replace(" ", "") for pair in merges)))
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    first = len(tokens)
    return Vocabulary(
        model="gpt2",
        pre=pre,
        tokens=tokens + special,
        types=(NORMAL,) * first + (CONTROL,) * len(special),
        merges=merges,
        extra_keys=(
            ("bos_token_id", first),
            ("eos_token_id", first),
            ("padding_token_id", first),
            ("add_bos_token", bos),
            ("add_eos_token", eos),
        ),
    )


def sentencepiece() -> Vocabulary:
    """Llama 2's kind: pieces with scores, and a token for every byte."""
    parts = ascii_letters + digits + punctuation + _LETTERS
    prefixes = _unique(chain.from_iterable(_prefixes("\u2581" + word) for word in WORDS))
    pieces = tuple(piece for piece in prefixes if len(piece) > 1)
    singles = _unique(chain("\u2581", parts))
    tokens = (
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *pieces,
        *singles,
    )
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces) + len(singles))]
    return Vocabulary(
        model="llama",
        tokens=tokens,
        scores=tuple(scores),
        types=(UNKNOWN, CONTROL, CONTROL, *(BYTE,) * 256, *(NORMAL,) * (len(tokens) - 259)),
        extra_keys=(("bos_token_id", 1), ("eos_token_id", 2), ("unknown_token_id", 0)),
    )


def qwen2_sized(tokens: int = QWEN2_TOKENS) -> Vocabulary:
    """Tokens and merges of about the same length as Qwen2's, as many or fewer; every token joins two earlier ones."""
    letters = _byte_letters()
    count = min(tokens - 3, QWEN2_NORMAL)
    merges = tuple(islice(_generated_merges(), count - len(letters)))
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    normal = (*letters, *(pair.replace(" ", "") for pair in merges))
    unused = tuple(f"[PAD{number}]" for number in range(count + 3, tokens))
    return Vocabulary(
        model="gpt2",
        pre="qwen2",
        tokens=(*normal, *special, *unused),
        types=(NORMAL,) * count + (CONTROL,) * 3 + (UNUSED,) * len(unused),
        merges=merges,
        extra_keys=(
            ("bos_token_id", count),
            ("eos_token_id", count + 2),
            ("padding_token_id", count),
            ("add_bos_token", False),
        ),
    )


def _generated_merges() -> Iterator[str]:
    """Of 2, 3 and 4 letters; the same after a space; then of two 4-letter tokens, 8 letters long."""
    pairs = ["".join(two) for two in product(ascii_lowercase, repeat=2)]
    yield from (f"{pair[0]} {pair[1]}" for pair in pairs)
    yield from (f"Ġ {letter}" for letter in ascii_lowercase)
    yield from (f"Ġ {pair}" for pair in pairs)
    yield from (f"{pair} {letter}" for pair, letter in product(pairs, ascii_lowercase))
    yield from (f"Ġ{pair} {letter}" for pair, letter in product(pairs, ascii_lowercase))
    fours = [f"{left}{right}" for left, right in product(pairs[::4], pairs[::3])]
    yield from (f"{four[:2]} {four[2:]}" for four in fours)
    yield from (f"{left} {right}" for left, right in product(fours[::97], fours[::151]))


def _merges_of(words: Sequence[str]) -> Iterator[str]:
    """Each word's letters joined from the left, first with a space before the word, then without."""
    seen = set()
    for word in chain(("Ġ" + word for word in words), words):
        for end in range(1, len(word)):
            merge = f"{word[:end]} {word[end]}"
            if merge not in seen:
                seen.add(merge)
                yield merge


def _prefixes(word: str) -> Iterator[str]:
    return (word[:end] for end in range(2, len(word) + 1))


def _unique(values: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _byte_letters() -> tuple[str, ...]:
    """GPT-2's letters for the 256 bytes: printable ones are themselves, the others start at U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    return tuple(map(chr, printable)) + tuple(chr(256 + place) for place, _ in enumerate(others))
