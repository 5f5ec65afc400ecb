"""`share`: the answer of `check` as an HTML file, a picture and a badge that can be sent to somebody."""

from __future__ import annotations

import argparse
import errno
import os
import re
import secrets
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from edgekit.app.check import Check, Unanswered, check
from edgekit.cli.check import download_confirmation
from edgekit.cli.console import open_session
from edgekit.engines import engine_named
from edgekit.engines.flags import COMMON, CONTEXT, QUANT, flag_words, given_flags
from edgekit.errors import OutputError, UsageError, printable
from edgekit.machine.devices import device_like
from edgekit.machine.processors import processor_like
from edgekit.machine.types import Machine
from edgekit.report.json import SCHEMA, json_text
from edgekit.report.machine_label import ram_gb
from edgekit.report.picture import badge_svg, picture_svg, read_theme
from edgekit.report.share_page import Reproduction, share_html
from edgekit.report.shared_answer import SharedAnswer, shared_answer, today, without_folders
from edgekit.request import Request
from edgekit.sources.local import is_here, path_of_flag

STDOUT = "-"
MOST_NAME_CHARS = 80  # of a default file name
SAME_MACHINE = (
    "this machine by the names of its parts; the answer was for what was free on it at the time"
)
OWN_FILE = "the model is a local file: name the folder in which you have it"
_MACHINE = ("device", "ram", "vram", "cpu")
# Fields of REST with the flag of check, in the order in which they are written.
_ASKED = {
    "max_use": "--max-use",
    "reserve": "--reserve",
    "users": "--users",
    "min_context": "--min-context",
    "min_speed": "--min-speed",
    "job": "--job",
    "prompt_tokens": "--prompt",
    "window_budget": "--window-budget",
    "engine": "--engine",
}


def run_share(arguments: argparse.Namespace) -> tuple[str, int]:
    """Write the files. Returns what to print: the names of the files, or the HTML file itself for `-o -`."""
    request = Request.from_argv(arguments, one_engine=False)
    if len(request.engines) > 1:
        raise UsageError("share writes the answer of one engine: name it with --engine")
    theme = read_theme(arguments.theme or "light")
    if arguments.theme and arguments.picture is None:
        raise UsageError("--theme is for --picture: the HTML file has both themes")
    is_stdout = arguments.output == STDOUT
    if is_stdout and arguments.json:
        raise UsageError("-o - and --json both write to standard output: give one of them")
    targets = {
        name: path_of_flag(text, flag)
        for name, flag, text in (
            ("html", "-o", None if is_stdout else arguments.output),
            ("badge", "--badge", arguments.badge),
            ("picture", "--picture", arguments.picture),
        )
        if text is not None
    }
    _check_targets(targets, force=arguments.force)  # before the model is read, which may take long
    confirm = download_confirmation(arguments)
    is_quiet = arguments.json or is_stdout
    with open_session(arguments, quiet=is_quiet, confirm=confirm) as session:
        answer = check(arguments.model, request, session)[0]
    if isinstance(answer, Unanswered):
        raise answer.error
    shared = shared_answer(answer, today())
    contents = {"badge": badge_svg(shared), "picture": picture_svg(shared, theme)}
    if not is_stdout and "html" not in targets:
        targets = {"html": Path(default_name(shared)), **targets}
        _check_targets(targets, force=arguments.force)
    clean = partial(without_folders, folders=local_folders(arguments, answer))
    reproduction = reproduction_of(arguments, answer)
    contents["html"] = share_html(answer, shared, reproduction, clean=clean)
    for name, target in targets.items():
        write_file(target, contents[name], force=arguments.force)
    if is_stdout:
        return contents["html"], 0
    if arguments.json:
        return json_text(_written_json(targets, shared, answer, reproduction)), 0
    lines = [f"{shared.sentence}\n"]
    lines += [f"wrote {printable(str(target))}" for target in targets.values()]
    return "\n".join(lines) + "\n", 0


def _written_json(
    targets: Mapping[str, Path], shared: SharedAnswer, answer: Check, reproduction: Reproduction
) -> dict[str, Any]:
    files = {
        name: str(targets[name]) if name in targets else None
        for name in ("html", "picture", "badge")
    }
    return {
        "schema": SCHEMA,
        "files": files,
        "title": shared.title,
        "headline": shared.sentence,
        "status": answer.result.status.value,
        "can_load": answer.result.can_load,
        "command": reproduction.command,
        "path": reproduction.path,
    }


# -- files ----------------------------------------------------------------------------------------


def default_name(shared: SharedAnswer) -> str:
    """'gemma-3-27b-rtx-4090.html'."""
    plain = re.sub(r"[^\w.]+", "-", f"{shared.title} {shared.hardware}".lower())
    return f"{plain.strip('-._')[:MOST_NAME_CHARS].rstrip('-._') or 'answer'}.html"


def _check_targets(targets: Mapping[str, Path], *, force: bool) -> None:
    """Before anything is written. Raises UsageError for a file that exists, and for one that is named twice.

    Raises OutputError for a file that cannot be written, as far as that can be told.
    """
    for target in targets.values():
        try:
            _check_target(target, force=force)
        except OSError as error:  # a name that is too long, a folder that may not be entered
            raise _unwritable(target, error) from error
    # Without case: some file systems ignore it.
    places = {(target.parent.resolve(), target.name.casefold()) for target in targets.values()}
    if len(places) < len(targets):
        raise UsageError("-o, --badge and --picture must name different files")


