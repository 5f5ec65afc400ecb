"""A machine, and perhaps a model -> what it really does, measured once and remembered: `calibrate`.

Memory is read by all cores, a file is written and read, and llama.cpp is started for real, with the model that is given
or with a generated one. Other programs make a speed smaller, but not memory larger: speeds of a busy machine are shown
and not saved.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from edgekit.engines import startable
from edgekit.engines.comparison import Verification
from edgekit.engines.program import CalibrateOptions, CalibrateRequest, EngineRun
from edgekit.errors import EdgekitError, EngineError
from edgekit.machine import detect
from edgekit.machine.calibration import change_calibration, with_host
from edgekit.machine.types import Calibration, EngineMeasured, HostMeasured, Machine
from edgekit.model.open import Opened, open_model
from edgekit.runtime.host_speed import measure_host
from edgekit.runtime.remembering import Remembered, worth_keeping
from edgekit.sources.finding import find_weights
from edgekit.sources.types import Reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What was measured now. None: it could not be measured, or was not saved; a note says why."""

    machine: Machine = field(repr=False)
    host: HostMeasured
    engine: EngineMeasured | None = None
    verification: Verification | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether a part of the bill was outside its bounds: that is saved too."""
        return self.verification is not None and not self.verification.within

    @property
    def is_kept(self) -> bool:
        """Whether there is anything to be kept."""
        host = self.host
        return bool(host.bandwidth_bytes_per_s or host.disk or self.engine or self.differs)


def calibrate(
    reference: str | os.PathLike[str] | None = None,
    *,
    machine: Machine | None = None,
    reach: Reach | None = None,
    tell: Callable[[str], None] = lambda _: None,
    options: CalibrateOptions | None = None,
) -> Calibrated:
    """Measures and remembers. With a model given, an engine that cannot run raises, and nothing is saved.

    If nothing could be measured, nothing is written. Raises SourceError if the result cannot be written.
    """
    engine, *_ = startable("calibrate")
    measure: Callable[[CalibrateRequest], EngineRun] | None = None
    run: EngineRun | None = None
    missing = ""
    try:
        measure = engine.program("calibrate").calibrator()
    except EngineError as error:
        if reference is not None:
            raise
        missing = f"{engine.name} was not measured: {error}"
    request = CalibrateRequest(
        opened=None if reference is None else _open(reference, reach or Reach()),
        machine=machine or detect(),
        options=options or CalibrateOptions(),
        tell=tell,
    )
    host, notes = measure_host(request)
    try:
        run = None if measure is None else measure(_as_measured(request, host))
    except (OSError, EdgekitError) as error:
        if reference is not None:
            raise
        missing = f"{engine.name} was not measured: {error}; give a model to measure it with"
    remembered = Remembered()
    if run is not None:
        remembered = worth_keeping(run.verification, run.machine, run.pace)
        notes = (*notes, *run.notes, remembered.left_out)
    found = Calibrated(
        machine=request.machine,
        host=host,
        engine=remembered.engine,
        verification=None if run is None else run.verification,
        notes=tuple(filter(None, (*notes, missing))),
    )
    return _kept(found, remembered) if found.is_kept else found


def _as_measured(request: CalibrateRequest, host: HostMeasured) -> CalibrateRequest:
    """The speed that is expected is computed from the bandwidth that was just measured."""
    memory = request.machine.host
    if memory is None or host.bandwidth_bytes_per_s is None:
        return request
    memory = replace(
        memory,
        bandwidth_bytes_per_s=host.bandwidth_bytes_per_s,
        bandwidth_because=f"measured on this machine on {host.date}",
    )
    return replace(request, machine=replace(request.machine, host=memory))


def _kept(found: Calibrated, remembered: Remembered) -> Calibrated:
    def change(before: Calibration) -> Calibration:
        return remembered.added(with_host(before, found.host))

    problem = change_calibration(change).problem
    return replace(found, notes=(*found.notes, problem)) if problem else found


def _open(reference: str | os.PathLike[str], reach: Reach) -> Opened:
    """A file of this machine: nothing is downloaded to be measured."""
    found = find_weights(reference, reach=replace(reach, network=False), several=True)
    return replace(open_model(found.path), label=found.label)
