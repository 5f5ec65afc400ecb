"""The values that `app` returns and `report` renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.bill.types import MemoryEstimate
from edgekit.bill.verdict import Change, Verdict
from edgekit.errors import EdgekitError
from edgekit.model.types import ModelGeometry

if TYPE_CHECKING:
    from edgekit.catalog.types import ModelPurpose
    from edgekit.engines.commands import Command
    from edgekit.plan.plan import Plan
    from edgekit.plan.recommend import Suggestion
    from edgekit.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateAnswer:
    """The answer of `estimate`, which `check` and `plan` contain: a bill and what is shown with it."""

    label: str  # of the model
    reference: str  # as it was typed
    version: str  # of the engine whose rules were used
    asked: str  # the resolved load as text
    command: str  # starts the engine with this load
    notes: tuple[str, ...] = ()  # on the model and the load; the estimate has notes too
    estimate: MemoryEstimate = field(repr=False)
    geometry: ModelGeometry | None = field(default=None, repr=False)  # None: only a name is known

    @property
    def engine_title(self) -> str:
        """'llama.cpp 0.5.0', or just 'mlx-lm 0.32.2' if the version starts with a name."""
        engine = self.estimate.engine
        return (
            self.version if self.version.startswith(engine) else f"{engine} {self.version}".strip()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One model on one engine and machine."""

    bill: EstimateAnswer = field(repr=False)
    result: Verdict
    changes: tuple[Change, ...] = ()
    flags: Mapping[str, str | bool] = field(default_factory=dict)  # of the engine, as typed
    ready: tuple[Command, ...] = field(default=(), repr=False)  # commands for every program
    is_remote: bool = False  # the weights are not on this machine
    is_assumed: bool = False  # from the size and quantisation in a name: no file was found


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """A model that could not be checked, or not on this engine."""

    reference: str
    engine: str | None
    error: EdgekitError


Answer = Check | Unanswered


class EngineAnswer(NamedTuple):
    """An engine's bill, or why there is none."""

    engine: str
    bill: EstimateAnswer | None = None
    error: EdgekitError | None = None


class EngineComparison(NamedTuple):
    """One load of one model on every engine."""

    label: str
    context_tokens: int
    users: int
    answers: tuple[EngineAnswer, ...]
    hint: str = ""  # how to get answers from the engines that have none


class PlanAnswer(NamedTuple):
    """A plan, the commands that start it (none if nothing fits), and notes on the model."""

    plan: Plan
    ready: tuple[Command, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The best models first. If nothing fits, `nearest` is the smallest model, with what would help."""

    request: Request = field(repr=False)  # with its machine and engine
    suggestions: tuple[Suggestion, ...]
    passed_over: tuple[tuple[str, int], ...] = ()  # (reason, number of models)
    nearest: Suggestion | None = None
    notes: tuple[str, ...] = ()  # on the models and the catalog

    @property
    def purpose(self) -> ModelPurpose:
        """What the models are for."""
        from edgekit.catalog.types import ModelPurpose

        return self.request.purpose or ModelPurpose.CHAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One load on one machine, without a search."""

    label: str
    reference: str  # of the same model on the command line
    engine: str
    flags: Mapping[str, Any]  # that determine the load, by their keys
    context_tokens: int
    native_context: int | None
    notes: tuple[str, ...]
    result: Verdict | None = (
        None  # None: the engine refuses the model, or cannot run on the machine
    )
    bill: EstimateAnswer | None = field(default=None, repr=False)
    command: str = ""  # starts the engine; "" if the model does not load
    estimate_command: str
    refused: str = ""
    refused_about: str = ""  # the flag to blame
