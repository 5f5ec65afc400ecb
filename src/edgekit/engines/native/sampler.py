"""The logits of the next token -> the token, by the rules and in the order of llama.cpp's samplers.

Penalties, top-k, top-p, min-p, temperature, then a draw: llama-sampler.cpp @ b21e4de. At least one token is kept.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.chat import RECENT_TOKENS, Sampling
from edgekit.engines.native.kernels.types import Floats
from edgekit.engines.native.stream_plan import BEST_TOKENS, BINS, CHUNK_TOKENS, COLUMNS, chunks_of
from edgekit.errors import TextError, WeightsError


class Sampler:
    """Chooses one token after another. It allocates sampler_bytes(vocabulary) when it is made."""

    def __init__(self, sampling: Sampling, vocabulary: int) -> None:
        """The same seed and the same logits give the same tokens."""
        self.sampling = sampling
        self._chooser = Chooser(vocabulary)
        self._random = np.random.Generator(np.random.PCG64(sampling.seed))
        self._accepted = 0

    def accept(self, token: int) -> None:
        """Must be called for every token of the text, including the prompt, for the repeat penalty."""
        if not 0 <= token < self._chooser.vocabulary:
            raise TextError(
                f"token {token:,} does not exist: there are {self._chooser.vocabulary:,}"
            )
        if self.sampling.repeat_last:
            self._chooser.recent[self._accepted % self.sampling.repeat_last] = token
            self._accepted += 1

    def sample(self, logits: Floats) -> int:
        """The next token. The logits are changed meanwhile and restored at the end.

        Raises WeightsError if one of them is NaN or +inf, or all are -inf. A token at -inf is never chosen.
        """
        with self._penalised(logits):
            number, top = self._chooser.highest(logits)
            if self.sampling.is_greedy:
                return number
            share = self._random.random()
            chooser, temperature = self._chooser, self.sampling.temperature
            if not self._lists:
                return chooser.draw(logits, self._kept(logits, top), top, temperature, share)
            numbers = self._listed(logits, top)
            sums = chooser.sums_of(chooser.values[: len(numbers)], top, temperature)
            return int(numbers[reached(sums, share * float(sums[-1]))])

    def probabilities(self, logits: Floats) -> dict[int, float]:
        """The possible next tokens and their probabilities, highest first. For inspection: it allocates."""
        with self._penalised(logits):
            number, top = self._chooser.highest(logits)
            if self.sampling.is_greedy:
                return {number: 1.0}
            kept = self._kept(logits, top)
            return self._chooser.shares(logits, kept, top, self.sampling.temperature)

    @property
    def _lists(self) -> bool:
        """Whether top-k leaves so few tokens that they can be listed."""
        return 0 < self.sampling.top_k <= BEST_TOKENS

    def _listed(self, logits: Floats, top: float) -> Numbers:
        """The tokens that are kept, in order. Their logits are the chooser's `values`."""
        chooser = self._chooser
        numbers = chooser.best(logits, min(self.sampling.top_k, len(logits)))
        if self.sampling.top_p < 1:
            sums = chooser.sums_of(chooser.values[: len(numbers)], top)
            last = int(sums.searchsorted(self.sampling.top_p * float(sums[-1])))
            numbers = numbers[: last + 1]
        return numbers[: np.count_nonzero(chooser.values[: len(numbers)] >= self._least(top))]

    def _kept(self, logits: Floats, top: float) -> TopTokens:
        chooser, sampling = self._chooser, self.sampling
        if self._lists:
            last = int(self._listed(logits, top)[-1])
            return TopTokens(float(logits[last]), last)
        kept = TopTokens(-math.inf, chooser.vocabulary)
        if 0 < sampling.top_k < len(logits):
            kept = chooser.prefix(logits, None, float(sampling.top_k))
        if sampling.top_p < 1:
            target = sampling.top_p * chooser.weight(logits, kept, top)
            kept = kept.or_shorter(chooser.first_weighing(logits, target, top))
        return kept.or_shorter(TopTokens(self._least(top), chooser.vocabulary))

    def _least(self, top: float) -> float:
        """A token with this logit is min_p times as likely as the likeliest."""
        return top + math.log(self.sampling.min_p) if self.sampling.min_p else -math.inf

    @contextlib.contextmanager
    def _penalised(self, logits: Floats) -> Iterator[None]:
        """Makes each recent token less likely, once. A logit above 0 is divided, any other multiplied:
        llama_sampler_penalties_apply.
        """
        if not (self.sampling.penalises and self._accepted):
            yield
            return
        penalty = np.float32(self.sampling.repeat_penalty)
        recent = self._chooser.recent[: min(self._accepted, self.sampling.repeat_last)]
        before = logits[recent]  # the same value twice for a token that is there twice
        with np.errstate(over="ignore", under="ignore"):
            after = np.where(before > 0, before / penalty, before * penalty)
        logits[recent] = np.where(before < np.inf, np.minimum(after, _HIGHEST), before)
        try:
            yield
        finally:
            logits[recent] = before


