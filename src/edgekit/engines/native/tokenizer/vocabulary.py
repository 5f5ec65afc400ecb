"""Reads the vocabulary of a GGUF file, checks it, and stores it as compactly as the file does."""

from __future__ import annotations

import enum
import math
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgekit.engines.native.file import WeightFile
from edgekit.engines.native.tokenizer.kinds import (
    TABLE,
    Method,
    PreTokenizer,
    TokenizerFamily,
    family_of,
    pre_tokenizer_of,
)
from edgekit.errors import HeaderError, HeaderLimitError, UnknownTokenizerError, quoted
from edgekit.formats.types import ArrayFact
from edgekit.model.hyperparameters import GgufKeys
from edgekit.units import KIB, LARGEST, MIB

if TYPE_CHECKING:
    from edgekit.engines.native.file import FileHeader


SPACE = "▁"  # sentencepiece's letter for a space

# Upper limits for a vocabulary and a text. The comments name the largest real values.
MOST_TOKENS = 1_048_576  # XLM-V has 901,629, Gemma 262,144
MOST_MERGES = 1_572_864  # Gemma 4 has 514,906
MOST_TOKEN_BYTES = 4 * KIB  # 1,024 in gpt-neox and Command-R: 512 spaces, two bytes each
MOST_STRINGS_BYTES = 64 * MIB  # all tokens, or all merges: 5.6 MB in Gemma 4
MOST_CHARSMAP_BYTES = 4 * MIB  # 237,539 in XLM-R's
MOST_SPECIAL_TOKENS = 65_536  # Gemma 3 has 6,415
UNIGRAM_CHARACTERS = 128  # in one token of a Unigram vocabulary; sentencepiece trains 16
STRETCH_CHARACTERS = 8 * KIB  # in a part of a text without a split point: see text.py
WINDOW_CHARACTERS = 4 * KIB  # tokenized at once, if the text has split points


class TokenKind(enum.IntEnum):
    """What a token is for; the number is GGUF's token_type."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Strings:
    """Many short texts in one buffer: 150,000 tokens take 2 MB; as Python objects they would take 10."""

    __slots__ = ("_file", "_what", "all_bytes", "ends", "offset")

    def __init__(self, what: str, *, file: str, offset: int) -> None:
        self._what = what
        self._file = file
        # Where the array starts in the file; there, each text follows its length.
        self.offset = offset
        self.all_bytes = bytearray()  # all texts, without separators
        self.ends = array("I")

    def append(self, text: bytes | memoryview) -> None:
        self.all_bytes += text
        self.ends.append(len(self.all_bytes))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        begin = self.ends[index - 1] if index else 0
        raw = self.all_bytes[begin : self.ends[index]]
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise HeaderError(
                f"{self._what}[{index}] is {quoted(bytes(raw))}, which is not valid UTF-8",
                file=self._file,
            ) from error

    def __iter__(self) -> Iterator[str]:
        begin, raw = 0, self.all_bytes
        for index, end in enumerate(self.ends):
            try:  # the same as self[index], but faster
                text = raw[begin:end].decode()
            except UnicodeDecodeError:
                text = self[index]
            yield text
            begin = end


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens of one file and the rules for using them. Everything in it has been checked."""

    file: str
    family: TokenizerFamily
    pre: PreTokenizer | None  # only BPE has one
    tokens: Strings = field(repr=False)
    kinds: bytes = field(repr=False)  # one TokenKind for each token
    named: Mapping[str, int] = field(repr=False)  # text -> number, only for texts in _MEANINGS
    scores: array[float] | None = field(repr=False)  # only SPM and Unigram
    merges: Strings | None = field(repr=False)  # only BPE
    charsmap: bytes = field(repr=False)  # only Unigram: sentencepiece's normalisation
    before: tuple[int, ...]  # tokens that are added before every text
    after: tuple[int, ...]  # tokens that are added after every text
    unknown: int | None
    space_prefix: bool
    merge_spaces: bool
    lowercase: bool
    strip_accents: bool
    strip_left: frozenset[int]  # special tokens that remove the spaces before them
    strip_right: frozenset[int]

    def error(self, what: str) -> HeaderError:
        return HeaderError(what, file=self.file)


# --- the keys and arrays of a file

WINDOW_BYTES = 32 * KIB
_LENGTH = struct.Struct("<Q")
_CODES = {"float32": "f", "int32": "i", "int8": "b", "uint8": "B"}
_KEY = "tokenizer.ggml."


