"""What a person typed -> the one GGUF file on this machine that it means, downloaded where that is allowed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.errors import HeaderError, RemoteInspectError, SourceError, UsageError
from edgekit.sources import hub_model_of, locate
from edgekit.sources.types import Container, ModelFiles, Origin, Reach

if TYPE_CHECKING:
    from edgekit.sources.download import Download

_WITHOUT_WEIGHTS = {Origin.SAMPLE: "a built-in sample is only a header, without weights"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    label: str
    path: Path
    notes: tuple[str, ...] = ()


def find_weights(
    reference: str | os.PathLike[str],
    *,
    reach: Reach | None = None,
    confirm: Callable[[Download], bool] | None = None,
    several: bool = False,
) -> Found:
    """The file itself: a path, a name in one of the stores on this machine, or a hub id.

    `several`: of a model in several files, the first. Else such a one is refused.
    A hub id that is not in the hub's cache is downloaded to it when `confirm` says so.
    """
    text = os.fspath(reference)
    reach = reach or Reach()
    files = _on_this_machine(text, reach, confirm)
    if (why := _WITHOUT_WEIGHTS.get(files.origin)) is not None:
        raise UsageError(f"{text}: {why}, so there is nothing to run")
    if files.container is not Container.GGUF or not files.weights:
        raise HeaderError(
            "this is not a GGUF file, but one is needed: convert it "
            "(convert_hf_to_gguf.py FOLDER --outtype f16), or give a GGUF repository",
            file=files.label,
        )
    if len(files.weights) > 1 and not several:
        raise UsageError(
            f"{files.label} is split into {len(files.weights)} files: merge them "
            f"(llama-gguf-split --merge {files.weights[0].name} MODEL.gguf) and give the "
            "result"
        )
    with closing(files.weights[0].open()) as opened:
        path = Path(opened.name)
    return Found(label=files.label, path=path, notes=files.notes)


def _on_this_machine(
    text: str, reach: Reach, confirm: Callable[[Download], bool] | None
) -> ModelFiles:
    try:
        files = locate(text, reach=replace(reach, network=False))
    except SourceError as error:
        if not reach.network:
            raise
        if hub_model_of(text) is None:
            if not isinstance(error, RemoteInspectError):
                raise
            raise RemoteInspectError(
                f"{text} is not on this machine: download the file and give its path"
            ) from error
        missing: SourceError = error
    else:
        if not files.origin.is_remote:
            return files
        # What is kept of a hub model is its header: the weights are not here.
        missing = RemoteInspectError(f"{files.label} is not on this machine")
    from edgekit.sources.download import download_model

    because = RemoteInspectError(
        f"the weights of {text} are needed, but they are not on this machine"
    )
    because.__cause__ = missing
    return download_model(
        text, because, confirm=confirm, reach=reach, lacking="the weights are needed"
    )
