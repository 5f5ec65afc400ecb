"""Words on a command line -> one command, its exit code. Each command has a file of its own."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from edgekit.cli.parser import build_parser
from edgekit.errors import EdgekitError

UNWRITTEN = 1
INTERRUPTED = 130  # 128 + SIGINT, as shells count


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, 2 usage, 4 not found or no access, 5 unreadable or unsupported."""
    _survive_narrow_encodings()
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        if sys.stdout is not None:  # None: it was closed before we started
            sys.stdout.flush()
    except EdgekitError as error:
        return _report(error, as_json=getattr(arguments, "json", False))
    except KeyboardInterrupt:
        print("edgekit: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough: `edgekit inspect ... | head`
        _drop_output()
        return 0
    except OSError as error:  # those of reading are EdgekitErrors: this is the answer's way out
        _drop_output()
        print(f"edgekit: the answer could not be written: {error.strerror}", file=sys.stderr)
        return UNWRITTEN
    return code


def _drop_output() -> None:
    """What is still in the buffer goes nowhere, so that the end of the process does not fail on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _survive_narrow_encodings() -> None:
    """A terminal that cannot show a character shows a question mark, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _report(error: EdgekitError, *, as_json: bool) -> int:
    if as_json:
        import json

        print(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
    from edgekit.report.lines import printable

    print(f"edgekit: {printable(str(error))}", file=sys.stderr)
    return error.exit_code
