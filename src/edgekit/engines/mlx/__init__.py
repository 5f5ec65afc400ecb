"""MLX: mlx-lm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.engines.mlx.flags import FLAGS, TITLE

if TYPE_CHECKING:  # only to name types: --help must be instant
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
    title = TITLE
    aliases = ("mlx-lm", "mlx_lm")
    loads_gguf = False
    flags = FLAGS

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
