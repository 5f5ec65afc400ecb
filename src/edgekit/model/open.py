"""A reference -> a model an engine can be asked about: source, header and geometry in one screen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from edgekit.errors import (
    HeaderError,
    PrivateAddressError,
    RemoteInspectError,
    UnknownArchitectureError,
    UsageError,
)
from edgekit.formats import read_header
from edgekit.formats.located import open_header
from edgekit.formats.types import Depth, ModelHeader
from edgekit.model import not_a_language_model, read_geometry
from edgekit.model.types import Model
from edgekit.sources.types import Container, ModelFiles, Reach

if TYPE_CHECKING:
    from edgekit.sources.download import Download


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A model and where it was found."""

    label: str
    model: Model = field(repr=False)
    files: ModelFiles | None = field(default=None, repr=False)  # None: only a config was given
    repository: str = ""  # on the hub, where it is known by that alone
    mix: str = ""  # what it is taken at, where it was chosen for it
    # Reads the tensor directories too; None where they were read, or there are none.
    whole: Callable[[], Opened] | None = field(default=None, repr=False, compare=False)


def open_model(
    reference: str | os.PathLike[str], *, depth: Depth = Depth.TENSORS, reach: Reach | None = None
) -> Opened:
    """Read the header of a path, hub id, URL or name. Raises EdgekitError; never reads weights."""
    try:
        found = _opened(*open_header(reference, depth=depth, reach=reach))
    except (HeaderError, UnknownArchitectureError):
        if depth is Depth.TENSORS:
            raise
        return open_model(reference, reach=reach)  # the first range was not enough
    header, files = found.model.header, found.files
    is_partial = depth is Depth.ARCHITECTURE and header.tensors is None
    if files is None or not is_partial or not files.origin.is_remote or not files.weights:
        return found
    return replace(found, whole=lambda: _opened(files, read_header(files)))


def open_or_download(
    reference: str | os.PathLike[str],
    *,
    confirm: Callable[[Download], bool] | None,
    depth: Depth = Depth.TENSORS,
    reach: Reach | None = None,
) -> Opened:
    """Like `open_model`; a hub model that cannot be read by ranges is downloaded first, where `confirm` says so.

    A header that was had and cannot be read is not fetched again with its weights: the reader is the same. After a
    time-out the hub has LISTING_TIMEOUT_S more to say what there is to download.
    """
    reach = reach or Reach()
    end = time.monotonic() + reach.total_timeout_s
    try:
        found = open_model(reference, depth=depth, reach=reach)
        if found.whole is None:
            return found
        return replace(found, whole=cache(partial(_read_on, found, reference, confirm, reach)))
    except PrivateAddressError:
        raise  # a download would go there too
    except RemoteInspectError as error:
        from edgekit.sources.download import LISTING_TIMEOUT_S, download_model

        left_s = max(end - time.monotonic(), LISTING_TIMEOUT_S)
        within = replace(reach, total_timeout_s=left_s)
        files = download_model(os.fspath(reference), error, reach=within, confirm=confirm)
        return _opened(files, read_header(files))


def _read_on(
    found: Opened,
    reference: str | os.PathLike[str],
    confirm: Callable[[Download], bool] | None,
    reach: Reach,
) -> Opened:
    """The rest of a header whose first range was read; from the start where the server does not go on."""
    try:
        return found.whole() if found.whole is not None else found
    except PrivateAddressError:
        raise
    except RemoteInspectError:
        return open_or_download(reference, confirm=confirm, reach=reach)


def _opened(files: ModelFiles, header: ModelHeader) -> Opened:
    return Opened(label=files.label, model=_model(header), files=files)


def open_config(config: Mapping[str, Any], *, label: str = "config.json") -> Opened:
    """A config.json that is at hand already."""
    from edgekit.formats.quantization import read_quantization

    header = ModelHeader(
        name=label,
        container=Container.CONFIG,
        config=config,
        quantization=read_quantization(config),
    )
    return Opened(label=label, model=_model(header))


def _model(header: ModelHeader) -> Model:
    other = not_a_language_model(header)
    if other is not None:
        raise UsageError(
            f"{header.name} is {other}; memory can only be estimated for a language model"
        )
    return Model(header=header, geometry=read_geometry(header))
