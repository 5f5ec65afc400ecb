"""An engine that is up: where it is, what it made room for, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from edgekit.bill.types import Component
from edgekit.engines.llamacpp.run.files import MappedFiles
from edgekit.engines.llamacpp.run.process import GRACE_S, EngineProcess
from edgekit.engines.llamacpp.run.types import Ended, Launch
from edgekit.engines.llamacpp.verify.engine_log import Held
from edgekit.engines.llamacpp.verify.types import MeasuredBytes, Resident


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Running:
    """As a context manager it is gone at the end of the block."""

    address: str  # "http://127.0.0.1:8080"
    version: str  # of xllamacpp, and of the llama.cpp in it
    held: Held = field(repr=False)
    idle: Resident | None = None  # the process with its library, before anything was loaded
    process: EngineProcess = field(repr=False)

    @property
    def launch(self) -> Launch:
        return self.process.launch

    @property
    def files(self) -> MappedFiles:
        return self.process.files

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def reported(self) -> Mapping[Component, MeasuredBytes]:
        """What the engine says it made room for, as exactly as it says it."""
        return self.held.parts

    @property
    def resolved(self) -> Mapping[str, str]:
        """n_ctx, n_seq_max ... as the engine has them."""
        return self.held.resolved

    @property
    def last_words(self) -> str:
        return self.process.last_words

    def resident(self) -> Resident | None:
        return self.process.resident()

    def resident_bytes(self) -> int | None:
        """None where it is gone, or nobody tells."""
        found = self.resident()
        return None if found is None else found.resident_bytes

    def poll(self) -> Ended | None:
        """None while it is up."""
        return self.process.poll()

    def wait(self, timeout_s: float | None = None) -> Ended | None:
        """Its end; None where it has not come in time."""
        return self.process.wait(timeout_s)

    def stop(self, why: str = "", *, grace_s: float = GRACE_S) -> Ended:
        """How it ended, which may have been before."""
        return self.process.stop(why, grace_s=grace_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
