"""The page's scripts: their texts are all in texts.js, and they name no engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from edgekit.bill.types import Component
from edgekit.engines import engine_names
from edgekit.web.assets import FOLDER as ASSETS

TEXTS = "texts.js"
UNITS = "format.js"  # numbers with their units
SCRIPTS = sorted(path.name for path in ASSETS.glob("*.js") if path.name not in {TEXTS, UNITS})

# Properties, assignments and calls that take text for the user.
TAKES_TEXT = re.compile(
    r"""(?:\b(?:text|title|placeholder|label|word|told)\b|["']aria-(?:label|valuetext)["'])\s*:\s*$
    |\.(?:textContent|title|placeholder|ariaLabel)\s*=\s*$
    |(?:["']aria-(?:label|valuetext)["'])\s*,\s*$
    |\b(?:announce|fault|Error|ApiError|DOMException|scrollRoom|scrollTable|section)\s*\(\s*$""",
    re.VERBOSE,
)
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/
    |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`
    |/(?![*/ ])(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[a-z]*(?=[.,;)\s])""",
    re.VERBOSE | re.DOTALL,
)
WORD = re.compile(r"[A-Za-z]{2,}")
SENTENCE = re.compile(r"[A-Za-z]{2,}[,:;.]? [A-Za-z]{2,}")
CAPITALISED = re.compile(r"[A-Z][a-z]+(?: |$)")
# Strings for the browser or the server, not for the user.
NOT_TEXT = {component.value for component in Component} | {
    "Authorization: Bearer TOKEN",
    "openapi.json", "model.gguf",
    "End", "Enter", "Error", "Escape", "Home", "Unreachable",
    "system-ui, sans-serif",
}  # fmt: skip
CLASSES = {
    name
    for path in ASSETS.glob("*.css")
    for name in re.findall(r"\.([a-z][\w-]*)", path.read_text(encoding="utf-8"))
}


@dataclass(frozen=True, slots=True)
class Literal:
    line: int
    before: str  # the code to the left of it
    text: str  # without the ${...} of a template


def literals(script: str) -> Iterator[Literal]:
    for token in TOKEN.finditer(script):
        if token[0][0] not in "\"'`":
            continue
        before = script[max(0, token.start() - 80) : token.start()].replace("\n", " ")
        text = re.sub(r"\$\{(?:[^{}]|\{[^{}]*\})*\}", "", token[0][1:-1])
        yield Literal(script.count("\n", 0, token.start()) + 1, before, text)


def is_class_list(literal: Literal) -> bool:
    """Whether it is the value of `class`, or every word in it is a class, or a prefix of one, in the style sheets."""
    if re.search(r"\bclass:\s*$", literal.before):
        return True
    return all(any(name.startswith(word) for name in CLASSES) for word in literal.text.split())


def is_text(literal: Literal) -> bool:
    """Whether it is text for the user."""
    if literal.text in NOT_TEXT or literal.before.rstrip().endswith("from"):
        return False
    if TAKES_TEXT.search(literal.before):
        return WORD.search(literal.text) is not None
    is_code = re.search(r"[\[\]#<>{}()=/\\]|^\.|\.\w+ ", literal.text) is not None
    if is_code or is_class_list(literal):
        return False
    return bool(SENTENCE.search(literal.text) or CAPITALISED.match(literal.text))


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_contains_no_text(name: str) -> None:
    script = (ASSETS / name).read_text(encoding="utf-8")
    texts = [
        f"{name}:{literal.line}: {literal.text}" for literal in literals(script) if is_text(literal)
    ]
    assert not texts, "move these to texts.js:\n" + "\n".join(texts)


@pytest.mark.parametrize(
    "script",
    [
        'el("button", { type: "button", text: "Copy" })',
        'el("p", { class: "muted" }, "No models")',
        'el("label", {}, box, "Auto")',
        "button.textContent = `Fields (${count})`",
        'node.setAttribute("aria-label", "plot")',
        "const LEAD = 'Every model of the catalog.';",
        'told = isOk ? "" : "no such model"',
        'throw new ApiError("gone", { status: 0 })',
    ],
)
def test_is_text_recognises_text_in_a_script(script: str) -> None:
    assert any(is_text(literal) for literal in literals(script))


def groups(texts: str) -> dict[str, set[str]]:
    """The names of each group: COMMON -> {"auto", "cancel", ...}."""
    bodies = re.findall(r"^export const ([A-Z_]+) = \{\n(.*?)^\};", texts, re.MULTILINE | re.DOTALL)
    return {group: set(re.findall(r"^  (\w+):", body, re.MULTILINE)) for group, body in bodies}


def test_every_text_is_defined_and_used() -> None:
    """An undefined name would be shown as "undefined"."""
    defined = groups((ASSETS / TEXTS).read_text(encoding="utf-8"))
    scripts = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    assert len(defined) > 10
    for group, names in defined.items():
        assert set(re.findall(rf"\b{group}\.(\w+)", scripts)) == names, group


def test_script_names_no_engine() -> None:
    """How engines differ comes from the API call `engines`. Texts may name them."""
    names = "|".join(re.escape(name) for name in engine_names())
    quoted = re.compile(rf"""(["'`])(?:{names})\1|\b(?:vllm|mlx|llamacpp)\s*:""")
    matches = {path.name: quoted.search(path.read_text()) for path in ASSETS.glob("*.js")}
    assert matches
    assert not {name: match[0] for name, match in matches.items() if match}
