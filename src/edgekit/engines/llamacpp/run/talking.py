"""A llama.cpp that is up -> somebody to talk to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgekit.engines.chat import Prompt, Written
from edgekit.engines.llamacpp.run.client import Client
from edgekit.engines.sampling import Sampling
from edgekit.errors import TextError


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaTalker:
    client: Client
    window_tokens: int
    sinks: int = 0
    reads_beyond: bool = False  # the server refuses a prompt that is longer than its window

    def tokens(self, prompt: Prompt) -> list[int]:
        """A chat template writes the first special token itself where the model wants one; the engine adds it once."""
        text = prompt.text if prompt.is_plain else self.client.as_prompt(prompt.messages)
        tokens = self.client.tokens_of(text)
        if not tokens:
            raise TextError("the prompt has no tokens")
        return tokens

    def write(
        self, tokens: Sequence[int], sampling: Sampling, *, max_tokens: int | None, into: Written
    ) -> Iterator[str]:
        return self.client.complete(
            tokens, sampling, max_tokens=max_tokens, sinks=self.sinks, into=into
        )
