"""A reference -> the files that it means and their header, from the hub's cache if the hub does not give them."""

from __future__ import annotations

import os

from edgekit.errors import PrivateAddressError, RemoteInspectError
from edgekit.formats import read_header
from edgekit.formats.types import Depth, ModelHeader
from edgekit.sources import cached_in_need, locate
from edgekit.sources.held import held
from edgekit.sources.types import ModelFiles, Reach


def open_header(
    reference: str | os.PathLike[str], *, depth: Depth = Depth.TENSORS, reach: Reach | None = None
) -> tuple[ModelFiles, ModelHeader]:
    """Raises EdgekitError. A model that the hub does not give is read from the hub's cache, with a note.

    Whatever the reason: no network, a time-out, a gated model, a repository that is gone. Only a server that may not
    be asked is final.
    """
    name = os.fspath(reference)
    try:
        files = locate(name, reach=reach or Reach())
        if depth is Depth.ARCHITECTURE:
            files = held(files)
        return files, read_header(files, depth=depth)
    except PrivateAddressError:
        raise
    except RemoteInspectError as error:
        cached = cached_in_need(name, error, reach=reach)
        if cached is None:
            raise
        return cached, read_header(cached, depth=depth)
