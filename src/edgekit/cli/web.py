"""`web`: serve the page until a signal ends it."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import stat
from dataclasses import replace
from pathlib import Path

from edgekit.cli.options import read_host, read_plain
from edgekit.cli.output import say, say_json
from edgekit.engines.process import LARGEST_PORT
from edgekit.errors import MissingExtraError, NotFoundError, SourceError, UsageError
from edgekit.sources import locate, path_of
from edgekit.sources.local import trouble
from edgekit.web.references import paths_of
from edgekit.web.types import WebSettings

TOKEN_VARIABLE = "EDGEKIT_WEB_TOKEN"  # noqa: S105 - the variable's name, no secret
LEAST_TOKEN_CHARS, MOST_TOKEN_CHARS = 8, 200
DEFAULT_RATE, MOST_RATE = 400, 1_000_000
_EXTRA = frozenset({"fastapi", "uvicorn", "pydantic", "starlette", "h11", "anyio"})
_TOKEN = re.compile(r"[A-Za-z0-9._~-]+")  # what an address may hold as it is


def run_web(arguments: argparse.Namespace) -> tuple[str, int]:
    """Serve until a signal ends it; that is exit code 0."""
    port = read_plain("--port", arguments.port, most=LARGEST_PORT)
    settings = _settings(arguments)
    reference = arguments.model
    path = None if reference is None else path_of(reference)
    if path is not None:
        settings = replace(settings, models_dirs=(*settings.models_dirs, *_files_of(path)))
        reference = str(path.absolute())
    fields = {"ref": reference} if reference else {}
    try:
        from edgekit.web import serving
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise MissingExtraError(
            f"the page needs {error.name}: pip install 'edgekit-models[web]'"
        ) from error

    def announce(settled: WebSettings) -> None:
        address = serving.address_of(settled, "/model" if fields else "/", **fields)
        if arguments.json:
            say_json({"event": "ready", "url": address, "token": settled.token, "pid": os.getpid()})
        else:
            say(address)
        if not arguments.no_browser:
            serving.show_browser(address)

    with serving.listen(settings.host, port) as listening:
        serving.serve(settings, listening, on_ready=announce)
    return "", 0


def _settings(arguments: argparse.Namespace) -> WebSettings:
    """A token is made up where others can reach the port and none was said."""
    rate = read_plain("--rate", arguments.rate, least=1, most=MOST_RATE)
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
        return replace(settings, token=secrets.token_urlsafe(24))
    return settings


def _token(typed: str | None, surrounding: str | None) -> str | None:
    """The typed one counts; a variable that is empty says nothing, a flag that is empty is a mistake.

    It is not told back: what was typed wrong may be half of it.
    """
    name, text = (TOKEN_VARIABLE, surrounding or None) if typed is None else ("--token", typed)
    if text is None:
        return None
    if _TOKEN.fullmatch(text) and LEAST_TOKEN_CHARS <= len(text) <= MOST_TOKEN_CHARS:
        return text
    raise UsageError(
        f"{name} needs {LEAST_TOKEN_CHARS} to {MOST_TOKEN_CHARS} characters: letters, "
        f"digits and . _ ~ -; without {name} a random token is generated if other "
        "machines can reach the port"
    )


def _folder(text: str) -> Path:
    """An empty name would be the folder where this was started."""
    folder = Path(os.path.expanduser(text))  # noqa: PTH111 - Path's raises for a user who is not known
    try:
        if text and stat.S_ISDIR(folder.stat().st_mode):
            return folder.resolve()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        pass  # said below
    except OSError as error:
        raise SourceError(f"--models-dir: {trouble(error, folder)}") from error
    raise NotFoundError(f"--models-dir: no such folder: {text[:200]!r}")


def _files_of(path: Path) -> tuple[Path, ...]:
    """What may be read of a model that was named here: its files, and nothing else beside them."""
    if os.path.isdir(path):  # noqa: PTH112 - Path's raises for one that may not be looked at
        return (path.resolve(),)
    return tuple(Path(one).resolve() for one in paths_of(locate(str(path))))
