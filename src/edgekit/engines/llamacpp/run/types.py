"""How llama.cpp is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgekit.bill.types import Load
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.sources.filenames import shard_names

LOAD_TIMEOUT_S = 600.0  # 60 GB from a disk of 100 MB/s


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the engine is told, once: nothing of it is worked out again while it runs."""

    path: Path  # of a model in several files, the first
    load: Load
    setup: LlamaCppSetup
    sinks: int = (
        0  # first tokens that stay when the window moves on; llama.cpp keeps its BOS beside them
    )
    rolling: bool = False  # when the window is full the older half is dropped, and it goes on
    drafter: Path | None = None
    drafter_load: Load | None = None  # how it keeps its cache; None: as the model does
    adapters: tuple[Path, ...] = ()  # LoRA, each in full
    projector: Path | None = (
        None  # for pictures and sound; None: there is none, whatever lies beside the model
    )
    host: str = "127.0.0.1"
    port: int = 0  # 0: any that is free
    api_key: str | None = field(default=None, repr=False)
    alias: str = ""  # what it calls the model; "": its file
    threads: int | None = None  # None: as many as there are cores
    chat_template: str | None = None  # None: the file's own
    chat: bool = True  # False: the file's template is not looked at, and may be a broken one
    environment: Mapping[str, str] = field(
        default_factory=dict
    )  # which cards it sees, and in which order
    timeout_s: float = LOAD_TIMEOUT_S

    @property
    def title(self) -> str:
        return self.alias or self.path.name

    @property
    def rolls(self) -> bool:
        return self.rolling or self.setup.ctx_shift

    @property
    def is_drafted(self) -> bool:
        """By another model, or by blocks of its own."""
        return self.drafter is not None or self.setup.load_mtp

    @property
    def files(self) -> tuple[Path, ...]:
        """All that the engine opens."""
        models = (self.path,) if self.drafter is None else (self.path, self.drafter)
        return (*(path for model in models for path in _shards(model)), *self._copied)

    def maps(self, path: Path) -> bool:
        """Whether a file of it is read again while it works."""
        return self.setup.use_mmap and path not in self._copied

    @property
    def _copied(self) -> tuple[Path, ...]:
        """llama.cpp copies adapters and projectors into memory, however the model is loaded."""
        return self.adapters if self.projector is None else (*self.adapters, self.projector)


def _shards(path: Path) -> list[Path]:
    return [one for one in map(path.with_name, shard_names(path.name)) if one.exists()] or [path]
