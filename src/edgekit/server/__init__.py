"""What EdgeKit's HTTP servers share: connections, bodies, hosts, and limits per client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgekit.errors import MissingExtraError

_PACKAGES = frozenset({"fastapi", "uvicorn", "pydantic", "starlette", "h11", "anyio", "segno"})


@contextmanager
def needs_extra(extra: str, subject: str) -> Iterator[None]:
    """Turns the error of an import in the block into one that says which extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise MissingExtraError(
            f"{subject} needs {error.name}: pip install 'edgekit-models[{extra}]'"
        ) from error
