"""Which references of a request may be opened, and redaction of local paths in the answers.

On the command line an existing file takes precedence. Here a request may come from anyone: a path must be inside a
--models-dir, and the folder in which the server was started plays no part (Reach.within).
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

from edgekit.app.estimate import NEXT_TO_MODEL
from edgekit.engines import engine_named
from edgekit.engines.flags import companions_in
from edgekit.errors import NotAllowedError, NotFoundError, UsageError
from edgekit.index.names import find_model
from edgekit.index.references import is_id_of, may_be_elsewhere
from edgekit.index.resolve import CATALOG
from edgekit.index.store import NAME as CATALOG_FILE
from edgekit.index.store import stored_entries
from edgekit.index.types import NO_HEADER, Entry, Index
from edgekit.request import Request
from edgekit.sources.filenames import MODEL_SUFFIXES
from edgekit.sources.folders import data_folder
from edgekit.sources.local import home_folder, is_folder, is_regular, names_in
from edgekit.sources.locator import locate, path_of
from edgekit.sources.reference import clean_text
from edgekit.sources.stores import hub_cache_folder
from edgekit.sources.types import ModelFiles, Reach
from edgekit.web.types import Json, WebSettings, resolved_folders

ADDRESSES = ("http", "https", "hf", "ollama")
_SEPARATORS = re.compile(r"[/\\]")
_DRIVE = re.compile(r"[A-Za-z]:[/\\]")

Stamp = tuple[int, int]  # size and modification time of a file; zeros if it does not exist


def allowed_reference(reference: str, settings: WebSettings) -> str:
    """The reference to open: a real path inside a --models-dir, or a name or URL that cannot be a path.

    Raises NotAllowedError for any other path, NotFoundError for a missing file inside a --models-dir, and UsageError
    for an invalid name.
    """
    text = clean_text(reference)
    short = repr(text[:80])
    if "://" in text:
        if text.partition("://")[0].lower() not in ADDRESSES:
            raise NotAllowedError(f"{short}: only http:// and https:// URLs can be opened")
        return text
    if text.lower().startswith(CATALOG):
        _check_users_entry(text[len(CATALOG) :], settings)
        return text
    # Refused before any file is looked up: on Windows a stat of //host/share already contacts the host.
    is_special = text.startswith(("~", "//")) or "\\" in text or _DRIVE.match(text)
    if is_special or ".." in _SEPARATORS.split(text):
        raise NotAllowedError(
            f"{short} is not allowed: give a file inside a --models-dir folder, without ~, .. or \\"
        )
    path = _inside(text, settings)
    if path is not None:
        return path
    is_file_name = text.lower().endswith(MODEL_SUFFIXES) and ":" not in text and text.count("/") < 2
    if not is_file_name and not text.startswith(("/", ".")):
        _check_users_entry(text, settings)
        return text
    folders = settings.models_dirs
    if not folders:
        raise NotAllowedError(
            f"{short} is a path: to open local files, start edgekit web with --models-dir FOLDER"
        )
    is_below = any(_below(text, folder, folder.resolve()) for folder in folders)
    if Path(text).is_absolute() and not is_below:
        raise NotAllowedError(f"{short} is outside the --models-dir folders")
    raise NotFoundError(f"{short} not found in the --models-dir folders")


def _inside(text: str, settings: WebSettings) -> str | None:
    """The path, with links followed, of an existing file or folder in a --models-dir; None if there is none."""
    for folder in settings.models_dirs:
        path = _below(text, folder, folder.resolve())
        try:
            real = None if path is None else path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # missing, or a circular link
            continue
        if real is not None:
            _check_inside(real, text, settings)
            return str(real)
    return None


def _below(text: str, folder: Path, root: Path) -> Path | None:
    """The path that `text` names in a --models-dir; None if it names another place.

    `root` is the folder with links followed. If it is a single file, its name is enough.
    """
    path = Path(text)
    if path.is_absolute():
        is_below = any(path.is_relative_to(base) for base in (root, folder.absolute()))
        return path if is_below else None
    if is_regular(root):
        return root if text == root.name else None
    return None if os.name == "nt" and ":" in text else root / path


def _check_inside(real: Path, name: str, settings: WebSettings) -> None:
    """Raises NotAllowedError for a link to a place outside, and for anything but a file or a folder."""
    if not any(real.is_relative_to(folder.resolve()) for folder in settings.models_dirs):
        raise NotAllowedError(
            f"{name[:80]!r} is a link to a place outside the --models-dir folders"
        )
    mode = real.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise NotAllowedError(f"{name[:80]!r} is not a file or a folder")


def _check_users_entry(name: str, settings: WebSettings) -> None:
    """Raises NotAllowedError for a model that the user added from a file outside the --models-dir folders."""
    users_catalog = _users_catalog(catalog_stamp())
    if not users_catalog.entries:
        return
    try:
        entry = find_model(name, users_catalog).entry
    except NotFoundError:
        return
    if not may_open(entry, settings):
        raise NotAllowedError(
            f"{entry.id} was added to the index from a file outside the --models-dir folders"
        )


@lru_cache(maxsize=1)
def _users_catalog(_stamp: tuple[str, Stamp]) -> Index:
    """The models that the user added; read again when the stamp of the catalog changes."""
    entries = (entry for entry in stored_entries() if isinstance(entry, Entry))
    return Index(entries=tuple(entries))


def may_open(entry: Entry, settings: WebSettings) -> bool:
    """Whether the entry's file is in a --models-dir. Also true for a missing file: opening it reports the error."""
    path = path_of(entry.reference.strip(), absolute_only=True) if entry.is_users else None
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
    """The entry, without its path and contents if its file may not be opened."""
    if may_open(entry, settings):
        return entry
    return replace(entry, reference="", header=NO_HEADER)