# --- choosing from the logits of a vocabulary, in arrays that are made once
#
# Tokens are ordered by their logits, the highest first; of equal ones the lower number comes first. What top-k, top-p
# and min-p keep is always a prefix of that order, so its last token describes it: see TopTokens. numpy allocates unless
# it is told where to write, so every step writes into one of the arrays.

Doubles = NDArray[np.float64]
Numbers = NDArray[np.int64]

_LOWEST = float(np.finfo(np.float32).min)  # only -inf is lower: a token that cannot be chosen
_HIGHEST = np.finfo(np.float32).max
_SMALLEST = 5e-324  # the smallest number above 0
_DENSE_TOKENS = BEST_TOKENS // 4  # candidates of a chunk that are added at once
_LOW_HALF = (1 << 31) - 1
_NUMBER_BITS = (1 << 32) - 1
# The 32 bits of a rank, first bits first: (bits before these, bits)
_LEVELS = ((0, 11), (11, 11), (22, 10))


@dataclass(frozen=True, slots=True)
class TopTokens:
    """A prefix of the order: the tokens above `least`, and those equal to it up to number `last`."""

    least: float
    last: int

    def or_shorter(self, other: TopTokens) -> TopTokens:
        return min(self, other, key=lambda kept: (-kept.least, kept.last))


