"""Nouns of a conversation: what an engine is asked to go on with, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgekit.engines.sampling import Sampling
from edgekit.errors import ContextTooLargeError

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Messages, written as the model was taught; or a plain text to go on with."""

    messages: tuple[Message, ...] = ()
    text: str = ""

    @property
    def is_plain(self) -> bool:
        return not self.messages

    @property
    def size_bytes(self) -> int:
        """No tokenizer here makes more tokens of a text than it has bytes."""
        texts = (self.text, *(one.content for one in self.messages))
        return sum(len(text.encode(errors="replace")) for text in texts)


@dataclass(slots=True)
class Written:
    """What came of one request; filled while it runs."""

    finish: str = ""  # "stop", "length"; "": it was broken off
    prompt_tokens: int = 0
    new_tokens: int = 0
    timings: Mapping[str, float] = field(default_factory=dict)

    @property
    def decode_tokens_per_s(self) -> float | None:
        return self.timings.get("predicted_per_second")

    @property
    def prefill_tokens_per_s(self) -> float | None:
        return self.timings.get("prompt_per_second")


class Talker(Protocol):
    """An engine that is up, with its window."""

    @property
    def window_tokens(self) -> int: ...

    @property
    def reads_beyond(self) -> bool:
        """Whether a prompt that is longer than the window may simply be read, and its beginning leaves."""
        ...

    def tokens(self, prompt: Prompt) -> list[int]:
        """The prompt as the engine cuts it."""
        ...

    def write(
        self, tokens: Sequence[int], sampling: Sampling, *, max_tokens: int | None, into: Written
    ) -> Iterator[str]:
        """Text as it comes. Who stops listening ends the work."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A prompt that the window holds, and how many tokens may follow."""

    tokens: tuple[int, ...]
    max_tokens: int | None  # None: until the model ends
    note: str = ""  # what was cut, where something was


def fit_prompt(
    tokens: Sequence[int],
    *,
    window_tokens: int,
    max_tokens: int | None,
    sinks: int,
    rolling: bool,
) -> Fitted:
    """ContextTooLargeError for a prompt that leaves no room, unless the window rolls: then the first tokens and the
    last ones stay, as if all had been read and the middle had left the window.
    """
    room = window_tokens - len(tokens)
    if room >= 1:
        if rolling or (max_tokens is not None and max_tokens <= room):
            return Fitted(tokens=tuple(tokens), max_tokens=max_tokens)
        note = ""
        if max_tokens is not None:
            note = (
                f"{max_tokens:,} new tokens were requested, but the context has room for only "
                f"{room:,}"
            )
        return Fitted(tokens=tuple(tokens), max_tokens=room, note=note)
    if not rolling:
        raise ContextTooLargeError(
            f"the prompt has {len(tokens):,} tokens, which leaves no room in a context of "
            f"{window_tokens:,}: use a longer context (-c "
            f"{len(tokens) + (max_tokens or 512)}), or a rolling window (--rolling "
            "--sinks 4)"
        )
    kept = max(sinks + 1, window_tokens // 2)  # as llama.cpp: half of what may leave does
    last = max(1, kept - sinks)
    short = (*tokens[:sinks], *tokens[len(tokens) - last :])
    note = (
        f"the prompt has {len(tokens):,} tokens and the context {window_tokens:,}: only "
        f"the first {sinks:,} and the last {last:,} tokens are used"
    )
    return Fitted(tokens=short, max_tokens=max_tokens, note=note)
