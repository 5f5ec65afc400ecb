"""llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.engines.llamacpp import flags
from edgekit.engines.protocol import Engine

if TYPE_CHECKING:  # only to name types: --help must be instant
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from edgekit.bill.task import CacheChoice, Drafter, Placement, Start, Task, Variant
    from edgekit.bill.types import Load, MemoryEstimate, MemoryLine
    from edgekit.bill.verdict import Speed, Usage, Verdict
    from edgekit.engines.commands import Command, Startup
    from edgekit.engines.llamacpp.prepared import LlamaCppPrepared
    from edgekit.engines.llamacpp.types import LlamaCppSetup
    from edgekit.engines.program import EngineProgram
    from edgekit.engines.protocol import Companions, Floor, Offload
    from edgekit.machine.types import Budget, Device, Machine
    from edgekit.model.open import Opened
    from edgekit.model.types import Model

# Flags about what is outside the engine's own buffers, or is not part of a dry run of one model.
_UNVERIFIED = flags.COMPANIONS | {
    "cache_ram",
    "cpu",  # as the engine here was built
    "ctx_checkpoints",
    "device_memory",
    "rpc",  # neither way to ask llama.cpp is built with it
    "llama_version",  # it is the engine's own
}
_VERIFIED = tuple(flag for flag in flags.FLAGS if flag.key not in _UNVERIFIED)


class LlamaCpp(Engine):
    """The engine. Its rules are imported when they are first needed."""

    name = "llama.cpp"
    title = flags.TITLE
    aliases = ("llamacpp", "llama-cpp", "llama_cpp", "gguf", "ollama")
    loads_gguf = True

    # --- flags

    pins_placement = True
    on_gpu: Mapping[str, str] = flags.ON_GPU
    one_sequence: Mapping[str, str] = flags.ONE_SEQUENCE
    page = flags.PAGE
    quant_key = flags.QUANT_KEY
    companions = flags.COMPANIONS
    unused_options = flags.UNUSED_OPTIONS
    table = flags.TABLE
    flags = flags.FLAGS

    def read_quant(self, name: str) -> str | None:
        return flags.read_quant(name)

    def quant_names(self) -> tuple[str, ...]:
        return flags.quant_names()

    def setup(self, values: Mapping[str, Any]) -> tuple[Load, LlamaCppSetup]:
        return flags.setup(values)

    def values(self, load: Load, setup: LlamaCppSetup) -> dict[str, Any]:
        return flags.values(load, setup)

    def placement(self, setup: LlamaCppSetup) -> dict[str, Any]:
        return flags.placement(setup)

    def read_row(
        self, options: Mapping[str, Any], backend: str | None
    ) -> tuple[Load, LlamaCppSetup]:
        return flags.read_row(options, backend)

    def read_keywords(self, options: Mapping[str, Any]) -> tuple[Load, LlamaCppSetup]:
        return flags.read_keywords(options)

    def describe(self, load: Load, estimate: MemoryEstimate) -> str:
        return flags.describe(load, estimate)

    # --- the bill

    def prepare(self, model: Model) -> LlamaCppPrepared:
        from edgekit.engines.llamacpp.prepared import prepare

        return prepare(model)

    def is_made_for(self, model: Model) -> bool:
        from edgekit.sources.types import Container

        return model.header.container is Container.GGUF

    def version(self, setup: LlamaCppSetup | None) -> str:
        from edgekit.engines.llamacpp.estimate import VERSION

        return VERSION if setup is None else setup.version_name

    def estimate(self, model: Model, load: Load, setup: LlamaCppSetup) -> MemoryEstimate:
        from edgekit.engines.llamacpp.estimate import estimate

        return estimate(model, load, setup)

    def estimate_with(
        self,
        companions: Companions,
        model: Model,
        load: Load,
        setup: LlamaCppSetup,
        values: Mapping[str, Any],
    ) -> MemoryEstimate:
        from edgekit.engines.llamacpp.companions import estimate_with

        return estimate_with(companions, model, load, setup, values)

    # --- programs

    starts_for = ("run", "serve", "verify", "calibrate")
    verified_flags = _VERIFIED

    def program(self) -> EngineProgram:
        from edgekit.engines.llamacpp.run.program import PROGRAM

        return PROGRAM

    # --- speed

    def speed(
        self,
        task: Task,
        placement: Placement,
        bill: MemoryEstimate,
        filled: tuple[int, int] | None = None,
    ) -> Speed | None:
        from edgekit.engines.llamacpp.speed import speed

        return speed(task, placement, bill, filled)

    def fastest_tokens_per_s(
        self, read_bytes: float, held_bytes: int, machine: Machine
    ) -> float | None:
        from edgekit.engines.llamacpp.speed import fastest

        return fastest(read_bytes, held_bytes, machine)

    @property
    def floor(self) -> Floor:
        from edgekit.engines.llamacpp import estimate

        return estimate

    def config_probes(self) -> Iterator[tuple[Load, LlamaCppSetup]]:
        from edgekit.bill.types import Load
        from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup

        load = Load(context_tokens=1_024)
        yield load, LlamaCppSetup(mix="Q4_K_M")
        yield load, LlamaCppSetup(mix="Q8_0", backend=Backend.CUDA, load_mtp=True)

    # --- the machine

    def devices(self, machine: Machine) -> tuple[Device, ...]:
        from edgekit.engines.llamacpp.budget import devices

        return devices(machine)

    def budgets(self, machine: Machine) -> tuple[Budget, ...]:
        from edgekit.engines.budgets import known_ram
        from edgekit.engines.llamacpp.budget import budgets, devices

        cards = devices(machine)
        if not cards:
            known_ram(machine)
        return budgets(machine, cards)

    def capacity_bytes(self, machine: Machine) -> int:
        from edgekit.engines.llamacpp.budget import budgets, devices
        from edgekit.machine.types import together_bytes

        return together_bytes(budgets(machine, devices(machine)))

    # --- placements

    @property
    def placed(self) -> frozenset[str]:
        from edgekit.engines.llamacpp.placements import PLACED

        return PLACED

    def default_setup(self) -> LlamaCppSetup:
        from edgekit.engines.llamacpp.types import default_setup

        return default_setup()

    def placements(self, task: Task) -> Iterator[Placement]:
        from edgekit.engines.llamacpp.placements import placements

        return placements(task)

    def finer_placements(self, model: Model, placement: Placement) -> Iterator[Placement]:
        from edgekit.engines.llamacpp.placements import finer_placements

        return finer_placements(model, placement)

    def rebalance(
        self, model: Model, placement: Placement, estimate: MemoryEstimate
    ) -> Placement | None:
        from edgekit.engines.llamacpp.split import resplit

        return resplit(model, placement, estimate)

    def neighbours(
        self, model: Model, placement: Placement, uses: Sequence[Usage]
    ) -> Iterator[Placement]:
        from edgekit.engines.llamacpp.split import neighbours, pinned

        return neighbours(pinned(model, placement), uses)

    def pinned(self, model: Model, placement: Placement) -> Placement:
        from edgekit.engines.llamacpp.split import pinned

        return pinned(model, placement)

    # --- the cache

    cache_flags = "-ctk and -ctv"

    def cache_choices(
        self, task: Task, placement: Placement | None = None
    ) -> tuple[CacheChoice, ...]:
        from edgekit.engines.llamacpp.cache_choices import cache_choices

        return cache_choices(task, placement)

    def cache_name(self, load: Load, _setup: LlamaCppSetup) -> str:
        from edgekit.engines.cache_pairs import cache_name

        return cache_name(load)

    # --- the weights

    has_rule_of_thumb = True

    def variants(self, model: Model, _label: str = "") -> tuple[Variant, ...]:
        from edgekit.engines.llamacpp.variants import variants

        return variants(model)

    def smaller_weights(self, task: Task, capacity_bytes: int) -> Iterator[tuple[Variant, str]]:
        from edgekit.engines.llamacpp.variants import smaller_weights

        return smaller_weights(task, capacity_bytes)

    def download_bytes(
        self, model: Model, setup: LlamaCppSetup, _estimate: MemoryEstimate
    ) -> int | None:
        from edgekit.engines.llamacpp.variants import download_bytes

        return download_bytes(model, setup)

    def divided(self, line: MemoryLine, model: Model, setup: LlamaCppSetup) -> Iterable[MemoryLine]:
        from edgekit.engines.llamacpp.rule_of_thumb import divided

        return divided(line, model, setup)

    # --- users and uses

    most_users = 256  # llama.h @ 0c1e570: LLAMA_MAX_SEQ
    default_users = "llama-server's 4 slots share one context"
    drafts = True

    def load_for_users(self, load: Load, users: int, native_tokens: int) -> Load:
        """-c is the context of all sequences together."""
        from dataclasses import replace

        tokens = native_tokens if load.context_tokens == 0 else load.context_tokens
        together = None if tokens is None else tokens * users
        return replace(load, sequences=users, unified=False, context_tokens=together)

    def embedding_start(self, start: Start) -> Start:
        from dataclasses import replace

        if "embeddings" in start.settled:
            return start
        setup = start.setup if start.setup is not None else self.default_setup()
        settled = start.settled | {"embeddings"}
        return replace(start, setup=replace(setup, embeddings=True), settled=settled)

    def with_drafter(self, task: Task, drafter: Model | None, mix: str | None) -> Task:
        from edgekit.engines.llamacpp.companions import task_with_drafter

        return task_with_drafter(task, drafter, mix)

    # --- commands

    for_programs = ("llama-server", "llama-cli", "ollama", "lm-studio")

    def settle(self, verdict: Verdict, values: Mapping[str, Any]) -> dict[str, Any]:
        from edgekit.engines.llamacpp.settle import settle

        return settle(verdict, values)

    def commands(self, startup: Startup) -> tuple[Command, ...]:
        from edgekit.engines.llamacpp.commands import commands

        return tuple(commands(startup))

    def draft_words(self, verdict: Verdict, drafter: Drafter) -> list[str]:
        from edgekit.engines.llamacpp.commands import proposed_draft_words

        return proposed_draft_words(verdict, drafter)

    def values_for_users(self, values: Mapping[str, Any], users: int, load: Load) -> dict[str, Any]:
        """-np and -c are for all sequences together."""
        from edgekit.errors import UsageError

        if "parallel" in values or values.get("unified"):
            raise UsageError("--users N means -np N with a context for each user: give one of them")
        found = {**values, "parallel": users, "unified": False}
        together = load.context_tokens
        return found if together is None else {**found, "context": together}

    def values_on_cards(self, cards: Sequence[Device], *, named: bool) -> dict[str, Any]:  # noqa: ARG002
        from edgekit.engines.llamacpp.budget import backend_name

        memory = tuple(card.free_bytes for card in cards)
        return {"backend": backend_name(cards[0]), "device_memory": memory}

    def machine_flags(self, placement: Placement) -> dict[str, Any]:
        from edgekit.engines.llamacpp.settle import machine_flags

        return machine_flags(placement)

    def estimate_words(
        self, values: Mapping[str, Any], estimate: MemoryEstimate, opened: Opened
    ) -> list[str]:
        from edgekit.engines.llamacpp.commands import estimate_words

        return estimate_words(values, estimate, opened)

    def estimate_notes(
        self,
        values: Mapping[str, Any],
        setup: LlamaCppSetup,
        estimate: MemoryEstimate,
        opened: Opened,
    ) -> list[str]:
        from edgekit.engines.llamacpp.commands import estimate_notes

        return list(estimate_notes(values, setup, estimate, opened))

    # --- reports

    def offload(self, verdict: Verdict) -> Offload:
        from edgekit.engines.llamacpp.settle import offload

        return offload(verdict)

    def later_rows(self, verdict: Verdict) -> list[str]:
        from edgekit.engines.llamacpp.growth import later_rows

        return list(later_rows(verdict))


ENGINE = LlamaCpp()
