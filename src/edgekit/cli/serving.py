"""A request -> a server that stays up until it is stopped, by a signal or for lack of memory."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from edgekit.app import run
from edgekit.cli.listening import read_host, read_plain
from edgekit.cli.output import say, say_json
from edgekit.cli.reach_options import reach_of
from edgekit.cli.run_requests import StderrNotices, download_limit, read_request, refusal
from edgekit.engines.ports import LARGEST_PORT, check_port, is_loopback
from edgekit.engines.process import ending_in_order
from edgekit.engines.program import Address, Ended
from edgekit.errors import EngineError, MemoryPressureError, UsageError
from edgekit.report.run_json import ended_json, ready_json
from edgekit.request import Session

if TYPE_CHECKING:
    from edgekit.app.answers import Check
    from edgekit.engines.program import Server, Up


def serve(arguments: argparse.Namespace, *, default_port: int) -> tuple[str, int]:
    """Returns when the server has ended; an end that was asked for is not an error."""
    reference, request = read_request(arguments, "serve")
    port = read_plain("--port", arguments.port, most=LARGEST_PORT)
    at = Address(
        host=read_host(arguments.host),
        port=default_port if port is None else port,
        api_key=(arguments.api_key or os.environ.get("LLAMA_API_KEY") or "").strip() or None,
        alias=arguments.alias or "",
    )
    notices = StderrNotices(quiet=arguments.quiet or arguments.json)
    check_port(at.host, at.port)  # before minutes of download and loading
    _check_protected(at, arguments, notices)
    try:
        with reach_of(arguments, quiet=notices.quiet) as reach:
            session = Session(reach=reach, confirm=download_limit(arguments), notify=notices.show)
            judged, weights = run.fetch(reference, request, session)
        with ending_in_order(), run.serve(judged, weights, session, at) as up:
            return _until_its_end(up, judged.check, arguments, notices)
    except run.DoesNotFitError as error:
        return refusal(error, as_json=arguments.json, in_one_line=True)


def _check_protected(at: Address, arguments: argparse.Namespace, notices: StderrNotices) -> None:
    """UsageError where others could use the server without a key, unless that is what was asked for."""
    if at.api_key is not None or is_loopback(at.host):
        return
    if not arguments.insecure:
        raise UsageError(
            f"on {at.host} anyone on the network could use the server, and one request can use all memory:"
            " give --api-key, or --insecure to serve without a key (docs/run.md)"
        )
    notices.warn(f"anyone who can reach {at.host} can use this server without a key (--insecure)")


def _announce(up: Up, server: Server, check: Check, arguments: argparse.Namespace) -> None:
    if arguments.json:
        say_json(
            ready_json(
                check,
                address=server.address,
                pid=server.pid,
                version=up.version,
                idle_bytes=None if server.idle is None else server.idle.resident_bytes,
                rows=up.rows,
            )
        )
        return
    say(f"{server.address}  (OpenAI clients: base_url={server.address}/v1)")


def _until_its_end(
    up: Up, check: Check, arguments: argparse.Namespace, notices: StderrNotices
) -> tuple[str, int]:
    """Raises EngineError or MemoryPressureError where the end was not asked for."""
    server, guard = up.server, up.guard
    if server is None or guard is None:
        raise TypeError("this engine does not serve")
    as_json = arguments.json
    try:
        _announce(up, server, check, arguments)  # its reader may ask for the end at once
        ended = server.wait()
    except (KeyboardInterrupt, SystemExit) as end:
        notices.say("stopping")
        ended = server.stop("stopped on request")
        _tell_end(ended, as_json=as_json)
        code = end.code if isinstance(end, SystemExit) else 0
        return "", 0 if code in {0, 128 + 15, None} else int(code or 0)
    if ended is None:
        raise EngineError("llama.cpp neither started nor exited")
    kind = MemoryPressureError if guard.starved else EngineError
    why = guard.reason or f"{ended.why}: {ended.last_words}"
    if not as_json:
        raise kind(why)
    _tell_end(ended, as_json=True)
    notices.warn(why)
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
