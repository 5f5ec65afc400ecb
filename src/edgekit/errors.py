"""Everything EdgeKit raises, in one tree, and untrusted text made safe to print.

EdgekitError
├── UsageError                   the request makes no sense
│   ├── MissingExtraError        a package is not installed (an ImportError too)
│   └── NotAllowedError          a file that the web server may not read
├── SourceError                  the bytes cannot be read
│   ├── NotFoundError            no such file, folder or name (with similar names)
│   └── RemoteInspectError       a server does not support a light inspection
│       ├── RemoteNotFoundError
│       ├── RemoteAccessError    401, 403: private or gated
│       ├── RangeNotSupportedError
│       ├── RemoteChangedError   the file changed between two ranges
│       ├── RemoteBusyError      the server kept failing, although it was asked several times
│       ├── RemoteTimeoutError   all requests together took too long
│       └── PrivateAddressError  a server on this machine or in a private network, where only public ones are allowed
├── HeaderError                  the bytes are not what they claim to be
│   ├── HeaderLimitError         a count in the file is beyond a named limit
│   ├── UnknownDtypeError        a tensor type without a row in formats/dtype.py
│   └── WeightsError             a tensor is missing, has the wrong shape, or holds values that are not numbers
├── UnknownArchitectureError     no record in model/architectures.json and no standard keys
├── UnknownTokenizerError        a vocabulary without a row in engines/native/tokenizer
├── TextError                    a text that cannot be embedded: empty, too long, not a string
├── OutputError                  the output cannot be written
├── MemoryPressureError          the memory limit is, or would be, exceeded
├── CancelledError               cancelled by the caller
├── DeadlineError                the time limit was exceeded
├── HardwareError                the machine has no hardware for the engine
├── RefusedError                 the engine would refuse these options or this model
│   └── NewArchitectureError     an architecture that EdgeKit's rules of the engine do not know
├── ContextTooLargeError         more tokens than the context holds
├── KvSpillUnsupportedError      a KV cache cannot be spilled: too slow to read back, or no space
├── PredictionError              the real engine runs what EdgeKit refuses
└── EngineError                  the real engine did not start, with its last output
    └── RequestRefusedError      a running engine refused one request; it goes on
"""

from __future__ import annotations


class EdgekitError(Exception):
    """The base class. `exit_code` is the exit code of the command line.

    `about` is the part of the request at fault, if known: model, engine, machine, ram, settings, cache_types.
    """

    exit_code = 5

    def __init__(self, *message: object, about: str = "") -> None:
        super().__init__(*message)
        self.about = about


class UsageError(EdgekitError):
    exit_code = 2


class MissingExtraError(UsageError, ImportError):
    pass


class NotAllowedError(UsageError):
    """A file that the client may not read. It may or may not exist."""


class SourceError(EdgekitError):
    exit_code = 4


class NotFoundError(SourceError):
    """`candidates` are existing names that are similar."""

    def __init__(self, message: str, *, candidates: tuple[str, ...] = ()) -> None:
        self.candidates = candidates
        if candidates:
            message = f"{message}. Did you mean: {', '.join(candidates)}?"
        super().__init__(message)


class AmbiguousNameError(NotFoundError):
    """Several different models have this name: `candidates`, which the message lists."""

    def __init__(self, message: str, *, candidates: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.candidates = candidates


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


class RemoteBusyError(RemoteInspectError):
    pass


class RemoteTimeoutError(RemoteInspectError):
    pass


class RemoteChangedError(RemoteInspectError):
    pass


class PrivateAddressError(RemoteInspectError):
    """Refused before a byte was sent; no other server is tried."""


class HeaderError(EdgekitError):
    """A damaged or truncated file. The message says which file, where, and what was found."""

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
        number = f"{value:,}" if value < 10**30 else "a number with more than 30 digits"
        super().__init__(
            f"{what}: {number} is over the limit of {limit:,}", file=file, offset=offset
        )


def check_limit(
    what: str, value: int, limit: int, *, file: str = "", offset: int | None = None
) -> None:
    """Raises HeaderLimitError if a count in a file is over its limit."""
    if value > limit:
        raise HeaderLimitError(what, value=value, limit=limit, file=file, offset=offset)


class UnknownDtypeError(HeaderError):
    pass


class WeightsError(HeaderError):
    """The weights cannot be used. The message names the tensor."""


class UnknownArchitectureError(EdgekitError):
    pass


class UnknownTokenizerError(EdgekitError):
    """The tokenizer is not supported. The message names the table without a row for it."""


class TextError(EdgekitError):
    """`index` is the position of the text among the given ones."""

    exit_code = 2

    def __init__(self, what: str, *, index: int | None = None) -> None:
        self.what = what
        self.index = index
        super().__init__(what if index is None else f"text {index}: {what}")


class OutputError(EdgekitError):
    """The output could not be written: disk full, no permission, no folder. Finished parts stay on disk."""

    exit_code = 1


class MemoryPressureError(EdgekitError):
    """Continuing would exceed the memory limit. The message has the numbers."""

    exit_code = 3


class CancelledError(EdgekitError):
    exit_code = 130  # 128 + SIGINT, as shells count


class DeadlineError(EdgekitError):
    """The time limit was exceeded. Partial results are discarded."""


class HardwareError(EdgekitError):
    """The engine cannot run on this machine, whatever the model."""

    exit_code = 3


class RefusedError(EdgekitError):
    """The engine would not run this. The message is the engine's reason."""

    exit_code = 2


class NewArchitectureError(RefusedError):
    """EdgeKit's rules of the engine do not know the architecture; the engine itself may."""


class ContextTooLargeError(EdgekitError):
    """The prompt, or prompt plus answer, is longer than the context. The message has the numbers."""

    exit_code = 3


class KvSpillUnsupportedError(EdgekitError):
    """A KV cache that does not fit cannot be spilled to disk either. The message has the numbers."""

    exit_code = 3


class PredictionError(EdgekitError):
    """The real engine runs what EdgeKit refuses."""

    exit_code = 1


class EngineError(EdgekitError):
    """The real engine did not start, or crashed."""

    def __init__(self, reason: str, *, log: str = "") -> None:
        """`log`: the end of the engine's log, which is not for clients of its server."""
        super().__init__(f"{reason}: {log}" if log else reason)
        self.reason = reason


class RequestRefusedError(EngineError):
    pass


_QUOTED_LENGTH = 120


def printable(text: str) -> str:
    """The text with control characters replaced: file names and servers could smuggle in escape sequences."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def one_line(text: str, max_chars: int = 40) -> str:
    """Untrusted text, shortened for a message. Runs of blanks and control characters become one blank."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(clean.split())[:max_chars]


def quoted(value: object) -> str:
    """repr() of an untrusted value, cut to one short line without control characters."""
    text = repr(value)
    return text if len(text) <= _QUOTED_LENGTH else f"{text[: _QUOTED_LENGTH - 3]}..."


def unquoted(text: str) -> str:
    """A short printable name as it is, any other text quoted."""
    return text if text.isprintable() and len(text) <= _QUOTED_LENGTH else quoted(text)
