"""Names of quantisations: as files and repositories have them (`tags_in`), and as people type them (`quants_in`).

The patterns are compiled at their first use: an exact name of a model needs none of them.
"""

from __future__ import annotations

import re

MAX_CHARS = 400  # of a typed name or path; the rest is ignored
# Short forms that people type: tools/quantize/quantize.cpp:33 @ b21e4de
SHORT_MIXES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}
ALIASES = {**SHORT_MIXES, "MXFP4_MOE": "MXFP4"}

# -- tags ----------------------------------------------------------------------------------------

_TAG = (
    r"(?:^|(?<=[-._/: ]))(?:UD[-_])?"
    r"(?:I?Q[1-9](?:_[A-Z0-9]{1,3})*|TQ[12]_0|I2_S|MXFP[468](?:_MOE)?|NVFP4|BF16|FP?16|FP?32)"
    r"(?=$|[-._/ ])"
)
_TAG_FLAGS = re.IGNORECASE | re.ASCII


def tags_in(text: str) -> list[str]:
    """The quantisations in the name of a file: 'model-ud-q4_k_xl' -> ['UD-Q4_K_XL']."""
    return [canonical(tag) for tag in re.findall(_TAG, text, _TAG_FLAGS)]


def without_tags(text: str) -> str:
    """'model-Q8_0' -> 'model'. "fp16" stays: publishers name repositories of their own so."""
    return re.sub(rf"[-._: ]?(?!.?FP){_TAG}", "", text, flags=_TAG_FLAGS)


def canonical(tag: str) -> str:
    """'ud_q4_k_xl' -> 'UD-Q4_K_XL', 'fp16' -> 'F16'."""
    return re.sub(r"\bFP(?=(?:16|32)$)", "F", tag.upper().replace("UD_", "UD-"))


# -- as people type them -------------------------------------------------------------------------

_K = r"[-_ ]?k(?:[-_ ]?(?:xxs|xs|xl|s|m|l|p))?"
_BITS = r"[2-8](?:\.\d+)?"
# Schemes of quantisation. Each has the name of a rule in `_typed_tag`.
_TYPED = rf"""(?<![a-z0-9])(?:
    (?P<gguf>(?:ud[-_ ])?i?q[1-8](?:{_K}|[-_ ]?(?:xxs|xs|nl|xl)
        |[-_ ](?:s|m|l|[01])(?:_[48]_[48])?|[01])?)
    |(?P<plain>(?:ud[-_ ])?tq[12]_0|i2_s|mxfp[468](?:[-_]moe)?|nvfp4|fp4|nf4|u?int[48]|bf16|w[48]a(?:16|8|4))
    |(?P<float>fp?16|fp?32)
    |(?P<fp8>fp8(?:[-_ ](?:dynamic|block|static|e4m3(?:fn)?|kv))*)
    |(?P<method>gptq|awq|auto-?round|hqq|bnb|exl[23])
        (?:[-_ ]?(?:w|int)?{_BITS}[-_ ]?(?:bits?|bpw)?(?:a16)?)?(?:[-_ ]\d+g)?
    |(?P<bits>{_BITS})[-_ ]?bits?(?:[-_ ]\d+g)?
    |(?P<other>{_BITS}[-_ ]?bpw|[o0]q[2-8](?:e|[-_]\d)?|q\df(?:16|32)(?:_\d)?|q\d_g\d+|jang_\d[a-z]*|apex(?:-i)?-[a-z]+)
    )(?![a-z0-9])"""
_TYPED_FLAGS = re.IGNORECASE | re.VERBOSE | re.ASCII
_WHOLE_MIXES = {"Q2": "Q2_K", "Q3": "Q3_K_M", "Q4": "Q4_K_M", "Q5": "Q5_K_M", "Q6": "Q6_K", "Q8": "Q8_0"}  # fmt: skip


def _typed_tag(match: re.Match[str]) -> str:
    """The quantisation as files and repositories are named: 'q4 k m' -> 'Q4_K_M', '4 bit' -> '4bit'."""
    if match["gguf"]:
        ((dynamic, family, rest),) = re.findall(r"^(UD[-_ ])?(I?Q\d)(.*)$", match["gguf"].upper())
        rest = rest.lstrip("-_ ")
        if rest.startswith("K") and rest != "K":
            rest = f"K_{rest[1:].lstrip('-_ ')}"
        mix = f"{family}_{rest}" if rest else _WHOLE_MIXES.get(family, family)
        return ("UD-" if dynamic else "") + SHORT_MIXES.get(mix, mix)
    if match["plain"]:
        plain = match["plain"].upper().replace("-", "_").replace(" ", "_")
        return plain.replace("UD_", "UD-")
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
    return [(*match.span(), _typed_tag(match)) for match in re.finditer(_TYPED, text, _TYPED_FLAGS)]


def without_quants(text: str) -> str:
    """The text with a space for each quantisation."""
    return re.sub(_TYPED, " ", text, flags=_TYPED_FLAGS)


def split_quant(name: str) -> tuple[str, str | None]:
    """'qwen3-8b:Q8_0' -> ('qwen3-8b', 'Q8_0'), 'qwen3-8b' -> ('qwen3-8b', None)."""
    text = name.strip()
    start, end, _ = (quants_in(text[:MAX_CHARS]) or [(0, 0, "")])[-1]
    plain = text[:start].rstrip("-._: ")
    is_last = end == len(text) and plain and plain != text[:start]
    return (plain, text[start:]) if is_last else (name, None)
