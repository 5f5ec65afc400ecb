"""`serve`: start the engine and the gateway in front of it, and serve until the end."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.app import run
from edgekit.app.run import DoesNotFitError, Judged
from edgekit.cli import warn
from edgekit.cli.console import open_session, print_event, print_line
from edgekit.cli.flags import SERVE_PORT, read_host, read_integer
from edgekit.cli.launch import (
    StderrNotices,
    download_limit,
    read_request,
    refusal,
    stop_code,
)
from edgekit.cli.serve_several import serve_several
from edgekit.engines.backoff import STEADY_S, Backoff
from edgekit.engines.ports import LARGEST_PORT, check_port, is_loopback
from edgekit.engines.process import ON_REQUEST, ending_in_order, family_resident_bytes
from edgekit.engines.program import Address, LocalWeights, RunningEngine, Server, why_ended
from edgekit.errors import (
    EdgekitError,
    EngineError,
    MemoryPressureError,
    MissingExtraError,
    UsageError,
)
from edgekit.report.run import ended_json, ready_json, restarting_json, stopped_json
from edgekit.report.text import with_count
from edgekit.server import needs_extra

if TYPE_CHECKING:
    from edgekit.gateway.models import OneModel
    from edgekit.gateway.server import GatewayServer
    from edgekit.gateway.types import GatewaySettings

_RESTART = re.compile(r"(no)|on-failure(?::([1-9]\d{0,5}))?")


def run_serve(arguments: argparse.Namespace) -> tuple[str, int]:
    """Serve until the server ends. Stopping it with Ctrl-C or SIGTERM is not an error."""
    address = _address(arguments)
    restarts = _restarts(arguments.restart)
    notices = StderrNotices(quiet=arguments.quiet or arguments.json)
    try:
        if len(arguments.models) > 1:
            return serve_several(arguments, lambda: _settings(arguments, address), notices)
        (model,) = arguments.models
        confirm = download_limit(arguments, arguments.models)
        with open_session(
            arguments, quiet=notices.quiet, confirm=confirm, notify=notices.show
        ) as session:
            reference, request, chosen = read_request(model, arguments, "serve", session)
            notices.show_choice(chosen)
            judged, weights = run.fetch(reference, request, chosen, session)
        with ending_in_order(), _front(arguments, address, judged, weights) as front:
            serving = _Serving(
                judged=judged,
                weights=weights,
                front=front,
                notices=notices,
                as_json=arguments.json,
            )
            return serving.until_end(restarts)
    except DoesNotFitError as error:
        return refusal(error, as_json=arguments.json, in_one_line=True, budget=arguments.budget)


def _address(arguments: argparse.Namespace) -> Address:
    """Where clients connect to. Raises UsageError for a server that anyone on the network could use."""
    port = read_integer("--port", arguments.port, most=LARGEST_PORT)
    if arguments.api_key is not None and not arguments.api_key.strip():
        raise UsageError("--api-key is empty: give a key, or leave it out")
    address = Address(
        host=read_host(arguments.host),
        port=SERVE_PORT if port is None else port,
        api_key=(arguments.api_key or os.environ.get("LLAMA_API_KEY") or "").strip() or None,
        alias=arguments.alias or "",
    )
    check_port(address.host, address.port)  # before minutes of download and loading
    if address.api_key is None and not is_loopback(address.host):
        if not arguments.insecure:
            raise UsageError(
                f"on {address.host} anyone on the network could use the server: give --api-key, or --insecure to serve"
                " without a key (docs/run.md)"
            )
        warn(f"anyone who can reach {address.host} can use this server without a key (--insecure)")
    return address


def _restarts(policy: str | None) -> int | None:
    """How often the engine is started again; None: always. Raises UsageError."""
    match = _RESTART.fullmatch(policy or "no")
    if match is None:
        raise UsageError(f"--restart {policy}: give no, on-failure, or on-failure:5")
    if match[1]:
        return 0
    return None if match[2] is None else int(match[2])


# --- what clients connect to


@dataclass(slots=True, kw_only=True)
class _Front:
    """The gateway, or the engine's own server."""

    engine_at: Address  # where the engine listens
    gateway: GatewayServer | None = None
    model: OneModel | None = None
    pid: int = 0
    problem: str = ""
    was_up: bool = False

    def ready(self, running: RunningEngine, server: Server) -> str:
        """The engine is ready. Returns the address for clients."""
        self.pid, self.was_up = server.pid, True
        if self.gateway is None or self.model is None:
            return server.address

        from edgekit.gateway.engines import upstream_of

        self.model.upstream = upstream_of(running, server, self.engine_at)
        self.problem = ""
        return self.gateway.address

    def gone(self, problem: str) -> None:
        """The engine has ended."""
        self.problem, self.pid = problem, 0

    def resident_bytes(self) -> int | None:
        """The resident memory of the engine."""
        return family_resident_bytes(self.pid) if self.pid else None


