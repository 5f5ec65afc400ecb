"""Nouns of a calibration: what was measured on a machine, and when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """How fast the folder for temporary files is, past the system's own memory."""

    folder: str
    read_bytes_per_s: int
    write_bytes_per_s: int
    date: str  # "2026-11-16"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMeasured:
    """The memory of a processor, read by all of its cores at once."""

    host: str  # which machine: see `host_key`
    date: str  # of the bandwidth
    bandwidth_bytes_per_s: int | None = None  # None: it could not be measured
    disk: Disk | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What an engine did with one model, beside what was expected of it.

    The expectation is that of one version of EdgeKit, from one bandwidth: with others it says nothing.
    """

    label: str
    bytes_per_token: int  # weights and states that one token reads
    prompt_tokens: int
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    expected_decode: (
        float | None
    )  # the middle of the modelled range; None: nothing was expected of such a device
    expected_prefill: float | None
    bandwidth_bytes_per_s: int | None  # of the host's memory, as it was modelled with
    edgekit: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMeasured:
    """One version of an engine on one device."""

    engine: str  # "llama.cpp"
    through: str  # "xllamacpp"
    version: str
    host: str
    device: str  # the processor, or the cards it computed on
    date: str
    overhead_bytes: int | None = None  # the most that its process held on the host beside the bill
    overhead_label: str = ""  # with which model that was
    samples: int = 0
    pace: Pace | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return (self.engine, self.through, self.version, self.host, self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A part of a bill that an engine did not keep to."""

    label: str
    part: str
    predicted_bytes: int
    measured_bytes: int
    engine: str
    version: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All that is remembered, of every machine that shares the folder."""

    hosts: tuple[HostMeasured, ...] = ()
    engines: tuple[EngineMeasured, ...] = ()
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of one machine, with the engines that are installed on it now."""

    host: HostMeasured | None = None
    engines: tuple[EngineMeasured, ...] = ()
    differences: tuple[Difference, ...] = ()  # of any model: rules that an engine does not keep to

    def engine(self, name: str, device: str) -> EngineMeasured | None:
        return next(
            (one for one in self.engines if (one.engine, one.device) == (name, device)), None
        )
