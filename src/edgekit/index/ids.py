"""What a model's name says of it: its id, family and purposes. For models that the index does not have yet."""

from __future__ import annotations

import re

from edgekit.index.types import ModelPurpose
from edgekit.index.words import says_base
from edgekit.sources.quants import without_tags

# The first of these words ends the family name: sizes and versions follow.
_VARIANT = (
    r"(?:\d+x)?[ae]?\d+(?:\.\d+)?[bmk]|mini|small|medium|large|nano|super|ultra|tiny|micro|lite|flash|pro|max|scout"
    r"|maverick|lightning|base|chat|instruct|it|hf|code|coder|embedding|v0\.\d+|\d{4}|fp8|nvfp4|mxfp4|bf16|gguf|mlx"
    r"|\d+bit"
)
_LONGEST = 200  # characters of a name; the longest names on the hub have 96

# Words in a name -> the purpose they indicate; all matches count.
_KINDS: tuple[tuple[re.Pattern[str], ModelPurpose], ...] = (
    (
        re.compile(r"embed|(?:^|-)(?:e5|gte|bge|jina)(?:-|$)|minilm|nomic"),
        ModelPurpose.EMBEDDING,
    ),
    (
        re.compile(r"cod(?:er?|ing|ellama|estral)(?:-|\d|$)|codellama|starcoder|devstral"),
        ModelPurpose.CODE,
    ),
    (
        re.compile(
            r"-vl(?:-|\d|$)|vision|llava|janus|gemma-3-(?:4b|12b|27b)|mistral-small-3\.[12]"
        ),
        ModelPurpose.VISION,
    ),
    (
        re.compile(
            r"reasoning|thinking|-r1(?:-|$)|^qwen3(?:\.\d)?-(?!vl|coder|next|embedding|.*-instruct)|^qwq|gpt-oss|smollm3|glm-(?:4\.[5-9]|5)"
            r"|minimax-m[2-9]|nemotron-(?:3|super)|deepseek-v4|kimi-k2\.[5-9]|kimi-k3|mimo"
        ),
        ModelPurpose.REASONING,
    ),
)
_CONTINUE = ("starcoder", "mamba-2.8b")  # base models whose names do not say so


def id_of(label: str) -> str:
    """'unsloth/Qwen3-8B-GGUF:Q4_K_M' -> 'qwen3-8b', 'model.Q8_0.gguf' -> 'model'."""
    name = label.rstrip("/").rpartition("/")[2].removeprefix("sample:")
    name = re.sub(r"\.(?:gguf|safetensors|json)$", "", name, flags=re.IGNORECASE)
    name = without_tags(re.sub(r"-\d{5}-of-\d{5}$", "", name))
    name = re.sub(r"[-_.]gguf$", "", name.rstrip(":-._"), flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9._:+@-]+", "-", name.lower())[:_LONGEST].strip("-.:_@+") or "model"


def family_of(name: str) -> str:
    """'qwen3-vl-30b-a3b-instruct' -> 'qwen3-vl': everything before sizes and versions."""
    words = name.lower().split("-")
    family_words = next(
        (i for i, word in enumerate(words) if i and re.fullmatch(_VARIANT, word)), len(words)
    )
    return "-".join(words[:family_words])


def kinds_of(name: str, *, causal: bool, pooled: bool, sees: bool) -> tuple[ModelPurpose, ...]:
    """Purposes in the order of the enum. A model that generates text is for chat, unless its name says otherwise."""
    purposes = {kind for words, kind in _KINDS if words.search(name.lower())}
    if sees:
        purposes.add(ModelPurpose.VISION)
    if not causal or pooled:
        purposes.add(ModelPurpose.EMBEDDING)
    if ModelPurpose.EMBEDDING in purposes:
        purposes -= {ModelPurpose.REASONING}
    elif not says_base(name) and not any(word in name.lower() for word in _CONTINUE):
        purposes.add(ModelPurpose.CHAT)
    return tuple(kind for kind in ModelPurpose if kind in purposes)