@contextmanager
def _front(
    arguments: argparse.Namespace, address: Address, judged: Judged, weights: LocalWeights
) -> Iterator[_Front]:
    """Starts the gateway, which answers 503 until the engine is ready."""
    program = judged.chosen.program
    needs_gateway = bool(
        arguments.allow_host
        or arguments.allow_origin
        or (address.api_key is not None and not program.has_keys)
    )
    if arguments.no_gateway:
        if needs_gateway:
            raise UsageError(
                f"--no-gateway: {program.name} has no keys and no lists of hosts and origins of its own; leave it out"
            )
        yield _Front(engine_at=address)
        return
    try:
        with needs_extra("serve", "the server"):
            from edgekit.gateway.engines import engine_address
            from edgekit.gateway.models import OneModel
            from edgekit.gateway.server import GatewayServer
    except MissingExtraError as error:
        if needs_gateway:
            raise
        warn(f"requests, hosts and origins are not checked: {error}")
        yield _Front(engine_at=address)
        return
    name = address.alias or judged.check.bill.label
    front = _Front(engine_at=engine_address(program, name))
    limits = program.request_limits(judged.check.result, weights)
    front.model = OneModel(name=name, request_limits=limits, problem=lambda: front.problem)
    settings = _settings(arguments, address)
    with GatewayServer(settings, front.model, memory_bytes=front.resident_bytes) as front.gateway:
        yield front


def _settings(arguments: argparse.Namespace, address: Address) -> GatewaySettings:
    from edgekit.gateway.types import GatewaySettings

    return GatewaySettings(
        host=address.host,
        port=address.port,
        api_keys=() if address.api_key is None else (address.api_key,),
        allowed_hosts=tuple(arguments.allow_host or ()),
        allowed_origins=tuple(arguments.allow_origin or ()),
    )


# --- the engine, until the end


@dataclass(frozen=True, slots=True, kw_only=True)
class _Serving:
    judged: Judged
    weights: LocalWeights
    front: _Front
    notices: StderrNotices
    as_json: bool

    def until_end(self, restarts: int | None) -> tuple[str, int]:
        """Starts the engine, and starts it again when it dies, up to `restarts` times (None: always).

        Raises EngineError or MemoryPressureError if it ends by itself.
        """
        try:
            return self._lives(restarts)
        except (KeyboardInterrupt, SystemExit) as stop:
            if not self.front.was_up:
                raise
            if self.as_json:
                print_event(stopped_json())
            return "", stop_code(stop)

    def _lives(self, restarts: int | None) -> tuple[str, int]:
        backoff = Backoff()
        while True:
            try:
                return self._once()
            except _DiedError as died:
                if died.uptime_s > STEADY_S:
                    backoff = Backoff()
                wait_s = backoff.next_pause_s()
                if restarts is not None and backoff.failures > restarts:
                    used = (
                        f"; restarted {with_count(restarts, 'time')}, not again" if restarts else ""
                    )
                    return self._failed(died, f"{died}{used}")
                self._pause(str(died), wait_s)
            except (EngineError, MemoryPressureError, DoesNotFitError) as error:
                # A first start that fails would fail again; a later one may find more memory.
                count = backoff.failures
                if not count or (restarts is not None and count >= restarts):
                    raise
                self._pause(str(error), backoff.next_pause_s())

    def _once(self) -> tuple[str, int]:
        """One life of the engine, until a signal ends it. Raises _DiedError if it ends by itself."""
        with ExitStack() as stack:
            running = stack.enter_context(
                run.serve(self.judged, self.weights, self.front.engine_at)
            )
            server, guard = running.server, running.guard
            if server is None or guard is None:
                raise TypeError("this engine does not serve")
            ready_s = time.monotonic()
            try:
                address = self.front.ready(running, server)
                if self.as_json:  # inside the try: a reader of the JSON may stop the server at once
                    print_event(ready_json(self.judged.check, running, server, address))
                else:
                    print_line(f"{address}  (OpenAI clients: base_url={address}/v1)")
                ended = server.wait()
            except (KeyboardInterrupt, SystemExit) as stop:
                self.notices.say("stopping")
                self.front.gone("the server is stopping")
                ended = server.stop(ON_REQUEST)
                if self.as_json:
                    print_event(ended_json(ended))
                return "", stop_code(stop)
            if ended is None:
                raise EngineError("the engine neither started nor exited")
            why = why_ended(ended, guard)
            self.front.gone(guard.reason or ended.why)  # without the log, which is not for clients
            if self.as_json:
                print_event(ended_json(ended))
            raise _DiedError(
                why,
                MemoryPressureError if guard.starved else EngineError,
                uptime_s=time.monotonic() - ready_s,
            )

    def _failed(self, died: _DiedError, why: str) -> tuple[str, int]:
        """The exit code of an engine that is not started again. Its end has been printed as JSON."""
        if not self.as_json:
            raise died.kind(why)
        warn(why)
        return "", died.kind.exit_code

    def _pause(self, why: str, wait_s: float) -> None:
        self.front.gone("the engine is starting again")
        warn(f"{why}; starting it again in {wait_s:g} s (--restart)")
        if self.as_json:
            print_event(restarting_json(why, wait_s))
        time.sleep(wait_s)


class _DiedError(EdgekitError):
    """An engine that was ready has died."""

    def __init__(
        self, why: str, kind: type[EngineError | MemoryPressureError], *, uptime_s: float
    ) -> None:
        super().__init__(why)
        self.kind, self.uptime_s = kind, uptime_s
