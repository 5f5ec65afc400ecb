"""What the built-in engine's rules work out once for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.model.types import Cached

if TYPE_CHECKING:
    from edgekit.engines.native.model import NativeModel
    from edgekit.model.types import Model


class NativePrepared:
    def __init__(self) -> None:
        self.native_model: Cached[NativeModel] = Cached()


def prepare(model: Model) -> NativePrepared:
    return model.prepared(NativePrepared)
