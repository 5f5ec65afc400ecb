"""Reads model names as people type them: the quantisation, path, tag and words around the name itself."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from edgekit.sources.quants import MAX_CHARS, quants_in, without_quants

_UNCOMPRESSED = frozenset({"F16", "BF16", "F32"})

# Words for the container and the tool that wrote it: they say nothing about the model.
_CONTAINERS = frozenset({
    "gguf", "ggml", "mlx", "i1", "imatrix", "imat", "safetensors", "quantized", "quantised", "quant", "quants", "ud",
    "mlc", "openvino", "onnx", "ggjt", "dwq",
})  # fmt: skip
# Words for a change of the weights that keeps every shape.
TUNED_WORDS = frozenset({
    "abliterated", "ablit", "abliteration", "uncensored", "decensored", "derestricted", "heretic", "obliterated", "qat",
    "mtp", "unfiltered",
})  # fmt: skip
# People and programs that quantise models of others: their names are put in front, or behind "by".
_MAKERS = (
    "unsloth|bartowski|lmstudio-community|mlx-community|thebloke|mradermacher|ggml-org|redhatai|nightmedia|neuralmagic"
    r"|casperhansen|ollama|lm studio|llama\.cpp|huihui-ai|huihui"
)
_MAKER = rf"(?i)^(?:{_MAKERS})[-_ /]+|[-_ ,]+(?:by|from) [a-z0-9_.-]+$|[-_ ,]+\(?(?:{_MAKERS})\)?$"
_HOSTS = (
    r"(?i)^(?:[a-z]+://)?(?:www\.)?(?:huggingface\.co|hf\.co|hf-mirror\.com|modelscope\.(?:cn|ai)|ollama\.com"
    r"|registry\.ollama\.ai|lmstudio\.ai|openrouter\.ai)/"
)
# The commands that people copy, up to the model.
_COMMAND = (
    r"(?i)^(?:[$>#] +)?(?:sudo +)?(?:run +)?(?:docker +exec +(?:-\S+ +)*\S+ +)?"
    r"(?:ollama +(?:run|pull|show)|docker +model +(?:run|pull)|lms +(?:get|load)|vllm +serve|git +clone"
    r"|(?:hf|huggingface-cli) +download|llama-(?:server|cli|bench)(?: .*?)? +(?:-hfr?|--hf-repo|-m|--model)"
    r"|mlx_lm\.\w+(?: .*?)? +--model|FROM) +([^\s-]\S*).*"
)
_ADDRESS_WORDS = frozenset({"models", "model", "library", "api"})  # before owner/name in an address
_FILES = (".gguf", ".safetensors", ".bin", ".json")
_SHARD = r"-\d{5,6}-of-\d{5,6}$"
# File names that do not name the model: its folder does.
_NO_NAME = (
    r"(?i)(?:ggml-|pytorch_|consolidated|config|tokenizer|original)?(?:model|weights)?(?:[-_.]\d+)*"
)

# Other words for families, and titles that no repository has: the first that occurs is replaced, unless the name has
# the other word as well.
_OTHER_WORDS = {
    "通义千问": "qwen", "千问": "qwen", "深度求索": "deepseek", "智谱": "glm", "文心一言": "ernie", "文心": "ernie",
    "混元": "hunyuan", "书生": "internlm", "百川": "baichuan", "零一万物": "yi", "月之暗面": "kimi", "面壁": "minicpm",
    "qwen3 coder flash": "qwen3 coder 30b", "qwen3-coder-flash": "qwen3-coder-30b",
    "mistral small 3": "mistral small 24b 2501", "mistral-small-3": "mistral-small-24b-2501",
    "cmdr": "command-r", "cmd-r": "command-r",
}  # fmt: skip
_OTHER_WORD = "(?i)" + "|".join(
    re.escape(word) + (r"(?![\w.])" if word.isascii() else "") for word in _OTHER_WORDS
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
    for maker, starts in _CLOSED.items():
        start = re.match(rf"(?i)(?:[a-z]+[/ ])?(?:{starts})(?![a-z])", plain)
        if start and _CLOSED_WORDS.issuperset(re.findall("[a-z]+", plain[start.end() :].lower())):
            return maker
    return None


class TypedName(NamedTuple):
    """A typed name in its parts."""

    typed: str
    name: str  # 'Qwen3-8B-GGUF': without owner, folders, tag of a quantisation and file suffix
    plain: str  # 'Qwen3-8B': also without quantisations and words such as GGUF
    owner: str = ""  # 'unsloth' in 'unsloth/Qwen3-8B-GGUF:Q4_K_M'
    quant: str | None = None  # 'Q4_K_M'
    is_path: bool = False  # spelled as a path on some machine
    is_address: bool = False  # of a repository or of a model in Ollama's library

    @property
    def repository(self) -> str:
        return f"{self.owner}/{self.name}" if self.owner else ""

    @property
    def tuned(self) -> tuple[str, ...]:
        """The words for another tuning of the same shapes."""
        words = re.findall("[a-z0-9]+", self.plain.lower())
        return tuple(dict.fromkeys(word for word in words if word in TUNED_WORDS))

    def readings(self) -> Iterator[str]:
        """What the model's name may be, from the whole text to fewer words."""
        seen = {""}
        start = next(iter(quants_in(self.name)), (len(self.name), 0, ""))[0]
        before = _joined(_without(_CONTAINERS, self.name[:start]))
        for text in (self.name, self.plain, before):
            for reading in (text, re.sub(_MAKER, "", text), _joined(_without(TUNED_WORDS, text))):
                if reading not in seen:
                    seen.add(reading)
                    yield reading


