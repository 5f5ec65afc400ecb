"""Messages -> the text that a model was taught to answer: a table of the chat formats that are known here.

A file says how in a program (`tokenizer.chat_template`, Jinja), which is not run here: a format is known
by its marks, and written as llama.cpp writes the one of that name: src/llama-chat.cpp @ b21e4de. Three
things are read out of the program: what the system says where nobody else does, that thoughts of
earlier answers are left out, and that an answer begins with a thought.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from edgekit.engines.chat import ROLES, Message
from edgekit.engines.native.tokenizer.vocabulary import read_places
from edgekit.errors import UsageError
from edgekit.formats.cursor import Cursor
from edgekit.formats.gguf import KeyStore, read_keys, read_start
from edgekit.terminal import quoted
from edgekit.units import KIB

if TYPE_CHECKING:
    from edgekit.engines.native.file import Walked, WeightFile
    from edgekit.engines.native.tokenizer.text import TextTokenizer


TEMPLATE_KEY = "tokenizer.chat_template"
TEMPLATE_BYTES = 64 * KIB  # the longest of those that llama.cpp has for tests is gpt-oss's, 16,738
_WINDOW_BYTES = 32 * KIB
_THOUGHT_END = "</think>"
_CUT_OFF = "Cutting Knowledge Date: December 2023"
# Written in the program as it is, with a line end of its own or one that is spelled.
_SYSTEM = re.compile(r"<\|im_start\|>system(?:\\n|\n)([^'\"{}<>\\]+)<\|im_end\|>")
_THINKS = re.compile(r"<think>(?:\\n|\n)['\"]")  # in what begins an answer

Around = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedTurns:
    """Each message stands between two marks of its role."""

    system: Around
    user: Around
    assistant: Around
    begin: str = ""  # of the answer
    strips: bool = False
    system_in_user: bool = False  # the model knows no system: it stands before what the user says

    def write(self, messages: Sequence[Message]) -> str:
        parts, system = [], ""
        for one in messages:
            content = one.content.strip() if self.strips else one.content
            if self.system_in_user and one.role == "system":
                system += content
                continue
            if system and one.role == "user":
                content, system = f"{system}\n\n{content}", ""
            before, after = getattr(self, one.role)
            parts.append(f"{before}{content}{after}")
        return "".join(parts) + self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """What stands between two answers is one [INST], with the system's words in it."""

    begin: str = "[INST] "
    again: str = "[INST] "  # after an answer
    system: Around = ("", "\n\n")
    end: str = "[/INST]"
    assistant: Around = (" ", "</s>")
    strips: bool = False
    strips_answers: bool = False

    def write(self, messages: Sequence[Message]) -> str:
        around = {"system": self.system, "user": ("", self.end), "assistant": self.assistant}
        parts, mark = [], self.begin
        for one in messages:
            strips = self.strips or (self.strips_answers and one.role == "assistant")
            content = one.content.strip() if strips else one.content
            before, after = around[one.role]
            parts.append(f"{mark}{before}{content}{after}")
            mark = self.again if one.role == "assistant" else ""
        return "".join(parts)


def _turns(before: str, role: str, after: str, *, answerer: str = "assistant") -> MarkedTurns:
    """Where only the role's name differs."""
    names = ("system", "user", answerer)
    system, user, assistant = ((f"{before}{said}{role}", after) for said in names)
    return MarkedTurns(system=system, user=user, assistant=assistant, begin=assistant[0])


_CHATML = _turns("<|im_start|>", "\n", "<|im_end|>\n")
_LLAMA3 = _turns("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>")
_GEMMA = _turns("<start_of_turn>", "\n", "<end_of_turn>\n", answerer="model")
_PHI3 = _turns("<|", "|>\n", "<|end|>\n")
_LLAMA2 = Instructions(system=("", "\n"), end=" [/INST]", assistant=("", "</s>"))
_SYS = ("<<SYS>>\n", "\n<</SYS>>\n\n")

