"""`edgekit estimate --batch FILE`: one JSON answer for each JSON row, in order, as they come.

A row that cannot be answered gives its reason; nothing in a row stops the batch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from edgekit.app.estimate import assume, estimate
from edgekit.app.open import ResolvedModel, open_named, quantised
from edgekit.catalog.types import Catalog
from edgekit.cli.options import (
    has_flags,
    reach_of,
    screen,
)
from edgekit.engines import engine_named, engine_names
from edgekit.engines.options import RowOptions, context_option, did_you_mean, options_with_quant
from edgekit.errors import EdgekitError, HeaderLimitError, NotFoundError, UsageError
from edgekit.formats import limits
from edgekit.model.open import open_config
from edgekit.model.types import Model
from edgekit.report.bill import answer_json, bill_json, bill_text, explain_text, layers_table
from edgekit.report.json import json_text
from edgekit.request import Request, Session
from edgekit.sources.types import Reach

if TYPE_CHECKING:
    from edgekit.app.answers import EstimateAnswer


_KEYS = ("id", "model", "config", "engine", "backend", "quant", "options")
ROW_BYTES = limits.CONFIG_BYTES  # a row may hold a config.json: 0.1 MB in the largest real one


def run_batch(path: str, reach: Reach) -> None:
    """Answer every row of the file. Ends early where nobody reads on: the last to write tells why."""
    models = BatchModels(reach)
    with _open(path) as source:
        for line in _lines(source):
            try:
                _print(answer_line(line, models))
            except OSError:
                return


def answer_line(line: bytes | None, models: BatchModels) -> str:
    """The answer to a line of the file; None stands for one that is too long to be read."""
    echo: dict[str, Any] = {}
    try:
        row = _row(line)
        echo = _echo(row)
        return _text(echo | _answer(row, models))
    except EdgekitError as error:
        return _text(echo | {"error": str(error), "type": type(error).__name__})
    except Exception as error:  # noqa: BLE001 - a fault of ours in one row must not cost the others theirs
        told = f"{type(error).__name__}: {error}"[:1000]
        return _text(echo | {"error": told, "type": "InternalError"})


def _answer(row: Mapping[str, Any], models: BatchModels) -> dict[str, Any]:
    request = Request.from_row(row)
    _check_keys(row, request.engine)
    name, model, quant = models.of_row(row, request.engine, request.quant)
    engine = engine_named(name)
    read = RowOptions(options_with_quant(name, request.options or {}, quant))
    load, setup = engine.read_row(read, request.backend)
    read.require_known(name)
    answer = answer_json(engine.estimate(model, load, setup))
    return answer | ({"ignored": read.ignored} if read.ignored else {})


def _check_keys(row: Mapping[str, Any], engine: str | None) -> None:
    """UsageError for a key that a row does not have: it would be answered as if nothing had been asked."""
    unknown = next((str(name)[:60] for name in row if name not in _KEYS), None)
    if unknown is None:
        return
    wanted = engine or engine_names()[0]
    near = did_you_mean(unknown, _KEYS, wanted)
    if context_option(wanted) in near:
        near = f": the context is an option, {context_option(wanted)}"
    keys = ", ".join(_KEYS)
    raise UsageError(f"a row has no key {unknown!r}{near or f' (known keys: {keys})'}")


def _row(line: bytes | None) -> Mapping[str, Any]:
    """Counted before anything is built, like a config.json."""
    if line is None:
        raise UsageError(f"a row longer than {ROW_BYTES:,} bytes")
    for what, count, limit in (
        ("lists and objects", line.count(b"[") + line.count(b"{"), limits.CONFIG_CONTAINERS),
        ("values", line.count(b","), limits.CONFIG_VALUES),
    ):
        if count > limit:
            raise HeaderLimitError(what, value=count, limit=limit, file="row")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the row is not valid JSON: {error}"[:300]) from error
    if not isinstance(row, dict):
        raise UsageError(f"the row is a {type(row).__name__}, not an object")
    return row


def _echo(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row's own name for itself, so that answers can be told apart."""
    name = row.get("id")
    plain = isinstance(name, str | int) or (isinstance(name, float) and math.isfinite(name))
    return {"id": name} if plain else {}


def _text(answer: Mapping[str, Any]) -> str:
    return json.dumps(answer, separators=(",", ":"), allow_nan=False)


@contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed")
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115, PTH123 - closed below; pathlib has no more to say
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NotFoundError(f"{path} cannot be read: {reason}") from error
    with file:
        yield file


def _lines(source: BinaryIO) -> Iterator[bytes | None]:
    """Lines that are not blank; None for one that is too long, of which the rest is skipped."""
    while line := source.readline(ROW_BYTES + 1):
        if len(line) > ROW_BYTES and not line.endswith(b"\n"):
            while (more := source.readline(ROW_BYTES)) and not more.endswith(b"\n"):
                pass
            yield None
        elif line.strip():
            yield line


def _print(line: str) -> None:
    if sys.stdout is not None:  # it was closed before we started
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


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


def run_estimate(arguments: argparse.Namespace) -> str:
    """The answer as text; a batch writes its own as it goes."""
    if arguments.batch is not None:
        return _run_batch(arguments)
    if arguments.model is None:
        raise UsageError("give a MODEL, or --batch FILE")

    request = Request.from_argv(arguments, one_engine=True)
    if arguments.assume:
        return _render(assume(arguments.model, request), arguments)
    with reach_of(arguments, quiet=arguments.json) as reach:
        bill = estimate(arguments.model, request, Session(reach=reach))
    return _render(bill, arguments)


def _run_batch(arguments: argparse.Namespace) -> str:

    if arguments.model is not None or has_flags(arguments):
        raise UsageError(
            "--batch takes model, engine and options from its rows, not from the command line"
        )
    with reach_of(arguments, quiet=True) as reach:
        run_batch(arguments.batch, reach)
    return ""


def _render(bill: EstimateAnswer, arguments: argparse.Namespace) -> str:
    if arguments.json:
        return json_text(bill_json(bill, layers=arguments.per_layer))
    return _render_text(bill, arguments)


def _render_text(bill: EstimateAnswer, arguments: argparse.Namespace) -> str:

    parts = [bill_text(bill, screen())]
    if arguments.explain:
        parts.append(explain_text(bill))
    if arguments.per_layer:
        parts.append(layers_table(bill))
    return "\n".join(parts)
