"""The `tokenizer.ggml.*` keys and arrays of a file -> its vocabulary, checked.

What a silent file means, and which tokens are special whatever the file says of them, is as in
llama_vocab::impl::load, src/llama-vocab.cpp @ b21e4de.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING

from edgekit.engines.native.tokenizer import limits
from edgekit.engines.native.tokenizer.arrays import Taker, read_numbers, read_strings, walk_strings
from edgekit.engines.native.tokenizer.families import Method, TokenizerFamily, family_of
from edgekit.engines.native.tokenizer.pretokenizers import pre_tokenizer_of
from edgekit.engines.native.tokenizer.types import (
    PreTokenizer,
    Strings,
    TokenKind,
    TokenPlaces,
    Vocabulary,
)
from edgekit.errors import HeaderError, HeaderLimitError, UnknownTokenizerError
from edgekit.terminal import quoted

if TYPE_CHECKING:
    from edgekit.engines.native.file import WeightFile
    from edgekit.engines.native.walk import ArrayPlace, Walked

_KEY = "tokenizer.ggml."
SPECIAL_KINDS = frozenset({TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.USER_DEFINED})

# Texts that are special tokens wherever they occur, marked as such or not: llama-vocab.cpp:2665-2875.
ENDS = frozenset({  # of an answer
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
})  # fmt: skip
FILL_ENDS = {  # of a text that is filled in: the key that names it, else these
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>",),
}
_CONTROL = ENDS.union(*FILL_ENDS.values()) | {
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>",
    "\u2581<PRE>", "<|code_prefix|>", "<|prefix|>", "<|fim_suffix|>", "<fim-suffix>",
    "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>", "<SUF>", "\u2581<SUF>", "<|code_suffix|>",
    "<|suffix|>", "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>",
    "<MID>", "\u2581<MID>", "<|code_middle|>", "<|middle|>",
}  # fmt: skip
_USER_DEFINED = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})
_NAMED = frozenset({"<mask>", "[MASK]", "<unk>", "<s>"})
# Texts that alone mean something, by how they are written in a file.
_TELLING = {text.encode(): text for text in _CONTROL | _USER_DEFINED | _NAMED}
_TELLING_BYTES = max(map(len, _TELLING))
_MASK_PRE = ("jina-v2-de", "jina-v2-es", "jina-v2-code")
_MASK_ARCHITECTURES = ("nomic-bert-moe", "jina-bert-v3")


def read_vocabulary(file: WeightFile, walked: Walked) -> Vocabulary:
    """UnknownTokenizerError where a table lacks the row; HeaderError where the file lies."""
    keys = _Keys(walked)
    family = family_of(keys.text("model"), walked.name)
    pre = _pre_tokenizer(family, keys)
    tokens, named = _read_tokens(file, keys)
    kinds = _read_kinds(file, keys, len(tokens), named)
    before, after = _frame(family, pre, keys, len(tokens))
    unknown = keys.token("unknown_token_id", family.unknown, len(tokens))
    if family.method in (Method.WORDPIECE, Method.UNIGRAM):
        unknown = _used(keys, "unknown", unknown, len(tokens))
    lowercase = keys.flag("normalizer.lowercase", _lowers(family, tokens, kinds))
    strip_left, strip_right = _strips(keys, named, kinds)
    return Vocabulary(
        file=walked.name,
        family=family,
        pre=pre,
        tokens=tokens,
        kinds=bytes(kinds),
        scores=_read_scores(file, keys, len(tokens)) if _has_scores(family) else None,
        merges=_read_merges(file, keys) if family.method is Method.BPE else None,
        charsmap=_read_charsmap(file, keys),
        before=before,
        after=after,
        unknown=unknown,
        space_prefix=keys.flag("add_space_prefix", family.space_prefix),
        merge_spaces=keys.flag("remove_extra_whitespaces", default=False),
        lowercase=lowercase,
        strip_accents=keys.flag("normalizer.strip_accents", lowercase),
        strip_left=strip_left,
        strip_right=strip_right,
    )


def read_places(file: WeightFile, walked: Walked) -> TokenPlaces:
    """For those who want the text of a token now and then: the texts stay in the file."""
    keys = _Keys(walked)
    family = family_of(keys.text("model"), walked.name)
    found = _Ends()
    place = _walk_tokens(file, keys, found)
    kinds = _read_kinds(file, keys, len(found), found.named)
    return TokenPlaces(
        file=walked.name,
        family=family,
        pre=_pre_tokenizer(family, keys),
        offset=place.offset,
        ends=found.ends,
        kinds=bytes(kinds),
        named=found.named,
        stops=_stops(keys, family, kinds, found.named),
    )


class _Ends:
    """Of texts, and the numbers of those that alone mean something."""

    def __init__(self) -> None:
        self.ends = array("I")
        self.named: dict[str, int] = {}
        self._end = 0

    def append(self, text: memoryview) -> None:
        self._end += len(text)
        if len(text) <= _TELLING_BYTES and (name := _TELLING.get(bytes(text))):
            self.named[name] = len(self.ends)
        self.ends.append(self._end)

    def __len__(self) -> int:
        return len(self.ends)


def _stops(
    keys: _Keys, family: TokenizerFamily, kinds: bytearray, named: dict[str, int]
) -> frozenset[int]:
    """llama.cpp's special_eog_ids: by the keys, and by what their texts are."""
    stops = {keys.existing(f"{key}_token_id", None, len(kinds)) for key in ("eot", "eom")}
    stops.add(keys.existing("eos_token_id", family.eos, len(kinds)))
    for key, texts in FILL_ENDS.items():
        told = keys.existing(key, None, len(kinds))
        stops |= _numbers(named, *texts) if told is None else {told}
    ends = _numbers(named, *ENDS)
    not_ends = {number for number in ends if kinds[number] != TokenKind.CONTROL}  # _except_two
    return frozenset(number for number in stops | ends if number is not None) - not_ends


