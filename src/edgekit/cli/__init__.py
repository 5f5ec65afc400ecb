"""Words on a command line -> one command, its exit code. Each command has a file of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edgekit.cli.parser import build_parser
from edgekit.errors import EdgekitError

INTERRUPTED = 130  # 128 + SIGINT, as shells count


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, 2 usage, 4 not found or no access, 5 unreadable or unsupported."""
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except EdgekitError as error:
        return _report(error, as_json=getattr(arguments, "json", False))
    except KeyboardInterrupt:
        print("edgekit: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough: `edgekit inspect ... | head`
        sys.stderr.close()
        return 0
    return code


def _report(error: EdgekitError, *, as_json: bool) -> int:
    if as_json:
        import json

        print(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
    from edgekit.report.lines import printable

    print(f"edgekit: {printable(str(error))}", file=sys.stderr)
    return error.exit_code
