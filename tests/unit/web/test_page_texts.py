"""The page's texts are all in texts.js: no script holds one of its own, and none names one that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from edgekit.bill.types import Component
from edgekit.web.app import ASSETS

TEXTS = "texts.js"
UNITS = "format.js"  # numbers with their units
SCRIPTS = sorted(path.name for path in ASSETS.glob("*.js") if path.name not in {TEXTS, UNITS})

# Properties, assignments and calls whose text a person reads or hears.
SHOWN_AS = re.compile(
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
# Read by the browser or by the server, never by a person.
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
    before: str  # the code on its left
    text: str  # without what a template fills in


def literals(script: str) -> Iterator[Literal]:
    for result in TOKEN.finditer(script):
        if result[0][0] not in "\"'`":
            continue
        before = script[max(0, result.start() - 80) : result.start()].replace("\n", " ")
        text = re.sub(r"\$\{(?:[^{}]|\{[^{}]*\})*\}", "", result[0][1:-1])
        yield Literal(script.count("\n", 0, result.start()) + 1, before, text)


def is_class_list(one: Literal) -> bool:
    """As a property says, or because every word is a class of the style sheets, or begins one."""
    if re.search(r"\bclass:\s*$", one.before):
        return True
    return all(any(name.startswith(word) for name in CLASSES) for word in one.text.split())


def is_text(one: Literal) -> bool:
    """Whether a person would read it."""
    if one.text in NOT_TEXT or one.before.rstrip().endswith("from"):
        return False
    if SHOWN_AS.search(one.before):
        return WORD.search(one.text) is not None
    is_code = re.search(r"[\[\]#<>{}()=/\\]|^\.|\.\w+ ", one.text) is not None
    if is_code or is_class_list(one):
        return False
    return bool(SENTENCE.search(one.text) or CAPITALISED.match(one.text))


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_holds_no_text_of_its_own(name: str) -> None:
    script = (ASSETS / name).read_text(encoding="utf-8")
    results = [
        f"{name}:{literal.line}: {literal.text}" for literal in literals(script) if is_text(literal)
    ]
    assert not results, "move these to texts.js:\n" + "\n".join(results)


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
def test_text_in_a_script_is_found(script: str) -> None:
    assert any(is_text(literal) for literal in literals(script))


def groups(texts: str) -> dict[str, set[str]]:
    """The names of each group: COMMON -> {"auto", "cancel", ...}."""
    result = re.findall(r"^export const ([A-Z_]+) = \{\n(.*?)^\};", texts, re.MULTILINE | re.DOTALL)
    return {group: set(re.findall(r"^  (\w+):", body, re.MULTILINE)) for group, body in result}


def test_texts_and_scripts_name_the_same() -> None:
    """A name that is missing would be shown as "undefined"; one that nobody uses is dead."""
    defined = groups((ASSETS / TEXTS).read_text(encoding="utf-8"))
    scripts = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    assert len(defined) > 10
    for group, names in defined.items():
        assert set(re.findall(rf"\b{group}\.(\w+)", scripts)) == names, group


def test_no_script_of_the_page_names_an_engine() -> None:
    """What differs between engines comes from the answer above; text may name them."""
    names = "|".join(re.escape(name) for name in engine_names())
    quoted = re.compile(rf"""(["'`])(?:{names})\1|\b(?:vllm|mlx|llamacpp)\s*:""")
    scripts = Path(edgekit.__file__).with_name("web").joinpath("pages").glob("*.js")
    result = {script.name: quoted.search(script.read_text()) for script in scripts}
    assert result
    assert not {name: match[0] for name, match in result.items() if match}
