"""What a server says on standard output while it stays up: a line at a time, to whoever still reads."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from edgekit.cli import drop
from edgekit.errors import OutputError


def say_json(told: Mapping[str, Any]) -> None:
    say(json.dumps(dict(told)))


def say(line: str) -> None:
    """A reader that has gone does not end the server. OutputError where there is no room for it."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
    except OSError as error:
        drop(sys.stdout)
        raise OutputError(f"the answer could not be written: {error.strerror}") from error
