"""A model's name -> its files in a store on this machine: Ollama's, LM Studio's, the hub's cache."""

from __future__ import annotations

import os
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.errors import NotFoundError, SourceError
from edgekit.sources.filenames import SHOWN, base_of, choose_files, close_names, group_shards
from edgekit.sources.local import (
    folders_in,
    home_folder,
    list_folder,
    list_if_allowed,
    read_small,
    snapshot_folder,
)
from edgekit.sources.ollama import ollama_names
from edgekit.sources.reference import HubModel
from edgekit.sources.types import Container, ModelFile, ModelFiles, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable


_MAX_POINTER_BYTES = 4096  # it holds one path
_MAX_SETTINGS_BYTES = 1024 * 1024
_REPO_FOLDER = "models--"
# Nobody keeps so many; whoever points a store at a whole disk is answered all the same.
MAX_REPOSITORIES = 2000


def find_lm_studio(name: str, *, quant: str | None = None) -> ModelFiles | None:
    """From LM Studio's folder by publisher/repository, repository or file; case does not matter.

    None when it has nothing of that name; NotFoundError with candidates when it has several.
    """
    wanted = name.lower()
    repositories = _lm_studio_repositories()
    by_name = [r for r in repositories if wanted in {r.lower(), base_of(r).lower()}]
    if len(by_name) > 1:
        raise NotFoundError(f"LM Studio has {name} more than once", candidates=tuple(by_name))
    files = list_folder(repositories[by_name[0]]) if by_name else ()
    if not files:  # a folder may outlive its model
        return _lm_studio_file(name, repositories)
    return choose_files(
        files, reference=name, label=by_name[0], origin=Origin.LM_STUDIO, quant=quant
    )


def _lm_studio_file(name: str, repositories: dict[str, Path]) -> ModelFiles | None:
    wanted = name.lower().removesuffix(".gguf")
    found = [
        (repo, one.files[0].name, files)
        for repo, folder in repositories.items()
        for files in (list_if_allowed(folder),)
        for one in group_shards(files, ".gguf")
        if base_of(one.stem).lower() == wanted
    ]
    if len(found) > 1:
        places = tuple(f"{repo}/{file}" for repo, file, _ in found[:SHOWN])
        raise NotFoundError(f"LM Studio has {name} more than once", candidates=places)
    for repo, file, files in found:
        return choose_files(
            files, reference=name, label=repo, origin=Origin.LM_STUDIO, filename=file
        )
    return None


def _lm_studio_repositories() -> dict[str, Path]:
    """'publisher/repository' -> its folder; the first of LM Studio's model folders that has it."""
    found: dict[str, Path] = {}
    for models in _lm_studio_folders():
        for repo in (repo for publisher in folders_in(models) for repo in folders_in(publisher)):
            found.setdefault(f"{repo.parent.name}/{repo.name}", repo)
            if len(found) >= MAX_REPOSITORIES:
                return found
    return found


def _lm_studio_folders() -> tuple[Path, ...]:
    """LM Studio's home is named by a pointer file, else one of two; settings may move the models."""
    home = home_folder()
    pointer = read_small(home / ".lmstudio-home-pointer", limit=_MAX_POINTER_BYTES) or b""
    told = pointer.decode("utf-8", errors="replace").strip()
    homes = [Path(told)] if told.isprintable() and told else []
    homes += [home / ".lmstudio", home / ".cache" / "lm-studio"]
    folders = [folder for one in homes for folder in (_moved_models(one), one / "models") if folder]
    return tuple(dict.fromkeys(folders))


def _moved_models(home: Path) -> Path | None:
    """`downloadsFolder` in LM Studio's settings.json: where its user keeps the models."""
    raw = read_small(home / "settings.json", limit=_MAX_SETTINGS_BYTES)
    if raw is None:
        return None
    import json  # only where LM Studio is installed

    try:
        settings = json.loads(raw)
    except (ValueError, RecursionError):
        return None  # not ours to complain about: the usual folder is still looked at
    told = settings.get("downloadsFolder") if isinstance(settings, dict) else None
    return Path(told) if isinstance(told, str) and told and told.isprintable() else None


def repository_folder(model: HubModel, hub_cache: Path) -> Path:
    return hub_cache / (_REPO_FOLDER + model.repo.replace("/", "--"))


def find_hub_cached(model: HubModel, hub_cache: Path) -> ModelFiles | None:
    """From the hub's cache; None when no file of that repository and revision is in it.

    A part of a model may be all that was downloaded: then NotFoundError says what is missing, or the
    config.json alone is returned.
    """
    snapshot = snapshot_folder(repository_folder(model, hub_cache), model.revision)
    files = () if snapshot is None else list_folder(snapshot)
    if not files:
        return None
    return choose_files(
        files,
        reference=model.repo,
        label=model.repo,
        origin=Origin.HUB_CACHE,
        quant=model.quant,
        filename=model.filename,
    )


