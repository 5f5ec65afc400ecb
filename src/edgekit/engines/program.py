"""What EdgeKit starts an engine with for `run`, `serve`, `verify` and `calibrate`, and what it measures then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from edgekit.bill.spill import Purpose
    from edgekit.bill.types import Component, Load, MemoryEstimate, Setup, Verdict
    from edgekit.engines.chat import Prompt, Talker
    from edgekit.machine.types import Machine, Pace
    from edgekit.model import OpenModel
    from edgekit.model.types import Model
    from edgekit.sources.types import ModelFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWeights:
    """Files on this machine: the model and its companions."""

    model: Path
    drafter: Path | None = None
    adapters: tuple[Path, ...] = ()
    projector: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server listens."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    api_key: str | None = field(default=None, repr=False)
    alias: str = ""  # the model's name for clients; "": its label
    chats: bool = True  # False: the model's chat template is not used


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStart:
    """What an engine is started with once the verdict is yes."""

    weights: LocalWeights
    label: str
    load: Load
    setup: Setup
    estimate: MemoryEstimate = field(repr=False)
    values: Mapping[str, Any] = field(repr=False)  # of the engine's flags
    sinks: int = 0
    rolling: bool = False
    threads: int | None = None
    purpose: Purpose
    environment: Mapping[str, str] = field(default_factory=dict)
    at: Address
    recheck: Callable[[], None]  # raises where it no longer fits; called just before loading
    say: Callable[[str], None]
    warn: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process came to its end. Either an exit code or a signal."""

    exit_code: int | None
    signal: str | None  # "SIGKILL"
    why: str
    last_words: str


