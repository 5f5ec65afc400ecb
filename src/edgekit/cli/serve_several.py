"""`serve MODEL MODEL`: models that share the memory, each loaded on request."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from edgekit.app import run
from edgekit.app.run import Compared, DoesNotFitError, Judged, Starting
from edgekit.app.together import Member, Together, judge_together, numbered
from edgekit.cli.console import open_session, print_event, print_line
from edgekit.cli.launch import StderrNotices, download_limit, read_request, stop_code
from edgekit.engines.flags import CONTEXT, read_flags
from edgekit.engines.process import ending_in_order, family_resident_bytes
from edgekit.engines.program import LocalWeights, RunOptions
from edgekit.errors import UsageError
from edgekit.report.run import several_json, stopped_json
from edgekit.request import Request, Session
from edgekit.server import needs_extra

if TYPE_CHECKING:
    from edgekit.app.programs import ChosenProgram
    from edgekit.bill.types import Verdict
    from edgekit.gateway.swap import ModelEntry
    from edgekit.gateway.types import GatewaySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeveralNotices(StderrNotices):
    """One line for each start of an engine, with the model's name."""

    def show(self, event: object) -> None:
        match event:
            case Starting(check):
                self.say(f"{check.bill.label}: loading")
            case Compared(_, running, "") if not any(row.difference_bytes for row in running.rows):
                self.say(f"{running.model}: ready, with the memory that was predicted")
            case _:
                StderrNotices.show(self, event)


def serve_several(
    arguments: argparse.Namespace,
    settings_of: Callable[[], GatewaySettings],
    notices: StderrNotices,
) -> tuple[str, int]:
    """Serve models until a signal ends it. What does not fit next to the others is swapped.

    Raises DoesNotFitError for a model that does not even fit alone.
    """
    if arguments.no_gateway or arguments.alias or arguments.restart or arguments.force:
        raise UsageError(
            "--no-gateway, --alias, --restart and --force are for a single model: leave them out"
        )
    with needs_extra("serve", "serving several models"):
        from edgekit.gateway.server import GatewayServer
        from edgekit.gateway.swap import SwappingModels
    notices = _SeveralNotices(quiet=notices.quiet)
    confirm = download_limit(arguments, arguments.models)
    with open_session(
        arguments, quiet=notices.quiet, confirm=confirm, notify=notices.show
    ) as session:
        together, planned = _plan(arguments, session)
        for member in together.members:
            notices.say(_member_text(member, all_fit=together.all_fit))
        entries: list[ModelEntry] = []
        results: dict[str, Verdict] = {}
        for model in planned:
            notices.show_choice(model.chosen)
            judged, weights = run.fetch(model.reference, model.request, model.chosen, session)
            name = numbered(judged.check.bill.label, results)
            results[name] = judged.check.result
            entries.append(_entry(name, model, judged, weights))

    @cache
    def fits(names: frozenset[str]) -> bool:
        return together.memory.holds([results[name] for name in names])

    models = SwappingModels(entries, fits)
    code = 0
    with ending_in_order(), closing(models):
        with GatewayServer(
            settings_of(), models, memory_bytes=lambda: _resident_sum(models.pids())
        ) as gateway:
            try:
                if arguments.json:
                    names = [entry.name for entry in entries]
                    print_event(several_json(together, gateway.address, names))
                else:
                    print_line(
                        f"{gateway.address}  (OpenAI clients: base_url={gateway.address}/v1)"
                    )
                threading.Event().wait()
            except (KeyboardInterrupt, SystemExit) as stop:
                notices.say("stopping")
                code = stop_code(stop)
        models.close()
    if arguments.json:
        print_event(stopped_json())
    return "", code


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """One of the models, with the settings that were planned for it."""

    reference: str
    request: Request
    chosen: ChosenProgram
    member: Member


def _plan(arguments: argparse.Namespace, session: Session) -> tuple[Together, list[_Planned]]:
    """Which of the models stay loaded at the same time, and the settings of each.

    Raises DoesNotFitError for a model that does not even fit alone.
    """
    read = [read_request(model, arguments, "serve", session) for model in arguments.models]
    for _, _, chosen in read:
        if not chosen.shares_memory:
            raise UsageError(f"{chosen.engine.name} takes a whole GPU for itself: serve it alone")
        if chosen.engine is not read[0][2].engine:
            both = f"{read[0][2].engine.name} and {chosen.engine.name}"
            raise UsageError(f"models of {both} cannot share one server: serve them separately")
    _, first, chosen = read[0]
    common = replace(first, machine=run.machine_for(first, chosen), budget_bytes=None, context=None)
    contexts = () if first.context is None else (first.context,)
    names = [reference for reference, _, _ in read]
    together = judge_together(names, common, session, contexts=contexts)
    planned = []
    for (reference, request, chosen), member in zip(read, together.members, strict=True):
        verdict, engine = member.check.result, chosen.engine
        if not verdict.can_load:
            raise DoesNotFitError(member.check)
        given = request.flags.get(engine.name, {})
        # the limits on what grows hold for flags of the user too
        settled = engine.settle(verdict, given) | engine.settle(verdict, {})
        if not member.fits_with_others:  # its settings are those of a model that is alone
            saving = chosen.program.flags_for(RunOptions(saves=True), chosen.installation)
            settled |= read_flags(engine.flags, saving)
        context = settled.pop(CONTEXT.key, None)
        pinned = request.with_flags(engine.name, settled)
        pinned = replace(pinned, context=context, keep_spare=True)
        planned.append(_Planned(reference=reference, request=pinned, chosen=chosen, member=member))
    return together, planned


def _entry(name: str, planned: _Planned, judged: Judged, weights: LocalWeights) -> ModelEntry:
    """The model as the gateway loads it."""
    from edgekit.gateway.engines import checker, starter
    from edgekit.gateway.swap import ModelEntry

    return ModelEntry(
        name=name,
        start=starter(judged, weights, name),
        check=checker(weights),
        limits=planned.chosen.program.request_limits(judged.check.result, weights),
        created_s=int(time.time()),
        preload=planned.member.fits_with_others,
    )


def _member_text(member: Member, *, all_fit: bool) -> str:
    """'gemma-3-4b: 32,768 tokens, stays loaded'."""
    when = (
        "stays loaded" if all_fit else "loaded at the start, and replaced if another is requested"
    )
    if not member.fits_with_others:
        when = "loaded on request, replacing other models"
    return f"{member.check.bill.label}: {member.context_tokens:,} tokens, {when}"


def _resident_sum(pids: Sequence[int]) -> int:
    return sum(family_resident_bytes(pid) or 0 for pid in pids)
