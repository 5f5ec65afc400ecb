"""Models by name on this machine: LM Studio's folder, the hub's cache, and the samples of this package."""

from __future__ import annotations

import gzip
import io
import json
import os
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from pkgutil import get_data  # importlib.resources is slow to import
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

_MAX_POINTER_BYTES = 4096  # it contains one path
_MAX_SETTINGS_BYTES = 1024 * 1024
_REPO_FOLDER = "models--"
MAX_REPOSITORIES = 2000  # more than anyone has, and fast enough if a store is a whole disk


def known_names() -> tuple[str, ...]:
    """Every model that has a name on this machine, for "did you mean"."""
    names = (
        *islice(ollama_names(), MAX_REPOSITORIES),
        *_lm_studio_repositories(),
        *_cached_repos(),
    )
    return tuple(dict.fromkeys(name for name in names if name.isprintable()))


# -- LM Studio -----------------------------------------------------------------------------------


def find_lm_studio(name: str, *, quant: str | None = None) -> ModelFiles | None:
    """A model in LM Studio's folder by publisher/repository, repository or file, ignoring case.

    None if it has no such model, NotFoundError with candidates if it has several.
    """
    lower_name = name.lower()
    repositories = _lm_studio_repositories()
    by_name = [repo for repo in repositories if lower_name in {repo.lower(), base_of(repo).lower()}]
    if len(by_name) > 1:
        raise NotFoundError(f"LM Studio has {name} more than once", candidates=tuple(by_name))
    files = list_folder(repositories[by_name[0]]) if by_name else ()
    if files:  # the folder may be left over from a deleted model
        return choose_files(files, label=by_name[0], origin=Origin.LM_STUDIO, quant=quant)
    stem = lower_name.removesuffix(".gguf")
    by_file: list[tuple[str, str, tuple[ModelFile, ...]]] = []
    for repo, folder in repositories.items():
        listing = list_if_allowed(folder)
        by_file += [
            (repo, group.files[0].name, listing)
            for group in group_shards(listing, ".gguf")
            if base_of(group.stem).lower() == stem
        ]
    if len(by_file) > 1:
        places = tuple(f"{repo}/{file}" for repo, file, _ in by_file[:SHOWN])
        raise NotFoundError(f"LM Studio has {name} more than once", candidates=places)
    if not by_file:
        return None
    repo, file, listing = by_file[0]
    return choose_files(listing, label=repo, origin=Origin.LM_STUDIO, filename=file)


def _lm_studio_repositories() -> dict[str, Path]:
    """'publisher/repository' -> the first folder that has it."""
    repositories: dict[str, Path] = {}
    for models in _lm_studio_folders():
        repos = (repo for publisher in folders_in(models) for repo in folders_in(publisher))
        for repo in repos:
            repositories.setdefault(f"{repo.parent.name}/{repo.name}", repo)
            if len(repositories) >= MAX_REPOSITORIES:
                return repositories
    return repositories


def _lm_studio_folders() -> tuple[Path, ...]:
    """LM Studio's model folders: `downloadsFolder` of its settings, and `models` in its home."""
    folders = []
    for studio_home in lm_studio_homes():
        raw = read_small(studio_home / "settings.json", limit=_MAX_SETTINGS_BYTES)
        try:
            settings = json.loads(raw or b"{}")
        except (ValueError, RecursionError):
            settings = {}  # the usual folder is still searched
        downloads = settings.get("downloadsFolder") if isinstance(settings, dict) else None
        if isinstance(downloads, str) and downloads and downloads.isprintable():
            folders.append(Path(downloads))
        folders.append(studio_home / "models")
    return tuple(dict.fromkeys(folders))


def lm_studio_homes() -> tuple[Path, ...]:
    """Where LM Studio's home may be: the path in a pointer file, and two usual places."""
    home = home_folder()
    pointer = read_small(home / ".lmstudio-home-pointer", limit=_MAX_POINTER_BYTES) or b""
    home_text = pointer.decode("utf-8", errors="replace").strip()
    homes = [home / ".lmstudio", home / ".cache" / "lm-studio"]
    if home_text and home_text.isprintable():
        homes.insert(0, Path(home_text))
    return tuple(dict.fromkeys(homes))


# -- the hub's cache -----------------------------------------------------------------------------


