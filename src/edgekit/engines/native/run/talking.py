"""The built-in engine and a file's vocabulary -> somebody to talk to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgekit.engines.chat import Prompt, Sampling, Written
from edgekit.engines.native.run.generating import generate
from edgekit.engines.native.sampler import Sampler
from edgekit.errors import TextError, UsageError

if TYPE_CHECKING:
    from edgekit.engines.native.run.engine import StreamEngine
    from edgekit.engines.native.run.text import FileText


@dataclass(slots=True, kw_only=True)
class StreamTalker:
    """What was read before is not read again, as long as the next prompt begins with it."""

    engine: StreamEngine
    text: FileText
    _read: list[int] = field(default_factory=list)

    @property
    def window_tokens(self) -> int:
        return self.engine.plan.context_tokens

    @property
    def reads_beyond(self) -> bool:
        """Whether a prompt that is longer than the window may simply be read."""
        return self.engine.plan.rolling

    def tokens(self, prompt: Prompt) -> list[int]:
        tokens = prompt_tokens(self.text, prompt)
        if not tokens:
            raise TextError("the prompt has no tokens")
        return tokens

    def write(
        self, tokens: Sequence[int], sampling: Sampling, *, max_tokens: int | None, into: Written
    ) -> Iterator[str]:
        sampler = Sampler(sampling, self.engine.vocabulary)
        rest = self._not_read(tokens)
        for token in tokens[: len(tokens) - len(rest)]:  # what was read before counts as said, too
            sampler.accept(token)
        self.text.pieces.flush()  # half a letter of an answer that was broken off
        into.prompt_tokens = len(tokens)
        begun_s = first_s = time.monotonic()
        try:
            for token in generate(
                self.engine, rest, sampler, max_tokens=max_tokens, stop=self.text.pieces.ends
            ):
                if not into.new_tokens:
                    first_s = time.monotonic()
                into.new_tokens += 1
                self._read.append(token)
                yield self.text.pieces.push(token)
            reached = max_tokens is not None and into.new_tokens >= max_tokens
            into.finish = "length" if reached or self._is_full else "stop"
            yield self.text.pieces.flush()
        finally:
            into.timings = _timings(into, len(rest), begun_s, first_s)

    @property
    def _is_full(self) -> bool:
        return not self.engine.plan.rolling and self.engine.position >= self.window_tokens

    def _not_read(self, tokens: Sequence[int]) -> Sequence[int]:
        """Which part of it is still to be read: all of it after a reset, unless it goes on where the last one ended."""
        known = len(self._read)
        fed = self.engine.position
        goes_on = 0 < fed <= known < len(tokens) and list(tokens[:known]) == self._read
        if goes_on and not self.engine.needs_reset:
            rest = tokens[fed:]
        else:
            self.engine.reset()
            rest = tokens
        self._read = list(tokens)
        return rest


def prompt_tokens(text: FileText, prompt: Prompt) -> list[int]:
    """As the model was taught: with its chat format, or plain."""
    if prompt.is_plain:
        return [*text.tokenizer.before, *text.tokenizer.encode_plain(prompt.text)]
    if text.chat is None:
        raise UsageError(
            "the built-in engine does not know this model's chat format: use --raw to "
            "continue the text as it is, or --engine llama.cpp, which uses the model's "
            "own template"
        )
    return text.chat.tokens(text.tokenizer, prompt.messages)


def _timings(into: Written, read_tokens: int, begun_s: float, first_s: float) -> dict[str, float]:
    found = {}
    if first_s > begun_s:
        found["prompt_per_second"] = read_tokens / (first_s - begun_s)
    rest_s = time.monotonic() - first_s
    if into.new_tokens > 1 and rest_s > 0:
        found["predicted_per_second"] = (into.new_tokens - 1) / rest_s
    return found
