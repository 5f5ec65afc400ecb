"""Rows of a batch -> the models they name, each read once and held within bounds."""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edgekit.app.open import ResolvedModel, open_named, quantised
from edgekit.catalog.types import Catalog
from edgekit.errors import EdgekitError, UsageError
from edgekit.model.open import open_config
from edgekit.model.types import Model
from edgekit.request import Session
from edgekit.sources.types import Reach

KEPT_MODELS = 512  # rows may go back and forth between all models of a collection
KEPT_TENSORS = (
    1_000_000  # of all of them: about 0.5 GB. Llama-3.1-70B has 724, DeepSeek-V3 unpacked 91,991
)
ANSWERS_BEFORE_FORGETTING = 4_096  # what an engine keeps with a model grows with the options asked


@dataclass(slots=True)
class _Kept:
    """What a row names, or why it could not be opened; and the model of it for each engine."""

    named: ResolvedModel | None = None
    failure: EdgekitError | None = None
    models: dict[str, Model] = field(default_factory=dict)
    answers: int = 0

    @property
    def tensors(self) -> int:
        found = self.named.found if self.named is not None else None
        return 0 if found is None else len(found.model.header.tensors or ())

    def next_model(self, wanted: str | None, quant: str | None) -> tuple[str, Model, str | None]:
        assert self.named is not None  # noqa: S101 - either it or the failure is there
        named = self.named if quant is None else quantised(self.named, quant)
        engine = wanted or named.first_engine
        self.answers += 1
        if self.answers % ANSWERS_BEFORE_FORGETTING == 0:
            self.models.clear()
        if engine not in self.models:
            model = self.named.as_file(engine).model
            self.models[engine] = Model(header=model.header, geometry=model.geometry)
        return engine, self.models[engine], named.quant


class BatchModels:
    """The models of a batch. The least recently asked for goes first."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._tensors = 0

    def of_row(
        self, row: Mapping[str, Any], wanted: str | None = None, quant: str | None = None
    ) -> tuple[str, Model, str | None]:
        """The engine (`wanted`, or the one for its files), the model for it and the quantisation it is to have.

        Raises EdgekitError: again for every row with a model that could not be opened once.
        """
        config, reference = row.get("config"), row.get("model")
        if config is not None:
            if not isinstance(config, Mapping):
                raise UsageError("config is not an object")
            return self._model(_config_key(config), lambda: _of_config(config), wanted, quant)
        if not isinstance(reference, str) or not reference:
            raise UsageError("the row has neither a model (a path or an id) nor a config")

        def open_it() -> ResolvedModel:
            return open_named(reference, Session(reach=self._reach))

        return self._model(_file_key(reference), open_it, wanted, quant)

    def _model(
        self,
        key: Hashable,
        open_it: Callable[[], ResolvedModel],
        wanted: str | None,
        quant: str | None,
    ) -> tuple[str, Model, str | None]:
        kept = self._kept.get(key)
        if kept is None:
            kept = self._keep(key, _opened(open_it))
        self._kept.move_to_end(key)
        if kept.failure is not None:
            raise kept.failure.with_traceback(None)
        return kept.next_model(wanted, quant)

    def _keep(self, key: Hashable, kept: _Kept) -> _Kept:
        self._kept[key] = kept
        self._tensors += kept.tensors
        while len(self._kept) > KEPT_MODELS or (
            self._tensors > KEPT_TENSORS and len(self._kept) > 1
        ):
            _, gone = self._kept.popitem(last=False)
            self._tensors -= gone.tensors
        return kept


def _of_config(config: Mapping[str, Any]) -> ResolvedModel:
    return ResolvedModel(name="config.json", catalog=Catalog(entries=()), found=open_config(config))


def _opened(open_it: Callable[[], ResolvedModel]) -> _Kept:
    """A failure is kept too: a server that does not answer is asked once."""
    try:
        return _Kept(named=open_it())
    except EdgekitError as error:
        error.__cause__ = error.__context__ = None  # they hold on to what was read
        return _Kept(failure=error.with_traceback(None))


def _config_key(config: Mapping[str, Any]) -> Hashable:
    return hashlib.sha256(json.dumps(config).encode()).digest()


def _file_key(reference: str) -> Hashable:
    """A local file that was written anew is another model."""
    try:
        status = os.stat(reference)  # noqa: PTH116 - once a row, and no path is wanted
    except (OSError, ValueError):
        return (reference,)
    return (reference, status.st_mtime_ns, status.st_size)
