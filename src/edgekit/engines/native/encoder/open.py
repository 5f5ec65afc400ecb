"""The forward pass of embedding models, streamed through a planned amount of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit.engines.native.encoder.plan import EncoderPlan
    from edgekit.engines.native.file import WeightFile
    from edgekit.engines.native.kernels.types import Kernels
    from edgekit.engines.native.types import Encoder
    from edgekit.engines.native.walk import Walked
    from edgekit.machine.monitor import Monitor


def open_encoder(
    file: WeightFile,
    walked: Walked,
    *,
    kernels: Kernels,
    monitor: Monitor,
    plan: EncoderPlan,
) -> Encoder:
    """Reserves and allocates what the plan says, and reads the weights that stay.

    `plan` is of the same file. MemoryPressureError when the monitor does not give the memory;
    WeightsError for weights that are no numbers; the file stays the caller's to close.
    """
    from edgekit.engines.native.encoder.streamed import StreamedEncoder

    if walked.name != file.name:
        raise ValueError(f"the header is from {walked.name}, but the weights are from {file.name}")
    return StreamedEncoder(file, kernels=kernels, monitor=monitor, plan=plan)