def find_hub_cached_name(name: str, hub_cache: Path) -> ModelFiles | None:
    """The one repository in the hub's cache that has this name, whoever published it."""
    wanted = name.lower()
    repos = [repo for repo in _cached_repos(hub_cache) if base_of(repo).lower() == wanted]
    if len(repos) > 1:
        raise NotFoundError(f"the hub's cache has {name} more than once", candidates=tuple(repos))
    return find_hub_cached(HubModel(repo=repos[0]), hub_cache) if repos else None


def _cached_repos(hub_cache: Path) -> Iterator[str]:
    for folder in folders_in(hub_cache):
        if folder.name.startswith(_REPO_FOLDER):
            yield folder.name.removeprefix(_REPO_FOLDER).replace("--", "/")


def hub_cache_folder() -> Path:
    """Where huggingface_hub keeps its files, by the rules of its constants.py @ 2.4.0."""
    told = os.environ
    cache = told.get("XDG_CACHE_HOME", str(home_folder() / ".cache"))
    home = _expanded(told.get("HF_HOME", str(Path(cache) / "huggingface")))
    legacy = told.get("HUGGINGFACE_HUB_CACHE", str(Path(home) / "hub"))
    return Path(_expanded(told.get("HF_HUB_CACHE", legacy)))


def known_names(hub_cache: Path) -> tuple[str, ...]:
    """Every model that has a name on this machine, for "did you mean"."""
    names = (
        *islice(ollama_names(), MAX_REPOSITORIES),
        *_lm_studio_repositories(),
        *_cached_repos(hub_cache),
    )
    return tuple(dict.fromkeys(name for name in names if name.isprintable()))


def _expanded(text: str) -> str:
    """As huggingface_hub does it: variables too, and no error where there is no home."""
    return os.path.expandvars(os.path.expanduser(text))  # noqa: PTH111 - Path's raises


# The largest header that is shipped has 49 KB; one with a vocabulary would have 16 MB.
MAX_SAMPLE_BYTES = 20_000_000


class HeaderOnly:
    """A ByteSource that knows the size of a file and holds its first bytes.

    A read ends where these bytes end. One that starts after them is an error: weights are not read.
    """

    __slots__ = ("_data", "_name", "_size_bytes")

    def __init__(self, data: bytes, *, name: str, size_bytes: int) -> None:
        self._data = data
        self._name = name
        self._size_bytes = size_bytes

    @property
    def name(self) -> str:
        return self._name

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:  # noqa: ARG002 - in memory
        if offset < 0 or length < 0:
            raise ValueError(f"read of {length} bytes at {offset}")
        if length and len(self._data) <= offset < self._size_bytes:
            raise SourceError(f"{self._name} is only a header: byte {offset:,} is not included")
        return self._data[offset : offset + length]

    def close(self) -> None:
        pass


def sample_names() -> tuple[str, ...]:
    return tuple(_index())


def locate_sample(name: str) -> ModelFiles:
    """The sample of that name, in any case; NotFoundError with the names that there are."""
    index = _index()
    wanted = name.lower()
    if wanted not in index:
        near = close_names(wanted, index) or tuple(index)
        raise NotFoundError(f"no such sample: {name!r}", candidates=near)
    entry = index[wanted]
    file, size_bytes = str(entry["file"]), int(entry["size_bytes"])
    title = file.removesuffix(".head.gz")
    weights = ModelFile(
        name=title, open=partial(_open, file, title, size_bytes), size_bytes=size_bytes
    )
    return ModelFiles(
        reference=f"sample:{wanted}",
        label=title,
        origin=Origin.SAMPLE,
        container=Container.GGUF,
        weights=(weights,),
        notes=(str(entry["provenance"]),),
    )


def _open(file: str, title: str, size_bytes: int) -> HeaderOnly:
    import gzip  # only samples are packed

    with (_folder() / file).open("rb") as packed, gzip.GzipFile(fileobj=packed) as plain:
        data = plain.read(MAX_SAMPLE_BYTES + 1)
    if len(data) > MAX_SAMPLE_BYTES:
        raise SourceError(
            f"the sample {file} has more than {MAX_SAMPLE_BYTES:,} bytes: reinstall edgekit"
        )
    return HeaderOnly(data, name=title, size_bytes=size_bytes)


def _index() -> dict[str, dict[str, Any]]:
    import json  # only samples need it

    index: dict[str, dict[str, Any]] = json.loads((_folder() / "index.json").read_bytes())
    return index


def _folder() -> Traversable:
    from importlib.resources import files  # slow to import, and only samples need it

    return files("edgekit") / "samples"
