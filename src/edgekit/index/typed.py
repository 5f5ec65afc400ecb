"""Reads model names as people type them: the quantisation, path, tag and words around the name itself."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from edgekit.sources.filenames import SHORT_MIXES

MAX_CHARS = 400  # of a typed name or path; the rest is ignored

# -- quantisations -------------------------------------------------------------------------------

_START, _END = r"(?<![a-z0-9])", r"(?![a-z0-9])"
_K = r"[-_ ]?k(?:[-_ ]?(?:xxs|xs|xl|s|m|l|p))?"
_BITS = r"[2-8](?:\.\d+)?"
# Schemes of quantisation, as they are spelled in names. Each has the name of a rule in `_tag`.
_QUANTS = re.compile(
    rf"""{_START}(?:
    (?P<gguf>(?:ud[-_ ])?i?q[1-8](?:{_K}|[-_ ]?(?:xxs|xs|nl|xl)
        |[-_ ](?:s|m|l|[01])(?:_[48]_[48])?|[01])?)
    |(?P<plain>tq[12]_0|i2_s|mxfp[468](?:[-_]moe)?|nvfp4|fp4|nf4|u?int[48]|bf16|w[48]a(?:16|8|4))
    |(?P<float>fp?16|fp?32)
    |(?P<fp8>fp8(?:[-_ ](?:dynamic|block|static|e4m3(?:fn)?|kv))*)
    |(?P<method>gptq|awq|auto-?round|hqq|bnb|exl[23])
        (?:[-_ ]?(?:w|int)?{_BITS}[-_ ]?(?:bits?|bpw)?(?:a16)?)?(?:[-_ ]\d+g)?
    |(?P<bits>{_BITS})[-_ ]?bits?(?:[-_ ]\d+g)?
    |(?P<other>{_BITS}[-_ ]?bpw|[o0]q[2-8](?:e|[-_]\d)?|q\df(?:16|32)(?:_\d)?|q\d_g\d+|jang_\d[a-z]*|apex(?:-i)?-[a-z]+)
    ){_END}""",
    re.IGNORECASE | re.VERBOSE,
)  # fmt: skip
_WHOLE_MIXES = {"Q2": "Q2_K", "Q3": "Q3_K_M", "Q4": "Q4_K_M", "Q5": "Q5_K_M", "Q6": "Q6_K", "Q8": "Q8_0"}  # fmt: skip
_UNCOMPRESSED = frozenset({"F16", "BF16", "F32"})


def _tag(match: re.Match[str]) -> str:
    """The quantisation as files and repositories are named: 'q4 k m' -> 'Q4_K_M', '4 bit' -> '4bit'."""
    if match["gguf"]:
        ((dynamic, family, rest),) = re.findall(r"^(UD[-_ ])?(I?Q\d)(.*)$", match["gguf"].upper())
        rest = rest.lstrip("-_ ")
        if rest.startswith("K") and rest != "K":
            rest = f"K_{rest[1:].lstrip('-_ ')}"
        mix = f"{family}_{rest}" if rest else _WHOLE_MIXES.get(family, family)
        return ("UD-" if dynamic else "") + SHORT_MIXES.get(mix, mix)
    if match["plain"]:
        return match["plain"].upper().replace("-", "_")
    if match["float"]:
        return match["float"].upper().replace("FP", "F")
    if match["fp8"]:
        return "FP8"
    if match["method"]:
        method = match["method"].upper()
        return "bnb-4bit" if method == "BNB" else method
    return f"{match['bits']}bit" if match["bits"] else match["other"]


def quants_in(text: str) -> list[tuple[int, int, str]]:
    """The quantisations in a name: (start, end, tag)."""
    return [(*match.span(), _tag(match)) for match in _QUANTS.finditer(text)]


# -- names ---------------------------------------------------------------------------------------

# Words for the container and the tool that wrote it: they say nothing about the model.
_CONTAINER = re.compile(
    rf"{_START}(?:gguf|ggml|mlx|i1|imatrix|imat|safetensors|quanti[sz]ed|quants?|ud|mlc|openvino|onnx|ggjt|dwq|gptq-\d+g)"
    rf"{_END}",
    re.IGNORECASE,
)
# Words for a change of the weights that keeps every shape.
TUNED_WORDS = frozenset({
    "abliterated", "ablit", "abliteration", "uncensored", "decensored", "derestricted", "heretic", "obliterated", "qat",
    "mtp", "unfiltered",
})  # fmt: skip
_TUNED = re.compile(rf"{_START}(?:{'|'.join(sorted(TUNED_WORDS))}){_END}", re.IGNORECASE)
# People and programs that quantise models of others: their names are put in front, or behind "by".
_MAKERS = (
    "unsloth|bartowski|lmstudio-community|mlx-community|thebloke|mradermacher|ggml-org|redhatai|nightmedia|neuralmagic"
    r"|casperhansen|ollama|lm studio|llama\.cpp|huihui-ai|huihui"
)
_MAKER = re.compile(
    rf"^(?:{_MAKERS})[-_ /]+|[-_ ,]+(?:by|from) [a-z0-9_.-]+$|[-_ ,]+\(?(?:{_MAKERS})\)?$",
    re.IGNORECASE,
)
_HOSTS = re.compile(
    r"^(?:[a-z]+://)?(?:www\.)?(?:huggingface\.co|hf\.co|hf-mirror\.com|modelscope\.(?:cn|ai)|ollama\.com|registry\.ollama\.ai"
    r"|lmstudio\.ai|openrouter\.ai)/",
    re.IGNORECASE,
)
_COMMAND = re.compile(
    r"^(?:ollama (?:run|pull|show)|docker model (?:run|pull)|lms (?:get|load)|vllm serve"
    r"|llama-(?:server|cli) -(?:hf|m)|mlx_lm\.\w+ --model) +",
    re.IGNORECASE,
)
_ADDRESS_WORDS = frozenset({"models", "model", "library", "api"})  # before owner/name in an address
_FILE = re.compile(r"\.(?:gguf|safetensors|bin|json)$", re.IGNORECASE)
_SHARD = re.compile(r"-\d{5,6}-of-\d{5,6}$")
# File names that do not name the model: its folder does.
_NO_NAME = re.compile(
    r"(?:ggml-|pytorch_|consolidated|config|tokenizer|original)?(?:model|weights)?(?:[-_.]\d+)*", re.IGNORECASE
)  # fmt: skip

# Other words for families, and titles that no repository has: the first that occurs is replaced, unless the name has
# the other word as well.
_OTHER_WORDS = {
    "通义千问": "qwen", "千问": "qwen", "深度求索": "deepseek", "智谱": "glm", "文心一言": "ernie", "文心": "ernie",
    "混元": "hunyuan", "书生": "internlm", "百川": "baichuan", "零一万物": "yi", "月之暗面": "kimi", "面壁": "minicpm",
    "qwen3 coder flash": "qwen3 coder 30b", "qwen3-coder-flash": "qwen3-coder-30b",
    "mistral small 3": "mistral small 24b 2501", "mistral-small-3": "mistral-small-24b-2501",
    "cmdr": "command-r", "cmd-r": "command-r",
}  # fmt: skip
_OTHER_WORD = re.compile(
    "|".join(re.escape(word) + (r"(?![\w.])" if word.isascii() else "") for word in _OTHER_WORDS),
    re.IGNORECASE,
)
_AROUND = "\"'`\u201c\u201d\u2018\u2019\u201e\u00ab\u00bb,;!?\u3001\u3002 \t\r\n"  # also typographic quotation marks
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"), "-")
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"))


# How the names of models start whose weights are not published, by maker.
_CLOSED = {
    "OpenAI": r"chat-?gpt|gpt[- ]?(?:3\.5|[4-9](?:\.\d)?o?)|o[1345]|codex|dall-?e|text-embedding-(?:3|ada)",
    "Anthropic": "claude|sonnet|opus|haiku",
    "Google": "gemini",
    "xAI": r"grok[- ]?(?:[3-9]|2[- ](?:mini|vision)|code|fast|beta)",  # Grok 1 and 2 are published
    "Alibaba": r"qwen[- ]?(?:\d(?:\.\d)?[- ]?)?max",
    "Amazon": r"(?:amazon[- ])?nova[- ](?:pro|lite|micro|premier)",
    "Perplexity": "sonar",
}
_CLOSED_MODELS = {
    maker: re.compile(rf"(?:[a-z]+[/ ])?(?:{starts})(?![a-z])", re.IGNORECASE)
    for maker, starts in _CLOSED.items()
}
# How they go on, besides numbers. Other words make other models: "Claude Opus distilled into Qwen".
_CLOSED_WORDS = frozenset({
    "mini", "nano", "micro", "small", "medium", "large", "turbo", "pro", "max", "plus", "ultra", "high", "low", "fast",
    "latest", "preview", "thinking", "reasoning", "chat", "api", "vision", "codex", "code", "audio", "realtime", "lite",
    "flash", "image", "instant", "exp", "experimental", "deep", "research", "sonnet", "opus", "haiku", "fable",
    "mythos", "ada", "v", "o", "k",
})  # fmt: skip


def maker_of_closed(name: str) -> str | None:
    """Who makes the model of this name and does not publish its weights; None if it is not known to be such a model.

    >>> maker_of_closed("gpt-4o mini"), maker_of_closed("gpt-oss 20b"), maker_of_closed("grok 2")
    ('OpenAI', None, None)
    """
    plain = _plain_text(name)
    for maker, names in _CLOSED_MODELS.items():
        start = names.match(plain)
        if start and _CLOSED_WORDS.issuperset(re.findall("[a-z]+", plain[start.end() :].lower())):
            return maker
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedName:
    """A typed name in its parts."""

    typed: str
    owner: str = ""  # 'unsloth' in 'unsloth/Qwen3-8B-GGUF:Q4_K_M'
    name: str  # 'Qwen3-8B-GGUF': without owner, folders, tag of a quantisation and file suffix
    plain: str  # 'Qwen3-8B': also without quantisations and words such as GGUF
    quant: str | None = None  # 'Q4_K_M'
    is_path: bool = False  # spelled as a path on some machine
    is_address: bool = False  # of a repository or of a model in Ollama's library

    @property
    def repository(self) -> str:
        return f"{self.owner}/{self.name}" if self.owner else ""

    @property
    def tuned(self) -> tuple[str, ...]:
        """The words for another tuning of the same shapes."""
        return tuple(dict.fromkeys(word.lower() for word in _TUNED.findall(self.plain)))

    def readings(self) -> Iterator[str]:
        """What the model's name may be, from the whole text to fewer words."""
        seen = {""}
        start = next(iter(quants_in(self.name)), (len(self.name), 0, ""))[0]
        before = _joined(_without_containers(self.name[:start]))
        for text in (self.name, self.plain, before):
            for reading in (text, _MAKER.sub("", text), _joined(_TUNED.sub(" ", text))):
                if reading not in seen:
                    seen.add(reading)
                    yield reading