def _without(words: frozenset[str], text: str) -> str:
    """The text with a space for each of these words."""
    return re.sub(
        "[A-Za-z0-9]+", lambda match: " " if match[0].lower() in words else match[0], text
    )


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
    typed = without_command(_plain_text(text))
    typed = re.sub(r"(?<=[A-Za-z])\+(?![A-Za-z+])", " plus", typed)  # Command R+
    path = typed.replace("\\", "/").rstrip("/")
    has_host = "/" in path and re.match(_HOSTS, path) is not None
    path = re.sub(_HOSTS, "", path) if has_host else path
    path = path.removeprefix("ollama://").removeprefix("hf://")
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
    is_file = last.lower().endswith(_FILES)
    if is_file:
        last = re.sub(_SHARD, "", last.rpartition(".")[0])
        found = [tag for _, _, tag in quants_in(last)] or found
        stem = _joined(_without(_CONTAINERS, without_quants(last)))
        if re.fullmatch(_NO_NAME, stem) and len(parts) > 1:
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
    plain = _joined(_without(_CONTAINERS, without_quants(last)))
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
        is_address=has_host or typed.startswith("ollama://"),
    )


def without_command(text: str) -> str:
    """The model of a command that people copy: 'llama-server -hf org/name:Q4_K_M -c 0' -> 'org/name:Q4_K_M'."""
    match = re.fullmatch(_COMMAND, text.strip()) if " " in text else None
    return text if match is None else match[1].strip(_AROUND)


def _plain_text(text: str) -> str:
    """The text with plain dashes and spaces, without quotation marks and punctuation around it."""
    plain = unicodedata.normalize("NFKC", text[:MAX_CHARS]).translate(_DASHES | _INVISIBLE)
    plain = re.sub(r"(?<=\w)(?::free|[.:]+)$", "", plain.strip(_AROUND))
    known = plain.lower()
    is_other = any(word in known for word in _OTHER_WORDS)
    other = re.search(_OTHER_WORD, plain) if is_other else None
    if other is None:
        return plain
    word = _OTHER_WORDS[other[0].lower()]
    return (
        plain[: other.start()] + ("" if word in plain.lower() else word) + plain[other.end() :]
    ).strip()


def _is_quant_tag(text: str) -> bool:
    """Whether the text after the last ':' or '@' is nothing but a quantisation."""
    tag = re.split(r"[:@]", text)
    return len(tag) > 1 and tag[-1] != "" and without_quants(tag[-1]) == " "
