"""Everything EdgeKit raises, in one tree.

EdgekitError
├── UsageError                   what was asked for makes no sense
│   ├── MissingExtraError        a package that this needs is not installed (an ImportError too)
│   └── NotAllowedError          a file that the page was not given
├── SourceError                  the bytes cannot be had
│   ├── NotFoundError            no such file, folder or name (with what was meant, perhaps)
│   └── RemoteInspectError       a server did not give what a light inspection needs
│       ├── RemoteNotFoundError
│       ├── RemoteAccessError    401, 403: private or gated
│       ├── RangeNotSupportedError
│       ├── RemoteChangedError   the file changed between two ranges
│       ├── RemoteTimeoutError   all of it together took longer than it may
│       └── PrivateAddressError  a server on this machine or in a private network, where only public ones may be asked
├── HeaderError                  the bytes are not what they claim to be
│   ├── HeaderLimitError         a count in the file is beyond a named limit
│   ├── UnknownDtypeError        a tensor type without a row in formats/dtype.py
│   └── WeightsError             a tensor that is missing, of the wrong shape, or holds no numbers
├── UnknownArchitectureError     no record in model/architectures.json and no standard keys
├── UnknownTokenizerError        a vocabulary without a row in engines/native/tokenizer
├── TextError                    a text that cannot be embedded: empty, too long, no text
├── OutputError                  what was made cannot be written
├── MemoryPressureError          the embedder would break, or has broken, its memory limit
├── CancelledError               somebody called it off
├── DeadlineError                it took longer than it was given
├── HardwareError                the machine has nothing that the engine runs on
├── RefusedError                 the engine itself would refuse these options or this model
├── ContextTooLargeError         more tokens than the window holds
├── KvSpillUnsupportedError      cold pages of a cache would not be back in time, or have no place to go
└── EngineError                  the real engine did not come up: its last words
"""

from __future__ import annotations


class EdgekitError(Exception):
    """The root. `exit_code` is what the command line ends with.

    `about` is the part of the question at fault, where that is known: model, engine, machine, settings, cache_types.
    """

    exit_code = 5

    def __init__(self, *told: object, about: str = "") -> None:
        super().__init__(*told)
        self.about = about


class UsageError(EdgekitError):
    exit_code = 2


class MissingExtraError(UsageError, ImportError):
    pass


class NotAllowedError(UsageError):
    """It is, or may be, a file that whoever asks has no business with."""


class SourceError(EdgekitError):
    exit_code = 4


class NotFoundError(SourceError):
    """`candidates` are names that exist and look like the one asked for."""

    def __init__(self, message: str, *, candidates: tuple[str, ...] = ()) -> None:
        self.candidates = candidates
        if candidates:
            message = f"{message}. Did you mean: {', '.join(candidates)}?"
        super().__init__(message)


class RemoteInspectError(SourceError):
    """A light remote inspection could not be done; a full download may still work.

    >>> from edgekit.models import inspect_model_remote
    >>> try:
    ...     inspect_model_remote("./no-such-model.gguf")
    ... except RemoteInspectError as error:
    ...     print(error)
    no such file or folder: no-such-model.gguf
    """


class RemoteNotFoundError(RemoteInspectError):
    pass


class RemoteAccessError(RemoteInspectError):
    pass


class RangeNotSupportedError(RemoteInspectError):
    pass


class RemoteTimeoutError(RemoteInspectError):
    pass


class RemoteChangedError(RemoteInspectError):
    pass


class PrivateAddressError(RemoteInspectError):
    """Refused before a byte was sent. Nothing else is tried in its place."""


class HeaderError(EdgekitError):
    """A file that lies or breaks off. The message says which, where, and what was found."""

    def __init__(self, what: str, *, file: str = "", offset: int | None = None) -> None:
        self.what = what
        self.file = file
        self.offset = offset
        where = "" if offset is None else f" at byte {offset:,}"
        super().__init__(f"{file}: {what}{where}" if file else f"{what}{where}")


class HeaderLimitError(HeaderError):
    def __init__(
        self, what: str, *, value: int, limit: int, file: str = "", offset: int | None = None
    ) -> None:
        self.value = value
        self.limit = limit
        told = f"{value:,}" if value < 10**30 else "a number with more than 30 digits"
        super().__init__(f"{what}: {told} is over the limit of {limit:,}", file=file, offset=offset)


class UnknownDtypeError(HeaderError):
    pass


class WeightsError(HeaderError):
    """The weights cannot be used. The message names the tensor."""


class UnknownArchitectureError(EdgekitError):
    pass


class UnknownTokenizerError(EdgekitError):
    """Text cannot be cut as the model was taught. The message names the table that lacks the row."""


class TextError(EdgekitError):
    """`index` is the place of the text among those that were given."""

    exit_code = 2

    def __init__(self, what: str, *, index: int | None = None) -> None:
        self.what = what
        self.index = index
        super().__init__(what if index is None else f"text {index}: {what}")


class OutputError(EdgekitError):
    """The answer could not be written: no room, no right, no folder. What is done already is kept."""

    exit_code = 1


class MemoryPressureError(EdgekitError):
    """Going on would use more memory than was allowed. The message has the numbers."""

    exit_code = 3


class CancelledError(EdgekitError):
    exit_code = 130  # 128 + SIGINT, as shells count


class DeadlineError(EdgekitError):
    """Nothing is returned of what was not finished in time."""


class HardwareError(EdgekitError):
    """The engine cannot run on this machine at all, whatever the model."""

    exit_code = 3


class RefusedError(EdgekitError):
    """The engine would not run this. The message is the engine's reason."""

    exit_code = 2


class ContextTooLargeError(EdgekitError):
    """A prompt, or what was asked for after it, is longer than the window. The message has the numbers."""

    exit_code = 3


class KvSpillUnsupportedError(EdgekitError):
    """A cache that does not fit cannot be spilled either. The message has all the numbers."""

    exit_code = 3


class PredictionError(EdgekitError):
    """The real engine runs what EdgeKit refuses."""

    exit_code = 1


class EngineError(EdgekitError):
    """The real engine did not come up."""
