"""llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.engines.llamacpp import flags

if TYPE_CHECKING:  # only to name types: --help must be instant
    from collections.abc import Mapping
    from typing import Any

    from edgekit.bill.task import Placement, Task
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.bill.verdict import Speed
    from edgekit.engines.llamacpp.types import LlamaCppSetup
    from edgekit.engines.program import Program
    from edgekit.machine.types import Machine
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


class LlamaCpp:
    """The engine. Its rules are imported when they are first needed."""

    name = "llama.cpp"
    title = flags.TITLE
    aliases = ("llamacpp", "llama-cpp", "llama_cpp", "gguf", "ollama")
    loads_gguf = True

    # --- flags

    pins_placement = True
    quant_key = flags.QUANT_KEY
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

    def is_made_for(self, model: Model) -> bool:
        from edgekit.sources.types import Container

        return model.header.container is Container.GGUF

    def version(self, setup: LlamaCppSetup | None) -> str:
        from edgekit.engines.llamacpp.estimate import VERSION

        return VERSION if setup is None else setup.version_name

    def estimate(self, model: Model, load: Load, setup: LlamaCppSetup) -> MemoryEstimate:
        from edgekit.engines.llamacpp.estimate import estimate

        return estimate(model, load, setup)

    # --- programs

    starts_for = ("run", "serve", "verify", "calibrate")
    verified_flags = _VERIFIED

    def program(self) -> Program:
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


ENGINE = LlamaCpp()
