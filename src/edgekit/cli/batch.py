"""`edgekit estimate --batch FILE`: one JSON answer for each JSON row, in order, as they come.

A row that cannot be answered gives its reason; nothing in a row stops the batch.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from edgekit.cli.batch_models import BatchModels
from edgekit.engines import engine_named, engine_names
from edgekit.engines.quant_names import options_with_quant
from edgekit.engines.row_options import RowOptions, context_option, did_you_mean
from edgekit.errors import EdgekitError, HeaderLimitError, NotFoundError, UsageError
from edgekit.formats import limits
from edgekit.report.bill_json import answer_json
from edgekit.request import Request
from edgekit.sources.types import Reach

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