@dataclass(frozen=True, slots=True)
class _TokenizerKeys(GgufKeys):
    """The keys that begin with tokenizer.ggml, and a reader for their arrays, which are still in the file."""

    arrays: Mapping[str, ArrayFact]
    source: WeightFile

    @classmethod
    def of(cls, source: WeightFile, header: FileHeader) -> _TokenizerKeys:
        return cls(header.keys, _KEY.removesuffix("."), header.name, header.arrays, source)

    def text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{_KEY}{key} is {quoted(value)}, not a string")
        return value

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{_KEY}{key} is {quoted(value)}, neither true nor false")
        return GgufKeys.flag(self, key, default=default)

    def token(self, key: str, default: int | None, count: int) -> int | None:
        """The number that a key states for a token, else the default if the vocabulary has that many tokens.

        A stated number may be outside the vocabulary, because the token may never be used.
        """
        value = self.get(key)
        if value is None:
            return default if default is not None and default < count else None
        if type(value) is not int:
            raise self.error(f"{_KEY}{key} is {quoted(value)}, not a token number")
        return value

    def token_or_default(self, key: str, default: int | None, count: int) -> int | None:
        """As `token`, but a number outside the vocabulary counts as not stated."""
        value = self.token(key, default, count)
        if value is not None and not 0 <= value < count:
            return default if default is not None and default < count else None
        return value

    def find_array(self, key: str, *, most: int = LARGEST) -> ArrayFact:
        """Raises HeaderError if there is no such array, HeaderLimitError if it has more than `most` entries."""
        fact = self.arrays.get(_KEY + key)
        if fact is None:
            raise self.error(f"has no vocabulary: {_KEY}{key} is missing or not an array")
        self.check_limit(f"{_KEY}{key}: number of entries", fact.count, most)
        return fact

    def check_limit(self, what: str, value: int, limit: int) -> None:
        if value > limit:
            raise HeaderLimitError(what, value=value, limit=limit, file=self.file)

    def read_strings(self, key: str, *, most: int, entry_bytes: int) -> Strings:
        """An array of at most `most` strings, each of at most `entry_bytes`."""
        fact, what = self.find_array(key, most=most), _KEY + key
        if key == "tokens" and not fact.count:
            raise self.error(f"has no vocabulary: {what} is empty")
        if fact.element != "string":
            raise self.error(f"{what} holds {fact.element}, not strings")
        self.check_limit(f"{what}: length in bytes", fact.end - fact.offset, MOST_STRINGS_BYTES)
        strings = Strings(what, file=self.file, offset=fact.offset)
        buffer, unpack, append = bytearray(WINDOW_BYTES), _LENGTH.unpack_from, strings.append
        window_offset, index = fact.offset, 0
        while index < fact.count:
            window = memoryview(buffer)[: min(WINDOW_BYTES, fact.end - window_offset)]
            self.source.read_into(window_offset, window, what=what)
            position, length = 0, len(window)
            while index < fact.count and position + 8 <= length:
                (size,) = unpack(window, position)
                if size > entry_bytes:
                    self.check_limit(f"{what}[{index}]: length in bytes", size, entry_bytes)
                end = position + 8 + size
                if end > length:  # the next window begins with this string
                    break
                append(window[position + 8 : end])
                position, index = end, index + 1
            # The string does not fit into a window of its own, so the array ends inside it.
            if not position:
                raise HeaderError(
                    f"{what} continues beyond its end", file=self.file, offset=window_offset
                )
            window_offset += position
        return strings

    def read_numbers(
        self, key: str, *, elements: tuple[str, ...], count: int
    ) -> array[int] | array[float]:
        """The first `count` numbers of an array. Raises HeaderError if there are fewer, or of another type."""
        fact, what = self.find_array(key), _KEY + key
        if fact.element not in elements:
            raise self.error(f"{what} holds {fact.element}, not {' or '.join(elements)}")
        if fact.count < count:
            raise self.error(f"{what} has {fact.count:,} entries, but there are {count:,} tokens")
        numbers: array[int] | array[float] = array(_CODES[fact.element])
        numbers.frombytes(bytes(count * numbers.itemsize))
        self.source.read_into(fact.offset, memoryview(numbers).cast("B"), what=what)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers


# --- the vocabulary

SPECIAL_KINDS = frozenset({TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.USER_DEFINED})

# Texts that make a token special, whatever its type in the file is: llama-vocab.cpp:2665-2875.
ANSWER_ENDS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
})  # fmt: skip
# Tokens that end a fill-in-the-middle: the key that states the token, and the texts to search for without the key.
FILL_ENDS = {
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>",),
}
_CONTROL = ANSWER_ENDS.union(*FILL_ENDS.values()) | {
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>",
    "\u2581<PRE>", "<|code_prefix|>", "<|prefix|>", "<|fim_suffix|>", "<fim-suffix>",
    "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>", "<SUF>", "\u2581<SUF>", "<|code_suffix|>",
    "<|suffix|>", "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>",
    "<MID>", "\u2581<MID>", "<|code_middle|>", "<|middle|>",
}  # fmt: skip
_USER_DEFINED = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})
# All texts that have a special meaning.
_MEANINGS = _CONTROL | _USER_DEFINED | {"<mask>", "[MASK]", "<unk>", "<s>"}
_MASK_PRE = ("jina-v2-de", "jina-v2-es", "jina-v2-code")
_MASK_ARCHITECTURES = ("nomic-bert-moe", "jina-bert-v3")


