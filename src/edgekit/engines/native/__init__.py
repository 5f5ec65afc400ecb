"""The built-in engine, which reads weights from the file as it needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.engines.native import flags

if TYPE_CHECKING:  # only to name types: --help must be instant
    from collections.abc import Mapping
    from typing import Any

    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.engines.flags import Flag
    from edgekit.engines.native.setup import StreamSetup
    from edgekit.engines.program import Program
    from edgekit.machine.types import Machine
    from edgekit.model.types import Model


class Native:
    """The engine. Its rules are imported when they are first needed."""

    name = "stream"
    title = flags.TITLE
    aliases = ("edgekit", "built-in", "builtin", "streaming")
    loads_gguf = True

    # --- flags

    pins_placement = False
    quant_key = flags.QUANT_KEY
    unused_options = flags.UNUSED_OPTIONS
    table = flags.TABLE
    flags = flags.FLAGS

    def read_quant(self, name: str) -> str | None:
        return flags.read_quant(name)

    def quant_names(self) -> tuple[str, ...]:
        return ()

    def setup(self, values: Mapping[str, Any]) -> tuple[Load, StreamSetup]:
        return flags.setup(values)

    def values(self, load: Load, setup: StreamSetup) -> dict[str, Any]:
        return flags.values(load, setup)

    def placement(self, setup: StreamSetup) -> dict[str, Any]:
        return flags.placement(setup)

    def read_row(
        self, options: Mapping[str, Any], _backend: str | None
    ) -> tuple[Load, StreamSetup]:
        return flags.read_row(options)

    def read_keywords(self, options: Mapping[str, Any]) -> tuple[Load, StreamSetup]:
        return flags.read_row(options)

    def describe(self, load: Load, estimate: MemoryEstimate) -> str:
        return flags.describe(load, estimate)

    # --- the bill

    def is_made_for(self, _model: Model) -> bool:
        return False

    def version(self, _setup: StreamSetup | None) -> str:
        from edgekit.engines.native.estimate import VERSION

        return VERSION

    def estimate(self, model: Model, load: Load, setup: StreamSetup) -> MemoryEstimate:
        from edgekit.engines.native.estimate import estimate

        return estimate(model, load, setup)

    # --- programs

    starts_for = ("run",)
    verified_flags: tuple[Flag, ...] = ()

    def program(self) -> Program:
        from importlib import import_module

        # By name: the engine's code is still above the engines (runtime/stream needs embed's kernels).
        found: Program = import_module("edgekit.runtime.stream.program").PROGRAM
        return found

    # --- speed

    def speed(self, *_: object) -> None:
        """Unknown: it may have to read from a disk."""

    def fastest_tokens_per_s(
        self, read_bytes: float, held_bytes: int, machine: Machine
    ) -> float | None:
        from edgekit.engines.speed import fastest_tokens_per_s

        return fastest_tokens_per_s(read_bytes, held_bytes, machine, self.name)


ENGINE = Native()
