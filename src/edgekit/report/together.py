"""Which models fit at the same time: as text, as JSON, and as configurations of programs that swap models."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeAlias

from edgekit.app.together import numbered
from edgekit.bill.types import Status
from edgekit.engines import engine_named
from edgekit.engines.commands import shell_text
from edgekit.engines.protocol import PRESET_FILE
from edgekit.errors import UsageError, printable
from edgekit.machine.types import HOST, System
from edgekit.report.check import check_json, context_words
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.report.text import (
    PLAIN,
    Memory,
    Screen,
    Section,
    bar_lines,
    budget_names,
    command_lines,
    fitted_table,
    render,
    sizes_words,
)
from edgekit.sources.local import is_here
from edgekit.units import format_bytes, rate_figure

if TYPE_CHECKING:
    from edgekit.app.together import Member, Together
    from edgekit.engines.commands import Command

Servers: TypeAlias = "dict[str, tuple[Member, Command]]"  # by the name for clients
LLAMA_SWAP, ROUTER = "llama-swap", "llama-server-router"
FORMATS = (LLAMA_SWAP, ROUTER)
LOAD_TIMEOUT_S = (
    600  # llama-swap's own limit of two minutes is too short for a large model on a disk
)
IDLE_S = 300  # of a model that runs alone, after which it is unloaded
LOOPBACK = "127.0.0.1"
MOST_COLUMNS = 3  # for memories, in a table


def together_text(
    answer: Together, screen: Screen = PLAIN, *, serve_flags: Sequence[str] | None = None
) -> str:
    """`serve_flags`: those with which `serve` would do the same; None: it has not all of them."""
    names = budget_names(answer.uses)
    memories = [
        Memory(name=name, use=use, whole_bytes=use.budget.free_bytes)
        for name, use in zip(names, answer.uses, strict=True)
    ]
    sections: list[Section] = [
        ("", lambda inner: _table(answer, names, inner.width)),
        ("", lambda inner: bar_lines(memories, inner) if answer.fitting else ()),
        ("To fit", _advice(answer)),
        ("Run", lambda inner: _command_rows(answer, serve_flags, inner)),
        ("Next", _next_steps(answer)),
    ]
    status = answer.status if answer.all_fit else Status.FAILED
    return render(_headline(answer), sections, screen, status=status)


def _headline(answer: Together) -> str:
    """'All 2 models fit your RTX 4090 at the same time, at 32K tokens: 18.6 of 22.5 GiB'."""
    count, fitting = len(answer.members), answer.fitting
    where = answer.machine.name
    place = where if where == "this machine" else f"your {where}"
    if not fitting:
        return f"None of the {count} models fits {place}, not even alone"
    used = max(answer.uses, key=lambda use: (use.fullness, use.required_bytes))
    sizes = sizes_words(used.required_bytes, used.budget.available_bytes)
    sizes += f" of {used.budget.name}" if len(answer.uses) > 1 else ""
    length = ""
    if answer.context_tokens:
        differ = any(member.context_tokens < answer.context_tokens for member in fitting)
        length = f" at {'up to ' if differ else ''}{context_words(answer.context_tokens)}"
    if answer.all_fit:
        barely = ", just" if answer.status is Status.WARNING else ""
        both = "Both" if count == 2 else f"All {count}"
        return f"{both} models fit {place} at the same time{barely}{length}: {sizes}"
    names = _listed(name for name in map(_shown_name, fitting))
    if len(fitting) == 1:
        return f"No two of the {count} models fit {place} at the same time; only {names} is loaded{length}: {sizes}"
    return (
        f"{len(fitting)} of {count} models fit {place} at the same time{length}, {names}: {sizes}"
    )


def _shown_name(member: Member) -> str:
    return printable(
        PurePath(member.reference).name if is_here(member.reference) else member.reference
    )


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _table(answer: Together, memories: list[str], width: int) -> list[str]:
    """A row for each model. Many cards share a column."""
    are_many = len(memories) > MOST_COLUMNS
    ram = [HOST in use.budget.pools for use in answer.uses]
    columns = ["GPUs", *(["RAM"] if any(ram) else [])] if are_many else memories
    rows = []
    for member in answer.members:
        result, sizes = member.check.result, member.bytes_by_memory
        if are_many:
            sums = [0, 0]
            for size, is_ram in zip(sizes, ram, strict=True):
                sums[is_ram] += size
            sizes = tuple(sums[: len(columns)])
        speed = result.typical_speed
        rows.append(
            (
                _shown_name(member),
                result.quantization,
                f"{member.context_tokens:,}",
                *(format_bytes(size) if size else "-" for size in sizes),
                "" if speed is None or not result.can_load else rate_figure(speed),
                _where(member),
            )
        )
    head = ("model", "weights", "context", *columns, "tokens/s", "")
    return fitted_table(head, rows, width, left=(0, 1, len(head) - 1))


def _where(member: Member) -> str:
    if member.fits_with_others:
        return member.check.result.way.because
    return "if it is alone" if member.check.result.can_load else member.why_not


def _advice(answer: Together) -> Iterator[str]:
    """What would have to change for all of them to fit."""
    for member in answer.others:
        if member.check.result.can_load:
            yield f"next to the others {_shown_name(member)} {printable(member.why_not)}"
    if answer.shorter_tokens is not None:
        yield f"all fit with shorter contexts: -c {answer.shorter_tokens}"


def _able(answer: Together) -> list[Member]:
    return [member for member in answer.members if member.check.result.can_load]


def _command_rows(
    answer: Together, serve_flags: Sequence[str] | None, screen: Screen
) -> Iterator[str]:
    """The command that serves them; none if `serve` cannot."""
    able = _able(answer)
    if len(able) < 2 or serve_flags is None or not _can_serve(answer, able):
        return
    words = ["edgekit", "serve", *(member.reference for member in able), *serve_flags]
    yield from command_lines(shlex.join(words), screen.width)


def _next_steps(answer: Together) -> Iterator[str]:
    if len(_able(answer)) < 2:
        return
    if not answer.all_fit:
        yield "edgekit serve loads those that fit; the others are loaded on request and replace them"
    yield "--for llama-swap and --for llama-server-router print this as a configuration file"


def _can_serve(answer: Together, able: Sequence[Member]) -> bool:
    """Whether `serve` can run them: on this machine, with one engine that shares its memory, and from files."""
    (engine, *others) = {member.check.result.engine for member in able}
    return (
        not answer.machine.what_if
        and not others
        and "serve" in engine_named(engine).starts_for
        and engine_named(engine).shares_memory
        and all(member.check.ready and not _is_converted(member) for member in able)
    )


def _is_converted(member: Member) -> bool:
    """Whether the files would first have to be converted."""
    variant = member.check.result.variant
    return is_here(member.reference) and variant is not None and bool(variant.changes)


def together_json(answer: Together) -> Json:
    names = budget_names(answer.uses)
    return {
        "schema": SCHEMA,
        "machine": answer.machine.name,
        **fields(answer, "all_fit context_tokens shorter_tokens most_at_once"),
        "status": answer.status.value,
        "memories": [
            {
                "name": name,
                **fields(use, "required_bytes available_bytes=budget.available_bytes"),
                "status": use.status.value,
            }
            for name, use in zip(names, answer.uses, strict=True)
        ],
        "models": [
            {
                **fields(member, "reference fits_with_others context_tokens"),
                "bytes": dict(zip(names, member.bytes_by_memory, strict=True)),
                "why_not": member.why_not or None,
                "check": check_json(member.check),
            }
            for member in answer.members
        ],
    }


# --- configurations


def configuration(answer: Together, program: str) -> str:
    """The file for this program. Raises UsageError if it cannot be written."""
    servers: Servers = {}
    for member in answer.members:
        ready = member.check.ready
        command = next((one for one in ready if one.served_name is not None), None)
        if command is None or not command.words:
            continue
        steps = ready[: ready.index(command)]
        first = [f"run this once: {one.text}" for one in steps if one.program == command.program]
        command = replace(command, notes=(*first, *command.notes))
        path = PurePath(member.reference)
        name = path.stem if is_here(member.reference) else member.reference
        servers[numbered(name, servers)] = member, command
    if not servers:
        raise UsageError("no model can be loaded here, so there is nothing to configure")
    left_out = [
        _shown_name(member)
        for member in answer.members
        if all(member is not one for one, _ in servers.values())
    ]
    note = f"left out, because it cannot be loaded here: {', '.join(left_out)}"
    notes = [note] if left_out else []
    if program == LLAMA_SWAP:
        return _llama_swap(answer, servers, notes)
    engines = dict.fromkeys(member.check.result.engine for member, _ in servers.values())
    commands = {name: command for name, (_, command) in servers.items()}
    most = min(answer.most_at_once, len(commands))
    text, words = engine_named(next(iter(engines))).router_preset(commands, most)
    if len(engines) > 1:
        raise UsageError(f"the router runs models of one engine, not of {_listed(engines)}")
    environment = next(iter(commands.values())).environment
    begin = [
        f"; save as {PRESET_FILE}, then: {shell_text(words, environment, answer.machine.system)}",
        f"; any {most} of these models fit at the same time"
        if most > 1
        else "; one model at a time",
        *_fewer_words(answer, most),
        "; the router also offers other models in llama.cpp's cache; their memory is not planned here",
        *(f"; {printable(line)}" for line in notes),
    ]
    return "\n".join(begin) + "\n" + text


def _fewer_words(answer: Together, most: int) -> Iterator[str]:
    """What the router could keep without the models that do not fit next to others."""
    if len(answer.fitting) > most:
        names = _listed(map(_shown_name, answer.fitting))
        yield f"; without the other sections --models-max {len(answer.fitting)} keeps all of {names}"


def _yaml(value: str | list[str]) -> str:
    """JSON is YAML, but for its escapes of characters beyond the first 65,536."""
    return json.dumps(value, ensure_ascii=False)


def _llama_swap(answer: Together, servers: Servers, notes: Iterable[str]) -> str:
    """config.yaml of llama-swap (config-schema.json @ 0bdb372)."""
    lines = [
        "# save as config.yaml, then: llama-swap --config config.yaml --listen 127.0.0.1:8080",
        *(f"# {printable(note)}" for note in notes),
        f"healthCheckTimeout: {LOAD_TIMEOUT_S}",
        "models:",
    ]
    is_windows = answer.machine.system is System.WINDOWS
    for name, (member, command) in servers.items():
        words = [*command.words, "--host", LOOPBACK]
        if any("${" in word for word in words):
            raise UsageError(
                f"{name}: llama-swap would read ${{ in its path as a macro: rename the file"
            )
        text = subprocess.list2cmdline(words) if is_windows else shlex.join(words)
        lines.append(f"  {_yaml(name)}:")
        lines += [f"    # {printable(note)}" for note in command.notes]
        lines.append(f"    cmd: {_yaml(text + ' --port ${PORT}')}")
        lines.append(f'    proxy: "http://{LOOPBACK}:${{PORT}}"')
        if command.environment:
            pairs = [f"{key}={value}" for key, value in command.environment.items()]
            lines.append(f"    env: {_yaml(pairs)}")
        if command.served_name:
            lines.append(f"    useModelName: {_yaml(command.served_name)}")
        lines.append(f"    ttl: {0 if member.fits_with_others else IDLE_S}")
    groups = {
        "together": [name for name, (member, _) in servers.items() if member.fits_with_others],
        "alone": [name for name, (member, _) in servers.items() if not member.fits_with_others],
    }
    lines.append("groups:")
    for group, members in groups.items():
        if members:
            swap = "false" if group == "together" else "true"
            lines += [f"  {group}:", f"    swap: {swap}", "    exclusive: true", "    members:"]
            lines += [f"      - {_yaml(name)}" for name in members]
    return "\n".join(lines) + "\n"
