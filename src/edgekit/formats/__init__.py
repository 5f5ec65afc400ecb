"""Reads the header of a model: `read_header` from its files, `open_header` by its name. Weights are never read."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache

from edgekit.errors import PrivateAddressError, RemoteInspectError, check_limit
from edgekit.formats import limits
from edgekit.formats.gguf import read_gguf_model
from edgekit.formats.types import Depth, ModelHeader
from edgekit.sources.locator import cached_fallback, locate
from edgekit.sources.types import Container, ModelFiles, Reach


def read_header(files: ModelFiles, *, depth: Depth = Depth.TENSORS) -> ModelHeader:
    """The keys or config, the tensors and the sizes that the files state.

    Depth.ARCHITECTURE reads only what the geometry needs: of a remote GGUF the first request's
    bytes, of safetensors the config and the totals of the index.
    """
    check_limit("number of shards", len(files.weights), limits.SHARDS, file=files.label)
    if files.container is Container.GGUF:
        return read_gguf_model(files, depth)
    from edgekit.formats.safetensors import read_safetensors_model

    return read_safetensors_model(files, depth)


def open_header(
    reference: str | os.PathLike[str], *, depth: Depth = Depth.TENSORS, reach: Reach | None = None
) -> tuple[ModelFiles, ModelHeader]:
    """Locates the model and reads its header. Raises EdgekitError.

    If the hub fails (no network, a time-out, a gated or deleted repository), the model is read from the hub's cache,
    with a note. A private address is refused for good.
    """
    name = os.fspath(reference)
    try:
        files = locate(name, reach=reach or Reach())
        if depth is Depth.ARCHITECTURE and files.origin.is_remote:
            # Open each file only once, so that a later read continues where the first one stopped.
            weights = (
                replace(file, open=cache(file.open), stays_open=True) for file in files.weights
            )
            files = replace(files, weights=tuple(weights))
        return files, read_header(files, depth=depth)
    except PrivateAddressError:
        raise
    except RemoteInspectError as error:
        cached = cached_fallback(name, error, reach=reach)
        if cached is None:
            raise
        return cached, read_header(cached, depth=depth)
