"""A machine, and perhaps a model -> what it really does, measured once and remembered: `calibrate`.

Memory is read by all cores, a file is written and read, and llama.cpp is started for real, with the model that is named
or with a made-up one. What else runs on the machine makes a speed smaller, and a memory no larger: so speeds of a busy
machine are told, and not kept.
"""

from __future__ import annotations

import os
from dataclasses import replace

from edgekit.engines.llamacpp.verify.ways import VerifyMethod, choose_way
from edgekit.errors import EngineError
from edgekit.machine import detect
from edgekit.machine.calibration import change_calibration, with_host
from edgekit.machine.measured import Calibration
from edgekit.machine.types import Machine
from edgekit.model.open import Opened, open_model
from edgekit.runtime.calibrating.engine import measure_engine
from edgekit.runtime.calibrating.host import measure_host
from edgekit.runtime.calibrating.types import Bench, Calibrated, CalibrateOptions, Run, Tell
from edgekit.runtime.remembering import Remembered
from edgekit.sources.finding import find_weights
from edgekit.sources.types import Reach


def calibrate(
    reference: str | os.PathLike[str] | None = None,
    *,
    machine: Machine | None = None,
    reach: Reach | None = None,
    tell: Tell = lambda _: None,
    options: CalibrateOptions | None = None,
) -> Calibrated:
    """Measures and remembers. With a model named, whatever hinders llama.cpp raises, and nothing is kept.

    Where nothing could be measured, nothing is written. Raises SourceError where the result cannot be written.
    """
    way, lacking = _way(reference)
    opened = None if reference is None else _open(reference, reach or Reach())
    bench = Bench(
        machine=machine or detect(), options=options or CalibrateOptions(), tell=tell, way=way
    )
    host, notes = measure_host(bench)
    run = Run(notes=lacking) if way is None else measure_engine(bench, way, host, opened)

    found = Calibrated(
        machine=bench.machine,
        host=host,
        engine=run.remembered.engine,
        verification=run.verification,
        notes=tuple(filter(None, (*notes, *run.notes))),
    )
    return _kept(found, run.remembered) if found.is_kept else found


def _kept(found: Calibrated, remembered: Remembered) -> Calibrated:
    def change(before: Calibration) -> Calibration:
        return remembered.added(with_host(before, found.host))

    problem = change_calibration(change).problem
    return replace(found, notes=(*found.notes, problem)) if problem else found


def _way(reference: object) -> tuple[VerifyMethod | None, tuple[str, ...]]:
    """Where no model is named, a machine without the engine is measured all the same."""
    try:
        return choose_way(really=True), ()
    except EngineError as error:
        if reference is not None:
            raise
        return None, (f"llama.cpp was not measured: {error}",)


def _open(reference: str | os.PathLike[str], reach: Reach) -> Opened:
    """A file of this machine: nothing is downloaded to be measured."""
    found = find_weights(reference, reach=replace(reach, network=False), several=True)
    return replace(open_model(found.path), label=found.label)