def hub_cache_folder() -> Path:
    """Where huggingface_hub stores its files, by the rules of its constants.py @ 2.4.0."""
    environment = os.environ
    cache = environment.get("XDG_CACHE_HOME", str(home_folder() / ".cache"))
    home = _expand(environment.get("HF_HOME", str(Path(cache) / "huggingface")))
    legacy = environment.get("HUGGINGFACE_HUB_CACHE", str(Path(home) / "hub"))
    return Path(_expand(environment.get("HF_HUB_CACHE", legacy)))


def _expand(text: str) -> str:
    """Expands ~ and variables like huggingface_hub, without an error if there is no home."""
    return os.path.expandvars(os.path.expanduser(text))  # noqa: PTH111 - Path's raises


def repository_folder(model: HubModel) -> Path:
    return hub_cache_folder() / (_REPO_FOLDER + model.repo.replace("/", "--"))


def find_hub_cached(model: HubModel) -> ModelFiles | None:
    """A model in the hub's cache; None if that has no file of the repository and revision.

    If only part of a model was downloaded, NotFoundError says what is missing, or the config.json alone is returned.
    """
    snapshot = snapshot_folder(repository_folder(model), model.revision)
    files = () if snapshot is None else list_folder(snapshot)
    if not files:
        return None
    return choose_files(
        files, label=model.repo, origin=Origin.HUB_CACHE, quant=model.quant, filename=model.filename
    )


def find_hub_cached_name(name: str) -> ModelFiles | None:
    """The repository of this name in the hub's cache, from any publisher."""
    lower_name = name.lower()
    repos = [repo for repo in _cached_repos() if base_of(repo).lower() == lower_name]
    if len(repos) > 1:
        raise NotFoundError(f"the hub's cache has {name} more than once", candidates=tuple(repos))
    return find_hub_cached(HubModel(repo=repos[0])) if repos else None


def _cached_repos() -> Iterator[str]:
    """The repositories in the hub's cache, as org/name."""
    for folder in folders_in(hub_cache_folder()):
        if folder.name.startswith(_REPO_FOLDER):
            yield folder.name.removeprefix(_REPO_FOLDER).replace("--", "/")


# -- samples -------------------------------------------------------------------------------------

# The largest header in the package has 49 KB; one with a vocabulary would have 16 MB.
MAX_SAMPLE_BYTES = 20_000_000


@dataclass(frozen=True, slots=True)
class HeaderOnly:
    """A ByteSource that knows the size of a file and holds its first bytes.

    A read ends where these bytes end; one that starts after them is an error, because weights are never read.
    """

    data: bytes
    name: str
    size_bytes: int

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:  # noqa: ARG002 - in memory
        if offset < 0 or length < 0:
            raise ValueError(f"read of {length} bytes at {offset}")
        if length and len(self.data) <= offset < self.size_bytes:
            raise SourceError(f"{self.name} is only a header: byte {offset:,} is not included")
        return self.data[offset : offset + length]

    def close(self) -> None:
        pass


def sample_names() -> tuple[str, ...]:
    return tuple(_sample_index())


def locate_sample(name: str) -> ModelFiles:
    """The header of that name in the package, as if the whole file were there; NotFoundError with other names."""
    index = _sample_index()
    lower_name = name.lower()
    if lower_name not in index:
        similar_names = close_names(lower_name, index) or tuple(index)
        raise NotFoundError(f"no such sample: {name!r}", candidates=similar_names)
    entry = index[lower_name]
    file, size_bytes = str(entry["file"]), int(entry["size_bytes"])
    title = file.removesuffix(".head.gz")
    opener = partial(_open_sample, file, title, size_bytes)
    return ModelFiles(
        label=title,
        origin=Origin.SAMPLE,
        container=Container.GGUF,
        weights=(ModelFile(name=title, open=opener, size_bytes=size_bytes),),
        notes=(str(entry["provenance"]),),
    )


def _open_sample(file: str, title: str, size_bytes: int) -> HeaderOnly:
    packed = io.BytesIO(_sample_data(file))
    with gzip.GzipFile(fileobj=packed) as plain:
        data = plain.read(MAX_SAMPLE_BYTES + 1)
    if len(data) > MAX_SAMPLE_BYTES:
        raise SourceError(
            f"the sample {file} has more than {MAX_SAMPLE_BYTES:,} bytes: reinstall edgekit"
        )
    return HeaderOnly(data, title, size_bytes)


def _sample_index() -> dict[str, dict[str, Any]]:
    index: dict[str, dict[str, Any]] = json.loads(_sample_data("index.json"))
    return index


def _sample_data(file: str) -> bytes:
    return get_data("edgekit", f"samples/{file}") or b""
