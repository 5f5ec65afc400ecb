"""How EdgeKit starts an engine for `run`, `serve`, `verify` and `calibrate`, and the measurements of the engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgekit.errors import UsageError

if TYPE_CHECKING:
    from edgekit.bill.spill import Purpose
    from edgekit.bill.types import Component, Load, MemoryEstimate, Setup, Verdict
    from edgekit.engines.chat import Prompt, TextGenerator
    from edgekit.engines.request_rules import RequestLimits
    from edgekit.machine.types import EngineSpeed, Machine
    from edgekit.model import OpenModel
    from edgekit.model.types import Model
    from edgekit.sources.types import ModelFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWeights:
    """Files on this machine: the model and its companions."""

    model: Path
    name: str = ""  # of a model in the program's own store; `model` is then empty
    drafter: Path | None = None
    adapters: tuple[Path, ...] = ()
    projector: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """A model that the program itself downloads, into a store of its own."""

    name: str  # as the program calls it: "hf.co/org/name:Q4_K_M"
    store: Path
    is_here: bool  # it is in the store already


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A program on this machine that runs models."""

    program: str  # as --with names it: "llama-server", "mlx"
    origin: str  # "PATH", "Homebrew", "LM Studio", "Python package", "running server"
    path: str  # the executable, the folder of the Python package, or the address of the server
    version: str = ""  # "0.6.0-dev", "b9294", "0.32.2"; "": unknown
    build: str = ""  # "b11549", "0c1e570", "PyTorch 2.9.0+cu128"; "": unknown, or it has none
    backends: tuple[str, ...] = ()  # what it computes with: "CUDA", "Vulkan", "Metal", "CPU"
    devices: tuple[str, ...] = ()  # the GPUs that it lists: "CUDA0: NVIDIA GeForce RTX 4090"
    rules_version: str = ""  # the version whose rules bill it; "": the engine has only one
    problem: str = ""  # why EdgeKit cannot start it; "": it can
    timed_out: bool = False  # the problem is only that it did not answer in time


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
    """Everything that an engine is started with, after the check has passed."""

    installation: Installation
    weights: LocalWeights
    label: str
    verdict: Verdict = field(repr=False)
    setup: Setup  # of the verdict, with limits on what grows after the start
    values: Mapping[str, Any] = field(repr=False)  # of the engine's flags
    sinks: int = 0
    rolling: bool = False
    threads: int | None = None
    purpose: Purpose
    keep_spare: bool = False  # leave free memory to other models
    environment: Mapping[str, str] = field(default_factory=dict)
    address: Address
    recheck: Callable[[], None]  # raises if the model no longer fits; called just before loading
    # Gets the process before the model is loaded; may raise.
    begun: Callable[[Server], None] = field(default=lambda _process: None, repr=False)
    say: Callable[[str], None]
    warn: Callable[[str], None]

    @property
    def load(self) -> Load:
        return self.verdict.load

    @property
    def estimate(self) -> MemoryEstimate:
        return self.verdict.estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended: with an exit code or by a signal."""

    exit_code: int | None
    signal: str | None  # "SIGKILL"
    why: str
    last_words: str  # the end of its log


class Server(Protocol):
    """An engine that serves HTTP."""

    @property
    def address(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def idle(self) -> Resident | None:
        """The memory of the process with its libraries, before anything was loaded."""
        ...

    def poll(self) -> Ended | None:
        """How it ended; None while it runs."""
        ...

    def wait(self) -> Ended | None: ...
    def stop(self, why: str = "") -> Ended: ...


class MemoryGuard(Protocol):
    """Watches a running engine, and stops it before memory runs out."""

    @property
    def reason(self) -> str:
        """Why it stopped the engine; empty if it did not."""
        ...

    @property
    def starved(self) -> bool:
        """Whether it stopped the engine for lack of memory."""
        ...


def why_ended(ended: Ended, guard: MemoryGuard) -> str:
    """Why an engine that was ready has ended, for people."""
    last = f"; last output: {ended.last_words}" if ended.last_words else ""
    return guard.reason or f"{ended.why}{last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """An engine that is ready to answer."""

    generator: TextGenerator
    version: str = ""
    program: str = ""  # whose version it is, if that has the engine inside: "Ollama"
    rules_version: str = ""  # the engine's version that the bill's rules follow
    rows: tuple[ComparedRow, ...] = ()  # the bill compared with the engine's report, if it has one
    server: Server | None = None  # None: it does not serve HTTP
    model: str = ""  # the name that the server knows the model by
    guard: MemoryGuard | None = None


class Starter(Protocol):
    """A model file that is ready to be loaded."""

    def tokens_in(self, prompt: Prompt, /) -> int | None:
        """The exact number of tokens in a prompt; None if only the running engine can count them."""

    def start(self, given: EngineStart, /) -> AbstractContextManager[RunningEngine]:
        """Loads the model for the duration of the block. If the engine dies in the block, raises with the reason."""


class Verifier(Protocol):
    """Compares the engine on this machine with the prediction, for one set of flags."""

    def generate_files(self, model: Model, label: str, mix: str | None, /) -> ModelFiles:
        """Generates files with the header of a model that has no files here, quantised to `mix`."""

    def verify(self, files: ModelFiles, /) -> Any:
        """The prediction compared with the engine's own figures."""

    def describe_flags(self, verification: Any, /) -> str:
        """The flags in words, for the heading of the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of `run` and `serve` that each engine has its own flags for, as the user typed them."""

    rolling: bool = False
    sinks: str | None = None
    threads: str | None = None
    alone: bool = False  # the engine serves a single conversation
    saves: bool = False  # no caches that may grow beyond the bill


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """How long and how much `calibrate` measures."""

    read_bytes: int | None = None  # of memory; None: 1 GiB, or an eighth of what is free
    read_seconds: float = 1.0
    shape: Any = None  # of the test model that the engine generates; None: its default shape
    pace_seconds: float = 12.0
    folder: Path | None = None  # for the test model; None: the folder of temporary files
    busy_share: float = 0.25  # no speed is saved if other programs use more of the CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateRequest:
    machine: Machine
    opened: OpenModel | None  # None: the engine generates a test model
    options: CalibrateOptions
    tell: Callable[[str], None] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """The measurements of one start of an engine."""

    machine: Machine  # with the devices that it ran on
    verification: Verification
    pace: EngineSpeed | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgram(ABC):
    """Starts one engine, by one of the programs that run it. Base class: a program has what differs."""

    name: str  # as --with takes it
    install: str  # what to do if it is not on this machine: "pip install ..."
    loads_shards: bool = True  # models in several files
    has_budget: bool = False  # it can limit its process to a number of bytes
    has_keys: bool = True  # its server can demand an API key

    def find(self) -> Installation | None:
        """An installation that is found without starting anything; None: unknown, or there is none."""
        return None

    def on_machine(self, machine: Machine, _installation: Installation, /) -> Machine:
        """The machine, with only what this installation can use of it."""
        return machine

    def own_model(
        self, _reference: str, _files: ModelFiles | None, _values: Mapping[str, Any], /
    ) -> OwnModel | None:
        """The model as the program itself downloads it; None: it needs the files.

        `files` None: only the repository is known. Raises UsageError for values of the engine's flags that the program
        has no equivalent of.
        """
        return None

    @abstractmethod
    def flags_for(self, options: RunOptions, installation: Installation, /) -> dict[str, Any]:
        """The engine's flags that follow from these options and from the installation."""

    @abstractmethod
    def request_limits(self, verdict: Verdict, weights: LocalWeights, /) -> RequestLimits:
        """What requests to its server must keep to, so that it stays inside the bill."""

    def with_limits(self, verdict: Verdict, _installation: Installation, /) -> Setup:
        """The setup of the verdict, with limits so that memory that grows after the start fits in the free RAM.

        Raises UsageError for a plan that the program, or this installation of it, cannot follow.
        """
        return verdict.way.setup

    @abstractmethod
    def open(self, path: Path, held: ExitStack, budget_bytes: int | None, /) -> Starter:
        """Opens a model file, which `held` closes. Raises MissingExtraError if the engine is not installed."""

    def verifier(
        self,
        _values: Mapping[str, Any],
        /,
        *,
        really: bool,  # noqa: ARG002 - for those that override it
        timeout_s: float | None,  # noqa: ARG002
    ) -> Verifier:
        """The verifier for these values of the engine's flags. `really`: it also loads the model.

        Raises EngineError if the engine is not on this machine, UsageError if a flag cannot be verified.
        """
        raise UsageError(f"edgekit verify does not start {self.name}: leave out --with")

    def calibrator(self) -> Callable[[CalibrateRequest], EngineRun]:
        """A function that starts and measures the engine. Raises EngineError if it is not on this machine."""
        raise UsageError(f"edgekit calibrate does not start {self.name}: leave out --with")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBytes:
    """The range of bytes that a rounded figure stands for, both ends included."""

    low_bytes: int
    high_bytes: int

    @property
    def middle_bytes(self) -> int:
        return (self.low_bytes + self.high_bytes) // 2

    @property
    def resolution_bytes(self) -> int:
        """How far the true value may be from the middle."""
        return (self.high_bytes - self.low_bytes + 1) // 2

    def off_by(self, size_bytes: int) -> int:
        """How far `size_bytes` is above the measured range; negative if below, 0 if inside."""
        return max(size_bytes - self.high_bytes, 0) + min(size_bytes - self.low_bytes, 0)

    def meets(self, other: MeasuredBytes) -> bool:
        """Whether the two ranges overlap."""
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
    allowed_bytes: int  # tolerance in addition to the resolution of the engine's figures

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
    """The memory of a process at one moment, as the operating system counts it."""

    when: str
    resident_bytes: int
    anonymous_bytes: int | None = None  # private memory: caches, results, copied weights
    file_bytes: int | None = None  # mapped from files: weights that can be dropped and read again
    model_bytes: int | None = None  # the part of file_bytes that belongs to the model
    swapped_bytes: int = 0  # private memory that was swapped to disk


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedSpeed:
    """The speed that the engine itself reports."""

    prompt_tokens: int
    new_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedMemory:
    """The part of the engine's report that is about one memory."""

    device: int | None  # counted as the engine does; None: RAM
    weights: MeasuredBytes
    caches: MeasuredBytes
    compute: MeasuredBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """The memory that the real engine reports."""

    through: str  # the program that reported it: "xllamacpp", "llama-fit-params"
    version: str
    parts: Mapping[Component, MeasuredBytes] = field(repr=False)
    memories: tuple[ReportedMemory, ...] = field(default=(), repr=False)
    resolved: Mapping[str, str] = field(default_factory=dict)  # its n_ctx, n_seq_max ...
    devices: tuple[str, ...] = ()  # the GPUs that it would use
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The prediction compared with the engine's report: every part and the total."""

    label: str
    estimate: MemoryEstimate = field(repr=False)
    rules_version: str  # the engine's version that the prediction's rules were checked against
    mode: str  # how the engine was started
    backend: str
    on_devices: bool  # whether it uses more than the CPU
    answer: EngineReport
    rows: tuple[ComparedRow, ...]
    total: ComparedRow
    vocabulary: int = 0  # tokens in the file, for which the engine has tables
    resident: tuple[Resident, ...] = ()
    beside_bytes: int | None = None  # RAM of the process in addition to its bill; None: unknown
    reported_speed: ReportedSpeed | None = None
    notes: tuple[str, ...] = ()

    @property
    def within(self) -> bool:
        return all(row.within for row in self.rows)