def _check_target(target: Path, *, force: bool) -> None:
    """Raises UsageError or OSError if the file may not, or cannot, be written."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISREG(mode):  # a rename would replace /dev/null
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise UsageError(f"{target} is {kind}: name a file, or - for standard output")
    if not force and os.path.lexists(target):
        raise _exists(target)
    folder = target.parent
    if not stat.S_ISDIR(folder.stat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _unwritable(target: Path, error: OSError) -> OutputError:
    return OutputError(f"{target} cannot be written: {error.strerror or error}")


def _exists(target: Path) -> UsageError:
    return UsageError(f"{target} exists: add --force to overwrite it, or name another file with -o")


def write_file(target: Path, text: str, *, force: bool) -> None:
    """Write the whole file or nothing. Without `force`, an existing file is never replaced.

    Raises UsageError if it exists, and OutputError if it cannot be written.
    """
    part = target.with_name(f".{target.name[:MOST_NAME_CHARS]}.{secrets.token_hex(4)}.part")
    try:
        part.write_bytes(text.encode())
        if force:
            part.replace(target)
            return
        try:
            target.hardlink_to(part)  # fails if the file exists, unlike a rename
        except FileExistsError:
            raise _exists(target) from None
        except OSError:  # a file system without links
            with target.open("xb") as file:
                file.write(text.encode())
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


# -- the same answer elsewhere --------------------------------------------------------------------


def reproduction_of(arguments: argparse.Namespace, answer: Check) -> Reproduction:
    """The command and the page's address that ask the same, on any machine."""
    machine, notes = answer.result.machine, []
    fields: dict[str, Any] = {name: getattr(arguments, name) for name in _MACHINE}
    fields = {name: value for name, value in fields.items() if value}
    if not machine.what_if:
        fields = described(machine)
        notes.append(SAME_MACHINE)
    model = arguments.model
    if is_here(model):
        model = file_name(model)
        if model.startswith("-"):  # would be read as a flag
            model = f"./{model}"
        notes.append(OWN_FILE)
    words = ["edgekit", "check", model]
    for name, value in fields.items():
        for item in value if isinstance(value, list) else [value]:
            words += [f"--{name}", item]
    for name, flag in _ASKED.items():
        value = getattr(arguments, name)
        if value is not None:
            words += [flag, value]
            fields[name] = value
    for owner, values in given_flags(arguments).items():
        flags = (CONTEXT, QUANT) if owner == COMMON else engine_named(owner).flags
        words += flag_words(flags, values, ours=True)
        companions = {flag.key for flag in flags if flag.companion}
        fields |= {
            key: str(value).lower() if isinstance(value, bool) else value
            for key, value in values.items()
            if key not in companions
        }
    if arguments.acceptance is not None:
        words += ["--acceptance", arguments.acceptance]
    query = urlencode({"ref": model, **fields}, doseq=True)
    return Reproduction(command=shlex.join(words), path=f"/model?{query}", notes=tuple(notes))


def described(machine: Machine) -> dict[str, Any]:
    """The machine as the fields device, ram, vram and cpu, with the names that EdgeKit knows."""
    known = [
        device_like(device.name, memory_bytes=device.total_bytes) for device in machine.devices
    ]
    names = [device.name for device in known if device is not None]
    fields: dict[str, Any] = {}
    if machine.devices and len(names) == len(known):
        fields["device"] = [
            f"{names.count(name)}x {name}" if names.count(name) > 1 else name
            for name in dict.fromkeys(names)
        ]
    elif machine.devices:
        fields["vram"] = ",".join(f"{ram_gb(device.total_bytes)}G" for device in machine.devices)
    if machine.host is not None and not any(device.unified for device in machine.devices):
        fields["ram"] = f"{ram_gb(machine.host.total_bytes)}G"
        processor = processor_like(machine.processor)
        if processor is not None:
            fields["cpu"] = processor.name
    return fields


# -- local paths ----------------------------------------------------------------------------------


def file_name(reference: str) -> str:
    """The last part of a local path."""
    return Path(reference).expanduser().resolve().name or "model.gguf"


def local_folders(arguments: argparse.Namespace, answer: Check) -> list[str]:
    """The folders of the model and of the files that flags name, in every spelling; the home and the current folder."""
    references = [arguments.model, answer.bill.reference]
    for owner, values in given_flags(arguments).items():
        if owner != COMMON:
            keys = {flag.key for flag in engine_named(owner).flags if flag.companion}
            references += [
                path for key in keys & values.keys() for path in str(values[key]).split(",")
            ]
    return list(dict.fromkeys(_folders(filter(is_here, references))))


def _folders(references: Iterable[str]) -> Iterator[str]:
    for path in map(Path, references):
        with suppress(OSError, RuntimeError):
            for spelling in (path, path.expanduser(), path.absolute(), path.expanduser().resolve()):
                yield str(spelling.parent)
                if spelling.is_dir():
                    yield str(spelling)
    with suppress(OSError, RuntimeError):
        yield from (str(Path.home()), str(Path.cwd()))