class Chooser:
    """One vector of logits at a time. Not thread-safe."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.recent = np.zeros(RECENT_TOKENS, np.int32)
        self.values = np.zeros(BEST_TOKENS, np.float32)  # logits of the best, in order
        self._best = np.zeros(2 * BEST_TOKENS, np.int64)
        self._columns = np.zeros(COLUMNS, np.float32)
        self._bins = np.zeros(BINS, np.float64)
        self._weights = np.zeros(CHUNK_TOKENS, np.float64)
        self._ranks = np.zeros(CHUNK_TOKENS, np.int64)
        self._flags = np.zeros(CHUNK_TOKENS, np.bool_)
        self._sums = np.zeros(chunks_of(vocabulary), np.float64)

    def highest(self, logits: Floats) -> tuple[int, float]:
        """The first of the order, and its logit. Raises WeightsError if no token can be chosen."""
        number = int(logits.argmax())  # the first NaN, if there is one
        top = float(logits[number])
        if not math.isfinite(top):
            why = "all logits are -inf" if top == -math.inf else f"a logit is {top}"
            raise WeightsError(
                f"the model's output cannot be sampled ({why}): its weights are damaged, "
                "or were converted to a type that cannot represent them"
            )
        return number, top

    # --- the best, in order

    def best(self, logits: Floats, count: int) -> Numbers:
        """The first `count` of the order, at most BEST_TOKENS; fewer if fewer can be chosen.

        Their logits are in `values`. Both are overwritten by the next call.
        """
        least, filled = _LOWEST, 0
        if rows := len(logits) // COLUMNS:  # `count` columns have a logit that reaches this bound
            table = logits[: rows * COLUMNS].reshape(rows, COLUMNS)
            highest = np.maximum.reduce(table, axis=0, out=self._columns)
            highest.partition(COLUMNS - count)
            least = max(float(highest[COLUMNS - count]), _LOWEST)
        reaches: np.ufunc = np.greater_equal
        for begin, part in self._chunks(logits):
            flags = reaches(part, least, out=self._flags[: len(part)])
            found = np.count_nonzero(flags)
            step = len(part) if found <= _DENSE_TOKENS else _DENSE_TOKENS
            for at in range(0, len(part) if found else 0, step):
                (places,) = flags[at : at + step].nonzero()
                if filled + len(places) > len(self._best):
                    filled = self._order(logits, filled, count)
                    least, reaches = float(self.values[count - 1]), np.greater  # equal: too late
                np.add(places, begin + at, out=self._best[filled : filled + len(places)])
                filled += len(places)
        return self._best[: self._order(logits, filled, count)]

    def _order(self, logits: Floats, filled: int, count: int) -> int:
        """Keeps the first `count` of those in `_best`, with their `values`. Returns how many there are."""
        numbers = self._best[:filled]
        values = self._weights.view(np.float32)[:filled]
        np.take(logits, numbers, out=values, mode="clip")
        ranks = self._ranked(values)
        np.subtract(ranks, 1 << 31, out=ranks)  # signed 32 bits, for the upper half of 64
        np.left_shift(ranks, 32, out=ranks)
        np.bitwise_or(numbers, ranks, out=numbers)
        if filled > count:
            numbers.partition(count - 1)
            numbers = numbers[:count]
        numbers.sort()
        np.bitwise_and(numbers, _NUMBER_BITS, out=numbers)
        np.take(logits, numbers, out=self.values[: len(numbers)], mode="clip")
        return len(numbers)

    def _ranked(self, logits: Floats) -> Numbers:
        """A 32-bit number for each: the higher the logit, the lower the number. Both zeros are equal."""
        bits, sign = self._weights.view(np.int32).reshape(2, -1)[:, : len(logits)]
        np.add(logits, np.float32(0), out=bits.view(np.float32))
        np.right_shift(bits, 31, out=sign)  # -1 where it is negative, else 0
        np.invert(sign, out=sign)
        np.bitwise_and(sign, _LOW_HALF, out=sign)
        np.bitwise_xor(bits, sign, out=bits)
        ranks = self._ranks[: len(logits)]
        np.copyto(ranks, bits.view(np.uint32))
        return ranks

    # --- weights

    def weights_of(self, values: Floats, top: float, temperature: float = 1.0) -> Doubles:
        """Exponentials, of which the highest is 1."""
        weights = self._weights[: len(values)]
        np.copyto(weights, values)
        np.subtract(weights, top, out=weights)
        with np.errstate(over="ignore", under="ignore"):
            if temperature != 1:
                np.divide(weights, temperature, out=weights)
            np.exp(weights, out=weights)
        return weights

    def sums_of(self, values: Floats, top: float, temperature: float = 1.0) -> Doubles:
        """The sum of the weights up to each value."""
        weights = self.weights_of(values, top, temperature)
        return np.cumsum(weights, out=weights)

    def weight(
        self, logits: Floats, kept: TopTokens, top: float, temperature: float = 1.0
    ) -> float:
        """Of all that is kept. The sums of the chunks are stored for `draw`."""
        for number, (begin, part) in enumerate(self._chunks(logits)):
            weights = self._kept_weights(begin, part, kept, top, temperature)
            self._sums[number] = np.add.reduce(weights)
        return float(np.add.reduce(self._sums))

    def draw(
        self, logits: Floats, kept: TopTokens, top: float, temperature: float, share: float
    ) -> int:
        """The first token, by number, where the sum of weights exceeds `share` of all."""
        rest = share * self.weight(logits, kept, top, temperature)
        for number, (begin, part) in enumerate(self._chunks(logits)):
            here = float(self._sums[number])
            if rest < here:
                weights = self._kept_weights(begin, part, kept, top, temperature)
                return begin + reached(np.cumsum(weights, out=weights), rest)
            rest -= here
        return self.draw(logits, kept, top, temperature, 0.0)  # the rest is a rounding error

    def shares(
        self, logits: Floats, kept: TopTokens, top: float, temperature: float
    ) -> dict[int, float]:
        """Each token's share of the weight of all that is kept, in order. It allocates."""
        total = self.weight(logits, kept, top, temperature)
        found = np.zeros(len(logits), np.float64)
        for begin, part in self._chunks(logits):
            weights = self._kept_weights(begin, part, kept, top, temperature)
            np.divide(weights, total, out=found[begin : begin + len(part)])
        (numbers,) = found.nonzero()
        numbers = numbers[np.lexsort((numbers, -logits[numbers]))]
        return dict(zip(numbers.tolist(), found[numbers].tolist(), strict=True))

    def _kept_weights(
        self, begin: int, part: Floats, kept: TopTokens, top: float, temperature: float
    ) -> Doubles:
        weights = self.weights_of(part, top, temperature)
        if kept.least == -math.inf:
            return weights
        flags = self._flags[: len(part)]
        late = min(max(kept.last + 1 - begin, 0), len(part))
        np.greater_equal(part[:late], kept.least, out=flags[:late])
        np.greater(part[late:], kept.least, out=flags[late:])
        ones = self._ranks.view(np.float64)[: len(part)]
        np.copyto(ones, flags)
        return np.multiply(weights, ones, out=weights)

    # --- prefixes of the order that are too long to be listed

    def first_weighing(self, logits: Floats, target: float, top: float) -> TopTokens:
        """The shortest prefix that weighs `target`."""
        numbers = self.best(logits, min(BEST_TOKENS, len(logits)))
        sums = self.sums_of(self.values[: len(numbers)], top)
        if sums[-1] < target:
            return self.prefix(logits, top, target)
        last = int(numbers[sums.searchsorted(target)])
        return TopTokens(float(logits[last]), last)

    def prefix(self, logits: Floats, top: float | None, target: float) -> TopTokens:
        """The shortest prefix that weighs `target`, where each token weighs 1 without `top`.

        Finds the rank at which the weights reach the target, 11 bits of it at a time.
        """
        rank, rest = 0, target
        for before, bits in _LEVELS:
            self._fill_bins(logits, top, rank, before, bits)
            sums = np.cumsum(self._bins, out=self._bins)
            found = min(int(sums.searchsorted(rest)), reached(sums, float(sums[-1])))
            rest -= float(sums[found - 1]) if found else 0.0
            rank = rank << bits | found
        bits = rank ^ _LOW_HALF if rank <= _LOW_HALF else rank
        least = float(np.array(bits, np.uint32).view(np.float32))
        each = 1.0 if top is None else max(math.exp(least - top), _SMALLEST)
        return TopTokens(least, self._nth_equal(logits, least, math.ceil(rest / each)))

    def _fill_bins(
        self, logits: Floats, top: float | None, rank: int, before: int, bits: int
    ) -> None:
        """The weights of all tokens whose ranks start with `rank`, by their next bits."""
        self._bins.fill(0.0)
        begin, end = rank << 32 - before, rank + 1 << 32 - before
        for _, part in self._chunks(logits):
            ranks, those = self._ranked(part), part
            if before:
                wanted = np.greater_equal(ranks, begin, out=self._flags[: len(part)])
                wanted &= ranks < end
                ranks, those = ranks[wanted], part[wanted]
            np.right_shift(ranks, 32 - before - bits, out=ranks)
            np.bitwise_and(ranks, (1 << bits) - 1, out=ranks)
            weights = None if top is None else self.weights_of(those, top)
            places = ranks.astype(np.intp, copy=False)
            np.add(self._bins, np.bincount(places, weights, BINS), out=self._bins)

    def _nth_equal(self, logits: Floats, value: float, count: int) -> int:
        """The number of the count-th token with this logit, or of the last one if there are fewer."""
        last = 0
        for begin, part in self._chunks(logits):
            flags = np.equal(part, value, out=self._flags[: len(part)])
            if here := int(np.count_nonzero(flags)):
                (places,) = flags.nonzero()
                last = begin + int(places[min(max(count, 1), here) - 1])
                count -= here
                if count <= 0:
                    break
        return last

    def _chunks(self, logits: Floats) -> Iterator[tuple[int, Floats]]:
        for begin in range(0, len(logits), CHUNK_TOKENS):
            yield begin, logits[begin : begin + CHUNK_TOKENS]


def reached(sums: Doubles, target: float) -> int:
    """The index of the first sum above the target, or else of the last weight above 0."""
    place = int(sums.searchsorted(target, side="right"))
    return place if place < len(sums) else int(sums.searchsorted(sums[-1]))