FORMATS: dict[str, MarkedTurns | Instructions] = {
    "chatml": _CHATML,
    "llama3": replace(_LLAMA3, strips=True),
    "gemma": replace(_GEMMA, strips=True, system_in_user=True),
    "phi3": _PHI3,
    "llama2": _LLAMA2,
    "llama2-sys": replace(_LLAMA2, system=_SYS),
    "llama2-sys-bos": replace(_LLAMA2, system=_SYS, again="<s>[INST] "),
    "llama2-sys-strip": replace(_LLAMA2, system=_SYS, strips=True),
    "mistral-v1": Instructions(begin=" [INST] ", again=" [INST] ", end=" [/INST]"),
    "mistral-v3": Instructions(strips_answers=True),
    "mistral-v3-tekken": Instructions(begin="[INST]", again="[INST]", assistant=("", "</s>")),
    "mistral-v7": MarkedTurns(
        system=("[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"),
        user=("[INST] ", "[/INST]"),
        assistant=(" ", "</s>"),
    ),
    "mistral-v7-tekken": MarkedTurns(
        system=("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        user=("[INST]", "[/INST]"),
        assistant=("", "</s>"),
    ),
}

# A format, the marks that its programs have, and those of others that look like it. The first row counts.
_MARKS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("chatml", ("<|im_start|>", "<|im_end|>"), ("<|im_sep|>", "<end_of_utterance>", "## Metadata")),
    ("mistral-v7", ("[INST] ", "[SYSTEM_PROMPT] "), ()),
    ("mistral-v7-tekken", ("[INST]", "[SYSTEM_PROMPT]"), ()),
    ("mistral-v1", ("' [INST] ' + system_message",), ()),
    ("mistral-v1", (" [INST]", "[AVAILABLE_TOOLS]"), ()),
    ("mistral-v3-tekken", ('"[INST]"', "[AVAILABLE_TOOLS]"), ()),
    ("mistral-v3", ("[INST]", "[AVAILABLE_TOOLS]"), ()),
    ("llama2-sys-strip", ("[INST]", "content.strip()"), ()),
    ("llama2-sys-bos", ("bos_token + '[INST]",), ()),
    ("llama2-sys", ("[INST]", "<<SYS>>"), ()),
    ("llama2", ("[INST]",), ()),
    ("phi3", ("<|assistant|>", "<|end|>"), ("thought_instructions",)),
    ("gemma", ("<start_of_turn>", "<end_of_turn>"), ()),
    (
        "llama3",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        (">>>", "has_code_interpreter", "system_prompt_suffix"),
    ),
)
# Of a file that has no program: the token that ends a turn.
_LAST_TOKENS = {"<|im_end|>": "chatml", "<|eot_id|>": "llama3", "<end_of_turn>": "gemma"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """How the messages of one model are written."""

    name: str  # llama.cpp's own
    system: str = ""  # what the system says where no message does
    knowledge: str = ""  # what stands before the system's words, or alone
    forgets_thoughts: bool = False  # of earlier answers
    thinks_first: bool = False  # an answer begins with a thought
    bos: int | None = None  # that the program writes itself

    def text(self, messages: Sequence[Message]) -> str:
        """With special tokens as they are spelled, without the one before every text; the answer begun.

        UsageError where there is nothing to answer, or a message is of nobody.
        """
        if not messages:
            raise UsageError("no message to answer")
        for one in messages:
            if one.role not in ROLES:
                known = ", ".join(ROLES)
                raise UsageError(f"unknown message role {quoted(one.role)}: choose one of {known}")
        row = FORMATS[self.name]
        if self.knowledge:
            row = replace(
                row, strips=False
            )  # its last line end stays, and the rest is stripped below
        told = row.write(self._completed(messages))
        return f"{told}<think>\n" if self.thinks_first else told

    def tokens(self, tokenizer: TextTokenizer, messages: Sequence[Message]) -> list[int]:
        """As llama.cpp would cut it: a special token that somebody spells is that token."""
        begin = tokenizer.before
        if not begin and self.bos is not None:
            begin = (self.bos,)
        return [*begin, *tokenizer.encode_plain(self.text(messages))]

    def _completed(self, messages: Sequence[Message]) -> list[Message]:
        found = (
            [_without_thoughts(one) for one in messages] if self.forgets_thoughts else [*messages]
        )
        if (self.system or self.knowledge) and found[0].role != "system":
            found.insert(0, Message(role="system", content=self.system))
        if self.knowledge:
            found = [replace(one, content=one.content.strip()) for one in found]
            found[0] = replace(found[0], content=self.knowledge + found[0].content)
        return found


def _without_thoughts(message: Message) -> Message:
    _, mark, rest = message.content.rpartition(_THOUGHT_END)
    if not mark or message.role != "assistant":
        return message
    return replace(message, content=rest.lstrip("\n"))


def chat_format(file: WeightFile, walked: Walked) -> ChatFormat | None:
    """None where the file was taught no format that stands in the table."""
    template = _read_template(file, walked)
    bos = walked.keys.get("tokenizer.ggml.bos_token_id")
    if template is None:
        named = read_places(file, walked).named
        return next(
            (ChatFormat(name=row) for text, row in _LAST_TOKENS.items() if text in named), None
        )
    return format_of(template, bos=bos if type(bos) is int else None)


def format_of(template: str, *, bos: int | None = None, today: str = "") -> ChatFormat | None:
    """Which one a program writes. `today` stands in what some of them tell the model: "26 Jul 2024"."""
    name = next((name for name, *marks in _MARKS if _is_marked(template, *marks)), None)
    if name is None:
        return None
    system = _SYSTEM.search(template)
    return ChatFormat(
        name=name,
        system=system[1] if system else "",
        knowledge=_knowledge(template, today) if name == "llama3" else "",
        forgets_thoughts=_THOUGHT_END in template,
        thinks_first=bool(_THINKS.search(template.rpartition("add_generation_prompt")[2])),
        bos=bos if "bos_token" in template else None,
    )


def _is_marked(template: str, marks: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return all(mark in template for mark in marks) and not any(mark in template for mark in others)


def _knowledge(template: str, today: str) -> str:
    """What Llama 3.1 and later are told before anything else."""
    if _CUT_OFF not in template:
        return ""
    day = "26 Jul 2024"  # where it cannot ask for today's, which 3.1 does not
    if "strftime_now" in template:
        day = today or datetime.now(UTC).astimezone().strftime("%d %b %Y")
    return f"{_CUT_OFF}\nToday Date: {day}\n\n"


def _read_template(file: WeightFile, walked: Walked) -> str | None:
    """The walk keeps what is short; for what is longer the keys are read again."""
    if TEMPLATE_KEY in walked.keys:
        return str(walked.keys[TEMPLATE_KEY])
    cursor = Cursor(file, window_bytes=_WINDOW_BYTES)
    store = KeyStore(
        wanted=TEMPLATE_KEY.__eq__,
        max_bytes=TEMPLATE_BYTES,
        max_string_bytes=TEMPLATE_BYTES,
    )
    read_keys(cursor, read_start(cursor, file), store)
    if TEMPLATE_KEY in store.long_strings:
        return ""  # of no known format
    found = store.keys.get(TEMPLATE_KEY)
    return found if isinstance(found, str) else None
