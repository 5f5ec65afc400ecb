r"""The table of pre-tokenizers: how a BPE vocabulary's texts are cut into words.

One row for each way, under all the names that `tokenizer.ggml.pre` has for it. The patterns are
those of llm_tokenizer_bpe and the names those of llama_vocab::impl::load, src/llama-vocab.cpp, with
the matchers that src/unicode.cpp writes out by hand; all llama.cpp @ b21e4de, and what is newer
(glm5, hy_v4, spark2_5, ufakzeka) as in llama-cpp-python 0.3.36. Written for Oniguruma. What differs
from llama.cpp's spelling, and not in what matches:
- letters outside ASCII stand as \x{...};
- a letter of small or of either case is a class of its own, `[\p{L}&&[^A-Z]]`, not a look ahead;
- llama.cpp's engine knows no \p{Lu} and takes all five kinds of letters for \p{L}: so it stands here;
- it sees no space outside ASCII as the letter that it is: `&&[^\s]` where a range has some.

No rows: `afmoe`, `tiny_aya`, `cohere2moe`, `superbpe` group the digits of a number from its end,
which takes time with the square of its length.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.errors import UnknownTokenizerError
from edgekit.terminal import quoted

TABLE = "engines/native/tokenizer/pretokenizers.py"


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


_SHORT = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"  # I'm, don't, they'll
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_OTHERS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_NEWLINES = r"[^\n]+|[\n]+"


def _any_of(*patterns: str) -> str:
    return "|".join(patterns)


def _by_case(letter: str, ending: str) -> tuple[str, str]:
    """A word ends where small letters are followed by a capital."""
    capital, small = rf"[{letter}&&[^a-z]]", rf"[{letter}&&[^A-Z]]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{before}{capital}*{small}+{ending}",
        f"{before}{capital}+{small}*{ending}",
    )


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = _any_of(_SHORT, _LETTERS, r"\p{N}{1,3}", _OTHERS, _SPACES)
_QWEN2 = _any_of(_SHORT, _LETTERS, r"\p{N}", _OTHERS, _SPACES)
_GPT4O = _any_of(*_by_case(r"\p{L}", f"{_SHORT}?"), r"\p{N}{1,3}", _OTHERS_SLASH, _SPACES)
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+"
_CJK = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}&&[^\s]]+"
_HAN_KANA = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK3 = _any_of(
    _ASCII_MARKS + "[A-Za-z]+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r" ?[\p{P}\p{S}]+[\r\n]*",
    _SPACES,
)
_CASED = (  # the letters of scripts with two cases, as DeepSeek LLM's tokenizer.json lists them
    r"A-Za-z\x{00B5}\x{00C0}-\x{00D6}\x{00D8}-\x{00F6}\x{00F8}-\x{01BA}\x{01BC}-\x{01BF}"
    r"\x{01C4}-\x{0293}\x{0295}-\x{02AF}\x{0370}-\x{0373}\x{0376}\x{0377}\x{037B}-\x{037D}"
    r"\x{037F}\x{0386}\x{0388}-\x{038A}\x{038C}\x{038E}-\x{03A1}\x{03A3}-\x{03F5}"
    r"\x{03F7}-\x{0481}\x{048A}-\x{052F}\x{0531}-\x{0556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}"
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}"
    r"\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}"
    r"\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}"
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}"
    r"\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}"
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}"
    r"\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}"
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}"
    r"\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}"
    r"\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}"
    r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}"
    r"\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
_HAN = (  # unicode_cpt_is_han
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}"
    r"\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{2CEB0}-\x{2EBEF}\x{F900}-\x{FAFF}"
    r"\x{2F800}-\x{2FA1F}"
)

_GPT2_ROW = PreTokenizer(patterns=(_GPT2,))
_DIGITS_ROW = PreTokenizer(patterns=(r"\p{N}", _GPT2))
_LLAMA3_ROW = PreTokenizer(patterns=(_LLAMA3,))
_QWEN2_ROW = PreTokenizer(patterns=(_QWEN2,))
_GPT4O_ROW = PreTokenizer(patterns=(_GPT4O,))
_BLOOM_ROW = PreTokenizer(patterns=(_BLOOM,))
_DEEPSEEK3_ROW = PreTokenizer(patterns=(r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3))
_GEMMA4_ROW = PreTokenizer(
    patterns=(_NEWLINES,), raw=True, newline_runs=True, add_bos=True, ends_words=False
)

_ROWS: tuple[tuple[str, PreTokenizer], ...] = (
    (
        "default",
        PreTokenizer(
            patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
        ),
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer(patterns=(_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe", _LLAMA3_ROW),
    ("chatglm-bpe", PreTokenizer(patterns=(_LLAMA3,), has_bos=False)),
    ("glm4 glm5", PreTokenizer(patterns=(_LLAMA3,), has_bos=False, ignore_merges=True)),
    (
        "jais-2",
        PreTokenizer(
            patterns=(
                _any_of(
                    _SHORT,
                    _LETTERS,
                    r"\p{N}{1,3}",
                    _OTHERS,
                    r"\s*[\r\n]+",
                    *(rf"\s{{{run}}}(?!\S)" for run in (512, 256, 128, 64, 32, 16, 8, 4)),
                    r"\s{1,2}(?!\S)",
                    r"\s",
                ),
            )
        ),
    ),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", _QWEN2_ROW),
    (
        "qwen35",
        PreTokenizer(
            patterns=(
                _any_of(
                    _SHORT,
                    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
                    r"\p{N}",
                    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
                    _SPACES,
                ),
            )
        ),
    ),
    ("ufakzeka", PreTokenizer(patterns=(_any_of(_LETTERS, r"\p{N}", _OTHERS, _SPACES),))),
    ("laguna", PreTokenizer(patterns=(_NEWLINES, _QWEN2))),
    (
        "minicpm5",
        PreTokenizer(
            patterns=(
                r"\p{N}{1,3}",
                _any_of(_SHORT, _LETTERS, r"\p{N}+", _OTHERS, _SPACES),
            ),
            ignore_merges=True,
        ),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        PreTokenizer(
            patterns=(
                _any_of(
                    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])",
                    _LETTERS,
                    r"\p{N}",
                    _OTHERS,
                    r"\s*[\r\n]|\s+(?!\S)|\s+",
                ),
            )
        ),
    ),
    (
        "seed-coder",
        PreTokenizer(
            patterns=(_any_of(_SHORT, _LETTERS, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", _SPACES),)
        ),
    ),
    (
        "exaone-moe",
        PreTokenizer(
            patterns=(
                _any_of(
                    _SHORT,
                    r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                    r"\p{N}",
                    r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                    r"\s*[\r\n]|\s+(?!\S)|\s+",
                ),
            ),
            ends_words=False,
        ),
    ),
    (
        "kimi-k2",
        PreTokenizer(
            patterns=(
                _any_of(
                    f"[{_HAN}]+",
                    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_SHORT}?",
                    r"\p{N}{1,3}",
                    _OTHERS,
                    _SPACES,
                ),
            )
        ),
    ),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT4O_ROW),
    (
        "granite-embed-multi-97m",
        PreTokenizer(
            patterns=(
                _any_of(
                    *_by_case(r"\p{L}\p{M}", f"{_SHORT}?"),
                    r"\p{N}{1,3}",
                    _OTHERS_SLASH,
                    _SPACES,
                ),
            ),
            ignore_merges=True,
        ),
    ),
    (
        "tekken",
        PreTokenizer(
            patterns=(_any_of(*_by_case(r"\p{L}", ""), r"\p{N}", _OTHERS_SLASH, _SPACES),),
            ignore_merges=True,
            add_bos=True,
        ),
    ),
    (
        "youtu",
        PreTokenizer(
            patterns=(
                _any_of(
                    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+",
                    r"[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}"
                    r"\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+",
                    r"[\x{3105}-\x{312F}]+",
                    _HAN_KANA,
                ),
                _any_of(
                    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_SHORT}?",
                    r"\p{N}",
                    _OTHERS_SLASH,
                    _SPACES,
                ),
            ),
            ignore_merges=True,
        ),
    ),
    (
        "deepseek-llm",
        PreTokenizer(
            patterns=(
                r"[\r\n]",
                rf"\s?[{_CASED}]+",
                r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}\x{3002}]+",
                r"(?<!\s)\s+\z",  # llama.cpp: \s+$, which looks at a run once from each of its spaces
                _CJK,
                r"\p{N}+",
            ),
            lists_letters=True,
        ),
    ),
    (
        "deepseek-coder",
        PreTokenizer(patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    ),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK3_ROW),
    (
        "spark2_5",
        PreTokenizer(
            patterns=(
                r"\p{N}{1,3}",
                _HAN_KANA,
                _any_of(
                    _ASCII_MARKS + "[A-Za-z]+",
                    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
                    r" ?[\p{P}\p{S}]+",
                    r"[\r\n]|\s+(?!\S)|\s+",
                ),
                r"\p{N}",
            )
        ),
    ),
    (
        "falcon",
        PreTokenizer(patterns=(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    ),
    (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        _DIGITS_ROW,
    ),
    (
        "gpt-2 phi-2 mpt olmo jais exaone4 trillion granite-docling gigachat a.x-4.0 mellum",
        _GPT2_ROW,
    ),
    (
        "jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe modern-bert",
        _GPT2_ROW,
    ),
    ("poro-chat bloom gpt3-finnish", _BLOOM_ROW),
    ("viking", PreTokenizer(patterns=(_BLOOM, r"\p{N}"))),
    (
        "chameleon",
        PreTokenizer(
            patterns=(
                "<sentinel:[0-9]+>",
                "IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            add_bos=True,
        ),
    ),
    ("gemma4 granite-embed-multi-311m", _GEMMA4_ROW),
    (
        "sarvam-moe",
        PreTokenizer(patterns=(_NEWLINES,), raw=True, ends_words=False),
    ),
    ("whitespace", PreTokenizer(patterns=(), raw=True)),  # jina-embeddings-v2-base-zh
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: row for names, row in _ROWS for name in names.split()
}


def pre_tokenizer_of(name: object, file: str) -> PreTokenizer:
    """UnknownTokenizerError for what has no row, with the name of the table.

    A file without a name is refused too: llama.cpp takes `default` and warns that the result will
    be worse, and nobody would see that in a vector.
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