def catalog_stamp() -> tuple[str, Stamp]:
    """Changes when the user adds or removes a model."""
    folder = data_folder()
    path = "" if folder is None else str(folder / CATALOG_FILE)
    return path, stamp_of(path)


def stamp_of(path: str) -> Stamp:
    """Changes when the file at this path changes."""
    try:
        status = os.stat(path)  # noqa: PTH116 - for every shard in every request: Path is slower
    except (OSError, ValueError):
        return 0, 0
    return status.st_size, status.st_mtime_ns


def may_need_network(reference: str) -> bool:
    """Whether opening an allowed reference may ask another server: not for a file, a sample or an id of the index."""
    if is_local(reference):
        return False
    has_prefix = reference.lower().startswith(CATALOG)
    name = reference[len(CATALOG) :] if has_prefix else reference
    try:
        entry = find_model(name).entry
    except NotFoundError:
        return True
    if entry.is_users:
        return not is_local(entry.reference)
    return not has_prefix and not is_id_of(name, entry) and may_be_elsewhere(name)


def is_local(reference: str) -> bool:
    """Whether an allowed reference is a file or a sample."""
    return is_file(reference) or reference.lower().startswith("sample:")


def is_file(reference: str) -> bool:
    """Whether an allowed reference is a path."""
    return Path(reference).is_absolute()


def files_inside(path: str, settings: WebSettings) -> ModelFiles:
    """The files of the model at an allowed path, before any is read. Raises NotAllowedError if one links to outside."""
    try:
        files = locate(path, reach=Reach(within=resolved_folders(settings.models_dirs)))
    except NotFoundError as error:
        if not error.candidates:  # nothing similar: perhaps the model is a link to outside
            for link in (Path(path) / name for name in names_in(Path(path))):
                if link.is_symlink() and link.exists():
                    _check_inside(link.resolve(), link.name, settings)
        raise
    for file in paths_of(files):
        _check_inside(Path(file).resolve(), Path(file).name, settings)
    return files


def paths_of(files: ModelFiles) -> tuple[str, ...]:
    """Paths of a local model's files."""
    optional = (files.config, files.index, files.quantization)
    present = [file for file in optional if file is not None]
    every_file = (*files.weights, *files.projectors, *present)
    return tuple(file.open().name for file in every_file)


def allowed_request(request: Request, settings: WebSettings) -> Request:
    """The request with the references of `allowed_reference` to its companion files. Raises the same errors."""

    def allowed_file(text: str) -> str:
        reference = allowed_reference(text, settings)
        if is_file(reference):
            files_inside(reference, settings)
        return reference

    flags = {}
    for engine, values in request.flags.items():
        allowed_values = dict(values)
        for flag in engine_named(engine).flags:
            if not flag.companion or flag.key not in values:
                continue
            value = values[flag.key]
            if isinstance(value, tuple):
                paths = tuple(map(allowed_file, value))
                allowed_values[flag.key] = paths
                if any("," in path for path in paths):  # commands separate paths by commas
                    raise UsageError(f"{flag.key}: the path of an adapter must not contain a comma")
            elif (flag.companion, value) != ("projector", NEXT_TO_MODEL):
                allowed_values[flag.key] = allowed_file(value)
        flags[engine] = allowed_values
    return replace(request, flags=flags)


def needs_remote_companions(request: Request) -> bool:
    """Whether a projector, adapter or draft model may have to be fetched."""
    for engine, values in request.flags.items():
        companions = companions_in(engine_named(engine).flags, values)
        projector, drafter = companions.get("projector"), companions.get("drafter")
        files = [*companions.get("adapters", ())]
        if projector not in {None, NEXT_TO_MODEL}:
            files.append(projector)
        if not all(map(is_local, files)) or (drafter is not None and may_need_network(drafter)):
            return True
    return False


def without_folders(answer: Json, settings: WebSettings) -> Json:
    """The answer with local folders removed from paths; unchanged if only this machine can reach the server."""
    if settings.is_loopback:
        return answer
    text = json.dumps(answer, ensure_ascii=False)
    pattern = _folders_pattern(tuple(_folders(settings)))
    if pattern.search(text) is None:
        return answer
    redacted: Json = json.loads(pattern.sub(lambda match: "" if match[1] else ".", text))
    return redacted


def _folders(settings: WebSettings) -> Iterator[Path]:
    """The --models-dir folders (for a single file, its parent), and other folders that error messages may name."""
    for folder in resolved_folders(settings.models_dirs):
        yield folder if is_folder(folder) else folder.parent
    yield from (hub_cache_folder(), home_folder())
    yield from filter(None, (data_folder(),))
    for name in ("OLLAMA_MODELS", "EDGEKIT_CACHE"):
        if os.environ.get(name):
            yield Path(os.environ[name])


@lru_cache(maxsize=8)
def _folders_pattern(folders: tuple[Path, ...]) -> re.Pattern[str]:
    """Matches a folder in JSON text, with the separator after it. Not inside a longer path or a URL."""
    spellings: set[str] = set()
    for folder in folders:
        if folder.is_absolute() and folder.parent != folder:  # not the root of a disk
            # The path as it is, and as a shell command quotes it if it has an apostrophe.
            for text in (str(folder), str(folder).replace("'", "'\"'\"'")):
                spellings.add(json.dumps(text, ensure_ascii=False)[1:-1])
    longest_first = sorted(spellings, key=len, reverse=True)
    alternatives = "|".join(map(re.escape, longest_first)) or r"(?!)"
    return re.compile(rf"(?<![\w./:~-])(?:{alternatives})(?:(/|\\\\)|(?![\w.-]))")
