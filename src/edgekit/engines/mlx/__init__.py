"""MLX: mlx-lm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.engines.mlx import flags

if TYPE_CHECKING:  # only to name types: --help must be instant
    from collections.abc import Mapping
    from typing import Any

    from edgekit.bill.task import Placement, Task
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.bill.verdict import Speed
    from edgekit.engines.flags import Flag
    from edgekit.engines.mlx.types import MlxSetup
    from edgekit.machine.types import Machine
    from edgekit.model.types import Model


class Mlx:
    """The engine. Its rules are imported when they are first needed."""

    name = "mlx"
    title = flags.TITLE
    aliases = ("mlx-lm", "mlx_lm")
    loads_gguf = False

    # --- flags

    pins_placement = False
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

    def placement(self, setup: MlxSetup) -> dict[str, Any]:
        return flags.placement(setup)

    def read_row(self, options: Mapping[str, Any], _backend: str | None) -> tuple[Load, MlxSetup]:
        return flags.read_row(options)

    def read_keywords(self, options: Mapping[str, Any]) -> tuple[Load, MlxSetup]:
        return flags.read_row(options)

    def describe(self, load: Load, estimate: MemoryEstimate) -> str:
        return flags.describe(load, estimate)

    # --- the bill

    def is_made_for(self, model: Model) -> bool:
        return model.header.mlx

    def version(self, _setup: MlxSetup | None) -> str:
        from edgekit.engines.mlx.estimate import VERSION

        return VERSION

    def estimate(self, model: Model, load: Load, setup: MlxSetup) -> MemoryEstimate:
        from edgekit.engines.mlx.estimate import estimate

        return estimate(model, load, setup)

    # --- programs

    starts_for: tuple[str, ...] = ()
    verified_flags: tuple[Flag, ...] = ()

    def program(self) -> None:
        """EdgeKit prints its command, and does not start it."""

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


ENGINE = Mlx()
