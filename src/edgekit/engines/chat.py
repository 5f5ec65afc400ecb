"""A conversation: prompts, sampling, and an engine's output."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgekit.errors import ContextTooLargeError, UsageError, quoted

ROLES = ("system", "user", "assistant")
RECENT_TOKENS = 4_096  # maximum look-back of the repetition penalty
MOST_STOPS = 16
MOST_STOP_CHARS = 256  # so much of an answer may be held back
RANDOM_SEED = 2**32 - 1  # llama.cpp's "random": LLAMA_DEFAULT_SEED in llama.h
_NUMBER, _WHOLE = (int, float), (int,)
# Field -> flag, types, least, most, and the rule in words.
_RULES: dict[str, tuple[str, tuple[type, ...], float, float, str]] = {
    "temperature": ("temp", _NUMBER, 0, sys.float_info.max, "a number of at least 0"),
    "top_k": ("top-k", _WHOLE, 0, 2**31 - 1, "a whole number of tokens, 0 for all"),
    "top_p": ("top-p", _NUMBER, 0, 1, "a number from 0 to 1, 1 for all tokens"),
    "min_p": ("min-p", _NUMBER, 0, 1, "a number from 0 to 1, 0 for all tokens"),
    # 1.0 to 1.5 in use; within these limits logits stay finite
    "repeat_penalty": ("repeat-penalty", _NUMBER, 1e-6, 1e6, "a number above 0, 1 for no penalty"),
    "repeat_last": (
        "repeat-last-n",
        _WHOLE,
        0,
        RECENT_TOKENS,
        f"a whole number of tokens up to {RECENT_TOKENS:,}, 0 for none",
    ),
    "seed": ("seed", _WHOLE, 0, RANDOM_SEED - 1, f"a whole number below {RANDOM_SEED:,}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image file as it is."""

    data: bytes = field(repr=False)
    media_type: str  # "image/png"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: str
    content: str
    images: tuple[Image, ...] = ()
    tool_calls: tuple[Mapping[str, str], ...] = ()  # of the model: "name" and "arguments" (JSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Messages for the chat template, or plain text to continue."""

    messages: tuple[Message, ...] = ()
    text: str = ""
    tools: tuple[
        Mapping[str, Any], ...
    ] = ()  # functions that the model may call, as in OpenAI's API

    @property
    def is_plain(self) -> bool:
        return not self.messages

    @property
    def is_text(self) -> bool:
        """Whether it is nothing but text: no images, no tools."""
        return not self.tools and not any(
            message.images or message.tool_calls for message in self.messages
        )

    @property
    def images(self) -> tuple[Image, ...]:
        return tuple(image for message in self.messages for image in message.images)

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that becomes tokens, except images and what the chat template writes around it."""
        calls = (call for message in self.messages for call in message.tool_calls)
        return (
            self.text,
            *(message.content for message in self.messages),
            *(f"{call['name']} {call['arguments']}" for call in calls),
            *(json.dumps(tool) for tool in self.tools),
        )

    @property
    def size_bytes(self) -> int:
        """An upper bound of the tokens in the texts: no tokenizer makes more tokens than bytes."""
        return sum(len(text.encode(errors="replace")) for text in self.texts)


@dataclass(slots=True)
class GenerationResult:
    """The result of one request; filled while it runs."""

    finish: str = ""  # "stop", "length"; "": interrupted
    prompt_tokens: int = 0
    new_tokens: int = 0
    reasoning: list[str] = field(default_factory=list)  # pieces of it; not part of the answer
    tool_calls: list[dict[str, str]] = field(default_factory=list)  # "name" and "arguments" (JSON)
    timings: Mapping[str, float] = field(default_factory=dict)

    @property
    def decode_tokens_per_s(self) -> float | None:
        return self.timings.get("predicted_per_second")

    @property
    def prefill_tokens_per_s(self) -> float | None:
        return self.timings.get("prompt_per_second")


class TextGenerator(Protocol):
    """A running engine with its context window."""

    @property
    def window_tokens(self) -> int: ...

    @property
    def reads_beyond(self) -> bool:
        """True if a prompt may be longer than the window: its beginning is then dropped."""
        ...

    def tokens(self, prompt: Prompt) -> list[int] | None:
        """The prompt's tokens; None if the engine counts them only while it answers."""
        ...

    def write(
        self, fitted: Fitted, sampling: Sampling, *, into: GenerationResult
    ) -> Generator[str, None, None]:
        """Streams the text. Closing the generator cancels the request.

        A piece may be empty: reasoning goes to `into.reasoning`, with an empty piece for each of its pieces.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A prompt that fits the window, and the limit of new tokens."""

    prompt: Prompt
    tokens: (
        tuple[int, ...] | None
    )  # of the prompt, some of them cut out; None: the engine has not counted them
    max_tokens: int | None  # None: until the model stops
    note: str = ""  # what was cut, if anything


