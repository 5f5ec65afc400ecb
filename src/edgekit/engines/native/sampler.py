"""The logits of the next token -> the token, by the rules and in the order of llama.cpp's samplers.

Penalties, top-k, top-p, min-p and temperature are applied in this order, then a token is drawn: llama-sampler.cpp @
b21e4de. At least one token always remains.
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
    """Chooses one token after another. The constructor allocates sampler_bytes(vocabulary)."""

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
        """The next token. The logits are changed during the call and restored at its end.

        Raises WeightsError if one of them is NaN or +inf, or all are -inf. A token at -inf is never chosen.
        """
        with self._penalties(logits):
            chooser, temperature = self._chooser, self.sampling.temperature
            likeliest, top = chooser.highest(logits)
            if self.sampling.is_greedy:
                return likeliest
            share = self._random.random()
            if not self._is_short_list:
                return chooser.draw(logits, self._top_tokens(logits, top), top, temperature, share)
            numbers = self._list_tokens(logits, top)
            sums = chooser.sums_of(chooser.values[: len(numbers)], top, temperature)
            return int(numbers[first_above(sums, share * float(sums[-1]))])

    @property
    def _is_short_list(self) -> bool:
        """Whether top-k leaves few enough tokens to list them all."""
        return 0 < self.sampling.top_k <= BEST_TOKENS

    def _list_tokens(self, logits: Floats, top: float) -> Numbers:
        """The tokens that top-k, top-p and min-p leave, likeliest first. The chooser's `values` are their logits."""
        chooser = self._chooser
        numbers = chooser.best(logits, min(self.sampling.top_k, len(logits)))
        if self.sampling.top_p < 1:
            sums = chooser.sums_of(chooser.values[: len(numbers)], top)
            last = int(sums.searchsorted(self.sampling.top_p * float(sums[-1])))
            numbers = numbers[: last + 1]
        allowed_by_min_p = chooser.values[: len(numbers)] >= self._least_logit(top)
        return numbers[: np.count_nonzero(allowed_by_min_p)]

    def _top_tokens(self, logits: Floats, top: float) -> TopTokens:
        """The tokens that top-k, top-p and min-p leave, as a prefix that is too long to be listed."""
        chooser, sampling = self._chooser, self.sampling
        top_tokens = TopTokens(-math.inf, chooser.vocabulary)
        if 0 < sampling.top_k < len(logits):
            top_tokens = chooser.prefix(logits, None, float(sampling.top_k))
        if sampling.top_p < 1:
            target = sampling.top_p * chooser.weight(logits, top_tokens, top)
            top_tokens = top_tokens.or_shorter(chooser.prefix_by_weight(logits, target, top))
        return top_tokens.or_shorter(TopTokens(self._least_logit(top), chooser.vocabulary))

    def _least_logit(self, top: float) -> float:
        """The lowest logit that min-p allows: this token is min_p times as likely as the likeliest."""
        return top + math.log(self.sampling.min_p) if self.sampling.min_p else -math.inf

    @contextlib.contextmanager
    def _penalties(self, logits: Floats) -> Iterator[None]:
        """Makes each recent token less likely inside the block, and restores the logits after it.

        A logit above 0 is divided by the penalty, any other multiplied: llama_sampler_penalties_apply.
        """
        if not (self.sampling.penalises and self._accepted):
            yield
            return
        penalty = np.float32(self.sampling.repeat_penalty)
        recent = self._chooser.recent[: min(self._accepted, self.sampling.repeat_last)]
        # A token that occurs twice has its logit here twice, but is penalised once.
        logits_before = logits[recent]
        with np.errstate(over="ignore", under="ignore"):
            penalised = np.where(
                logits_before > 0, logits_before / penalty, logits_before * penalty
            )
        logits[recent] = np.where(
            logits_before < np.inf, np.minimum(penalised, _HIGHEST), logits_before
        )
        try:
            yield
        finally:
            logits[recent] = logits_before


# --- choosing from the logits of a vocabulary, in arrays that are allocated once
#
# Tokens are ordered by logit, highest first; equal logits by token number. Top-k, top-p and min-p each leave the first
# tokens of that order, a prefix, and TopTokens describes a prefix by its last token. numpy allocates a result unless it
# is given an `out` array, so every operation writes into an array of the Chooser.

