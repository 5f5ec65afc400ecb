"""A chat on the terminal, and the answers that `run` writes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from edgekit.app.attachments import MAX_IMAGES, read_image
from edgekit.app.conversations import Transcript
from edgekit.cli import show, warn
from edgekit.cli.prompt import check_unicode
from edgekit.engines.chat import (
    Fitted,
    GenerationResult,
    Image,
    Message,
    Prompt,
    Sampling,
    TextGenerator,
    fit_prompt,
)
from edgekit.errors import (
    ContextTooLargeError,
    EdgekitError,
    RequestRefusedError,
    TextError,
    UsageError,
)
from edgekit.report.run import tool_calls_text
from edgekit.request import Request

_ENDS = frozenset({"/exit", "/quit", "/bye"})
_RESET = frozenset({"/reset", "/clear"})
_COMMAND = re.compile(r"/[a-z]+")
_COMMANDS = (
    "/image FILE adds an image to the next message, /save NAME saves the conversation, /reset clears the history,"
    " /exit or Ctrl-D ends it"
)
_THINKING, _THOUGHT = "Thinking...\n", "\n...done thinking.\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A running engine with the settings of the answer."""

    generator: TextGenerator
    request: Request
    sampling: Sampling
    tools: tuple[Mapping[str, Any], ...] = ()
    takes_images: bool = False
    say: Callable[[str], None]
    show_reasoning: Callable[[str], None]

    def fitted(self, prompt: Prompt, max_tokens: int | None) -> Fitted:
        """Which part of the prompt is read, and how much can be written."""
        tokens = self.generator.tokens(prompt)
        if tokens is None or self.generator.reads_beyond:
            counted = None if tokens is None else tuple(tokens)
            return Fitted(prompt=prompt, tokens=counted, max_tokens=max_tokens)
        return fit_prompt(
            prompt,
            tokens,
            window_tokens=self.generator.window_tokens,
            max_tokens=max_tokens,
            sinks=self.request.sinks,
            rolling=self.request.rolling,
        )

    def pieces(self, fitted: Fitted, written: GenerationResult) -> Iterator[str]:
        """The answer piece by piece. `written` receives the reasoning, tool calls, counts and speeds."""
        with closing(self.generator.write(fitted, self.sampling, into=written)) as pieces:
            yield from pieces

    def print_answer(self, fitted: Fitted, written: GenerationResult, shown: list[str]) -> None:
        """Print the reasoning, the answer and the tool calls. `shown` receives the pieces of the answer."""
        reasoning_count, is_thinking = 0, False
        for piece in self.pieces(fitted, written):
            reasoning = "".join(written.reasoning[reasoning_count:])
            reasoning_count = len(written.reasoning)
            if reasoning:
                self.show_reasoning(reasoning if is_thinking else _THINKING + reasoning)
                is_thinking = True
            if piece:
                if is_thinking:
                    self.show_reasoning(_THOUGHT)
                    is_thinking = False
                shown.append(piece)
                show(piece)
        if is_thinking:
            self.show_reasoning(_THOUGHT)
        calls = tool_calls_text(written.tool_calls)
        text = "".join(shown)
        if not text.endswith("\n") and (text or not calls):
            show("\n")
        show(calls)


def answer_message(text: str, written: GenerationResult) -> Message:
    return Message(role="assistant", content=text, tool_calls=tuple(written.tool_calls))


def chat(
    writer: Writer, transcript: Transcript, images: tuple[Image, ...], max_tokens: int | None
) -> None:
    """Chat until the user ends it. Ctrl-C stops an answer, or ends the chat at the prompt.

    `images` go with the first message.
    """
    first = tuple(message for message in transcript.messages if message.role == "system")
    writer.say(
        f"chat with a context of {writer.generator.window_tokens:,} tokens; {_COMMANDS}, Ctrl-C stops an answer"
    )
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            show("\n")
            return
        command, _, argument = line.partition(" ")
        argument = argument.strip()
        if line in _ENDS:
            return
        if not line:
            continue
        if line in _RESET:
            was_saved = transcript.name is not None
            transcript.messages, transcript.name, transcript.saved_count = first, None, 0
            images = ()
            more = "; saved messages are kept, new ones are not saved" if was_saved else ""
            writer.say(f"history cleared{more}")
            continue
        if command == "/help":
            writer.say(_COMMANDS)
            continue
        if command == "/save":
            if not argument:
                warn("give a name: /save NAME")
                continue
            try:
                transcript.save_as(argument)
                writer.say(
                    f"saved as {argument}: continue it with --resume {shlex.quote(argument)}"
                )
            except EdgekitError as error:
                warn(f"not saved: {error}")
            continue
        if command != "/image" and _COMMAND.fullmatch(command):
            warn(f"unknown command {command}: {_COMMANDS}")
            continue
        try:
            if command == "/image":
                images = _with_image(writer, images, argument)
                continue
            check_unicode("what you typed", line)
            question = Message(role="user", content=line, images=images)
            prompt = Prompt(messages=(*transcript.messages, question), tools=writer.tools)
            written, shown = GenerationResult(), list[str]()
            try:
                writer.print_answer(writer.fitted(prompt, max_tokens), written, shown)
            except KeyboardInterrupt:
                show(" [stopped]\n")
        except ContextTooLargeError as error:
            warn(f"{error}; or /reset")
            continue
        except (TextError, UsageError) as error:
            warn(str(error))
            continue
        except RequestRefusedError as error:
            images = ()  # perhaps one of them is the reason
            warn(f"{error}; this message is not part of the chat")
            continue
        images = ()
        try:
            transcript.add(question, answer_message("".join(shown), written))
        except EdgekitError as error:
            warn(f"not saved: {error}")


def _with_image(writer: Writer, images: tuple[Image, ...], name: str) -> tuple[Image, ...]:
    """The images of the next message, with one more. Raises UsageError."""
    if not name:
        raise UsageError("name a file: /image FILE")
    if not writer.takes_images:
        raise UsageError(
            "this chat takes text only: for a vision model with its projector (mmproj), start it with --image FILE"
        )
    if len(images) >= MAX_IMAGES:
        raise UsageError(f"a message can have up to {MAX_IMAGES} images")
    try:
        image = read_image(name)
    except EdgekitError as error:  # the chat goes on
        raise UsageError(str(error)) from error
    writer.say(f"added to the next message: {name}")
    return (*images, image)