def fit_prompt(
    prompt: Prompt,
    tokens: Sequence[int],
    *,
    window_tokens: int,
    max_tokens: int | None,
    sinks: int,
    rolling: bool,
) -> Fitted:
    """The prompt that fits the window, and how many new tokens fit after it.

    A rolling window cuts a prompt that is too long: the first `sinks` tokens and the last ones stay. Otherwise such a
    prompt raises ContextTooLargeError.
    """
    free_tokens = window_tokens - len(tokens)
    if free_tokens >= 1:
        if rolling or (max_tokens is not None and max_tokens <= free_tokens):
            return Fitted(prompt=prompt, tokens=tuple(tokens), max_tokens=max_tokens)
        note = ""
        if max_tokens is not None:
            note = (
                f"{max_tokens:,} new tokens were requested, but the context has room for only "
                f"{free_tokens:,}"
            )
        return Fitted(prompt=prompt, tokens=tuple(tokens), max_tokens=free_tokens, note=note)
    if not rolling:
        raise ContextTooLargeError(
            f"the prompt has {len(tokens):,} tokens, which leaves no room in a context of "
            f"{window_tokens:,}: use a longer context (-c "
            f"{len(tokens) + (max_tokens or 512)}), or a rolling window (--rolling "
            "--sinks 4)"
        )
    # As in llama.cpp: half of the window stays free for new tokens.
    prompt_tokens = max(sinks + 1, window_tokens // 2)
    last = max(1, prompt_tokens - sinks)
    short = (*tokens[:sinks], *tokens[len(tokens) - last :])
    note = (
        f"the prompt has {len(tokens):,} tokens and the context {window_tokens:,}: only "
        f"the first {sinks:,} and the last {last:,} tokens are used"
    )
    return Fitted(prompt=prompt, tokens=short, max_tokens=max_tokens, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters; UsageError for an invalid one. Defaults as in llama.cpp (common/common.h @ b21e4de)."""

    temperature: float = 0.8  # 0: greedy
    top_k: int = 40  # 0: all
    top_p: float = 0.95  # 1: all
    min_p: float = 0.05  # 0: all
    repeat_penalty: float = 1.0  # 1: none
    repeat_last: int = 64  # look-back of the penalty in tokens; 0: none
    seed: int | None = None  # None: random
    stop: tuple[str, ...] = ()  # the answer ends before any of these texts

    def __post_init__(self) -> None:
        if len(self.stop) > MOST_STOPS or not all(
            0 < len(text) <= MOST_STOP_CHARS for text in self.stop
        ):
            raise UsageError(
                f"stop (--stop) takes up to {MOST_STOPS} texts of 1 to {MOST_STOP_CHARS} characters"
            )
        for name, (flag, types, least, most, rule) in _RULES.items():
            value = getattr(self, name)
            if name == "seed" and value is None:
                continue
            if type(value) not in types or not least <= value <= most:
                raise UsageError(f"{name} (--{flag}) must be {rule} (got {quoted(value)})")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        return self.repeat_last > 0 and self.repeat_penalty != 1


def until_stop(pieces: Iterator[str], stops: Sequence[str]) -> Generator[str, None, bool]:
    """The pieces up to the first of the stop texts; returns whether there was one.

    The end of a piece is held back while it may be the beginning of a stop text.
    """
    held = ""
    for piece in pieces:
        held += piece
        places = [place for stop in stops if (place := held.find(stop)) >= 0]
        if places:
            yield held[: min(places)]
            return True
        longest = max(
            (
                size
                for stop in stops
                for size in range(1, min(len(stop), len(held)) + 1)
                if held.endswith(stop[:size])
            ),
            default=0,
        )
        yield held[: len(held) - longest]
        held = held[len(held) - longest :]
    yield held
    return False
