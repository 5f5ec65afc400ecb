"""What a request names -> what may be opened for it: names, addresses, and files of the folders that were given.

The command line takes whatever is there as a path first. A request may be anybody's, so here a path is one only
inside a --models-dir, and nothing depends on what lies where the server was started (Reach.within).
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgekit.app.task import NEXT_TO_MODEL
from edgekit.catalog import read_catalog
from edgekit.catalog.names import find_quantised, may_be_elsewhere, ollama_latest
from edgekit.catalog.resolve import CATALOG
from edgekit.catalog.store import NAME as CATALOG_FILE
from edgekit.catalog.store import stored_entries
from edgekit.catalog.types import Catalog, Entry
from edgekit.engines import engine_named
from edgekit.engines.flags import Flag, companions_in
from edgekit.errors import NotAllowedError, NotFoundError, UsageError
from edgekit.request import Request, Values
from edgekit.sources import locate, path_of
from edgekit.sources.filenames import MODEL_SUFFIXES
from edgekit.sources.local import data_folder, is_folder, is_regular, names_in
from edgekit.sources.reference import clean_text
from edgekit.sources.stores import hub_cache_folder
from edgekit.sources.types import ModelFile, ModelFiles, Reach
from edgekit.web.types import WebSettings, resolved

ADDRESSES = ("http", "https", "hf", "ollama")
_SEPARATORS = re.compile(r"[/\\]")
_DRIVE = re.compile(r"[A-Za-z]:[/\\]")

Stamp = tuple[int, int]  # size and time of change of a file; zeros where it is not there


def allowed(reference: str, settings: WebSettings) -> str:
    """What to open for it: a path inside a --models-dir, or a name or address that can be no path.

    Raises NotAllowedError for every other path, NotFoundError for one that would be inside and is not there, UsageError
    for what is no name at all.
    """
    text = clean_text(reference)
    if "://" in text:
        return _address(text)
    if text.lower().startswith(CATALOG):
        _check_own(text[len(CATALOG) :], settings)
        return text
    _refuse_escapes(text)
    found = _inside(text, settings)
    if found is not None:
        return found
    if _is_path(text):
        raise _outside(text, settings)
    _check_own(text, settings)
    return text


def _address(text: str) -> str:
    scheme = text.partition("://")[0].lower()
    if scheme not in ADDRESSES:
        raise NotAllowedError(f"{text[:80]!r}: only http:// and https:// URLs can be opened")
    return text


def _refuse_escapes(text: str) -> None:
    """Before anything is looked up: on Windows a look at //host/share already talks to the host."""
    if (
        text.startswith(("~", "//"))
        or "\\" in text
        or _DRIVE.match(text)
        or ".." in _SEPARATORS.split(text)
    ):
        raise NotAllowedError(
            f"{text[:80]!r} is not allowed: give a file inside a --models-dir folder, without ~, .. or \\"
        )


def _inside(text: str, settings: WebSettings) -> str | None:
    """The file or folder of a --models-dir that is meant, links followed; None where there is none."""
    for folder in settings.models_dirs:
        root = folder.resolve()
        path = _below(text, folder, root)
        try:
            real = None if path is None else path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # not there, or a link that leads to itself
            continue
        if real is not None:
            _check_inside(real, text, settings)
            return str(real)
    return None


def _below(text: str, folder: Path, root: Path) -> Path | None:
    """Of a file that was given alone its name is enough."""
    path = Path(text)
    if not path.is_absolute() and is_regular(root):
        return root if text == root.name else None
    if not path.is_absolute():
        return None if os.name == "nt" and ":" in text else root / path
    return path if any(path.is_relative_to(one) for one in (root, folder.absolute())) else None


def _check_inside(real: Path, said: str, settings: WebSettings) -> None:
    """Raises NotAllowedError for what a link leads out to, and for what is not a file or a folder."""
    if not any(real.is_relative_to(folder.resolve()) for folder in settings.models_dirs):
        raise NotAllowedError(
            f"{said[:80]!r} is a link to a place outside the --models-dir folders"
        )
    mode = real.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise NotAllowedError(f"{said[:80]!r} is not a file or a folder")


