"""`estimate`, for one model or with --batch for every row of a file.

A batch prints one JSON answer per JSON row, in order. A row that fails gets an error as its answer; the batch goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from edgekit.app.estimate import assume, estimate
from edgekit.app.open import ResolvedModel, open_named, quantised
from edgekit.cli import ReaderGoneError, show
from edgekit.cli.console import open_session, screen
from edgekit.engines import engine_named, engine_names
from edgekit.engines.flags import given_flags
from edgekit.errors import EdgekitError, HeaderLimitError, NotFoundError, UsageError
from edgekit.formats import limits
from edgekit.model import open_config
from edgekit.model.types import Model
from edgekit.report.bill import bill_json, bill_text, explain_text, layers_table, sums_json
from edgekit.report.json import json_text
from edgekit.request import (
    Request,
    RowOptions,
    Session,
    context_option,
    did_you_mean,
    options_with_quant,
)
from edgekit.sources.types import Reach

_KEYS = ("id", "model", "config", "engine", "backend", "quant", "options")
_json = partial(json.dumps, separators=(",", ":"), allow_nan=False)
ROW_BYTES = limits.CONFIG_BYTES  # a row may hold a config.json: 0.1 MB in the largest real one


def run_estimate(arguments: argparse.Namespace) -> str:
    """The memory that an engine allocates. A batch writes its answers itself."""
    if arguments.batch is not None:
        if arguments.model is not None or arguments.engine is not None or given_flags(arguments):
            raise UsageError(
                "--batch takes model, engine and options from its rows, not from the command line"
            )
        with open_session(arguments, quiet=True) as session:
            run_batch(arguments.batch, session.reach)
        return ""
    if arguments.model is None:
        raise UsageError("give a MODEL, or --batch FILE")
    request = Request.from_argv(arguments, one_engine=True)
    if arguments.assume:
        bill = assume(arguments.model, request)
    else:
        with open_session(arguments, quiet=arguments.json) as session:
            bill = estimate(arguments.model, request, session)
    if arguments.json:
        return json_text(bill_json(bill, layers=arguments.per_layer))
    parts = [bill_text(bill, screen())]
    if arguments.explain:
        parts.append(explain_text(bill))
    if arguments.per_layer:
        parts.append(layers_table(bill))
    return "\n".join(parts)


def run_batch(path: str, reach: Reach) -> None:
    """Answer every row of the file, until standard output is closed. Raises OutputError if the disk is full."""
    models = BatchModels(reach)
    with _open(path) as source:
        for line in _lines(source):
            try:
                show(f"{answer_line(line, models)}\n")
            except ReaderGoneError:
                return


def answer_line(line: bytes | None, models: BatchModels) -> str:
    """The answer to a line of the file; None is a line that was too long."""
    echo: dict[str, Any] = {}
    try:
        row = _row(line)
        name = row.get("id")
        if isinstance(name, str | int) or (isinstance(name, float) and math.isfinite(name)):
            echo["id"] = name
        return _json(echo | _answer(row, models))
    except EdgekitError as error:
        return _json(echo | {"error": str(error), "type": type(error).__name__})
    except Exception as error:  # noqa: BLE001 - a bug that one row triggers must not stop the others
        message = f"{type(error).__name__}: {error}"[:1000]
        return _json(echo | {"error": message, "type": "InternalError"})


def _answer(row: Mapping[str, Any], models: BatchModels) -> dict[str, Any]:
    """The sums of the row's estimate. Raises UsageError for a key or an option that does not exist."""
    request = Request.from_row(row)
    unknown = next((str(name)[:60] for name in row if name not in _KEYS), None)
    if unknown is not None:
        likely_engine = request.engine or engine_names()[0]
        option = context_option(likely_engine)
        hint = did_you_mean(unknown, _KEYS, likely_engine)
        if option in hint:
            hint = f": the context is an option, {option}"
        keys = ", ".join(_KEYS)
        raise UsageError(f"a row has no key {unknown!r}{hint or f' (known keys: {keys})'}")
    name, model, quant = models.of_row(row, request.engine, request.quant)
    engine = engine_named(name)
    read = RowOptions(options_with_quant(name, request.options or {}, quant))
    load, setup = engine.read_row(read, request.backend)
    read.require_known(name)
    sums = sums_json(engine.estimate(model, load, setup))
    return sums | ({"ignored": read.ignored} if read.ignored else {})