class _Keys:
    """The keys that begin with tokenizer.ggml, each of the type it must have."""

    def __init__(self, walked: Walked) -> None:
        self.walked = walked

    def error(self, what: str) -> HeaderError:
        return HeaderError(what, file=self.walked.name)

    def text(self, key: str) -> str | None:
        value = self.walked.keys.get(_KEY + key)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{_KEY}{key} is {quoted(value)}, not a string")
        return value

    def flag(self, key: str, default: bool) -> bool:  # noqa: FBT001 - the two stand side by side in a table
        value = self.walked.keys.get(_KEY + key, default)
        if not isinstance(value, bool):
            raise self.error(f"{_KEY}{key} is {quoted(value)}, neither true nor false")
        return value

    def token(self, key: str, default: int | None, count: int) -> int | None:
        """A token's number. One that the vocabulary does not have is kept: it may never be used."""
        value = self.walked.keys.get(_KEY + key)
        if value is None:
            return default if default is not None and default < count else None
        if type(value) is not int:
            raise self.error(f"{_KEY}{key} is {quoted(value)}, not a token number")
        return value

    def existing(self, key: str, default: int | None, count: int) -> int | None:
        """The same, or what stands for one that the vocabulary does not have."""
        value = self.token(key, default, count)
        if value is not None and not 0 <= value < count:
            return default if default is not None and default < count else None
        return value

    def place(self, key: str) -> ArrayPlace | None:
        return self.walked.arrays.get(_KEY + key)

    def needed(self, key: str) -> ArrayPlace:
        place = self.place(key)
        if place is None:
            raise self.error(f"has no vocabulary: {_KEY}{key} is missing or not an array")
        return place

    def check_limit(self, key: str, value: int, limit: int) -> None:
        if value > limit:
            raise HeaderLimitError(
                f"{_KEY}{key}: number of entries", value=value, limit=limit, file=self.walked.name
            )


def _pre_tokenizer(family: TokenizerFamily, keys: _Keys) -> PreTokenizer | None:
    if family.method is not Method.BPE:
        return None
    name = "gemma4" if family.model == "gemma4" else keys.text("pre")
    row = pre_tokenizer_of(name, keys.walked.name)
    if (family.model == "whitespace") is not (name == "whitespace"):
        raise UnknownTokenizerError(
            f"{keys.walked.name}: unsupported combination of pre-tokenizer {quoted(name)} "
            f"and vocabulary {quoted(family.model)} (engines/native/tokenizer/families.py)"
        )
    return row


def _has_scores(family: TokenizerFamily) -> bool:
    return family.method in (Method.SPM, Method.UNIGRAM)


def _lowers(family: TokenizerFamily, tokens: Strings, kinds: bytearray) -> bool:
    """Where the file does not say: as BERT does, unless it has words that could then never be met.

    llama.cpp lowers every text; the key is younger than most files.
    """
    if family.method is not Method.WORDPIECE:
        return False
    return not any(
        kind == TokenKind.NORMAL and token != token.lower()
        for token, kind in zip(tokens, kinds, strict=True)
    )


def _read_tokens(file: WeightFile, keys: _Keys) -> tuple[Strings, dict[str, int]]:
    """The tokens, and the numbers of those whose text alone means something."""
    tokens = Strings(_KEY + "tokens", file=file.name)
    _walk_tokens(file, keys, tokens)
    wanted = frozenset(_TELLING.values())
    return tokens, {text: number for number, text in enumerate(tokens) if text in wanted}


def _walk_tokens(file: WeightFile, keys: _Keys, tokens: Taker) -> ArrayPlace:
    place = keys.needed("tokens")
    keys.check_limit("tokens", place.count, limits.TOKENS)
    if not place.count:
        raise keys.error(f"has no vocabulary: {_KEY}tokens is empty")
    walk_strings(
        file,
        place,
        _KEY + "tokens",
        tokens,
        entry_bytes=limits.TOKEN_BYTES,
        total_bytes=limits.STRINGS_BYTES,
    )
    return place


