"""One real run of llama.cpp -> its memory beyond the bill, and its speed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from edgekit import __version__
from edgekit.bill.types import Load, Moment
from edgekit.engines.llamacpp.estimate import estimate
from edgekit.engines.llamacpp.placements import backend_name, devices
from edgekit.engines.llamacpp.run.binding import Pacing, VerifyMethod
from edgekit.engines.llamacpp.run.generated import (
    TEST_MODEL,
    Shape,
    file_bytes,
    shape_name,
    write_test_model,
)
from edgekit.engines.llamacpp.run.verification import verify_model
from edgekit.engines.llamacpp.speed import sequence_run
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup, LlamaMode
from edgekit.engines.process import ending_in_order
from edgekit.engines.program import CalibrateRequest, EngineRun, ReportedSpeed
from edgekit.engines.speed import modelled_speed
from edgekit.engines.speed_formula import constants_digest
from edgekit.errors import EngineError, UsageError
from edgekit.machine.calibration import stored_text, today, watched
from edgekit.machine.types import Device, EngineSpeed, Machine
from edgekit.model import OpenModel, open_model
from edgekit.units import format_bytes

CONTEXT_TOKENS = 1024
PROMPT_TOKENS, NEW_TOKENS = 512, 32
WORDS = 32_000  # random token ids are below this: the last rows of an embedding may be unused
_FREE_FACTOR = 2  # leave as much disk space free as the file takes


def measure(method: VerifyMethod, request: CalibrateRequest) -> EngineRun:
    """Runs llama.cpp with the model of the request, or with a generated test model."""
    if request.opened is not None:
        return _run(request, method, request.opened)
    shape: Shape = request.options.shape or Shape()
    with ending_in_order(), _test_model(request, shape) as opened:
        run = _run(request, method, opened)
    if run.pace is None:
        return run
    return replace(run, pace=replace(run.pace, model=shape_name(shape), quant=shape.matrices))


@contextmanager
def _test_model(request: CalibrateRequest, shape: Shape) -> Iterator[OpenModel]:
    """Writes and opens the test model, which is deleted afterwards."""
    size = file_bytes(shape)
    with tempfile.TemporaryDirectory(
        prefix="edgekit-calibrate-", dir=request.options.folder, ignore_cleanup_errors=True
    ) as folder:
        path = Path(folder) / "made-up.gguf"
        free = shutil.disk_usage(folder).free
        if free < size * _FREE_FACTOR:
            raise EngineError(
                f"{path.parents[1]} has {format_bytes(free)} free, and the generated test "
                f"model takes {format_bytes(size)}"
            )
        request.tell(f"writing {TEST_MODEL} ({format_bytes(size)}) to {path.parents[1]}")
        write_test_model(path, shape)
        yield replace(open_model(path), label=TEST_MODEL)


def _run(request: CalibrateRequest, method: VerifyMethod, opened: OpenModel) -> EngineRun:
    """Runs on the machine's cards if the engine finds them, else on the CPU."""
    cards = devices(request.machine)
    if not cards:
        return _run_on(request, method, opened, ())
    try:
        return _run_on(request, method, opened, cards)
    except EngineError as error:
        run = _run_on(request, method, opened, ())
        return replace(run, notes=(f"measured on the CPU only: {error}", *run.notes))


def _run_on(
    request: CalibrateRequest, method: VerifyMethod, opened: OpenModel, cards: tuple[Device, ...]
) -> EngineRun:
    """Loads the model on these cards, or on the CPU without cards, and measures its memory and speed."""
    if opened.files is None:
        raise UsageError(f"{opened.label} has no files to load")
    machine = replace(request.machine, devices=cards)
    geometry = opened.model.geometry
    load = Load(context_tokens=min(geometry.native_context or CONTEXT_TOKENS, CONTEXT_TOKENS))
    setup = LlamaCppSetup(
        mode=LlamaMode.SERVER,
        backend=Backend(backend_name(cards[0])) if cards else Backend.CPU,
        embeddings=geometry.causal is False,
    )
    where = " + ".join(card.name for card in cards) or "the CPU"
    request.tell(f"starting {method.name} {method.version()} with {opened.label} on {where}")
    with watched() as other_load:
        verification = verify_model(
            replace(opened.files, label=opened.label),
            load,
            setup,
            method=method,
            really=True,
            pacing=_pacing(opened, load, request.options.pace_seconds),
        )
    is_busy = other_load.share > request.options.busy_share
    pace = None
    if verification.reported_speed is not None and not is_busy:
        pace = _pace(machine, opened, load, setup, verification.reported_speed)
    notes: list[str] = []
    if is_busy and verification.reported_speed is not None:
        notes.append(
            f"llama.cpp reached {verification.reported_speed.decode_tokens_per_s:.1f} tokens/s (prompt: "
            f"{verification.reported_speed.prefill_tokens_per_s:.1f} tokens/s), which was not saved: {other_load.note}"
        )
    if verification.beside_bytes is None:
        notes.append(
            "llama.cpp's memory overhead could not be measured on this system (it is read "
            "from /proc)"
        )
    return EngineRun(machine=machine, verification=verification, pace=pace, notes=tuple(notes))


def _pacing(opened: OpenModel, load: Load, seconds: float) -> Pacing | None:
    """None for a model that does not generate, or whose context is too short to time."""
    geometry = opened.model.geometry
    prompt_limit = (load.context_tokens or 0) - 2 * NEW_TOKENS
    if geometry.causal is False or not geometry.vocabulary or prompt_limit < NEW_TOKENS:
        return None
    return Pacing(
        vocabulary=min(geometry.vocabulary, WORDS),
        prompt_tokens=min(PROMPT_TOKENS, prompt_limit),
        new_tokens=NEW_TOKENS,
        seconds=seconds,
    )


def _pace(
    machine: Machine,
    opened: OpenModel,
    load: Load,
    setup: LlamaCppSetup,
    reported_speed: ReportedSpeed,
) -> EngineSpeed:
    """The measured speed, and the typical one that EdgeKit expects for the same number of tokens."""
    model = opened.model
    bill = estimate(model, load, setup)
    read, written = reported_speed.prompt_tokens, reported_speed.new_tokens
    run = sequence_run(model, load, setup, bill, machine)
    decoding = modelled_speed(run, Moment(read + written // 2))
    reading = modelled_speed(run, Moment(0, prompt_tokens=max(read, 1)))
    prefill = None if reading is None else reading.typical_prefill
    return EngineSpeed(
        label=stored_text(opened.label),
        bytes_per_token=int(sum(pool.weights_bytes + pool.state_bytes for pool in run.reads.pools)),
        prompt_tokens=reported_speed.prompt_tokens,
        decode_tokens_per_s=round(reported_speed.decode_tokens_per_s, 3),
        prefill_tokens_per_s=round(reported_speed.prefill_tokens_per_s, 3),
        expected_decode=None if decoding is None else round(decoding.typical, 3),
        expected_prefill=None if prefill is None else round(prefill, 3),
        bandwidth_bytes_per_s=None if machine.host is None else machine.host.bandwidth_bytes_per_s,
        edgekit=__version__,
        date=today(),
        constants=constants_digest(),
        new_tokens=reported_speed.new_tokens,
        backend=bill.backend,
    )
