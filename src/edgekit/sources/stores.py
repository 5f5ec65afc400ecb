"""A model's name -> its files in a store on this machine: Ollama's, LM Studio's, the hub's cache."""

from __future__ import annotations

import os
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.errors import NotFoundError, UsageError
from edgekit.sources.choose import choose_files
from edgekit.sources.disk import (
    LocalFile,
    folders_in,
    is_regular,
    list_folder,
    list_if_allowed,
    names_in,
    read_small,
)
from edgekit.sources.local import snapshot_folder
from edgekit.sources.manifest import MAX_MANIFEST_BYTES, files_of_manifest
from edgekit.sources.naming import SHOWN, base_of, group_shards
from edgekit.sources.reference import BareName, HubModel, OllamaModel, ollama_model
from edgekit.sources.types import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgekit.sources.manifest import ManifestLayer
    from edgekit.sources.types import ByteSource, ModelFiles

_OLLAMA_REGISTRY = "registry.ollama.ai"
# Where the service that Ollama's installer sets up on Linux keeps its models: docs/faq.mdx @ fb30760
_OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")
_MAX_POINTER_BYTES = 4096  # it holds one path
_MAX_SETTINGS_BYTES = 1024 * 1024
_REPO_FOLDER = "models--"
# Nobody keeps so many; whoever points a store at a whole disk is answered all the same.
MAX_REPOSITORIES = 2000


def find_ollama(model: OllamaModel | BareName) -> ModelFiles | None:
    """From Ollama's store; None when it has no such model.

    HeaderError for a manifest that is none, NotFoundError when a blob it names is gone.
    """
    try:
        wanted = ollama_model(model) if isinstance(model, BareName) else model
    except UsageError:
        return None  # a bare name that Ollama cannot have
    parts = (wanted.host or _OLLAMA_REGISTRY, wanted.namespace, wanted.name, wanted.tag)
    for store in _ollama_stores():
        path = _without_case(store / "manifests", parts)
        raw = None if path is None else read_small(path, limit=MAX_MANIFEST_BYTES)
        if raw is not None:
            return _ollama_files(wanted, store, raw)
    return None


def _ollama_stores() -> tuple[Path, ...]:
    if told := os.environ.get("OLLAMA_MODELS"):
        return (Path(told),)
    return (_home() / ".ollama" / "models", _OLLAMA_SERVICE)


def _without_case(root: Path, parts: tuple[str, ...]) -> Path | None:
    """`root` and `parts`, each as the disk spells it: Ollama's names ignore case."""
    path = root
    for part in parts:
        names = names_in(path)
        folded = {name.lower(): name for name in names}
        name = part if part in names else folded.get(part.lower())
        if name is None:
            return None
        path /= name
    return path


def _ollama_files(model: OllamaModel, store: Path, manifest: bytes) -> ModelFiles:
    label = model.label

    def opener(layer: ManifestLayer) -> Callable[[], ByteSource]:
        # The digest was checked to be hexadecimal: this path stays in the store.
        path = store / "blobs" / layer.digest.replace(":", "-")
        if not is_regular(path):
            raise NotFoundError(f"{path} is missing, although Ollama lists {label}: pull it again")
        return partial(LocalFile, path)

    return files_of_manifest(
        manifest, reference=label, label=label, origin=Origin.OLLAMA_STORE, opener=opener
    )


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
    home = _home()
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
    cache = told.get("XDG_CACHE_HOME", str(_home() / ".cache"))
    home = _expanded(told.get("HF_HOME", str(Path(cache) / "huggingface")))
    legacy = told.get("HUGGINGFACE_HUB_CACHE", str(Path(home) / "hub"))
    return Path(_expanded(told.get("HF_HUB_CACHE", legacy)))


def known_names(hub_cache: Path) -> tuple[str, ...]:
    """Every model that has a name on this machine, for "did you mean"."""
    ollama = (
        OllamaModel(host=host.name, namespace=namespace.name, name=name.name, tag=tag).label
        for store in _ollama_stores()
        for host in folders_in(store / "manifests")
        for namespace in folders_in(host)
        for name in folders_in(namespace)
        for tag in names_in(name)
    )
    names = (
        *islice(ollama, MAX_REPOSITORIES),
        *_lm_studio_repositories(),
        *_cached_repos(hub_cache),
    )
    return tuple(dict.fromkeys(name for name in names if name.isprintable()))


def _home() -> Path:
    return Path(_expanded("~"))


def _expanded(text: str) -> str:
    """As huggingface_hub does it: variables too, and no error where there is no home."""
    return os.path.expandvars(os.path.expanduser(text))  # noqa: PTH111 - Path's raises
