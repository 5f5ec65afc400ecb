"""Which engines EdgeKit starts on this machine for `run`, `serve`, `verify` and `calibrate`, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.bill.verdict import Verdict
    from edgekit.engines.chat import Prompt, Talker
    from edgekit.engines.comparison import ComparedRow, Resident, Verification
    from edgekit.engines.spill import Purpose
    from edgekit.machine.types import Machine, Pace
    from edgekit.model.open import Opened
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
    setup: Any  # of the engine
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
    opened: Opened | None  # None: the engine generates a test model
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

    def limited(self, verdict: Verdict, /) -> Any:
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
