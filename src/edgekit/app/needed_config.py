"""A config.json -> the few keys of it that anything here reads. Found out by watching, not by a list."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from edgekit.engines import every_engine
from edgekit.errors import EdgekitError
from edgekit.model.open import open_config
from edgekit.model.types import Model


class _Watched(dict[str, Any]):
    """A dict that remembers which of its keys were looked at; one that is walked was looked at whole."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        super().__init__({key: _watched(one) for key, one in raw.items()})
        self.seen: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.seen.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self.seen.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        return list(self)

    def values(self) -> Any:
        return [super(_Watched, self).__getitem__(key) for key in self]

    def items(self) -> Any:
        return [(key, super(_Watched, self).__getitem__(key)) for key in self]

    def kept(self) -> dict[str, Any]:
        """What was looked at. A part of which only its presence counted keeps one key: it is not empty."""
        seen = [key for key in dict.keys(self) if key in self.seen] or list(dict.keys(self))[:1]
        return {key: _kept(dict.get(self, key)) for key in seen}


def _watched(value: Any) -> Any:
    if isinstance(value, list):
        return [_watched(one) for one in value]
    return _Watched(value) if isinstance(value, dict) else value


def _kept(value: Any) -> Any:
    if isinstance(value, list):
        return [_kept(one) for one in value]
    return value.kept() if isinstance(value, _Watched) else value


def needed_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same model to every engine, under every option that was tried. EdgekitError where it is none."""
    watched = _Watched(config)
    model = open_config(watched).model
    for engine in every_engine():
        for load, setup in engine.config_probes():
            with contextlib.suppress(EdgekitError):
                engine.estimate(_fresh(model), load, setup)
    return watched.kept()


def _fresh(model: Model) -> Model:
    """With nothing kept: what was answered before is not read again."""
    return Model(header=model.header, geometry=model.geometry)
