"""A question and one way to start the engine -> the price of every context, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from edgekit.engine import engine_named
from edgekit.engine.llamacpp.context import MAX_TOKENS
from edgekit.errors import CancelledError, RefusedError, UsageError
from edgekit.memory.types import CACHES, HOST, Component, Load, Pool
from edgekit.plan.context import (
    MINIMUM_TOKENS,
    STREAM_MINIMUM_TOKENS,
    UNKNOWN_NATIVE_TOKENS,
    longest,
    plan_window,
)
from edgekit.plan.split import neighbours, pinned, resplit
from edgekit.plan.types import FULL_PERCENT, Bill, Job, Question, Use, Way, Weighed
from edgekit.units import format_bytes

TIMES_DIVIDED = 3  # a new division changes the buffers, and they the division
MOST_MOVES = 4
NEARLY = 0.92  # of a memory: so full a division is worth moving single layers
CACHE_STEP_TOKENS = 256  # llama.cpp pads its cells to it, mlx-lm grows its caches by it


class Fitting:
    """One question and one way to start: every context has a price, worked out once."""

    def __init__(self, question: Question, way: Way) -> None:
        _check_numbers(question)
        self.question, self.way = question, way
        self._bill = question.bill or _own_bill(question)
        self._prices: dict[int, Weighed] = {}
        self._division: Way | None = None

    def price(self, tokens: int) -> Weighed:
        if tokens not in self._prices:
            self._prices[tokens] = self._divided(self._weighed(tokens, self.way))
        return self._prices[tokens]

    def _divided(self, found: Weighed) -> Weighed:
        """Among several cards: as the engine divides its layers, or as they have room for them."""
        if found.fits or not self.way.may_resplit or _share(found) * 100 > FULL_PERCENT:
            return found  # what is too much for all of them together no division mends
        if self._division is not None:  # what another length was divided like often does
            found = self._better(found, [self._division])
        idle = 0 if found.way.setup.load_mtp else self.question.model.geometry.mtp_layers
        for _ in range(TIMES_DIVIDED if self.way.whole else 1):
            other = None if found.fits else resplit(found.way, found.estimate, idle)
            if other is None:
                break
            found = self._better(found, [other])
        found = self._moved(found) if self.way.whole else found
        self._division = found.way if found.fits else self._division
        return found

    def _moved(self, found: Weighed) -> Weighed:
        """Where little is missing, layer by layer: buffers are no straight line of what a card holds."""
        for _ in range(MOST_MOVES):
            if found.fits or found.tightest.utilization >= NEARLY:
                break
            said = pinned(found.way, self.question.model)  # also where the engine divides by itself
            other = self._better(found, neighbours(said, found.uses))
            if other is found:
                break
            found = other
        return found

    def _better(self, found: Weighed, ways: Iterable[Way]) -> Weighed:
        """The first that fits, else the one whose fullest memory is least full."""
        best = found
        for way in ways:
            other = self._weighed(found.context_tokens, way)
            if other.tightest.utilization < best.tightest.utilization:
                best = other
            if best.fits:
                break
        return best

    def load(self, tokens: int) -> Load:
        """What is asked of the engine for a context of that length."""
        return self.question.load_of(tokens)

    def _weighed(self, tokens: int, way: Way) -> Weighed:
        cancelled = self.question.cancelled
        if cancelled is not None and cancelled.is_set():
            raise CancelledError("called off")
        estimate = self._bill(self.load(tokens), way.setup)
        refused = dict(estimate.facts).get("refused")  # vLLM's pool, where its size was settled
        return Weighed(
            context_tokens=tokens,
            estimate=estimate,
            uses=tuple(
                Use(budget=budget, required_bytes=budget.required_bytes(estimate))
                for budget in way.budgets
            ),
            way=way,
            refused=f"vLLM does not start: {refused}" if refused else "",
        )

    def fits(self, tokens: int) -> bool:
        """A refusal is a no: heads that so many cards do not divide, or a ceiling of the engine's own."""
        try:
            return not self._is_beyond(tokens) and self.price(tokens).fits
        except RefusedError:
            return False

    def _is_beyond(self, tokens: int) -> bool:
        """Whether weights and caches are too much already: llama.cpp tells them long before its bill is made."""
        if tokens in self._prices or not self._is_plain:
            return False
        held = self._held(tokens)
        return any(
            sum(size for pool, size in held.items() if pool in pools) * 100
            > available * FULL_PERCENT
            for pools, available in self._limits
        )

    def held_bytes(self, tokens: int) -> int:
        """Weights, caches and states, wherever they lie."""
        if not self._is_plain:
            return self.price(tokens).estimate.of(Component.WEIGHTS, *CACHES)
        return sum(self._held(tokens).values())

    def held_share(self, tokens: int) -> float:
        """What weights and caches take of all devices together. Where only the bill tells them: the whole of it."""
        if not self._is_plain:
            return self.devices_share(tokens)
        held = self._held(tokens)
        cards = [budget for budget in self.way.budgets if HOST not in budget.pools]
        required = sum(held.get(pool, 0) for budget in cards for pool in budget.pools)
        return _of_all(required, sum(budget.available_bytes for budget in cards))

    def _held(self, tokens: int) -> dict[Pool, int]:
        from edgekit.engine.llamacpp import held_bytes

        return held_bytes(self.question.model, self.load(tokens), self.way.setup)

    @cached_property
    def _is_plain(self) -> bool:
        """Whether it is llama.cpp's own bill of the model alone."""
        return self.question.bill is None and self.question.engine == "llama.cpp"

    @cached_property
    def _limits(self) -> tuple[tuple[frozenset[Pool], int], ...]:
        """Pools, and what is available in them. Layers that may be divided otherwise count against all cards."""
        budgets = self.way.budgets
        if not self.way.may_resplit:
            return tuple((budget.pools, budget.available_bytes) for budget in budgets)
        cards = [budget for budget in budgets if HOST not in budget.pools]
        others = ((one.pools, one.available_bytes) for one in budgets if one not in cards)
        pools = frozenset[Pool]().union(*(budget.pools for budget in cards))
        return ((pools, sum(budget.available_bytes for budget in cards)), *others)

    def devices_share(self, tokens: int) -> float:
        """What is taken of all devices together; 0 where none is used."""
        return _share(self.price(tokens))

    @cached_property
    def native(self) -> int:
        geometry = self.question.model.geometry
        stated = geometry.native_context or geometry.trained_context or UNKNOWN_NATIVE_TOKENS
        return min(stated, MAX_TOKENS)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the engine makes of the load, whatever the context."""
        try:
            return self._facts(self.native)
        except RefusedError:
            return self._facts(min(self.native, MINIMUM_TOKENS))

    def _facts(self, tokens: int) -> dict[str, Any]:
        if not self._is_plain:
            return dict(self.price(tokens).estimate.facts)
        from edgekit.engine.llamacpp import load_facts

        return dict(load_facts(self.question.model, self.load(tokens), self.way.setup))

    @cached_property
    def streams(self) -> int:
        """Caches that the context is divided among: sequences which do not share one."""
        streams: int = self.facts.get("kv_streams", 1)
        return streams if self.facts.get("n_ctx_seq") != self.facts.get("n_ctx") else 1

    @cached_property
    def step(self) -> int:
        size: int = self.facts.get("block_size", CACHE_STEP_TOKENS)
        return size * self.streams

    @cached_property
    def most(self) -> int:
        return self.native * self.streams

    @cached_property
    def minimum(self) -> int:
        """Below it a model is of no use: 16K or what the caller says, its own window where that is smaller.

        Who wants more than 16K wants it of every model; who takes the built-in engine is content with less.
        """
        streams = self.question.engine == "stream"
        return self._least_of(STREAM_MINIMUM_TOKENS if streams else MINIMUM_TOKENS)

    @cached_property
    def comfortable(self) -> int:
        """The same for all engines: for so long a window the fastest way is taken, whatever a slower one holds."""
        return self._least_of(MINIMUM_TOKENS)

    def _least_of(self, usual: int) -> int:
        wanted = self.question.min_context
        least = usual if wanted is None else wanted
        whole = least * self.streams
        return whole if least > MINIMUM_TOKENS else min(whole, self.most)

    @cached_property
    def longest(self) -> int:
        return longest(self.fits, step=self.step, most=self.most)

    @property
    def least(self) -> int:
        """No shorter context is ever opened."""
        return min(self.step, self.most)

    @cached_property
    def asked(self) -> int | None:
        """The context that was asked for: by its length, by 0 for the native one, or by a job."""
        tokens = self.question.load.context_tokens
        if tokens is None:
            return None if self.question.job is None else self._window(self.question.job)[0]
        if self.question.job is not None:
            raise UsageError("a context and a job: the job says how long a context it needs")
        if tokens < 0:
            raise UsageError(f"a context of {tokens} tokens")
        return tokens or self.native

    @property
    def asked_because(self) -> str:
        job = self.question.job
        return "" if job is None else self._window(job)[1]

    @cached_property
    def window(self) -> tuple[int, str]:
        """What is opened unasked, and why so much."""
        return self._window(None)

    def _window(self, job: Job | None) -> tuple[int, str]:
        window = plan_window(
            self._cache_bytes,
            native_tokens=self.most if self.states_its_window else None,
            budget_bytes=self.question.window_budget_bytes,
            step=self.step,
            job=job,
        )
        return window.context_tokens, window.because

    @property
    def states_its_window(self) -> bool:
        geometry = self.question.model.geometry
        return bool(geometry.native_context or geometry.trained_context)

    def _cache_bytes(self, tokens: int) -> int:
        """llama.cpp tells its caches alone, a hundred times quicker than the whole bill."""
        if not self._is_plain:
            return self.price(tokens).estimate.kv_cache_bytes
        from edgekit.engine.llamacpp import cache_bytes

        return cache_bytes(self.question.model, self.load(tokens), self.way.setup)

    def reasons(self, weighed: Weighed, longest_tokens: int) -> Iterator[str]:
        """Why this load fails here; `longest_tokens` fit in one way or another."""
        for budget in self.way.budgets:
            if budget.blocked:
                yield budget.blocked
        if weighed.refused:
            yield weighed.refused
        elif not weighed.fits:
            yield f"{weighed.context_tokens:,} tokens need {_of(weighed.tightest)}{self._at_most(longest_tokens)}"
        elif longest_tokens < self.minimum:
            yield self._too_few(longest_tokens)

    @property
    def _made_for(self) -> str:
        if self.states_its_window:
            return f"the model was made for {self.most:,}"
        return f"the model does not say what it was made for: taken are {self.most:,}"

    def _too_few(self, longest_tokens: int) -> str:
        if longest_tokens == self.most:
            return f"{self._made_for} tokens, fewer than the {self.minimum:,} that are wanted"
        return (
            f"at most {longest_tokens:,} tokens fit, fewer than the {self.minimum:,} that make a model useful "
            "(--min-context to accept fewer)"
        )

    def _at_most(self, longest_tokens: int) -> str:
        if longest_tokens == self.most:
            known = (
                "that the model was made for"
                if self.states_its_window
                else "that are taken to be its own"
            )
            return f"; all {self.most:,} {known} fit"
        if longest_tokens:
            return f"; the largest context that fits is {longest_tokens:,}"
        bare = self.price(self.least).tightest
        within = bare.required_bytes <= bare.budget.available_bytes
        rule = f", above the {FULL_PERCENT} % that a load may fill" if within else ""
        return f"; weights and overhead alone take {_of(bare)}{rule}"


def _share(weighed: Weighed) -> float:
    uses = [use for use in weighed.uses if HOST not in use.budget.pools]
    required = sum(use.required_bytes for use in uses)
    return _of_all(required, sum(use.budget.available_bytes for use in uses))


def _of_all(required: int, available: int) -> float:
    if not required:
        return 0.0
    return required / available if available else math.inf


def _check_numbers(question: Question) -> None:
    for what, number in (
        ("a least context", question.min_context),
        ("a budget for the cache", question.window_budget_bytes),
    ):
        if number is not None and number < 0:
            raise UsageError(f"{what} of {number}")


def _of(use: Use) -> str:
    """'20.50 GiB of the 11.50 GiB available in RTX 4070 (178.3 %)'."""
    share = "" if use.utilization == float("inf") else f" ({use.utilization * 100:,.1f} %)"
    return (
        f"{format_bytes(use.required_bytes)} of the {format_bytes(use.budget.available_bytes)} "
        f"available in {use.budget.name}{share}"
    )


def _own_bill(question: Question) -> Bill:
    engine = engine_named(question.engine)
    return lambda load, setup: engine.estimate(question.model, load, setup)
