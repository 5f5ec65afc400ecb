"""llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.engines.llamacpp.flags import COMPANIONS, FLAGS, TITLE
from edgekit.sources.types import Container

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.bill.task import Placement, Task
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.bill.verdict import Speed
    from edgekit.engines.llamacpp.types import LlamaCppSetup
    from edgekit.engines.program import Program
    from edgekit.machine.types import Machine
    from edgekit.model.types import Model

# Flags about what is outside the engine's own buffers, or is not part of a dry run of one model.
_UNVERIFIED = COMPANIONS | {
    "cache_ram",
    "cpu",  # as the engine here was built
    "ctx_checkpoints",
    "device_memory",
    "rpc",  # neither way to ask llama.cpp is built with it
    "llama_version",  # it is the engine's own
}


class LlamaCpp:
    """The engine. Its rules are imported when they are first needed."""

    name = "llama.cpp"
    title = TITLE
    aliases = ("llamacpp", "llama-cpp", "llama_cpp", "gguf", "ollama")
    loads_gguf = True
    flags = FLAGS

    # --- the bill

    def is_made_for(self, model: Model) -> bool:
        return model.header.container is Container.GGUF

    def version(self, setup: LlamaCppSetup | None) -> str:
        from edgekit.engines.llamacpp.estimate import VERSION

        return VERSION if setup is None else setup.version_name

    def estimate(self, model: Model, load: Load, setup: LlamaCppSetup) -> MemoryEstimate:
        from edgekit.engines.llamacpp.estimate import estimate

        return estimate(model, load, setup)

    # --- programs

    starts_for = ("run", "serve", "verify", "calibrate")
    verified_flags = tuple(flag for flag in FLAGS if flag.key not in _UNVERIFIED)

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
