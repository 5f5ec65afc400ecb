"""Value types and protocols: byte sources, the files of a model, and the policy for fetching them."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

MAX_FILE_BYTES = 2**63 - 1  # the limit of file systems: a larger stated size is invalid

# No header is longer: the largest seen is 15.8 MB (a vocabulary of 262,144 with its merges).
MAX_HEADER_BYTES = 100_000_000


class ByteSource(Protocol):
    """The bytes of one file, wherever they are."""

    @property
    def name(self) -> str:
        """For messages: a path, or an address without its secrets."""
        ...

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:
        """Exactly `length` bytes, fewer only where the file ends.

        `ahead` is how many bytes past these the caller expects to read next: a remote source fetches
        them in the same request, a local one ignores it.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class GrowingSource(ByteSource, Protocol):
    """A file that is fetched from its start as it is read."""

    @property
    def available_bytes(self) -> int:
        """How much of its start can be read without a request."""
        ...

    def keep(self) -> None:
        """Cache the fetched bytes: they are a valid header."""
        ...


class Origin(enum.Enum):
    LOCAL = "local"
    HUB = "hub"
    HUB_CACHE = "hub cache"
    OLLAMA = "ollama"
    OLLAMA_STORE = "ollama store"
    LM_STUDIO = "lm studio"
    URL = "url"
    SAMPLE = "sample"
    CATALOG = "catalog"  # no file: rebuilt from what the catalog knows

    @property
    def is_remote(self) -> bool:
        return self in {Origin.HUB, Origin.OLLAMA, Origin.URL}


class Container(enum.Enum):
    """How the weights are packed; CONFIG is a geometry without weights."""

    GGUF = "gguf"
    SAFETENSORS = "safetensors"
    CONFIG = "config"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One file of a model, not opened yet."""

    name: str
    open: Callable[[], ByteSource] = field(repr=False, compare=False)
    size_bytes: int | None = None  # None until the file is opened, for some servers
    # `open` always returns the same source, which is closed when nothing refers to it any more.
    stays_open: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The files that a reference means, not read yet."""

    reference: str = ""  # as it was typed; set by `locate`
    label: str  # what to call it: "org/name:Q4_K_M", "model.gguf"
    origin: Origin
    container: Container
    weights: tuple[ModelFile, ...] = ()  # shards in order; empty for CONFIG
    config: ModelFile | None = None  # config.json
    index: ModelFile | None = None  # model.safetensors.index.json
    quantization: ModelFile | None = None  # hf_quant_config.json or quantize_config.json
    projectors: tuple[ModelFile, ...] = ()  # mmproj files next to a GGUF
    others: tuple[ModelFile, ...] = ()  # next to safetensors: the tokenizer, chat template and such
    alternatives: tuple[str, ...] = ()  # other quantisations of the same repository
    notes: tuple[str, ...] = ()  # what the user should know about the choice, a sentence each


@dataclass(slots=True)
class Traffic:
    """Counts the network traffic of one run."""

    requests: int = 0
    received_bytes: int = 0
    ranges: int = 0  # requests that asked for a range of a file
    cached_bytes: int = 0  # header bytes that the disk cache saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The policy for locating a model: network, caches, time limits and folders."""

    network: bool = True  # False: like HF_HUB_OFFLINE=1
    cache: bool = True  # use the disk cache of headers
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 15.0
    total_timeout_s: float = 120.0  # for one reference, all requests together
    public_only: bool = False  # True: send nothing to this machine or a private network
    # Folders: only absolute paths are paths, and links that lead out of the folders are skipped. None: relative paths
    # are paths too.
    within: tuple[Path, ...] | None = None
    traffic: Traffic = field(default_factory=Traffic, compare=False)
    progress: Callable[[str], None] | None = field(default=None, compare=False)  # one line of text
    cancelled: threading.Event | None = field(default=None, compare=False)  # set it to give up
