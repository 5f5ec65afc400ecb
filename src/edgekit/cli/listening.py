"""`--host` and the plain numbers of a server, as they were typed -> what was meant."""

from __future__ import annotations

import re

from edgekit.engines.flags import read_number
from edgekit.errors import UsageError

_WHOLE = re.compile(r"-?[0-9]{1,18}")


def read_host(text: str) -> str:
    """Without the brackets that an IPv6 address has inside an URL."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def read_plain(flag: str, text: str | None, *, least: int = 0, most: int = 2**31 - 1) -> int | None:
    """As read_number, for what is no number of tokens: 32k is no port."""
    if text is not None and _WHOLE.fullmatch(text) is None:
        raise UsageError(f"{flag}: {text[:40]!r} is not a whole number from {least} to {most:,}")
    return read_number(flag, text, least=least, most=most)