def read_vocabulary(file: WeightFile, header: FileHeader) -> Vocabulary:
    """A file's vocabulary. Raises UnknownTokenizerError for an unknown kind, HeaderError for contradictory keys."""
    keys = _TokenizerKeys.of(file, header)
    family = family_of(keys.text("model"), header.name)
    method = family.method
    pre = _read_pre_tokenizer(family, keys)
    tokens = keys.read_strings("tokens", most=MOST_TOKENS, entry_bytes=MOST_TOKEN_BYTES)
    named = {text: number for number, text in enumerate(tokens) if text in _MEANINGS}
    kinds = _read_kinds(keys, len(tokens), named)
    before, after = _read_frame(family, pre, keys, len(tokens))
    unknown = keys.token("unknown_token_id", family.unknown, len(tokens))
    if method in (Method.WORDPIECE, Method.UNIGRAM):
        unknown = _check_token(keys, "unknown", unknown, len(tokens))
    # BERT lowercases, unless the vocabulary has words with capitals. Most files are older than the key, and
    # llama.cpp lowercases every text.
    usually_lowercase = method is Method.WORDPIECE and not any(
        kind == TokenKind.NORMAL and token != token.lower()
        for token, kind in zip(tokens, kinds, strict=True)
    )
    lowercase = keys.flag("normalizer.lowercase", default=usually_lowercase)
    strip_left, strip_right = _read_space_strippers(keys, named, kinds)
    scores, merges, charsmap = None, None, b""
    if method in (Method.SPM, Method.UNIGRAM):
        numbers = keys.read_numbers("scores", elements=("float32", "int32"), count=len(tokens))
        scores = array("f", numbers)
        for number, score in enumerate(scores):
            if not math.isfinite(score):
                raise keys.error(f"{_KEY}scores[{number}] is {score}")
    if method is Method.BPE:
        longest = 2 * MOST_TOKEN_BYTES + 1
        merges = keys.read_strings("merges", most=MOST_MERGES, entry_bytes=longest)
    if _KEY + "precompiled_charsmap" in keys.arrays:
        count = keys.find_array("precompiled_charsmap", most=MOST_CHARSMAP_BYTES).count
        charsmap = keys.read_numbers(
            "precompiled_charsmap", elements=("int8", "uint8"), count=count
        ).tobytes()
    return Vocabulary(
        file=header.name,
        family=family,
        pre=pre,
        tokens=tokens,
        kinds=bytes(kinds),
        named=named,
        scores=scores,
        merges=merges,
        charsmap=charsmap,
        before=before,
        after=after,
        unknown=unknown,
        space_prefix=keys.flag("add_space_prefix", default=family.space_prefix),
        merge_spaces=keys.flag("remove_extra_whitespaces", default=False),
        lowercase=lowercase,
        strip_accents=keys.flag("normalizer.strip_accents", default=lowercase),
        strip_left=strip_left,
        strip_right=strip_right,
    )


def answer_ends(file: WeightFile, header: FileHeader, vocabulary: Vocabulary) -> frozenset[int]:
    """Tokens that end an answer, by their keys and by their texts: llama.cpp's special_eog_ids."""
    keys = _TokenizerKeys.of(file, header)
    kinds, named = vocabulary.kinds, vocabulary.named
    numbers = {keys.token_or_default(f"{key}_token_id", None, len(kinds)) for key in ("eot", "eom")}
    numbers.add(keys.token_or_default("eos_token_id", vocabulary.family.eos, len(kinds)))
    for key, texts in FILL_ENDS.items():
        token = keys.token_or_default(key, None, len(kinds))
        numbers |= _numbers_of(named, *texts) if token is None else {token}
    ends = _numbers_of(named, *ANSWER_ENDS)
    # _read_kinds has decided that these do not end an answer in this vocabulary.
    not_control = {number for number in ends if kinds[number] != TokenKind.CONTROL}
    return frozenset(number for number in numbers | ends if number is not None) - not_control


def _read_pre_tokenizer(family: TokenizerFamily, keys: _TokenizerKeys) -> PreTokenizer | None:
    """The pre-tokenizer of a BPE vocabulary; None for the other methods."""
    if family.method is not Method.BPE:
        return None
    name = "gemma4" if family.model == "gemma4" else keys.text("pre")
    row = pre_tokenizer_of(name, keys.file)
    if (family.model == "whitespace") is not (name == "whitespace"):
        raise UnknownTokenizerError(
            f"{keys.file}: unsupported combination of pre-tokenizer {quoted(name)} "
            f"and vocabulary {quoted(family.model)} ({TABLE})"
        )
    return row


