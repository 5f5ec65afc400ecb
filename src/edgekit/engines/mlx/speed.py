"""The speed of MLX."""

from __future__ import annotations

from edgekit.bill.types import MemoryEstimate, Moment, Placement, Speed, Task
from edgekit.engines.mlx.estimate import NAME
from edgekit.engines.mlx.placements import devices
from edgekit.engines.mlx.quantization import PLAIN, AsStored
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.engines.speed import modelled_speed, speed_bound
from edgekit.engines.speed_places import SequenceRun
from edgekit.engines.token_reads import token_reads
from edgekit.machine.types import Machine
from edgekit.model.types import Model


def speed(task: Task, placement: Placement, bill: MemoryEstimate, moment: Moment) -> Speed | None:
    """The expected speed on the Mac's GPU."""
    return modelled_speed(run_of(task, placement, bill), moment)


def run_of(task: Task, placement: Placement, bill: MemoryEstimate) -> SequenceRun:
    return SequenceRun(
        model=task.model,
        reads=token_reads(task.model, task.load, bill),
        machine=task.machine,
        cards=placement.cards,
        backend=NAME,
        weights=_weights_format(task.model, MlxSetup.of(placement.setup)),
        batch_tokens=MlxSetup.of(placement.setup).prefill_step_size,
        notes_single_request=(task.load.sequences or 1) > 1,
    )


def _weights_format(model: Model, setup: MlxSetup) -> str:
    is_stored_plain = model.header.quantization is None and isinstance(setup.quantize, AsStored)
    return "f16" if is_stored_plain or setup.quantize == PLAIN else "affine"


def fastest_tokens_per_s(read_bytes: float, held_bytes: int, machine: Machine) -> float | None:
    cards = tuple((card, NAME) for card in devices(machine))
    return speed_bound(read_bytes, held_bytes, machine, NAME, cards)