Doubles = NDArray[np.float64]
Numbers = NDArray[np.int64]

# Only -inf is lower, which marks a token that cannot be chosen.
_LOWEST = float(np.finfo(np.float32).min)
_HIGHEST = np.finfo(np.float32).max
_SMALLEST = 5e-324  # the smallest number above 0
# A chunk with more candidates than this is added in parts of this many tokens.
_ADDED_TOGETHER = BEST_TOKENS // 4
_LOW_HALF = (1 << 31) - 1
_NUMBER_BITS = (1 << 32) - 1
# A rank's 32 bits in three groups, highest first: (number of bits before the group, number of bits in it)
_LEVELS = ((0, 11), (11, 11), (22, 10))


@dataclass(frozen=True, slots=True)
class TopTokens:
    """A prefix of the order: all tokens with a logit above `least`, and those equal to it up to token number `last`."""

    least: float
    last: int

    def or_shorter(self, other: TopTokens) -> TopTokens:
        return min(self, other, key=lambda prefix: (-prefix.least, prefix.last))


class Chooser:
    """Selects and draws tokens from one vector of logits at a time. Not thread-safe."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.recent = np.zeros(RECENT_TOKENS, np.int32)
        self.values = np.zeros(BEST_TOKENS, np.float32)  # logits of the best tokens, highest first
        self._best = np.zeros(2 * BEST_TOKENS, np.int64)
        self._columns = np.zeros(COLUMNS, np.float32)
        self._bins = np.zeros(BINS, np.float64)
        self._weights = np.zeros(CHUNK_TOKENS, np.float64)
        self._ranks = np.zeros(CHUNK_TOKENS, np.int64)
        self._flags = np.zeros(CHUNK_TOKENS, np.bool_)
        self._sums = np.zeros(chunks_of(vocabulary), np.float64)

    def highest(self, logits: Floats) -> tuple[int, float]:
        """The likeliest token and its logit. Raises WeightsError if no token can be chosen."""
        number = int(logits.argmax())  # the first NaN, if there is one
        top = float(logits[number])
        if not math.isfinite(top):
            why = "all logits are -inf" if top == -math.inf else f"a logit is {top}"
            raise WeightsError(
                f"the model's output cannot be sampled ({why}): its weights are damaged, "
                "or were converted to a type that cannot represent them"
            )
        return number, top

    # --- the best tokens, likeliest first

    def best(self, logits: Floats, count: int) -> Numbers:
        """The `count` likeliest tokens, at most BEST_TOKENS; fewer if fewer can be chosen.

        `values` has their logits. The next call overwrites both arrays.
        """
        # Candidates are collected in `_best`. When it is full, all but the best `count` are dropped.
        least, candidates = _LOWEST, 0
        if rows := len(logits) // COLUMNS:
            # The highest logit of each column: at least `count` tokens reach the count-th highest of these.
            table = logits[: rows * COLUMNS].reshape(rows, COLUMNS)
            highest = np.maximum.reduce(table, axis=0, out=self._columns)
            highest.partition(COLUMNS - count)
            least = max(float(highest[COLUMNS - count]), _LOWEST)
        is_candidate: np.ufunc = np.greater_equal
        for begin, chunk in self._chunks(logits):
            flags = is_candidate(chunk, least, out=self._flags[: len(chunk)])
            candidates_in_chunk = np.count_nonzero(flags)
            if not candidates_in_chunk:
                continue
            step = len(chunk) if candidates_in_chunk <= _ADDED_TOGETHER else _ADDED_TOGETHER
            for offset in range(0, len(chunk), step):
                (places,) = flags[offset : offset + step].nonzero()
                if candidates + len(places) > len(self._best):
                    candidates = self._order(logits, candidates, count)
                    # From here on, a token with an equal logit has a higher number, so it comes after these.
                    least, is_candidate = float(self.values[count - 1]), np.greater
                added = self._best[candidates : candidates + len(places)]
                np.add(places, begin + offset, out=added)
                candidates += len(places)
        return self._best[: self._order(logits, candidates, count)]

    def _order(self, logits: Floats, candidates: int, count: int) -> int:
        """Sorts the candidates in `_best`, drops all but the best `count`, and sets `values`. Returns how many remain.

        A candidate is sorted as one number of 64 bits: its rank above its token number.
        """
        numbers = self._best[:candidates]
        values = self._weights.view(np.float32)[:candidates]
        np.take(logits, numbers, out=values, mode="clip")
        ranks = self._rank(values)
        np.subtract(ranks, 1 << 31, out=ranks)  # so that the shifted rank fits into a signed number
        np.left_shift(ranks, 32, out=ranks)
        np.bitwise_or(numbers, ranks, out=numbers)
        if candidates > count:
            numbers.partition(count - 1)
            numbers = numbers[:count]
        numbers.sort()
        np.bitwise_and(numbers, _NUMBER_BITS, out=numbers)
        np.take(logits, numbers, out=self.values[: len(numbers)], mode="clip")
        return len(numbers)

    def _rank(self, logits: Floats) -> Numbers:
        """A 32-bit rank for each logit: the higher the logit, the lower the rank. 0 and -0 have the same rank.

        The bits of negative floats already rise as the number falls; those of the others are inverted, except the sign.
        """
        bits, sign = self._weights.view(np.int32).reshape(2, -1)[:, : len(logits)]
        np.add(logits, np.float32(0), out=bits.view(np.float32))  # turns -0 into 0
        np.right_shift(bits, 31, out=sign)  # -1 for a negative logit, else 0
        np.invert(sign, out=sign)
        np.bitwise_and(sign, _LOW_HALF, out=sign)
        np.bitwise_xor(bits, sign, out=bits)
        ranks = self._ranks[: len(logits)]
        np.copyto(ranks, bits.view(np.uint32))
        return ranks

    # --- weights

    def weights_of(self, values: Floats, top: float, temperature: float = 1.0) -> Doubles:
        """Exponentials of the logits, scaled so that the logit `top` has the weight 1."""
        weights = self._weights[: len(values)]
        np.copyto(weights, values)
        np.subtract(weights, top, out=weights)
        with np.errstate(over="ignore", under="ignore"):
            if temperature != 1:
                np.divide(weights, temperature, out=weights)
            np.exp(weights, out=weights)
        return weights

    def sums_of(self, values: Floats, top: float, temperature: float = 1.0) -> Doubles:
        """Cumulative sums of the weights."""
        weights = self.weights_of(values, top, temperature)
        return np.cumsum(weights, out=weights)

    def weight(
        self, logits: Floats, top_tokens: TopTokens, top: float, temperature: float = 1.0
    ) -> float:
        """The weight of a prefix. `_sums` gets the weight of each chunk, for `draw`."""
        for number, (begin, chunk) in enumerate(self._chunks(logits)):
            weights = self._weights_in(begin, chunk, top_tokens, top, temperature)
            self._sums[number] = np.add.reduce(weights)
        return float(np.add.reduce(self._sums))

    def draw(
        self, logits: Floats, top_tokens: TopTokens, top: float, temperature: float, share: float
    ) -> int:
        """The first token, in order of number, at which the sum of weights exceeds `share` of the total."""
        remainder = share * self.weight(logits, top_tokens, top, temperature)
        for number, (begin, chunk) in enumerate(self._chunks(logits)):
            chunk_sum = float(self._sums[number])
            if remainder < chunk_sum:
                weights = self._weights_in(begin, chunk, top_tokens, top, temperature)
                return begin + first_above(np.cumsum(weights, out=weights), remainder)
            remainder -= chunk_sum
        return self.draw(logits, top_tokens, top, temperature, 0.0)  # only a rounding error is left

    def _weights_in(
        self, begin: int, chunk: Floats, top_tokens: TopTokens, top: float, temperature: float
    ) -> Doubles:
        """The weights of a chunk that starts at token `begin`; 0 for tokens that are not in the prefix."""
        weights = self.weights_of(chunk, top, temperature)
        if top_tokens.least == -math.inf:
            return weights
        flags = self._flags[: len(chunk)]
        end = min(max(top_tokens.last + 1 - begin, 0), len(chunk))  # up to here, equal logits count
        np.greater_equal(chunk[:end], top_tokens.least, out=flags[:end])
        np.greater(chunk[end:], top_tokens.least, out=flags[end:])
        mask = self._ranks.view(np.float64)[: len(chunk)]
        np.copyto(mask, flags)
        return np.multiply(weights, mask, out=weights)

    # --- prefixes that are too long to be listed

    def prefix_by_weight(self, logits: Floats, target: float, top: float) -> TopTokens:
        """The shortest prefix whose weight reaches `target`."""
        numbers = self.best(logits, min(BEST_TOKENS, len(logits)))
        sums = self.sums_of(self.values[: len(numbers)], top)
        if sums[-1] < target:
            return self.prefix(logits, top, target)
        last = int(numbers[sums.searchsorted(target)])
        return TopTokens(float(logits[last]), last)

    def prefix(self, logits: Floats, top: float | None, target: float) -> TopTokens:
        """The shortest prefix whose weight reaches `target`. Without `top`, each token has the weight 1.

        Finds the rank of the prefix's last token, 11 bits of it at a time, from the sums of the weights of all tokens
        that have the same first bits.
        """
        rank, remainder = 0, target
        for before, bits in _LEVELS:
            self._fill_bins(logits, top, rank, before, bits)
            sums = np.cumsum(self._bins, out=self._bins)
            last_filled = first_above(sums, float(sums[-1]))
            # A rounding error may put `remainder` above all sums.
            bin_number = min(int(sums.searchsorted(remainder)), last_filled)
            remainder -= float(sums[bin_number - 1]) if bin_number else 0.0
            rank = rank << bits | bin_number
        logit_bits = rank ^ _LOW_HALF if rank <= _LOW_HALF else rank  # as in _rank
        least = float(np.array(logit_bits, np.uint32).view(np.float32))
        token_weight = 1.0 if top is None else max(math.exp(least - top), _SMALLEST)
        equal_tokens = math.ceil(remainder / token_weight)
        return TopTokens(least, self._find_equal(logits, least, equal_tokens))

    def _fill_bins(
        self, logits: Floats, top: float | None, rank: int, before: int, bits: int
    ) -> None:
        """Fills a bin for each value of the rank's next `bits` bits with the weights of the tokens that have it.

        Only tokens whose rank has `rank` as its first `before` bits count.
        """
        self._bins.fill(0.0)
        begin, end = rank << 32 - before, rank + 1 << 32 - before
        for _, chunk in self._chunks(logits):
            ranks, values = self._rank(chunk), chunk
            if before:
                flags = np.greater_equal(ranks, begin, out=self._flags[: len(chunk)])
                flags &= ranks < end
                ranks, values = ranks[flags], chunk[flags]
            np.right_shift(ranks, 32 - before - bits, out=ranks)
            np.bitwise_and(ranks, (1 << bits) - 1, out=ranks)
            weights = None if top is None else self.weights_of(values, top)
            places = ranks.astype(np.intp, copy=False)
            np.add(self._bins, np.bincount(places, weights, BINS), out=self._bins)

    def _find_equal(self, logits: Floats, value: float, count: int) -> int:
        """The number of the count-th token with this logit, or of the last if there are fewer."""
        last = 0
        for begin, chunk in self._chunks(logits):
            flags = np.equal(chunk, value, out=self._flags[: len(chunk)])
            if equal_count := int(np.count_nonzero(flags)):
                (places,) = flags.nonzero()
                last = begin + int(places[min(max(count, 1), equal_count) - 1])
                count -= equal_count
                if count <= 0:
                    break
        return last

    def _chunks(self, logits: Floats) -> Iterator[tuple[int, Floats]]:
        for begin in range(0, len(logits), CHUNK_TOKENS):
            yield begin, logits[begin : begin + CHUNK_TOKENS]


def first_above(sums: Doubles, target: float) -> int:
    """The index of the first sum above the target, or else of the last weight above 0."""
    place = int(sums.searchsorted(target, side="right"))
    return place if place < len(sums) else int(sums.searchsorted(sums[-1]))
