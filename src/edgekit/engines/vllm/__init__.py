"""vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.engines.protocol import Engine
from edgekit.engines.vllm import flags

if TYPE_CHECKING:  # only to name types: --help must be instant
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from edgekit.bill.task import CacheChoice, Placement, Task, Variant
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.bill.verdict import Speed, Verdict
    from edgekit.engines.commands import Command, Startup
    from edgekit.engines.vllm.prepared import VllmPrepared
    from edgekit.engines.vllm.types import VllmSetup
    from edgekit.machine.types import Budget, Device, Machine
    from edgekit.model.open import Opened
    from edgekit.model.types import Model

# Facts of a bill that are keys of the answer in JSON.
_ANSWERED = (
    "bytes_per_block", "groups", "blocks_per_group", "request_bytes", "num_blocks", "max_concurrency",
)  # fmt: skip


class Vllm(Engine):
    """The engine. Its rules are imported when they are first needed."""

    name = "vllm"
    title = flags.TITLE
    aliases = ()
    loads_gguf = False

    # --- flags

    page = flags.PAGE
    quant_key = flags.QUANT_KEY
    unused_options = flags.UNUSED_OPTIONS
    table = flags.TABLE
    flags = flags.FLAGS

    def read_quant(self, name: str) -> str | None:
        return flags.read_quant(name)

    def quant_names(self) -> tuple[str, ...]:
        return flags.quant_names()

    def setup(self, values: Mapping[str, Any]) -> tuple[Load, VllmSetup]:
        return flags.setup(values)

    def values(self, load: Load, setup: VllmSetup) -> dict[str, Any]:
        return flags.values(load, setup)

    def placement(self, setup: VllmSetup) -> dict[str, Any]:
        return flags.placement(setup)

    def read_row(self, options: Mapping[str, Any], _backend: str | None) -> tuple[Load, VllmSetup]:
        return flags.read_row(options)

    def read_keywords(self, options: Mapping[str, Any]) -> tuple[Load, VllmSetup]:
        return flags.read_row(options)

    def describe(self, load: Load, estimate: MemoryEstimate) -> str:
        return flags.describe(load, estimate)

    # --- the bill

    def prepare(self, model: Model) -> VllmPrepared:
        from edgekit.engines.vllm.prepared import prepare

        return prepare(model)

    def is_made_for(self, model: Model) -> bool:
        from edgekit.sources.types import Container

        return model.header.container is not Container.GGUF and not model.header.mlx

    def version(self, _setup: VllmSetup | None) -> str:
        from edgekit.engines.vllm.estimate import VERSION

        return VERSION

    def estimate(self, model: Model, load: Load, setup: VllmSetup) -> MemoryEstimate:
        from edgekit.engines.vllm.estimate import estimate

        return estimate(model, load, setup)

    # --- speed

    def speed(
        self,
        task: Task,
        placement: Placement,
        bill: MemoryEstimate,
        filled: tuple[int, int] | None = None,
    ) -> Speed | None:
        from edgekit.engines.vllm.speed import speed

        return speed(task, placement, bill, filled)

    def fastest_tokens_per_s(
        self, read_bytes: float, held_bytes: int, machine: Machine
    ) -> float | None:
        from edgekit.engines.vllm.speed import fastest

        return fastest(read_bytes, held_bytes, machine)

    def config_probes(self) -> Iterator[tuple[Load, VllmSetup]]:
        from edgekit.bill.types import Load
        from edgekit.engines.vllm.types import VllmSetup

        load = Load(context_tokens=1_024)
        yield load, VllmSetup()
        yield load, VllmSetup(tensor_parallel_size=2, quantization="fp8")
        yield load, VllmSetup(kv_cache_dtype="fp8", pipeline_parallel_size=2)

    # --- the machine

    def devices(self, machine: Machine) -> tuple[Device, ...]:
        from edgekit.engines.vllm.budget import devices

        return devices(machine)

    def check_runs(self, machine: Machine) -> None:
        from edgekit.engines.vllm.budget import check_runs

        check_runs(machine)

    def budgets(self, machine: Machine) -> tuple[Budget, ...]:
        from edgekit.engines.vllm.budget import budgets, devices, startable_share
        from edgekit.engines.vllm.types import DEFAULT_UTILIZATION

        cards = devices(machine)
        return budgets(cards, startable_share(cards, DEFAULT_UTILIZATION))

    def capacity_bytes(self, machine: Machine) -> int:
        return sum(card.free_bytes for card in self.devices(machine))

    def check_limits(self, reserve_bytes: int | None, max_use: float | None) -> None:
        from edgekit.engines.vllm.budget import check_limits

        check_limits(reserve_bytes, max_use)

    # --- placements

    has_ranks = True

    @property
    def placed(self) -> frozenset[str]:
        from edgekit.engines.vllm.placements import PLACED

        return PLACED

    def default_setup(self) -> VllmSetup:
        from edgekit.engines.vllm.types import VllmSetup

        return VllmSetup()

    def placements(self, task: Task) -> Iterator[Placement]:
        from edgekit.engines.vllm.placements import placements

        return placements(task)

    # --- the cache

    cache_flags = "--kv-cache-dtype"
    cache_fields = ("kv_cache_dtype",)

    def cache_choices(
        self, task: Task, _placement: Placement | None = None
    ) -> tuple[CacheChoice, ...]:
        from edgekit.engines.vllm.cache_choices import cache_choices

        return tuple(cache_choices(task))

    def cache_name(self, _load: Load, setup: VllmSetup) -> str:
        return setup.kv_cache_dtype

    # --- the weights

    chooses_repositories = True

    def variants(self, model: Model, label: str = "") -> tuple[Variant, ...]:
        from edgekit.engines.vllm.variants import variants

        return variants(model, label)

    def download_bytes(
        self, model: Model, setup: VllmSetup, _estimate: MemoryEstimate
    ) -> int | None:
        from edgekit.engines.vllm.variants import download_bytes

        return download_bytes(model, setup)

    # --- commands

    for_programs = ("vllm",)

    def settle(self, verdict: Verdict, values: Mapping[str, Any]) -> dict[str, Any]:
        from edgekit.engines.vllm.commands import settle

        return settle(verdict, values)

    def commands(self, startup: Startup) -> tuple[Command, ...]:
        from edgekit.engines.vllm.commands import commands

        return tuple(commands(startup))

    def taken(self, verdict: Verdict) -> MemoryEstimate:
        """Judged is what the requests need; at the start it takes its whole share of the card."""
        from edgekit.engines.vllm.commands import whole_pool

        return whole_pool(verdict) or verdict.estimate

    def values_on_cards(self, cards: Sequence[Device], *, named: bool) -> dict[str, Any]:
        """The smallest card, which is what every rank has."""
        from edgekit.engines.flags import read_flags

        smallest = min(cards, key=lambda card: card.total_bytes)
        found: dict[str, Any] = {"gpu_memory": smallest.total_bytes}
        if named:
            found |= read_flags(self.flags, {"gpu": smallest.name})
        if len(cards) > 1:
            found["tensor_parallel_size"] = len(cards)
        return found

    def machine_flags(self, placement: Placement) -> dict[str, Any]:
        from edgekit.engines.vllm.commands import machine_flags

        return machine_flags(placement)

    def estimate_words(
        self, values: Mapping[str, Any], estimate: MemoryEstimate, opened: Opened
    ) -> list[str]:
        from edgekit.engines.vllm.commands import estimate_words

        return estimate_words(values, estimate, opened)

    # --- reports

    def answer_facts(self, estimate: MemoryEstimate) -> Mapping[str, Any]:
        facts = dict(estimate.facts)
        refused = {"refused": facts["refused"]} if facts.get("refused") else {}
        return {**{name: facts.get(name) for name in _ANSWERED}, **refused}


ENGINE = Vllm()
