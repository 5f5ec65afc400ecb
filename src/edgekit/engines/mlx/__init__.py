"""MLX: mlx-lm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.engines.mlx import flags
from edgekit.engines.protocol import Engine
from edgekit.errors import RefusedError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from collections.abc import Iterator, Mapping
    from typing import Any

    from edgekit.bill.task import CacheChoice, Placement, Start, Task, Variant
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.bill.verdict import Speed, Verdict
    from edgekit.engines.commands import Command, Startup
    from edgekit.engines.mlx.prepared import MlxPrepared
    from edgekit.engines.mlx.types import MlxSetup
    from edgekit.machine.types import Budget, Device, Machine
    from edgekit.model.open import Opened
    from edgekit.model.types import Model


class Mlx(Engine):
    """The engine. Its rules are imported when they are first needed."""

    name = "mlx"
    title = flags.TITLE
    aliases = ("mlx-lm", "mlx_lm")
    loads_gguf = False

    # --- flags

    page = flags.PAGE
    quant_key = flags.QUANT_KEY
    unused_options = flags.UNUSED_OPTIONS
    table = flags.TABLE
    flags = flags.FLAGS

    def read_quant(self, name: str) -> str | None:
        from edgekit.engines.mlx.quant_names import read_quant

        return read_quant(name)

    def quant_names(self) -> tuple[str, ...]:
        from edgekit.engines.mlx.quant_names import NAMES

        return NAMES

    def setup(self, values: Mapping[str, Any]) -> tuple[Load, MlxSetup]:
        return flags.setup(values)

    def values(self, load: Load, setup: MlxSetup) -> dict[str, Any]:
        return flags.values(load, setup)

    def read_row(self, options: Mapping[str, Any], _backend: str | None) -> tuple[Load, MlxSetup]:
        return flags.read_row(options)

    def read_keywords(self, options: Mapping[str, Any]) -> tuple[Load, MlxSetup]:
        return flags.read_row(options)

    def describe(self, load: Load, estimate: MemoryEstimate) -> str:
        return flags.describe(load, estimate)

    # --- the bill

    def prepare(self, model: Model) -> MlxPrepared:
        from edgekit.engines.mlx.prepared import prepare

        return prepare(model)

    def is_made_for(self, model: Model) -> bool:
        from edgekit.sources.types import Container

        return model.header.container is not Container.GGUF

    def version(self, _setup: MlxSetup | None) -> str:
        from edgekit.engines.mlx.estimate import VERSION

        return VERSION

    def estimate(self, model: Model, load: Load, setup: MlxSetup) -> MemoryEstimate:
        from edgekit.engines.mlx.estimate import estimate

        return estimate(model, load, setup)

    # --- speed

    def speed(
        self,
        task: Task,
        placement: Placement,
        bill: MemoryEstimate,
        filled: tuple[int, int] | None = None,
    ) -> Speed | None:
        from edgekit.engines.mlx.speed import speed

        return speed(task, placement, bill, filled)

    def fastest_tokens_per_s(
        self, read_bytes: float, held_bytes: int, machine: Machine
    ) -> float | None:
        from edgekit.engines.mlx.speed import fastest

        return fastest(read_bytes, held_bytes, machine)

    def config_probes(self) -> Iterator[tuple[Load, MlxSetup]]:
        from edgekit.bill.types import Load
        from edgekit.engines.mlx.types import AS_STORED, MlxSetup

        load = Load(context_tokens=1_024)
        yield load, MlxSetup()
        yield load, MlxSetup(quantize=AS_STORED)
        yield load, MlxSetup(kv_bits=8, quantized_kv_start=0)

    # --- the machine

    def devices(self, machine: Machine) -> tuple[Device, ...]:
        from edgekit.engines.mlx.budget import devices

        return devices(machine)

    def check_runs(self, machine: Machine) -> None:
        from edgekit.engines.mlx.budget import check_runs

        check_runs(machine)

    def budgets(self, machine: Machine) -> tuple[Budget, ...]:
        from edgekit.engines.mlx.budget import budgets

        return budgets(machine)

    # --- placements

    def default_setup(self) -> MlxSetup:
        from edgekit.engines.mlx.types import MlxSetup

        return MlxSetup()

    def placements(self, task: Task) -> Iterator[Placement]:
        from edgekit.engines.mlx.placements import placements

        return placements(task)

    # --- the cache

    cache_flags = "--kv-bits"
    cache_fields = ("kv_bits", "quantized_kv_start")

    def cache_choices(
        self, task: Task, _placement: Placement | None = None
    ) -> tuple[CacheChoice, ...]:
        from edgekit.engines.mlx.cache_choices import cache_choices

        return tuple(cache_choices(task))

    def cache_name(self, _load: Load, setup: MlxSetup) -> str:
        return f"{setup.kv_bits or 16} bit"

    # --- the weights

    wires_memory = True
    has_rule_of_thumb = True

    def variants(self, model: Model, _label: str = "") -> tuple[Variant, ...]:
        from edgekit.engines.mlx.variants import variants

        return variants(model)

    def smaller_weights(self, task: Task, _capacity_bytes: int) -> Iterator[tuple[Variant, str]]:
        from edgekit.engines.mlx.variants import smaller_weights

        return smaller_weights(task)

    def download_bytes(self, model: Model, setup: MlxSetup, estimate: MemoryEstimate) -> int | None:
        """The repository that was read, or the weights as they would be packed."""
        own = model.header.file_bytes or model.header.tensor_bytes
        return own if own and setup.quantize is None else estimate.weights_bytes or None

    # --- users and uses

    def embedding_start(self, _start: Start) -> Start:
        raise RefusedError("mlx-lm does not return embeddings; llama.cpp and vLLM do")

    # --- commands

    for_programs = ("mlx", "lm-studio")

    def settle(self, verdict: Verdict, values: Mapping[str, Any]) -> dict[str, Any]:
        from edgekit.engines.mlx.commands import settle

        return settle(verdict, values)

    def commands(self, startup: Startup) -> tuple[Command, ...]:
        from edgekit.engines.mlx.commands import commands

        return tuple(commands(startup))

    def estimate_words(
        self, values: Mapping[str, Any], estimate: MemoryEstimate, opened: Opened
    ) -> list[str]:
        from edgekit.engines.mlx.commands import estimate_words

        return estimate_words(values, estimate, opened)

    def estimate_notes(
        self,
        values: Mapping[str, Any],
        _setup: MlxSetup,
        estimate: MemoryEstimate,
        opened: Opened,
    ) -> list[str]:
        from edgekit.engines.mlx.commands import estimate_notes

        return estimate_notes(values, estimate, opened)

    # --- reports

    def answer_facts(self, estimate: MemoryEstimate) -> Mapping[str, Any]:
        return {"cache_bytes": estimate.kv_cache_bytes}


ENGINE = Mlx()