def _row(line: bytes | None) -> Mapping[str, Any]:
    """Parse a row. Its lists and values are counted first, like those of a config.json."""
    if line is None:
        raise UsageError(f"a row longer than {ROW_BYTES:,} bytes")
    for kind, count, limit in (
        ("lists and objects", line.count(b"[") + line.count(b"{"), limits.CONFIG_CONTAINERS),
        ("values", line.count(b","), limits.CONFIG_VALUES),
    ):
        if count > limit:
            raise HeaderLimitError(kind, value=count, limit=limit, file="row")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the row is not valid JSON: {error}"[:300]) from error
    if not isinstance(row, dict):
        raise UsageError(f"the row is a {type(row).__name__}, not an object")
    return row


def _open(path: str) -> AbstractContextManager[BinaryIO]:
    """The file, or standard input for "-", which is not closed."""
    if path == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed")
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(path).open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NotFoundError(f"{path} cannot be read: {reason}") from error


def _lines(source: BinaryIO) -> Iterator[bytes | None]:
    """The lines that are not blank. A line that is too long is skipped and yields None."""
    while line := source.readline(ROW_BYTES + 1):
        if len(line) > ROW_BYTES and not line.endswith(b"\n"):
            while (chunk := source.readline(ROW_BYTES)) and not chunk.endswith(b"\n"):
                pass
            yield None
        elif line.strip():
            yield line


MAX_MODELS = 512  # rows may alternate between all models of a collection
# Tensors of all cached models, which take about 0.5 GB. Llama-3.1-70B has 724 tensors, DeepSeek-V3 unpacked 91,991.
MAX_TENSORS = 1_000_000
# Engines cache results with a model for every set of options: after this many answers they are dropped.
ANSWERS_BEFORE_RESET = 4_096


@dataclass(slots=True)
class _Cached:
    """A model of a batch as each engine loads it, or the error with which it could not be opened."""

    resolved: ResolvedModel | None = None
    failure: EdgekitError | None = None
    models: dict[str, Model] = field(default_factory=dict)
    answers: int = 0

    @property
    def tensors(self) -> int:
        opened = self.resolved.found if self.resolved is not None else None
        return 0 if opened is None else len(opened.model.header.tensors or ())

    def next_model(self, engine: str | None, quant: str | None) -> tuple[str, Model, str | None]:
        """The engine, its model and the quantisation for the next row."""
        assert self.resolved is not None  # noqa: S101 - if it were None, `failure` was raised
        resolved = self.resolved if quant is None else quantised(self.resolved, quant)
        engine = engine or resolved.engine()
        self.answers += 1
        if self.answers % ANSWERS_BEFORE_RESET == 0:
            self.models.clear()
        if engine not in self.models:
            model = self.resolved.as_file(engine).model
            self.models[engine] = Model(header=model.header, geometry=model.geometry)
        return engine, self.models[engine], resolved.quant


class BatchModels:
    """A cache of the models of a batch. The least recently used one is dropped first."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._cache: OrderedDict[Hashable, _Cached] = OrderedDict()
        self._tensors = 0

    def of_row(
        self, row: Mapping[str, Any], engine: str | None = None, quant: str | None = None
    ) -> tuple[str, Model, str | None]:
        """The engine (as given, or the one for the files), its model and the quantisation.

        Raises EdgekitError. A model that could not be opened is not tried again: its rows get the same error.
        """
        config, reference = row.get("config"), row.get("model")
        if config is not None:
            if not isinstance(config, Mapping):
                raise UsageError("config is not an object")
            key: Hashable = hashlib.sha256(json.dumps(config).encode()).digest()
        elif isinstance(reference, str) and reference:
            key = (reference,)
            with suppress(OSError, ValueError):  # a file that has changed counts as another model
                status = os.stat(reference)  # noqa: PTH116 - once per row, and faster than Path
                key = (reference, status.st_mtime_ns, status.st_size)
        else:
            raise UsageError("the row has neither a model (a path or an id) nor a config")
        if key not in self._cache:
            cached = self._cache[key] = self._open(config, reference)
            self._tensors += cached.tensors
            while len(self._cache) > MAX_MODELS or (
                self._tensors > MAX_TENSORS and len(self._cache) > 1
            ):
                _, dropped = self._cache.popitem(last=False)
                self._tensors -= dropped.tensors
        self._cache.move_to_end(key)
        cached = self._cache[key]
        if cached.failure is not None:
            raise cached.failure.with_traceback(None)
        return cached.next_model(engine, quant)

    def _open(self, config: Mapping[str, Any] | None, reference: Any) -> _Cached:
        try:
            if config is None:
                return _Cached(resolved=open_named(reference, Session(reach=self._reach)))
            opened = open_config(config)
            return _Cached(resolved=ResolvedModel(name="config.json", is_path=True, found=opened))
        except EdgekitError as error:
            error.__cause__ = error.__context__ = None  # they would keep the file's bytes in memory
            return _Cached(failure=error.with_traceback(None))
