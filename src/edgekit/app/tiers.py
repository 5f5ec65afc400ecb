"""`plan tier:27b` and `recommend --tiers`: a request about the context-scaling document's tiers -> the plan."""

from __future__ import annotations

from edgekit.bill.types import Start, Task
from edgekit.engines.memo import ENGINE
from edgekit.engines.memo.policy import TierPlan, plan_tier_on, recommend_tier_on
from edgekit.engines.memo.rules import tier_model
from edgekit.errors import UsageError
from edgekit.index.tiers import Tier, find_tier, tiers
from edgekit.index.types import ModelPurpose
from edgekit.request import ALL, Request


def plan_tier(reference: str, request: Request) -> TierPlan:
    """The plan of one tier; `reference` is tier:NAME. If it does not fit, the plan says so. Raises EdgekitError."""
    (task,) = _tasks((find_tier(reference.partition(":")[2]),), request)
    return plan_tier_on(task)


def recommend_tier(request: Request) -> TierPlan:
    """The largest tier that fits the machine."""
    return recommend_tier_on(_tasks(tiers(), request))


def _tasks(candidates: tuple[Tier, ...], request: Request) -> list[Task]:
    """One task per tier. Raises UsageError for options that do not apply to tiers."""
    if any(request.flags.values()):
        raise UsageError(
            "a tier is planned for a what-if engine, so flags of real engines do not apply"
        )
    if request.engines:
        raise UsageError(
            f"{request.engine or ALL} does not have the compressed caches of tiers: leave out --engine"
        )
    for flag, is_given in (
        ("nodes", request.nodes is not None),
        ("task", request.purpose not in (None, ModelPurpose.CHAT)),
        ("limit", request.limit is not None),
        ("all-sizes", request.all_sizes),
        ("reserve", request.reserve_bytes is not None),
        ("max-use", request.max_use is not None),
        ("min-speed", request.min_speed is not None),
        ("prompt", request.prompt_tokens is not None),
        ("acceptance", request.acceptance is not None),
    ):
        if is_given:
            raise inapplicable(flag)
    values = {
        "context": request.context,
        "prefer_accurate_kv": request.prefer_accurate_kv,
        "no_drafter": not request.drafter,
        "latency": None if request.latency is None else request.latency.value,
    }
    load, setup = ENGINE.setup({key: value for key, value in values.items() if value is not None})
    if request.users is not None:
        load = ENGINE.load_for_users(load, request.users, 0)
    machine = request.find_machine()
    return [
        Task(
            model=tier_model(tier),
            engine=ENGINE.name,
            machine=machine,
            load=load,
            start=Start(setup=setup),
            min_context=request.min_context,
        )
        for tier in candidates
    ]


def inapplicable(flag: str) -> UsageError:
    """The error for an option that does not apply to tiers."""
    return UsageError(f"--{flag} does not apply to a tier, which is planned for a what-if engine")
