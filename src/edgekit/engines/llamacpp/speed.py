"""llama.cpp's speed: what it reads per token, with and without a drafter, and measurements on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgekit.bill.types import Load, MemoryEstimate, Moment, Placement, Speed, Task
from edgekit.engines.llamacpp.companions import drafter_bill
from edgekit.engines.llamacpp.estimate import NAME, as_loaded
from edgekit.engines.llamacpp.placements import backend_name, devices
from edgekit.engines.llamacpp.types import (
    ALL_LAYERS,
    DEFAULT_BATCH,
    DEFAULT_UBATCH,
    Backend,
    LlamaCppSetup,
    SplitMode,
)
from edgekit.engines.llamacpp.weights import place
from edgekit.engines.speculation import modelled_speculation
from edgekit.engines.speed import MeasuredRatio, modelled_speed, speed_bound
from edgekit.engines.speed_formula import constants_digest
from edgekit.engines.speed_places import SequenceRun, largest_cards, weights_format
from edgekit.engines.token_reads import ActiveWeights, TokenReads, prediction_reads, token_reads
from edgekit.machine.types import Machine, Pool, PoolKind
from edgekit.model.types import Model, attention_of
from edgekit.units import MIB

DRAFTER = "drafter"  # the part of a bill's lines
# The least that a calibrated model must read per token: a smaller one may be read from CPU caches.
LEAST_READ_BYTES = 256 * MIB
# A calibration is void if the memory bandwidth has changed by more than this share.
BANDWIDTH_OFF = 0.1


def speed(task: Task, placement: Placement, bill: MemoryEstimate, moment: Moment) -> Speed | None:
    machine = replace(task.machine, devices=placement.cards)
    setup, drafter = LlamaCppSetup.of(placement.setup), task.drafter
    run, measured = run_of(task, placement, bill), measured_ratio(machine, setup)
    if not moment.drafted_tokens:
        return modelled_speed(run, moment, measured)
    if drafter is None or task.acceptance is None:
        return None
    if drafter.model is None:
        drafts = prediction_run(run, bill)
    else:
        its_setup = replace(setup, mix=drafter.mix)
        its_bill = drafter_bill(bill, drafter.model, task.load, setup, mix=drafter.mix)
        # The lines have the requested types of its cache.
        lines = tuple(replace(line, part="") for line in bill.lines if line.part == DRAFTER)
        its_bill = replace(its_bill, lines=lines)
        drafts = sequence_run(drafter.model, task.load, its_setup, its_bill, machine)
    return modelled_speculation(run, drafts, moment, task.acceptance, measured)


def prediction_run(run: SequenceRun, bill: MemoryEstimate) -> SequenceRun:
    """The run of one of the model's own prediction blocks, which is like the last layer that attends."""
    geometry = run.model.geometry
    attending = [layer for layer in geometry.layers if attention_of(layer.mixer) is not None]
    block = replace(geometry, layers=tuple(attending[-1:]))
    return replace(
        run,
        model=Model(header=run.model.header, geometry=block),
        reads=prediction_reads(run.reads, bill, outside=_reads_outside_layers),
    )


def run_of(task: Task, placement: Placement, bill: MemoryEstimate) -> SequenceRun:
    machine = replace(task.machine, devices=placement.cards)
    return sequence_run(task.model, task.load, LlamaCppSetup.of(placement.setup), bill, machine)


def sequence_run(
    model: Model, load: Load, setup: LlamaCppSetup, bill: MemoryEstimate, machine: Machine
) -> SequenceRun:
    """The run of one sequence on the machine's devices."""
    cards = () if bill.backend == Backend.CPU.value else devices(machine)
    loaded = as_loaded(model, setup.mix)
    placed = place(loaded, setup)
    return SequenceRun(
        model=model,
        reads=reads_per_token(model, load, setup, bill),
        machine=machine,
        cards=largest_cards(cards, len(setup.devices) or 1),
        backend=bill.backend,
        weights=weights_format(loaded),
        batch_tokens=load.microbatch_tokens or DEFAULT_UBATCH,
        logical_tokens=load.batch_tokens or DEFAULT_BATCH,
        is_divided=setup.split_mode in {SplitMode.ROW, SplitMode.TENSOR} and len(cards) > 1,
        is_pipelined=placed.together and placed.pipelined,
        notes_single_request=(load.sequences or 1) > 1,
    )


def reads_per_token(
    model: Model, load: Load, setup: LlamaCppSetup, bill: MemoryEstimate
) -> TokenReads:
    loaded = as_loaded(model, setup.mix)
    return token_reads(model, load, bill, loaded=loaded, outside=_reads_outside_layers)


def _reads_outside_layers(sizes: Mapping[Pool, float], weights: ActiveWeights) -> dict[Pool, float]:
    """Bytes that a token reads outside the layers, per pool: on devices everything, on the host at most the output
    head. If a device holds the head, nothing is read from the host.
    """
    head_bytes = weights.outside_read
    on_devices = {pool: size for pool, size in sizes.items() if pool.kind is PoolKind.DEVICE}
    # Devices with at least half the head's bytes outside the layers are taken to hold the head; a row split divides it.
    is_head_on_device = sum(on_devices.values()) >= head_bytes / 2
    most_on_host = 0.0 if is_head_on_device else head_bytes
    on_host = {
        pool: min(size, most_on_host) for pool, size in sizes.items() if pool not in on_devices
    }
    return {**on_devices, **on_host}


def fastest_tokens_per_s(read_bytes: float, held_bytes: int, machine: Machine) -> float | None:
    cards = tuple((card, backend_name(card)) for card in devices(machine))
    return speed_bound(read_bytes, held_bytes, machine, NAME, cards)


# -- measured on this machine ----------------------------------------------------------------


def measured_ratio(machine: Machine, setup: LlamaCppSetup) -> MeasuredRatio | None:
    """Measured speed divided by modelled speed, from a calibration of this machine with everything on the same cards
    or on the CPU. None if no calibration applies: the calibrated model fits CPU caches, or the constants or the memory
    bandwidth have changed since.
    """
    if machine.measured is None or machine.what_if:
        return None
    is_partly_in_ram = (
        setup.cpu_moe
        or setup.n_cpu_moe
        or not setup.offload_kqv
        or setup.overrides
        or setup.servers
    )
    if setup.has_device and (is_partly_in_ram or setup.n_gpu_layers != ALL_LAYERS):
        return None
    if len(setup.devices) > 1 and setup.split_mode is not SplitMode.LAYER:
        return None  # `calibrate` measures cards in turn
    from edgekit.machine.calibration import device_key

    device = device_key(machine, machine.devices if setup.has_device else ())
    measurement = machine.measured.engine(NAME, device)
    pace = None if measurement is None else measurement.pace
    if measurement is None or pace is None or not pace.expected_decode:
        return None
    bandwidth = None if machine.host is None else machine.host.bandwidth_bytes_per_s
    bandwidth_now, bandwidth_then = bandwidth or 0, pace.bandwidth_bytes_per_s or 0
    has_changed = abs(bandwidth_now - bandwidth_then) > BANDWIDTH_OFF * bandwidth_then
    is_void = has_changed or pace.constants != constants_digest()
    if is_void or pace.bytes_per_token < LEAST_READ_BYTES:
        return None
    prefill = pace.expected_prefill
    return MeasuredRatio(
        decode=pace.decode_tokens_per_s / pace.expected_decode,
        prefill=pace.prefill_tokens_per_s / prefill if prefill else None,
        text=f"scaled to {pace.label} as measured here with {measurement.through} {measurement.version} on {pace.date}",
    )
