"""`web`: serve the page."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import stat
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edgekit.cli.console import is_terminal, print_event, print_line, screen_width
from edgekit.cli.flags import read_host, read_integer
from edgekit.cli.qr import can_show, on_dark, qr_code
from edgekit.engines.ports import LARGEST_PORT
from edgekit.errors import NotFoundError, SourceError, UsageError
from edgekit.server import needs_extra
from edgekit.sources.local import expand_home, path_error
from edgekit.sources.locator import locate, path_of
from edgekit.web.references import paths_of
from edgekit.web.types import WebSettings

TOKEN_VARIABLE = "EDGEKIT_WEB_TOKEN"  # noqa: S105 - the name of a variable, not a secret
MIN_TOKEN_CHARS, MAX_TOKEN_CHARS = 8, 200
DEFAULT_RATE, MAX_RATE = 400, 1_000_000
_TOKEN = re.compile(r"[A-Za-z0-9._~-]+")  # characters that need no escaping in a URL


def run_web(arguments: argparse.Namespace) -> tuple[str, int]:
    """Serve until a signal stops it, which is exit code 0."""
    port = read_integer("--port", arguments.port, most=LARGEST_PORT)
    rate = read_integer("--rate", arguments.rate, least=1, most=MAX_RATE)
    settings = WebSettings(
        host=read_host(arguments.host),
        token=_token(arguments.token, os.environ.get(TOKEN_VARIABLE)),
        models_dirs=tuple(_folder(text) for text in arguments.models_dir),
        allow_private=arguments.allow_private,
        network=not arguments.offline,
        cache=not arguments.no_cache,
        timeout_s=arguments.timeout,
        requests_per_s=float(DEFAULT_RATE if rate is None else rate),
    )
    if settings.token is None and not settings.is_loopback:
        settings = replace(settings, token=secrets.token_urlsafe(24))
    reference = arguments.model
    path = None if reference is None else path_of(reference)
    if path is not None:
        # the server may read the files of the model, but nothing else in their folder
        is_folder = os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises without permission
        files = (path,) if is_folder else map(Path, paths_of(locate(str(path))))
        dirs = (*settings.models_dirs, *(file.resolve() for file in files))
        settings = replace(settings, models_dirs=dirs)
        reference = str(path.absolute())
    fields = {"ref": reference} if reference else {}
    wants_qr = _wants_qr(arguments, settings)
    with needs_extra("web", "the page"):
        from edgekit.web import serving

    def announce(settled: WebSettings) -> None:
        page = "/model" if fields else "/"
        address = serving.address_of(settled, page, **fields)
        others = serving.lan_addresses_of(settled, page, **fields)
        if arguments.json:
            addresses = list(dict.fromkeys((address, *others)))
            print_event(
                {
                    "event": "ready",
                    "url": address,
                    "addresses": addresses,
                    "token": settled.token,
                    "pid": os.getpid(),
                }
            )
        else:
            print_line(address)
            if not settled.is_loopback:
                _print_lan(others, with_qr=wants_qr, is_required=arguments.qr)
        if not arguments.no_browser:
            serving.show_browser(address)

    with serving.listen(settings.host, port) as listening:
        serving.serve(settings, listening, on_ready=announce)
    return "", 0


def _wants_qr(arguments: argparse.Namespace, settings: WebSettings) -> bool:
    """Whether to print a QR code. Raises UsageError where --qr cannot be done."""
    can_show_qr = can_show(getattr(sys.stdout, "encoding", None))
    if not arguments.qr:
        is_screen = bool(getattr(sys.stdout, "isatty", lambda: False)())
        return is_screen and can_show_qr and not arguments.no_qr
    if arguments.no_qr:
        raise UsageError("--qr and --no-qr exclude each other")
    if arguments.json:
        raise UsageError("--qr prints a picture and --json only JSON: use one of them")
    if settings.is_loopback:
        raise UsageError(
            f"--qr: other devices cannot reach {settings.host}; to let them, add --host 0.0.0.0"
        )
    if not can_show_qr:
        raise UsageError("--qr needs an output in UTF-8; set PYTHONUTF8=1")
    return True


def _print_lan(addresses: Sequence[str], *, with_qr: bool, is_required: bool) -> None:
    """The addresses for other devices, and a QR code of the first if the terminal is wide enough."""
    if not addresses:
        print_line("No network address found: other devices may not reach this computer.")
        return
    print_line("On other devices in this network:")
    for address in addresses:
        print_line(f"  {address}")
    lines = qr_code(addresses[0]) if with_qr else ()
    if lines and (is_required or len(lines[0]) <= screen_width()):
        colour = is_terminal(sys.stdout)
        for line in lines:
            print_line(on_dark(line) if colour else line)


def _token(flag: str | None, variable: str | None) -> str | None:
    """The token of --token, or else of the variable. An empty variable counts as not set, an empty flag is an error.

    The error does not repeat the token, because a wrong one may be half of the right one.
    """
    name, text = (TOKEN_VARIABLE, variable or None) if flag is None else ("--token", flag)
    if text is None:
        return None
    if _TOKEN.fullmatch(text) and MIN_TOKEN_CHARS <= len(text) <= MAX_TOKEN_CHARS:
        return text
    raise UsageError(
        f"{name} needs {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} characters: letters, "
        f"digits and . _ ~ -; without {name} a random token is generated if other "
        "machines can reach the port"
    )


def _folder(text: str) -> Path:
    """An existing folder. Raises NotFoundError, also for an empty name, which would be the current folder."""
    folder = expand_home(text)
    try:
        if text and stat.S_ISDIR(folder.stat().st_mode):
            return folder.resolve()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        pass  # the error below says that there is no such folder
    except OSError as error:
        raise SourceError(f"--models-dir: {path_error(error, folder)}") from error
    raise NotFoundError(f"--models-dir: no such folder: {text[:200]!r}")
