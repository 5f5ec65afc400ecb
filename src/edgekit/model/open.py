"""Opens a model by its reference: locate its files, read its header, build its geometry."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from edgekit.errors import (
    HeaderError,
    PrivateAddressError,
    RemoteInspectError,
    UnknownArchitectureError,
    UsageError,
)
from edgekit.formats import open_header, read_header
from edgekit.formats.types import Depth, ModelHeader
from edgekit.model import not_a_language_model, read_geometry
from edgekit.model.types import Model
from edgekit.sources.types import Container, ModelFiles, Reach

if TYPE_CHECKING:
    from edgekit.sources.download import Download


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """A model and its source."""

    label: str
    model: Model = field(repr=False)
    files: ModelFiles | None = field(default=None, repr=False)  # None: from a config or the catalog
    repository: str = ""  # on the hub, of a model without files
    mix: str = ""  # the quantisation that was chosen for a model without files
    # Opens the model with its tensors; None if they were read, or there are none.
    whole: Callable[[], OpenModel] | None = field(default=None, repr=False, compare=False)


def open_model(
    reference: str | os.PathLike[str],
    *,
    depth: Depth = Depth.TENSORS,
    reach: Reach | None = None,
    confirm: Callable[[Download], bool] | None = None,
) -> OpenModel:
    """Reads the header of a path, hub id, URL or name. Raises EdgekitError; never reads weights.

    A hub model that cannot be read by ranges is downloaded first, if `confirm` allows it. After a time-out the hub has
    another LISTING_TIMEOUT_S to list the files to download.
    """
    reach = reach or Reach()
    end = time.monotonic() + reach.total_timeout_s
    try:
        try:
            found = _opened(*open_header(reference, depth=depth, reach=reach))
        except (HeaderError, UnknownArchitectureError):
            if depth is Depth.TENSORS:
                raise
            found = _opened(*open_header(reference, reach=reach))  # the first range was not enough
    except PrivateAddressError:
        raise  # a download would contact the same address
    except RemoteInspectError as error:
        from edgekit.sources.download import LISTING_TIMEOUT_S, download_model

        left_s = max(end - time.monotonic(), LISTING_TIMEOUT_S)
        within = replace(reach, total_timeout_s=left_s)
        fetched = download_model(os.fspath(reference), error, reach=within, confirm=confirm)
        return _opened(fetched, read_header(fetched))
    files, header = found.files, found.model.header
    if files is None or header.tensors is not None or depth is not Depth.ARCHITECTURE:
        return found
    if not files.origin.is_remote or not files.weights:
        return found

    @cache
    def whole() -> OpenModel:
        """Continues the first read, or starts again if the server does not allow that."""
        try:
            return _opened(files, read_header(files))
        except PrivateAddressError:
            raise
        except RemoteInspectError:
            return open_model(reference, reach=reach, confirm=confirm)

    return replace(found, whole=whole)


def _opened(files: ModelFiles, header: ModelHeader) -> OpenModel:
    return OpenModel(label=files.label, model=_model(header), files=files)


def open_config(config: Mapping[str, Any], *, label: str = "config.json") -> OpenModel:
    """A model from a config.json that was already read."""
    from edgekit.formats.quantization import read_quantization

    header = ModelHeader(
        name=label,
        container=Container.CONFIG,
        config=config,
        quantization=read_quantization(config),
    )
    return OpenModel(label=label, model=_model(header))


def _model(header: ModelHeader) -> Model:
    other = not_a_language_model(header)
    if other is not None:
        raise UsageError(
            f"{header.name} is {other}; memory can only be estimated for a language model"
        )
    return Model(header=header, geometry=read_geometry(header))