def _without_containers(text: str) -> str:
    return _CONTAINER.sub(" ", text)


def _joined(text: str) -> str:
    """The text without separators left over where words were taken out."""
    text = re.sub(r"\(\s*\)", " ", text)
    text = re.sub(r"\s*[-_.:@]*\s+[-_.:@]*\s*", " ", text)
    return re.sub(r"[-_. ]*:[-_. ]*$", "", text).strip("-_.:@/, ")


@lru_cache(maxsize=4096)
def read_name(text: str) -> TypedName:
    r"""The parts of a name, an address or a path as people type it.

    >>> typed = read_name(r"D:\models\bartowski\Qwen_Qwen3-8B-GGUF\Qwen_Qwen3-8B-Q5_K_L-00001-of-00002.gguf")
    >>> typed.plain, typed.quant
    ('Qwen_Qwen3-8B', 'Q5_K_L')
    """
    typed = _COMMAND.sub("", _plain_text(text))
    typed = re.sub(r"(?<=[A-Za-z])\+(?![A-Za-z+])", " plus", typed)  # Command R+
    path = typed.replace("\\", "/").rstrip("/")
    has_host = _HOSTS.match(path)
    path = _HOSTS.sub("", path).removeprefix("ollama://").removeprefix("hf://")
    is_path = not has_host and (
        "\\" in typed
        or re.match(r"(?:[a-z]:/|[~.]{0,2}/)", path, re.IGNORECASE) is not None
        or (path.count("/") > 1 and "://" not in path)
    )
    parts = [part for part in path.split("/") if part not in {"", ".", "..", "~"}]
    if has_host:
        while len(parts) > 1 and parts[0] in _ADDRESS_WORDS:
            parts = parts[1:]
        folder = next((i for i, part in enumerate(parts) if part in {"blob", "tree", "resolve"}), None)  # fmt: skip
        inner = [] if folder is None else parts[folder + 2 :]
        found = [tag for part in reversed(inner) for _, _, tag in quants_in(part)]
        parts = parts[: 2 if folder is None else folder]
    else:
        found = []
    cached = next((part for part in parts if part.startswith("models--")), None)
    if cached is not None:  # the hub's cache: models--org--name/snapshots/REVISION/FILE
        found = [tag for _, _, tag in quants_in(parts[-1])] if parts[-1] is not cached else []
        parts = cached.removeprefix("models--").split("--", 1)
    last = parts[-1] if parts else ""
    is_file = _FILE.search(last) is not None
    if is_file:
        last = _SHARD.sub("", _FILE.sub("", last))
        found = [tag for _, _, tag in quants_in(last)] or found
        stem = _joined(_without_containers(_cut(last)))
        if _NO_NAME.fullmatch(stem) and len(parts) > 1:
            parts = parts[:-1]
            last = parts[-1]
            is_file = False
    owner = parts[-2] if len(parts) == 2 or (len(parts) > 2 and not is_file and not is_path) else ""
    if owner.lower() in {
        "ollama",
        "library",
        "local",
        "models",
        "hub",
        "ai",
    }:  # "ai": Docker's models
        owner = ""
    inside = [tag for _, _, tag in quants_in(last)]
    tags = [tag for tag in inside if tag not in _UNCOMPRESSED] or inside
    plain = _joined(_without_containers(_cut(last)))
    name = re.sub(r"(?:@|:)[^:@]*$", "", last) if _is_quant_tag(last) else last
    quant = tags[-1] if tags else found[0] if found else None
    if quant is None and re.search(r":[a-z0-9.-]*-qat$", last, re.IGNORECASE):
        quant = "Q4_0"  # Ollama's tags of this name are
    return TypedName(
        typed=typed,
        owner=owner,
        name=name,
        plain=plain or last,
        quant=quant,
        is_path=is_path or (is_file and len(parts) == 1),
        is_address=has_host is not None or typed.startswith("ollama://"),
    )


def _plain_text(text: str) -> str:
    """The text with plain dashes and spaces, without quotation marks and punctuation around it."""
    plain = unicodedata.normalize("NFKC", text[:MAX_CHARS]).translate(_DASHES | _INVISIBLE)
    plain = re.sub(r"(?<=\w)(?::free|[.:]+)$", "", plain.strip(_AROUND))
    other = _OTHER_WORD.search(plain)
    if other is None:
        return plain
    word = _OTHER_WORDS[other[0].lower()]
    return (
        plain[: other.start()] + ("" if word in plain.lower() else word) + plain[other.end() :]
    ).strip()


def _cut(text: str) -> str:
    """The text without its quantisations."""
    return _QUANTS.sub(" ", text)


def _is_quant_tag(text: str) -> bool:
    """Whether the text after the last ':' or '@' is nothing but a quantisation."""
    tag = re.split(r"[:@]", text)
    return len(tag) > 1 and _QUANTS.sub("", tag[-1]) == "" and tag[-1] != ""