def _read_kinds(keys: _TokenizerKeys, count: int, named: dict[str, int]) -> bytearray:
    """The TokenKind of each token: as the file states it, except for texts with a special meaning."""
    if _KEY + "token_type" in keys.arrays:
        numbers = keys.read_numbers("token_type", elements=("int32",), count=count)
        known = range(len(TokenKind))
        kinds = bytearray(int(kind) if kind in known else TokenKind.UNDEFINED for kind in numbers)
    else:
        kinds = bytearray([TokenKind.NORMAL]) * count
    for text, number in named.items():
        if text in _CONTROL:
            kinds[number] = TokenKind.CONTROL
        elif text in _USER_DEFINED:
            kinds[number] = TokenKind.USER_DEFINED
    # <|end|> does not end an answer if <|return|> does. In a vocabulary with <|tool_response>, </s> is HTML.
    has_calls = "<|call|>" in named or "<|calls|>" in named
    if "<|end|>" in named and has_calls and ("<|return|>" in named or "<|flush|>" in named):
        kinds[named["<|end|>"]] = TokenKind.USER_DEFINED
    if "</s>" in named and "<|tool_response>" in named:
        kinds[named["</s>"]] = TokenKind.NORMAL
    special_tokens = sum(kinds.count(kind) for kind in SPECIAL_KINDS)
    limit_name = f"{_KEY}token_type (special tokens): number of entries"
    keys.check_limit(limit_name, special_tokens, MOST_SPECIAL_TOKENS)
    return kinds


def _read_frame(
    family: TokenizerFamily, pre: PreTokenizer | None, keys: _TokenizerKeys, count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that are added before and after every text."""
    bos = None if pre and not pre.has_bos else family.bos
    begin = keys.token("bos_token_id", bos, count)
    if family.method is Method.WORDPIECE:  # always has both tokens, whatever the flags say
        if keys.get("bos_token_id") is None:
            begin = keys.token("cls_token_id", bos, count)
        separator = keys.token("seperator_token_id", family.separator, count)  # GGUF's spelling
        cls = _check_token(keys, "cls", begin, count)
        return (cls,), (_check_token(keys, "sep", separator, count),)
    add_bos = keys.flag("add_bos_token", default=family.add_bos or bool(pre and pre.add_bos))
    if pre and pre.newline_runs:  # Gemma 4 always has one: llama-vocab.cpp:2611
        add_bos = True
    add_eos = keys.flag("add_eos_token", default=family.add_eos)
    end = keys.token("eos_token_id", family.eos, count)
    return (
        (_check_token(keys, "bos", begin, count),) if add_bos else (),
        (_check_token(keys, "eos", end, count),) if add_eos else (),
    )


def _check_token(keys: _TokenizerKeys, what: str, number: int | None, count: int) -> int:
    """The number of a token that every text needs. Raises HeaderError if the vocabulary does not have it."""
    if number is None:
        raise keys.error(
            f"texts need its {what} token, but the file does not state which one it is"
        )
    if not 0 <= number < count:
        raise keys.error(
            f"its {what} token is number {number:,}, but there are only {count:,} tokens"
        )
    return number


def _read_space_strippers(
    keys: _TokenizerKeys, named: dict[str, int], kinds: bytearray
) -> tuple[frozenset[int], frozenset[int]]:
    """Special tokens that remove the spaces before them, and those that remove the spaces after them.

    GGUF has no key for it: llama-vocab.cpp:3066-3115 decides by the names of the model and the pre-tokenizer.
    """
    pre = keys.text("pre") or ""
    architecture = str(keys.all_keys.get("general.architecture", ""))
    name = str(keys.all_keys.get("general.name", "")).lower()
    nothing: frozenset[int] = frozenset()
    if any(part in pre for part in _MASK_PRE) or any(
        part in architecture for part in _MASK_ARCHITECTURES
    ):
        return _numbers_of(named, "<mask>"), nothing
    if "phi-3" in name or "phi3" in name:
        special_tokens = {number for number, kind in enumerate(kinds) if kind in SPECIAL_KINDS}
        exceptions = _numbers_of(named, "<unk>", "<s>", "<|endoftext|>")
        return nothing, frozenset(special_tokens | _numbers_of(named, "</s>")) - exceptions
    if "modern-bert" in name:
        return _numbers_of(named, "[MASK]"), nothing
    return nothing, nothing


def _numbers_of(named: Mapping[str, int], *texts: str) -> frozenset[int]:
    return frozenset(named[text] for text in texts if text in named)
