"""Chat messages -> the prompt in the format that a model was trained on: the formats are in chat_formats.json.

A file has its format as a Jinja program (`tokenizer.chat_template`), which is not run here: a known format is
recognised by its marks and written as llama.cpp writes the one of that name. Three things are read from the program:
the default system message, whether thoughts of earlier answers are left out, and whether an answer begins with a
thought.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pkgutil import get_data
from typing import TYPE_CHECKING, Any

from edgekit.engines.chat import ROLES, Message
from edgekit.errors import UsageError, quoted
from edgekit.formats.cursor import Cursor
from edgekit.formats.gguf import KeyStore, read_keys, read_start
from edgekit.units import KIB

if TYPE_CHECKING:
    from edgekit.engines.native.file import FileHeader, WeightFile
    from edgekit.engines.native.tokenizer.text import TextTokenizer


TEMPLATE_KEY = "tokenizer.chat_template"
TEMPLATE_BYTES = 64 * KIB  # the longest in llama.cpp's tests is gpt-oss's, 16,738
_WINDOW_BYTES = 32 * KIB
_THOUGHT_END = "</think>"
_CUT_OFF = "Cutting Knowledge Date: December 2023"
# The default system message in a Jinja program, after a line end that may be written as \n.
_SYSTEM = re.compile(r"<\|im_start\|>system(?:\\n|\n)([^'\"{}<>\\]+)<\|im_end\|>")
_THINKS = re.compile(r"<think>(?:\\n|\n)['\"]")  # at the start of an answer

Around = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedTurns:
    """Each message is between two marks of its role."""

    system: Around
    user: Around
    assistant: Around
    begin: str = ""  # starts the answer
    strips: bool = False  # removes white space around each message
    system_in_user: bool = False  # the system message goes before the first user message

    def write(self, messages: Sequence[Message]) -> str:
        parts, system = [], ""
        for message in messages:
            content = message.content.strip() if self.strips else message.content
            if self.system_in_user and message.role == "system":
                system += content
                continue
            if system and message.role == "user":
                content, system = f"{system}\n\n{content}", ""
            before, after = getattr(self, message.role)
            parts.append(f"{before}{content}{after}")
        return "".join(parts) + self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """Everything between two answers is one [INST], including the system message."""

    begin: str = "[INST] "
    again: str = "[INST] "  # instead of `begin` after an answer
    system: Around = ("", "\n\n")
    end: str = "[/INST]"
    assistant: Around = (" ", "</s>")
    strips: bool = False  # removes white space around each message
    strips_answers: bool = False  # only around answers

    def write(self, messages: Sequence[Message]) -> str:
        around = {"system": self.system, "user": ("", self.end), "assistant": self.assistant}
        parts, mark = [], self.begin
        for message in messages:
            strips = self.strips or (self.strips_answers and message.role == "assistant")
            content = message.content.strip() if strips else message.content
            before, after = around[message.role]
            parts.append(f"{mark}{before}{content}{after}")
            mark = self.again if message.role == "assistant" else ""
        return "".join(parts)


_DATA: dict[str, Any] = json.loads(get_data("edgekit.engines.native", "chat_formats.json") or b"")
_KINDS: dict[str, Callable[..., MarkedTurns | Instructions]] = {
    "turns": MarkedTurns,
    "instructions": Instructions,
}
FORMATS = {
    name: kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in row.items()})
    for section, kind in _KINDS.items()
    for name, row in _DATA[section].items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """How the messages of one model are written."""

    name: str  # llama.cpp's
    system: str = ""  # the default system message
    knowledge: str = ""  # goes before the system message
    forgets_thoughts: bool = False  # of earlier answers
    thinks_first: bool = False  # an answer begins with a thought
    bos: int | None = None  # if the program writes it itself

    def text(self, messages: Sequence[Message]) -> str:
        """The prompt up to the start of the answer, with special tokens spelled out, without the BOS token.

        Raises UsageError without a message, or for an unknown role.
        """
        if not messages:
            raise UsageError("no message to answer")
        for message in messages:
            if message.role not in ROLES:
                raise UsageError(
                    f"unknown message role {quoted(message.role)}: choose one of {', '.join(ROLES)}"
                )
        format_row = FORMATS[self.name]
        completed = [*messages]
        if self.forgets_thoughts:
            for index, message in enumerate(completed):
                _, thought_end, answer = message.content.rpartition(_THOUGHT_END)
                if thought_end and message.role == "assistant":
                    completed[index] = replace(message, content=answer.lstrip("\n"))
        if (self.system or self.knowledge) and completed[0].role != "system":
            completed.insert(0, Message(role="system", content=self.system))
        if self.knowledge:
            # The messages are stripped here and not by the format, because the line end after `knowledge` must stay.
            format_row = replace(format_row, strips=False)
            completed = [replace(message, content=message.content.strip()) for message in completed]
            completed[0] = replace(completed[0], content=self.knowledge + completed[0].content)
        text = format_row.write(completed)
        return f"{text}<think>\n" if self.thinks_first else text

    def tokens(self, tokenizer: TextTokenizer, messages: Sequence[Message]) -> list[int]:
        """The prompt's tokens. As in llama.cpp, the text of a special token becomes that token."""
        begin = tokenizer.before
        if not begin and self.bos is not None:
            begin = (self.bos,)
        return [*begin, *tokenizer.encode_plain(self.text(messages))]


