"""The title of a model as people write it: 'Gemma 3 27B' for google/gemma-3-27b-it; and its publisher's short name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache

from edgekit.index import index_entries
from edgekit.index.database import IndexFile, index_file
from edgekit.index.types import Entry

# Words of names whose spelling the repository does not give, because it is in lower case.
_SPELLINGS = {
    word.lower(): word
    for word in (
        "AFM", "AI", "BCE", "BERT", "BF16", "BGE", "BLIP", "BLOOM", "BLOOMZ", "BTLM", "ChatGLM", "CLIP", "CodeBERT",
        "CodeGemma", "CodeLlama", "ColBERT", "CPM", "DBRX", "DeepSeek", "DiffusionGemma", "DPO", "EN", "FP",
        "FunctionGemma", "GLM", "GME", "GPT", "GTE", "GTR", "InternLM", "InternVL", "IT", "LLaVA", "LLM", "MedGemma",
        "MiniCPM", "MiniLM", "MiniMax", "MoE", "MPNet", "MPT", "MT", "MTP", "NeoX", "NV", "OCR", "OPT", "OV",
        "PaliGemma", "PT", "QAT", "QwQ", "RecurrentGemma", "RL", "RoBERTa", "RWKV", "SFT", "ShieldGemma", "SmolLM",
        "SmolVLM", "SQLCoder", "StableLM", "StarCoder", "StarCoderBase", "T", "TeleChat", "TranslateGemma", "UI",
        "VL", "VQA", "WizardLM", "XL", "XLM", "XLNet", "XS", "XXL", "ZH",
    )
}  # fmt: skip
# Names that keep their hyphen: 'GLM-4.7 Flash', 'gpt-oss 20B'. What follows the first word is in lower case.
_HYPHENATED = re.compile(
    r"(?i)(?:glm-(?=\d)|phi-(?=\d)|gpt-(?:oss|j|neox?|2)|minicpm-[vo]|llama-guard|all-(?:minilm|mpnet|roberta))"
)
_AS_WRITTEN = ("gpt-oss", "all-")  # in lower case wherever they are
# Publishers put their names in front: Meta-Llama-3-8B, NVIDIA-Nemotron-3.
_PUBLISHERS = re.compile(r"(?i)^(?:meta-(?=llama)|nvidia-|c4ai-|ibm-|microsoft[-_]|google[-_])")
# Words for the tuning, and dates of releases: left out if the title still means one model only.
_TUNING = frozenset({"it", "instruct", "chat", "hf"})
_FORMATS = frozenset({"hf", "bf16", "gguf", "safetensors"})  # never part of a title
_DATE = re.compile(r"2[3-9](?:0[1-9]|1[0-2])|0[1-9][0-3]\d|1[0-2][0-3]\d")  # 2507; 0528
_SIZE = re.compile(r"(?i)(?:\d+x)?[ae]?\d+(?:\.\d+)?[bmtk]|\d+b\d")
_BILLIONS = re.compile(r"(?i)(?:\d+x)?e?\d+(?:\.\d+)?[bt]")
_PART = re.compile(r"(?i)a\d+(?:\.\d+)?[bm]|\d+e")  # of a size: 35B-A3B, 17B-16E
_MAX_CHARS = 80
# Accounts of the hub whose publisher has another name.
_ACCOUNTS = {
    "apple": "Apple", "baichuan-inc": "Baichuan", "bigscience": "BigScience", "codellama": "Meta", "facebook": "Meta",
    "huggingfaceh4": "Hugging Face", "huggingfacem4": "Hugging Face", "lmsys": "LMSYS", "openai-community": "OpenAI",
    "swiss-ai": "Swiss AI", "upstage": "Upstage", "ai21labs": "AI21 Labs", "arcee-ai": "Arcee AI", "h2oai": "H2O.ai",
    "naver-hyperclovax": "NAVER", "skywork": "Skywork", "stabilityai": "Stability AI", "paddlepaddle": "Baidu",
    "meituan-longcat": "Meituan", "rednote-hilab": "Xiaohongshu", "kakaocorp": "Kakao", "sarvamai": "Sarvam AI",
    "perplexity-ai": "Perplexity", "opendatalab": "OpenDataLab", "thenlper": "Alibaba", "allenai": "Ai2",
    "state-spaces": "State Spaces", "skt": "SK Telecom", "llava-hf": "LLaVA",
}  # fmt: skip


def publisher_of(entry: Entry) -> str | None:
    """The publisher without the brand in brackets: 'Alibaba' for 'Alibaba (Qwen)'. None if it is unknown."""
    if entry.publisher is None:
        return None
    name = re.sub(r"\s*\([^()]*\)$", "", entry.publisher)
    return _ACCOUNTS.get(name.lower(), name)


def title_of(entry: Entry) -> str:
    """The title: no two models of EdgeKit's index have the same one. A model that the user added keeps its id.

    >>> from edgekit.index.names import find_entry
    >>> [title_of(find_entry(name)) for name in ("gemma-3-27b", "qwen3.6-35b-a3b", "phi-4")]
    ['Gemma 3 27B', 'Qwen3.6 35B-A3B', 'Phi-4']
    """
    if entry.is_users:
        return entry.id
    return _titles_of(index_file()).get(entry.id) or full_title(entry)


@cache
def _titles_of(_file: IndexFile) -> Mapping[str, str]:
    return titles(index_entries())


def titles(entries: Iterable[Entry]) -> dict[str, str]:
    """The shortest title of each model by its id that no other model has: full titles differ in words or publisher."""
    used = sorted(entries, key=lambda entry: (-entry.uses, entry.id))
    short = {entry.id: short_title(entry) for entry in used}
    full = {entry.id: full_title(entry) for entry in used}
    wanting: defaultdict[str, set[str]] = defaultdict(set)
    for named in (short, full):
        for model, title in named.items():
            wanting[title.lower()].add(model)
    chosen: dict[str, str] = {}
    taken: set[str] = set()
    for entry in used:
        title = short[entry.id]
        if wanting[title.lower()] != {entry.id}:
            title = full[entry.id]
        if title.lower() in taken:  # the same name from another publisher
            owner = (entry.repository or "").partition("/")[0] or publisher_of(entry)
            title = f"{title} ({owner or entry.id})"
        if title.lower() in taken:
            title = entry.id
        taken.add(title.lower())
        chosen[entry.id] = title
    return chosen


def full_title(entry: Entry) -> str:
    """The title with every word of the name: 'Qwen3 4B Instruct 2507'."""
    return _written(_words(entry))


def short_title(entry: Entry) -> str:
    """The title without words for the tuning and the date of the release: 'Qwen3 4B'."""
    first, *others = _words(entry)
    if others and _DATE.fullmatch(others[-1]) and "Thinking" not in others:
        others.pop()
    return _written([first, *(word for word in others if word.lower() not in _TUNING)])


def _words(entry: Entry) -> list[str]:
    """The words of the publisher's name for the model."""
    name = (entry.repository or entry.id).rpartition("/")[2][:_MAX_CHARS]
    name = re.sub(r"(?<=\d)_(?=\d)", ".", _PUBLISHERS.sub("", name) or name)  # InternVL3_5
    kept = _HYPHENATED.match(name)
    start = kept[0] if kept is not None else ""
    words = [word for word in re.split(r"[-_ ]+", name[len(start) :]) if word]
    if start and not start.endswith("-"):  # 'gpt-oss', 'MiniCPM-V'
        words.insert(
            0, start + (words.pop(0) if name[len(start) : len(start) + 1].isalnum() else "")
        )
    elif words:  # 'GLM-' before '4.7'
        words[0] = start + words[0]
    joined: list[str] = []
    for word in words:
        if joined and _PART.fullmatch(word) and _BILLIONS.fullmatch(joined[-1]):
            joined[-1] = f"{joined[-1]}-{word}"
        elif word.lower() not in _FORMATS or not joined:
            joined.append(word)
    return joined or [entry.id]


def _written(words: Iterable[str]) -> str:
    return " ".join(_spelled(word) for word in words)


def _spelled(word: str) -> str:
    """One word in the usual spelling: sizes in capitals, versions as they are, names with a capital."""
    if word.lower().startswith(_AS_WRITTEN):
        return word.lower() if word.islower() or "oss" in word.lower() else word
    if "-" in word:
        return "-".join(map(_spelled, word.split("-")))
    if _SIZE.fullmatch(word) or _PART.fullmatch(word):
        return word.upper().replace("X", "x")
    letters = re.match(r"[A-Za-z]+", word)
    is_version = re.fullmatch(r"v\d[\w.]*|[a-z]+\.[a-z]+", word) is not None  # v1.5; dots.ocr
    if letters is None or not word.islower() or is_version:
        return word
    known = _SPELLINGS.get(letters[0])
    rest = word[len(letters[0]) :]
    return (known or letters[0].capitalize()) + (rest.upper() if _SIZE.fullmatch(rest) else rest)
