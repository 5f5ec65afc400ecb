"""A question and one way to start the engine -> the price of every context, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from edgekit.engine import engine_named
from edgekit.errors import RefusedError, UsageError
from edgekit.memory.types import HOST
from edgekit.plan.context import (
    MINIMUM_TOKENS,
    UNKNOWN_NATIVE_TOKENS,
    max_context,
    plan_window,
    recommended_context,
)
from edgekit.plan.types import Bill, Job, PreflightResult, Question, Status, Use, Way, Weighed
from edgekit.units import format_bytes

CACHE_STEP_TOKENS = 256  # llama.cpp pads its cells to it, mlx-lm grows its caches by it


class Fitting:
    """One question and one way to start: every context has a price, worked out once."""

    def __init__(self, question: Question, way: Way) -> None:
        _check_numbers(question)
        self.question, self.way = question, way
        self._bill = question.bill or _own_bill(question)
        self._prices: dict[int, Weighed] = {}

    def price(self, tokens: int) -> Weighed:
        if tokens not in self._prices:
            load = replace(self.question.load, context_tokens=tokens)
            estimate = self._bill(load, self.way.setup)
            uses = tuple(
                Use(budget=budget, required_bytes=budget.required_bytes(estimate))
                for budget in self.way.budgets
            )
            self._prices[tokens] = Weighed(context_tokens=tokens, estimate=estimate, uses=uses)
        return self._prices[tokens]

    def device_utilization(self, tokens: int) -> float:
        """Of the fullest device; 0 where none is used."""
        uses = (use for use in self.price(tokens).uses if HOST not in use.budget.pools)
        return max((use.utilization for use in uses), default=0.0)

    @cached_property
    def native(self) -> int:
        geometry = self.question.model.geometry
        return geometry.native_context or geometry.trained_context or UNKNOWN_NATIVE_TOKENS

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the engine makes of the load, whatever the context."""
        try:
            return dict(self.price(self.native).estimate.facts)
        except RefusedError:
            return dict(self.price(min(self.native, MINIMUM_TOKENS)).estimate.facts)

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

        Who wants more than 16K wants it of every model.
        """
        wanted = self.question.min_context
        least = MINIMUM_TOKENS if wanted is None else wanted
        return least if least > MINIMUM_TOKENS else min(least, self.most)

    @cached_property
    def longest(self) -> int:
        return max_context(self.price, step=self.step, most=self.most)

    @cached_property
    def asked(self) -> int | None:
        """The context that was asked for: by its length, by 0 for the native one, or by a job."""
        tokens = self.question.load.context_tokens
        if tokens is None and self.question.job is not None:
            return self._window(self.question.job)[0]
        if tokens is not None and self.question.job is not None:
            raise UsageError("a context and a job: the job says how long a context it needs")
        if tokens is not None and tokens < 0:
            raise UsageError(f"a context of {tokens} tokens")
        return self.most if tokens == 0 else tokens

    @cached_property
    def window_tokens(self) -> int:
        return self._window(None)[0]

    def _window(self, job: Job | None) -> tuple[int, str]:
        window = plan_window(
            self._cache_bytes,
            native_tokens=self.most,
            budget_bytes=self.question.window_budget_bytes,
            step=self.step,
            job=job,
        )
        return window.context_tokens, window.because

    def _cache_bytes(self, tokens: int) -> int:
        """llama.cpp tells its caches alone, a hundred times quicker than the whole bill."""
        question = self.question
        if question.bill is not None or question.engine != "llama.cpp":
            return self.price(tokens).estimate.kv_cache_bytes
        from edgekit.engine.llamacpp import cache_bytes

        load = replace(question.load, context_tokens=tokens)
        return cache_bytes(question.model, load, self.way.setup)

    def _default(self) -> tuple[int, str]:
        """The window to open unasked, never beyond what fits; where too little fits, the least that is of use."""
        least = min(self.step, self.most)
        if self.longest < self.minimum or not self.longest:
            return max(min(self.minimum, self.most), least), "the least that is of use"
        tokens, because = self._window(None)
        if tokens > self.longest:
            return self.longest, "the longest that fits"
        return max(tokens, least), because

    def result(self) -> PreflightResult:
        asked = self.asked
        tokens, because = (asked, self._asked_because()) if asked is not None else self._default()
        weighed = self.price(tokens)
        reasons = tuple(self._reasons(weighed))
        status = Status.FAILED if reasons else weighed.status
        geometry = self.question.model.geometry
        return PreflightResult(
            engine=self.question.engine,
            status=status,
            context_tokens=tokens,
            asked=asked is not None,
            max_context=self.longest,
            recommended_context=recommended_context(self.longest),
            native_context=geometry.native_context or geometry.trained_context,
            uses=weighed.uses,
            estimate=weighed.estimate,
            reasons=reasons,
            window=because,
            way=self.way,
            machine=self.question.machine,
        )

    def _asked_because(self) -> str:
        job = self.question.job
        return "" if job is None else self._window(job)[1]

    def _reasons(self, weighed: Weighed) -> Iterator[str]:
        for budget in self.way.budgets:
            if budget.blocked:
                yield budget.blocked
        if not weighed.fits:
            yield f"{weighed.context_tokens:,} tokens need {_of(weighed.tightest)}{self._at_most()}"
        elif self.longest < self.minimum:
            if self.longest == self.most:
                yield f"the model was made for {self.most:,} tokens, fewer than the {self.minimum:,} that are wanted"
                return
            yield (
                f"at most {self.longest:,} tokens fit, fewer than the {self.minimum:,} that make a model useful "
                "(--min-context to accept fewer)"
            )

    def _at_most(self) -> str:
        if self.longest:
            return f"; the largest context that fits is {self.longest:,}"
        bare = self.price(min(self.step, self.most))
        return f"; weights and overhead alone take {_of(bare.tightest)}"


def _check_numbers(question: Question) -> None:
    for what, number in (
        ("a least context", question.min_context),
        ("a budget for the cache", question.window_budget_bytes),
    ):
        if number is not None and number < 0:
            raise UsageError(f"{what} of {number}")


def _of(use: Use) -> str:
    """'20.50 GiB of the 11.50 GiB available in RTX 4070 (178.3 %)'."""
    share = "" if use.utilization == float("inf") else f" ({use.utilization * 100:.1f} %)"
    return (
        f"{format_bytes(use.required_bytes)} of the {format_bytes(use.budget.available_bytes)} "
        f"available in {use.budget.name}{share}"
    )


def _own_bill(question: Question) -> Bill:
    engine = engine_named(question.engine)
    return lambda load, setup: engine.estimate(question.model, load, setup)
