"""The logits of the next token -> the token, by the rules and in the order of llama.cpp's samplers.

Penalties, top-k, top-p, min-p, temperature, then a draw: llama-sampler.cpp @ b21e4de. What is kept always has at least
one token.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgekit.engines.chat import Sampling
from edgekit.engines.native.arrays import Floats
from edgekit.engines.native.sampler_size import BEST_TOKENS
from edgekit.errors import TextError

if TYPE_CHECKING:
    from edgekit.engines.native.choosing import Numbers, TopTokens


class Sampler:
    """Chooses one token after another. What it needs is allocated here: sampler_bytes(vocabulary)."""

    def __init__(self, sampling: Sampling, vocabulary: int) -> None:
        """Of the same seed come the same tokens, where the logits are the same."""
        from edgekit.engines.native.choosing import Chooser, random_by

        self.sampling = sampling
        self._chooser = Chooser(vocabulary)
        self._random = random_by(sampling.seed)
        self._accepted = 0

    def accept(self, token: int) -> None:
        """Every token of the text, the prompt's too: a penalty is for what stands there already."""
        if not 0 <= token < self._chooser.vocabulary:
            raise TextError(
                f"token {token:,} does not exist: there are {self._chooser.vocabulary:,}"
            )
        if self.sampling.repeat_last:
            self._chooser.recent[self._accepted % self.sampling.repeat_last] = token
            self._accepted += 1

    def sample(self, logits: Floats) -> int:
        """The next token. The logits change while it looks, and are as they were when it returns.

        WeightsError where one of them is NaN or +inf, or all are -inf. A token at -inf is never chosen.
        """
        with self._penalised(logits):
            number, top = self._chooser.highest(logits)
            if self.sampling.is_greedy:
                return number
            share = self._random.random()
            if self._lists:
                numbers = self._listed(logits, top)
                return self._chooser.draw_listed(numbers, top, self.sampling.temperature, share)
            kept = self._kept(logits, top)
            return self._chooser.draw(logits, kept, top, self.sampling.temperature, share)

    def probabilities(self, logits: Floats) -> dict[int, float]:
        """What may come next and how likely it is, likeliest first. To look at: it allocates."""
        with self._penalised(logits):
            number, top = self._chooser.highest(logits)
            if self.sampling.is_greedy:
                return {number: 1.0}
            kept = self._kept(logits, top)
            return self._chooser.shares(logits, kept, top, self.sampling.temperature)

    @property
    def _lists(self) -> bool:
        """Whether top-k leaves so few that the vocabulary need not be looked at again."""
        return 0 < self.sampling.top_k <= BEST_TOKENS

    def _listed(self, logits: Floats, top: float) -> Numbers:
        """The tokens that are kept, in order."""
        chooser = self._chooser
        numbers = chooser.best(logits, min(self.sampling.top_k, len(logits)))
        if self.sampling.top_p < 1:
            numbers = chooser.listed_weighing(numbers, self.sampling.top_p, top)
        return chooser.listed_above(numbers, self._least(top))

    def _kept(self, logits: Floats, top: float) -> TopTokens:
        chooser, sampling = self._chooser, self.sampling
        if self._lists:
            return chooser.up_to(logits, int(self._listed(logits, top)[-1]))
        kept = chooser.everything
        if 0 < sampling.top_k < len(logits):
            kept = chooser.first(logits, sampling.top_k)
        if sampling.top_p < 1:
            target = sampling.top_p * chooser.weight(logits, kept, top)
            kept = kept.or_shorter(chooser.first_weighing(logits, target, top))
        return kept.or_shorter(chooser.above(self._least(top)))

    def _least(self, top: float) -> float:
        """A token with this logit is min_p times as likely as the likeliest."""
        return top + math.log(self.sampling.min_p) if self.sampling.min_p else -math.inf

    @contextlib.contextmanager
    def _penalised(self, logits: Floats) -> Iterator[None]:
        if not (self.sampling.penalises and self._accepted):
            yield
            return
        seen = min(self._accepted, self.sampling.repeat_last)
        recent, before = self._chooser.penalise(logits, seen, self.sampling.repeat_penalty)
        try:
            yield
        finally:
            logits[recent] = before
