"""An order -> a server that stays up until somebody, or the lack of memory, ends it."""

from __future__ import annotations

import argparse
import os
from typing import Any

from edgekit.cli.announcing import say, say_json
from edgekit.cli.listening import read_host, read_plain
from edgekit.cli.llama_starting import Address, Up, started
from edgekit.cli.reach_options import reach_of
from edgekit.cli.running import (
    LLAMACPP,
    DoesNotFitError,
    Notices,
    download_limit,
    judge_order,
    open_downloaded,
    open_order,
    read_order,
    refusal,
    refuse_or_warn,
    weights_of,
)
from edgekit.cli.serve_command import DEFAULT_PORT
from edgekit.engines.llamacpp.run.types import Ended
from edgekit.engines.llamacpp.verify.hollow import ending_in_order
from edgekit.engines.ports import LARGEST_PORT, check_port, is_loopback
from edgekit.errors import EngineError, MemoryPressureError, UsageError
from edgekit.report.run_json import ended_json, ready_json


def serve(arguments: argparse.Namespace) -> tuple[str, int]:
    """Returns when the server has ended; what it was asked to end by is no error."""
    order = read_order(arguments, engines=(LLAMACPP,), settled={})
    at = _address(arguments)
    told = Notices(quiet=arguments.quiet or arguments.json)
    check_port(at.host, at.port)  # before minutes of download and loading
    _check_protected(at, arguments, told)
    try:
        with reach_of(arguments, quiet=told.quiet) as reach:
            confirm = download_limit(arguments)
            order, opened = open_order(order, reach, confirm, told)
            judged = judge_order(order, opened, None)
            refuse_or_warn(judged, told)
            weights = weights_of(order, opened, reach, confirm)
            if order.published:
                judged = judge_order(order, open_downloaded(order, opened, weights), None)
                refuse_or_warn(judged, told)
        threads = read_plain("--threads", arguments.threads, least=1)
        with ending_in_order(), started(judged, weights, at, told, threads=threads) as up:
            return _until_its_end(up, judged.check, arguments, told)
    except DoesNotFitError as error:
        return refusal(error, as_json=arguments.json, in_one_line=True)


def _address(arguments: argparse.Namespace) -> Address:
    port = read_plain("--port", arguments.port, most=LARGEST_PORT)
    return Address(
        host=read_host(arguments.host),
        port=DEFAULT_PORT if port is None else port,
        api_key=(arguments.api_key or os.environ.get("LLAMA_API_KEY") or "").strip() or None,
        alias=arguments.alias or "",
    )


def _check_protected(at: Address, arguments: argparse.Namespace, told: Notices) -> None:
    """UsageError where others could use the server without a key, unless that is what was asked for."""
    if at.api_key is not None or is_loopback(at.host):
        return
    if not arguments.insecure:
        raise UsageError(
            f"on {at.host} anyone on the network could use the server, and one request can use all memory:"
            " give --api-key, or --insecure to serve without a key (docs/run.md)"
        )
    told.warn(f"anyone who can reach {at.host} can use this server without a key (--insecure)")


def _announce(up: Up, check: Any, arguments: argparse.Namespace) -> None:
    running = up.running
    if arguments.json:
        say_json(
            ready_json(
                check,
                address=running.address,
                pid=running.pid,
                version=running.version,
                idle_bytes=None if running.idle is None else running.idle.resident_bytes,
                rows=up.rows,
            )
        )
        return
    say(f"{running.address}  (OpenAI clients: base_url={running.address}/v1)")


def _until_its_end(
    up: Up, check: Any, arguments: argparse.Namespace, told: Notices
) -> tuple[str, int]:
    """Raises EngineError or MemoryPressureError where nobody asked for the end."""
    as_json = arguments.json
    try:
        _announce(up, check, arguments)  # who has read it may ask for the end at once
        ended = up.running.wait()
    except (KeyboardInterrupt, SystemExit) as end:
        told.say("stopping")
        ended = up.running.stop("stopped on request")
        _tell_end(ended, as_json=as_json)
        code = end.code if isinstance(end, SystemExit) else 0
        return "", 0 if code in {0, 128 + 15, None} else int(code or 0)
    if ended is None:
        raise EngineError("llama.cpp neither started nor exited")
    kind = MemoryPressureError if up.watch.starved else EngineError
    why = up.watch.reason or f"{ended.why}: {ended.last_words}"
    if not as_json:
        raise kind(why)
    _tell_end(ended, as_json=True)
    told.warn(why)
    return "", kind.exit_code


def _tell_end(ended: Ended, *, as_json: bool) -> None:
    if as_json:
        say_json(
            ended_json(
                why=ended.why,
                exit_code=ended.exit_code,
                signal=ended.signal,
                last_words=ended.last_words,
            )
        )