def chat_format(file: WeightFile, header: FileHeader, named: Container[str]) -> ChatFormat | None:
    """The chat format of a file; None if it is not in the table.

    `named` has the texts of the vocabulary's special tokens. In a file without a program, the one that ends a turn
    decides.
    """
    template = _read_template(file, header)
    if template is None:
        known = (name for token, name in _DATA["end_tokens"].items() if token in named)
        return next((ChatFormat(name=name) for name in known), None)
    bos = header.keys.get("tokenizer.ggml.bos_token_id")
    return format_of(template, bos=bos if type(bos) is int else None)


def format_of(template: str, *, bos: int | None = None, today: str = "") -> ChatFormat | None:
    """The format that a program writes: the first row of `marks` in chat_formats.json that matches it.

    `today` is like "26 Jul 2024".
    """
    for row in _DATA["marks"]:
        has_marks = all(mark in template for mark in row["has"])
        if has_marks and not any(mark in template for mark in row.get("lacks", ())):
            break
    else:
        return None
    knowledge = ""
    if row["format"] == "llama3" and _CUT_OFF in template:  # Llama 3.1 and later
        day = "26 Jul 2024"  # 3.1 cannot ask for today's date
        if "strftime_now" in template:
            day = today or datetime.now(UTC).astimezone().strftime("%d %b %Y")
        knowledge = f"{_CUT_OFF}\nToday Date: {day}\n\n"
    system = _SYSTEM.search(template)
    return ChatFormat(
        name=row["format"],
        system=system[1] if system else "",
        knowledge=knowledge,
        forgets_thoughts=_THOUGHT_END in template,
        thinks_first=bool(_THINKS.search(template.rpartition("add_generation_prompt")[2])),
        bos=bos if "bos_token" in template else None,
    )


def _read_template(file: WeightFile, header: FileHeader) -> str | None:
    """The file's Jinja program. A FileHeader only has short texts, so for a longer one the keys are read again."""
    if TEMPLATE_KEY in header.keys:
        return str(header.keys[TEMPLATE_KEY])
    cursor = Cursor(file, window_bytes=_WINDOW_BYTES)
    store = KeyStore(
        wanted=TEMPLATE_KEY.__eq__,
        max_bytes=TEMPLATE_BYTES,
        max_string_bytes=TEMPLATE_BYTES,
    )
    read_keys(cursor, read_start(cursor, file), store)
    if TEMPLATE_KEY in store.long_strings:
        return ""  # not a known format
    template = store.keys.get(TEMPLATE_KEY)
    return template if isinstance(template, str) else None
