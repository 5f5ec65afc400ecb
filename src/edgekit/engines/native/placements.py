"""What the built-in engine may use of a machine, and how much of the weights it keeps: all, a part, or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgekit.bill.types import Placement, Task
from edgekit.engines.choices import known_ram, ram_budget
from edgekit.engines.native.buffers import usual_threads
from edgekit.engines.native.estimate import matrix_bytes, stream_model
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.engines.native.tokenizer.cost import vocabulary_bytes
from edgekit.errors import UsageError
from edgekit.machine.types import Budget, Machine
from edgekit.units import KIB, MIB, format_bytes

# Besides the bill: Python, numpy, tokenizers and the command itself (51 MiB measured on Linux), and for each thread its
# stack and small arrays (encoder_plan.py measures them).
PROCESS_BYTES = 64 * MIB
THREAD_BYTES = 256 * KIB


def budgets(machine: Machine, *, vocabulary_bytes: int = 0, threads: int = 1) -> tuple[Budget, ...]:
    """The RAM alone. The bill is exact, so only what the process itself takes is held back."""
    reserve = PROCESS_BYTES + threads * THREAD_BYTES + vocabulary_bytes
    because = "for Python, its libraries and the vocabulary"
    if not vocabulary_bytes:
        because = "for Python and its libraries (plus the vocabulary)"
    return (ram_budget(known_ram(machine), (), reserve, because),)


def check_limits(reserve_bytes: int | None, _max_use: float | None) -> None:
    """Raises UsageError for a reserve."""
    if reserve_bytes is not None:
        raise UsageError(
            "--reserve does not apply to the built-in engine, whose estimate covers the whole process"
        )


def placements(task: Task) -> Iterator[Placement]:
    """Weights that stay in memory need no reading: all of them first, then fewer, then none."""
    machine, start = task.machine, task.start
    setup = StreamSetup.of(start.setup or StreamSetup())
    threads = setup.threads or usual_threads(machine.cores if machine.what_if else None)
    tokens = stream_model(task.model).dimensions.vocabulary
    vocabulary = vocabulary_bytes(task.model.header, tokens)
    memory = budgets(machine, vocabulary_bytes=vocabulary, threads=threads)
    whole_bytes = matrix_bytes(task.model)
    sizes: tuple[int | None, ...] = (setup.keep_bytes,)
    if "keep" not in start.settled:
        sizes = (None, *(whole_bytes * part // 4 // MIB * MIB for part in (3, 2, 1, 0)))
    for keep_bytes in sizes:
        if keep_bytes is None or keep_bytes >= whole_bytes:
            because = "all weights in memory"
        elif not keep_bytes:
            because = "weights read from the file for every token"
        else:
            because = f"up to {format_bytes(keep_bytes)} of weights in memory, the rest read for every token"
        yield Placement(
            setup=replace(setup, threads=threads, keep_bytes=keep_bytes),
            budgets=memory,
            because=because,
            whole=keep_bytes is None,
        )