def _is_path(text: str) -> bool:
    """Whether it can be nothing else, whatever is here."""
    one_file = text.lower().endswith(MODEL_SUFFIXES) and ":" not in text and text.count("/") < 2
    return text.startswith(("/", ".")) or one_file


def _outside(text: str, settings: WebSettings) -> UsageError | NotFoundError:
    if not settings.models_dirs:
        return NotAllowedError(
            f"{text[:80]!r} is a path: to open local files, start edgekit web with --models-dir FOLDER"
        )
    folders = settings.models_dirs
    if Path(text).is_absolute() and not any(_below(text, one, one.resolve()) for one in folders):
        return NotAllowedError(f"{text[:80]!r} is outside the --models-dir folders")
    return NotFoundError(f"{text[:80]!r} not found in the --models-dir folders")


def _check_own(name: str, settings: WebSettings) -> None:
    """What the user added to the catalog is opened from where it came: also then only inside."""
    entry = _own_entry(name)
    if entry is not None and not may_open(entry, settings):
        raise NotAllowedError(
            f"{entry.id} was added to the catalog from a file outside the --models-dir folders"
        )


def may_open(entry: Entry, settings: WebSettings) -> bool:
    """A file that is gone counts as it did before: whoever opens it says so."""
    path = path_of(entry.reference.strip(), whole=True) if entry.is_users else None
    if path is None:
        return True
    try:
        _check_inside(path.resolve(), entry.id, settings)
    except FileNotFoundError:
        return True
    except (OSError, RuntimeError, NotAllowedError):
        return False
    return True


def shown_entry(entry: Entry, settings: WebSettings) -> Entry:
    """The same, without where its file lies and what stands in it where that may not be opened."""
    if may_open(entry, settings):
        return entry
    return replace(entry, reference="", keys={}, tensors=(), config={})


def _own_entry(name: str) -> Entry | None:
    own = _own_catalog(catalog_stamp())
    try:
        return find_quantised(ollama_latest(name) or name, own)[0] if own.entries else None
    except NotFoundError:
        return None


@lru_cache(maxsize=1)
def _own_catalog(_stamp: tuple[str, Stamp]) -> Catalog:
    entries = (one for one in stored_entries() if isinstance(one, Entry))
    return Catalog(entries=tuple(entries))


def catalog_stamp() -> tuple[str, Stamp]:
    """Changes when the user adds a model or removes one."""
    folder = data_folder()
    path = "" if folder is None else str(folder / CATALOG_FILE)
    return path, stamp_of(path)


def stamp_of(path: str) -> Stamp:
    try:
        found = os.stat(path)  # noqa: PTH116 - asked for every shard of every request
    except (OSError, ValueError):
        return 0, 0
    return found.st_size, found.st_mtime_ns


def is_near(found: str) -> bool:
    """Whether no other server is asked for what `allowed` gave: a file, a sample, a model of our own catalog."""
    if is_local(found):
        return True
    is_said = found.lower().startswith(CATALOG)
    if not is_said and may_be_elsewhere(found):
        return False
    try:
        entry, _ = find_quantised(found[len(CATALOG) :] if is_said else found, read_catalog())
    except NotFoundError:
        return False
    return not entry.is_users or is_local(entry.reference)


def is_local(found: str) -> bool:
    """The same, where the catalog is not asked."""
    return is_file(found) or found.lower().startswith("sample:")


def is_file(found: str) -> bool:
    """Whether what `allowed` gave is a path."""
    return Path(found).is_absolute()


def files_inside(path: str, settings: WebSettings) -> ModelFiles:
    """The files of the model at an allowed path; none of them is read yet. NotAllowedError where a link leads out."""
    try:
        files = locate(path, reach=Reach(within=resolved(settings.models_dirs)))
    except NotFoundError as error:
        if not error.candidates:
            _check_links(Path(path), settings)  # perhaps one of them was meant
        raise
    for file in paths_of(files):
        _check_inside(Path(file).resolve(), Path(file).name, settings)
    return files


def _check_links(folder: Path, settings: WebSettings) -> None:
    links = (folder / name for name in names_in(folder))
    for link in (one for one in links if one.is_symlink() and one.exists()):
        _check_inside(link.resolve(), link.name, settings)


def paths_of(files: ModelFiles) -> tuple[str, ...]:
    """Where the files of a model on this machine lie."""
    return tuple(one.open().name for one in _each(files))