class Server(Protocol):
    """An engine that serves HTTP."""

    @property
    def address(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def idle(self) -> Resident | None:
        """The process with its libraries, before anything was loaded."""
        ...

    def wait(self) -> Ended | None: ...
    def stop(self, why: str = "") -> Ended: ...


class MemoryGuard(Protocol):
    """Watches an engine at work, and stops it before memory runs out."""

    @property
    def reason(self) -> str:
        """Why it stopped the engine; empty: it did not."""
        ...

    @property
    def starved(self) -> bool:
        """Whether it stopped the engine for lack of memory."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """An engine that is ready to answer."""

    talker: Talker
    version: str = ""
    rules_version: str = ""  # whose rules the bill follows
    rows: tuple[ComparedRow, ...] = ()  # the bill next to what the engine reports, if it does
    server: Server | None = None  # of one that serves
    guard: MemoryGuard | None = None


class Starter(Protocol):
    """A model file, about to be loaded."""

    def tokens_in(self, prompt: Prompt, /) -> int | None:
        """Exactly; None where only the started engine can count them."""

    def start(self, given: EngineStart, /) -> AbstractContextManager[Up]:
        """Loaded and ready until the end of the block. An engine that dies meanwhile raises with the reason."""


class Verifier(Protocol):
    """The engine on this machine, ready to be compared with the prediction for one set of flags."""

    def generated(self, model: Model, label: str, mix: str | None, /) -> ModelFiles:
        """Files with a header for a model that is known without a file, quantised to `mix`."""

    def verify(self, files: ModelFiles, /) -> Any:
        """The prediction next to the engine's own figures."""

    def asked(self, found: Any, /) -> str:
        """The flags in words, for the heading of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of `run` and `serve` that engines have flags of their own for, as they were typed."""

    rolling: bool = False
    sinks: str | None = None
    threads: str | None = None
    alone: bool = False  # for one conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """How long and how much is measured."""

    read_bytes: int | None = None  # of memory; None: 1 GiB, or an eighth of what is free
    read_seconds: float = 1.0
    shape: Any = None  # of the test model that the engine generates; None: its usual one
    pace_seconds: float = 20.0
    folder: Path | None = None  # None: that of temporary files
    busy_share: float = 0.25  # of the CPU used by other programs: above, no speed is saved


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateRequest:
    machine: Machine
    opened: OpenModel | None  # None: the engine generates a test model
    options: CalibrateOptions
    tell: Callable[[str], None] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """An engine that was started once to be measured."""

    machine: Machine  # with the devices that it ran on
    verification: Verification
    pace: Pace | None = None
    notes: tuple[str, ...] = ()


class EngineProgram(Protocol):
    """Starts one engine."""

    loads_shards: bool  # models in several files
    has_budget: bool  # keeps its whole process inside a number of bytes

    def settled(self, options: RunOptions, /) -> dict[str, Any]:
        """The engine's flags that follow from these options."""

    def limited(self, verdict: Verdict, /) -> Setup:
        """The setup that was judged, with limits that keep what grows after the start within the RAM that is left."""

    def open(self, path: Path, held: ExitStack, budget_bytes: int | None, /) -> Starter:
        """What it opens is closed with `held`. Raises MissingExtraError where the engine is not installed."""

    def verifier(
        self, values: Mapping[str, Any], /, *, really: bool, timeout_s: float | None
    ) -> Verifier:
        """For these values of the engine's flags; `really` loads the model too.

        Raises EngineError where the engine is not on this machine, UsageError for one that cannot be verified.
        """

    def calibrator(self) -> Callable[[CalibrateRequest], EngineRun]:
        """Starts and measures it. Raises EngineError if the engine is not on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBytes:
    """Bytes as far as a rounded number tells them: somewhere from low to high, both included."""

    low_bytes: int
    high_bytes: int

    @property
    def middle_bytes(self) -> int:
        return (self.low_bytes + self.high_bytes) // 2

    @property
    def resolution_bytes(self) -> int:
        """How far the truth may be from the middle."""
        return (self.high_bytes - self.low_bytes + 1) // 2

    def off_by(self, size_bytes: int) -> int:
        """How far `size_bytes` is above what was measured; negative: below."""
        return max(size_bytes - self.high_bytes, 0) + min(size_bytes - self.low_bytes, 0)

    def meets(self, other: MeasuredBytes) -> bool:
        return self.low_bytes <= other.high_bytes and other.low_bytes <= self.high_bytes

    def __add__(self, other: MeasuredBytes) -> MeasuredBytes:
        return MeasuredBytes(
            low_bytes=self.low_bytes + other.low_bytes,
            high_bytes=self.high_bytes + other.high_bytes,
        )


NOTHING = MeasuredBytes(low_bytes=0, high_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One part of the bill, predicted and measured."""

    part: str
    predicted_bytes: int
    measured: MeasuredBytes
    allowed_bytes: int  # beyond the resolution of the engine's figures

    @property
    def difference_bytes(self) -> int:
        return self.measured.off_by(self.predicted_bytes)

    @property
    def difference_share(self) -> float:
        return self.difference_bytes / max(self.measured.middle_bytes, 1)

    @property
    def within(self) -> bool:
        return abs(self.difference_bytes) <= self.allowed_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Memory that a process really held at one moment, as the system counts it."""

    when: str
    resident_bytes: int
    anonymous_bytes: int | None = None  # its own: caches, results, copied weights
    file_bytes: int | None = None  # mapped from files: weights that can be dropped and read again
    model_bytes: int | None = None  # ... of these the model's own
    swapped_bytes: int = 0  # its own too, on the disk just then


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """The speed that the engine itself reports."""

    prompt_tokens: int
    new_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """What the real engine says it allocates."""

    through: str  # "xllamacpp", "llama-fit-params"
    version: str
    parts: Mapping[Component, MeasuredBytes] = field(repr=False)
    resolved: Mapping[str, str] = field(default_factory=dict)  # n_ctx, n_seq_max ... as it has them
    devices: tuple[str, ...] = ()  # GPUs it would use
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The prediction next to the engine's report: every part and the total."""

    label: str
    estimate: MemoryEstimate = field(repr=False)
    rules_version: str  # of the engine that the prediction's rules were checked against
    mode: str  # how the engine was started
    backend: str
    on_devices: bool  # whether it uses more than the CPU
    answer: EngineReport
    rows: tuple[ComparedRow, ...]
    total: ComparedRow
    vocabulary: int = 0  # tokens in the file: the engine has tables of them
    resident: tuple[Resident, ...] = ()
    beside_bytes: int | None = None  # RAM that the process took in addition to its bill, if known
    paced: Paced | None = None
    notes: tuple[str, ...] = ()

    @property
    def within(self) -> bool:
        return all(row.within for row in self.rows)