def _read_kinds(file: WeightFile, keys: _Keys, count: int, named: dict[str, int]) -> bytearray:
    place = keys.place("token_type")
    if place is None:
        kinds = bytearray([TokenKind.NORMAL]) * count
    else:
        stated = read_numbers(file, place, _KEY + "token_type", elements=("int32",), count=count)
        known = range(len(TokenKind))
        if min(stated) in known and max(stated) in known:
            kinds = bytearray(map(int, stated))
        else:
            kinds = bytearray(int(kind) if kind in known else 0 for kind in stated)
    for text, number in named.items():
        if text in _CONTROL:
            kinds[number] = TokenKind.CONTROL
        elif text in _USER_DEFINED:
            kinds[number] = TokenKind.USER_DEFINED
    _except_two(kinds, named)
    special = sum(kinds.count(kind) for kind in SPECIAL_KINDS)
    keys.check_limit("token_type (special tokens)", special, limits.SPECIAL_TOKENS)
    return kinds


def _except_two(kinds: bytearray, named: dict[str, int]) -> None:
    """<|end|> ends no answer where <|return|> does, and </s> is HTML where <|tool_response> is."""
    calls = "<|call|>" in named or "<|calls|>" in named
    if "<|end|>" in named and calls and ("<|return|>" in named or "<|flush|>" in named):
        kinds[named["<|end|>"]] = TokenKind.USER_DEFINED
    if "</s>" in named and "<|tool_response>" in named:
        kinds[named["</s>"]] = TokenKind.NORMAL


def _read_scores(file: WeightFile, keys: _Keys, count: int) -> array[float]:
    place = keys.needed("scores")
    stated = read_numbers(file, place, _KEY + "scores", elements=("float32", "int32"), count=count)
    scores = array("f", stated)
    for number, score in enumerate(scores):
        if not math.isfinite(score):
            raise keys.error(f"{_KEY}scores[{number}] is {score}")
    return scores


def _read_merges(file: WeightFile, keys: _Keys) -> Strings:
    place = keys.needed("merges")
    keys.check_limit("merges", place.count, limits.MERGES)
    return read_strings(
        file,
        place,
        _KEY + "merges",
        entry_bytes=2 * limits.TOKEN_BYTES + 1,
        total_bytes=limits.STRINGS_BYTES,
    )


def _read_charsmap(file: WeightFile, keys: _Keys) -> bytes:
    place = keys.place("precompiled_charsmap")
    if place is None:
        return b""
    keys.check_limit("precompiled_charsmap", place.count, limits.CHARSMAP_BYTES)
    return read_numbers(
        file,
        place,
        _KEY + "precompiled_charsmap",
        elements=("int8", "uint8"),
        count=place.count,
    ).tobytes()


def _frame(
    family: TokenizerFamily, pre: PreTokenizer | None, keys: _Keys, count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What stands before and after every text."""
    bos = None if pre and not pre.has_bos else family.bos
    begin = keys.token("bos_token_id", bos, count)
    if family.method is Method.WORDPIECE:  # always both, whatever the flags say
        if "tokenizer.ggml.bos_token_id" not in keys.walked.keys:
            begin = keys.token("cls_token_id", bos, count)
        separator = keys.token("seperator_token_id", family.separator, count)  # GGUF's spelling
        return (_used(keys, "cls", begin, count),), (_used(keys, "sep", separator, count),)
    add_bos = keys.flag("add_bos_token", family.add_bos or bool(pre and pre.add_bos))
    add_bos = add_bos or bool(pre and pre.newline_runs)  # Gemma 4's: always, llama-vocab.cpp:2611
    add_eos = keys.flag("add_eos_token", family.add_eos)
    end = keys.token("eos_token_id", family.eos, count)
    return (
        (_used(keys, "bos", begin, count),) if add_bos else (),
        (_used(keys, "eos", end, count),) if add_eos else (),
    )


def _used(keys: _Keys, what: str, number: int | None, count: int) -> int:
    if number is None:
        raise keys.error(
            f"texts need its {what} token, but the file does not state which one it is"
        )
    if not 0 <= number < count:
        raise keys.error(
            f"its {what} token is number {number:,}, but there are only {count:,} tokens"
        )
    return number


def _strips(
    keys: _Keys, named: dict[str, int], kinds: bytearray
) -> tuple[frozenset[int], frozenset[int]]:
    """Special tokens that swallow spaces. GGUF does not say which: llama-vocab.cpp:3066-3115."""
    pre = keys.text("pre") or ""
    architecture = str(keys.walked.keys.get("general.architecture", ""))
    name = str(keys.walked.keys.get("general.name", "")).lower()
    nothing: frozenset[int] = frozenset()
    if any(part in pre for part in _MASK_PRE) or any(
        part in architecture for part in _MASK_ARCHITECTURES
    ):
        return _numbers(named, "<mask>"), nothing
    if "phi-3" in name or "phi3" in name:
        special = {number for number, kind in enumerate(kinds) if kind in SPECIAL_KINDS}
        kept = _numbers(named, "<unk>", "<s>", "<|endoftext|>")
        return nothing, frozenset(special | _numbers(named, "</s>")) - kept
    if "modern-bert" in name:
        return _numbers(named, "[MASK]"), nothing
    return nothing, nothing


def _numbers(named: dict[str, int], *texts: str) -> frozenset[int]:
    return frozenset(named[text] for text in texts if text in named)