def _each(files: ModelFiles) -> Iterator[ModelFile]:
    yield from files.weights
    yield from files.projectors
    yield from (one for one in (files.config, files.index, files.quantization) if one is not None)


def allowed_request(request: Request, settings: WebSettings) -> Request:
    """The same, with what is loaded next to the model as it may be opened. Raises as `allowed`."""
    allowed_flags = {}
    for engine, values in request.flags.items():
        found = dict(values)
        for flag in _naming_files(engine):
            if flag.key in found:
                found[flag.key] = _allowed_files(flag, found[flag.key], settings)
        allowed_flags[engine] = found
    return replace(request, flags=allowed_flags)


def _naming_files(engine: str) -> Iterator[Flag]:
    """Flags with files that are loaded next to the model. Flags of every engine name none."""
    return (flag for flag in (engine_named(engine).flags if engine else ()) if flag.companion)


def _allowed_files(flag: Flag, value: Any, settings: WebSettings) -> Any:
    if isinstance(value, tuple):
        found = tuple(_file(one, settings) for one in value)
        if any("," in one for one in found):  # commands separate them by commas
            raise UsageError(f"{flag.key}: the path of an adapter must not contain a comma")
        return found
    is_auto = flag.companion == "projector" and value == NEXT_TO_MODEL
    return value if is_auto else _file(value, settings)


def _file(text: str, settings: WebSettings) -> str:
    found = allowed(text, settings)
    if is_file(found):
        files_inside(found, settings)
    return found


def needs_remote_companions(request: Request) -> bool:
    """Whether something that is loaded next to the model may have to be fetched from elsewhere."""
    return any(_is_far(engine, values) for engine, values in request.flags.items())


def _is_far(engine: str, values: Values) -> bool:
    given = companions_in(_naming_files(engine), values)
    projector, drafter = given.get("projector"), given.get("drafter")
    files = [
        *given.get("adapters", ()),
        *([] if projector in {None, NEXT_TO_MODEL} else [projector]),
    ]
    return not all(map(is_local, files)) or (drafter is not None and not is_near(drafter))


Json = dict[str, Any]


def without_folders(answer: Json, settings: WebSettings) -> Json:
    """As it is where only this machine is answered: a terminal here understands whole paths."""
    if settings.is_loopback:
        return answer
    text = json.dumps(answer, ensure_ascii=False)
    folders = _pattern(tuple(_folders(settings)))
    if folders.search(text) is None:
        return answer
    told: Json = json.loads(folders.sub(_name_inside, text))
    return told


def text_without_folders(text: str, settings: WebSettings) -> str:
    """The same of a sentence."""
    return str(without_folders({"text": text}, settings)["text"])


def _folders(settings: WebSettings) -> Iterator[Path]:
    """Those that were given, of a file the one it lies in, and those that messages of errors may name."""
    for one in resolved(settings.models_dirs):
        yield one if is_folder(one) else one.parent
    yield from (hub_cache_folder(), Path(os.path.expanduser("~")))  # noqa: PTH111 - Path's raises
    yield from filter(None, (data_folder(),))
    for name in ("OLLAMA_MODELS", "EDGEKIT_CACHE"):
        if os.environ.get(name):
            yield Path(os.environ[name])


@lru_cache(maxsize=8)
def _pattern(folders: tuple[Path, ...]) -> re.Pattern[str]:
    """A folder where no longer path and no address goes on in front of it, and what divides it from a name inside."""
    said = {text for one in folders if one.is_absolute() for text in _spellings(one)}
    either = "|".join(re.escape(one) for one in sorted(said, key=len, reverse=True)) or r"(?!)"
    return re.compile(rf"(?<![\w./:~-])(?:{either})(?:(/|\\\\)|(?![\w.-]))")


def _spellings(folder: Path) -> Iterator[str]:
    """In JSON: as it is, and as a shell is told of one with a quotation mark in it. Not where it is the whole disk."""
    if folder.parent == folder:
        return
    for text in {str(folder), str(folder).replace("'", "'\"'\"'")}:
        yield json.dumps(text, ensure_ascii=False)[1:-1]


def _name_inside(found: re.Match[str]) -> str:
    return "" if found[1] else "."
