"""Models already on this machine, found by name; samples; and the order in which stores are searched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import pytest

from edgekit.errors import (
    EdgekitError,
    HeaderError,
    NotFoundError,
    RemoteInspectError,
    SourceError,
)
from edgekit.sources.download import find_weights
from edgekit.sources.locator import locate
from edgekit.sources.ollama import MAX_MANIFEST_BYTES, find_ollama
from edgekit.sources.reference import BareName, HubModel, OllamaModel
from edgekit.sources.stores import (
    find_hub_cached,
    find_hub_cached_name,
    find_lm_studio,
    hub_cache_folder,
    known_names,
    locate_sample,
    sample_names,
)
from edgekit.sources.types import Container, ModelFiles, Origin, Reach

if TYPE_CHECKING:
    from collections.abc import Iterator

OFFLINE = Reach(network=False)
MODEL = "application/vnd.ollama.image.model"
PROJECTOR = "application/vnd.ollama.image.projector"


def put(root: Path, *names: str, data: bytes = b"GGUF") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def first_bytes(files: ModelFiles) -> bytes:
    source = files.weights[0].open()
    try:
        return source.read(0, 4)
    finally:
        source.close()


# Ollama


def layer(kind: str, digit: str, **more: Any) -> dict[str, Any]:
    return {"mediaType": kind, "digest": "sha256:" + digit * 64, "size": 4, **more}


def pull(name: str, *layers: Any, blobs: str = "", store: Path | None = None) -> Path:
    """The files that `ollama pull` writes."""
    store = store or Path.home() / ".ollama" / "models"
    manifest = json.dumps({"schemaVersion": 2, "layers": list(layers)}).encode()
    put(store, f"manifests/{name}", data=manifest)
    put(store, *(f"blobs/sha256-{digit * 64}" for digit in blobs))
    return store


def test_ollama_model_is_its_blob() -> None:
    pull("registry.ollama.ai/library/llama3.2/3b", layer(MODEL, "a"), blobs="a")
    result = find_ollama(OllamaModel(name="llama3.2", tag="3b"))
    assert result is not None
    assert (result.label, result.origin) == ("llama3.2:3b", Origin.OLLAMA_STORE)
    assert result.container is Container.GGUF
    assert first_bytes(result) == b"GGUF"
    assert result.projectors == ()


def test_ollama_names_ignore_case_and_default_to_latest() -> None:
    pull("registry.ollama.ai/library/Qwen3/latest", layer(MODEL, "a"), blobs="a")
    assert find_ollama(BareName(name="qwen3")) is not None
    assert find_ollama(OllamaModel(name="QWEN3", tag="LATEST")) is not None
    assert find_ollama(OllamaModel(name="qwen3", tag="8b")) is None
    assert find_ollama(OllamaModel(namespace="me", name="qwen3")) is None
    assert find_ollama(BareName(name="not an ollama name")) is None


def test_ollama_model_of_another_host_with_a_projector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    layers = (layer(MODEL, "a"), layer(PROJECTOR, "b"), layer("other; x=1", "c"))
    pull("hf.co/org/X-GGUF/Q4_K_M", *layers, blobs="ab", store=tmp_path)
    files = locate("ollama:hf.co/org/X-GGUF:Q4_K_M", reach=OFFLINE)
    assert files.label == "hf.co/org/X-GGUF:Q4_K_M"
    assert len(files.projectors) == 1


def test_ollama_model_without_its_blob_is_an_error() -> None:
    pull("registry.ollama.ai/library/m/latest", layer(MODEL, "a"))
    with pytest.raises(NotFoundError, match="though Ollama lists m:latest: pull it again"):
        find_ollama(BareName(name="m"))


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"layers": 1}',
        b'{"layers": [1]}',
        b'{"layers": [{}]}',
        json.dumps(
            {"layers": [layer(MODEL, "a") | {"digest": "sha256:../../etc/passwd"}]}
        ).encode(),
        json.dumps({"layers": [layer(MODEL, "a") | {"digest": "sha256:" + "A" * 64}]}).encode(),
        json.dumps({"layers": [layer(MODEL, "a") | {"digest": "md5:" + "a" * 64}]}).encode(),
        json.dumps(
            {"layers": [layer(MODEL, "a") | {"digest": "sha256:" + "a" * 64 + "\n"}]}
        ).encode(),
        json.dumps({"layers": [layer(MODEL, "a") | {"size": -1}]}).encode(),
        b" " * (MAX_MANIFEST_BYTES + 1),
        b"\xff\xfe",
    ],
)
def test_invalid_ollama_manifest_is_a_header_error(manifest: bytes) -> None:
    store = Path.home() / ".ollama" / "models"
    put(store, "manifests/registry.ollama.ai/library/m/latest", data=manifest)
    with pytest.raises(HeaderError):
        find_ollama(BareName(name="m"))


def test_ollama_cloud_model_has_no_weights() -> None:
    pull("registry.ollama.ai/library/big/cloud")
    with pytest.raises(NotFoundError, match="no weights"):
        find_ollama(OllamaModel(name="big", tag="cloud"))


def test_ollama_name_cannot_leave_the_store(tmp_path: Path) -> None:
    store = Path.home() / ".ollama" / "models"
    put(store, "manifests/registry.ollama.ai/x")
    put(store, "secret/latest", data=b'{"layers": []}')
    for model in (
        OllamaModel(name="secret", namespace="../../.."),
        OllamaModel(name="..", namespace="..", tag="secret"),
        OllamaModel(name="x", host=str(tmp_path)),
    ):
        assert find_ollama(model) is None


# LM Studio


def test_lm_studio_models_are_found_by_repository_or_file() -> None:
    models = Path.home() / ".lmstudio" / "models"
    put(models, "pub/Repo-GGUF/m-Q4_K_M.gguf", "pub/Repo-GGUF/m-Q8_0.gguf")
    put(models, "pub/Repo-GGUF/mmproj-m-F16.gguf", "mlx/Other-4bit/config.json")
    put(models, "mlx/Other-4bit/model.safetensors")
    for name in ("pub/repo-gguf", "REPO-GGUF", "m-q4_k_m", "m-Q4_K_M.gguf"):
        result = find_lm_studio(name)
        assert result is not None
        assert [file.name for file in result.weights] == ["m-Q4_K_M.gguf"]
        assert [file.name for file in result.projectors] == ["mmproj-m-F16.gguf"]
        assert (result.label, result.origin) == ("pub/Repo-GGUF:Q4_K_M", Origin.LM_STUDIO)
    other = find_lm_studio("other-4bit")
    assert other is not None
    assert other.container is Container.SAFETENSORS
    (models / "pub" / "emptied").mkdir()
    assert find_lm_studio("emptied") is None
    assert find_lm_studio("nothing") is None
    with_quant = find_lm_studio("repo-gguf", quant="Q8_0")
    assert with_quant is not None
    assert [file.name for file in with_quant.weights] == ["m-Q8_0.gguf"]


def test_ambiguous_lm_studio_name_lists_all_matches() -> None:
    models = Path.home() / ".lmstudio" / "models"
    put(models, "a/Repo/m-Q4_K_M.gguf", "b/Repo/m-Q4_K_M.gguf")
    with pytest.raises(NotFoundError, match="more than once") as caught:
        find_lm_studio("repo")
    assert caught.value.candidates == ("a/Repo", "b/Repo")
    with pytest.raises(NotFoundError, match="more than once") as caught:
        find_lm_studio("m-q4_k_m")
    assert caught.value.candidates == ("a/Repo/m-Q4_K_M.gguf", "b/Repo/m-Q4_K_M.gguf")


@pytest.mark.parametrize("place", ["pointer", "cache", "settings"])
def test_lm_studio_folder_is_found_in_all_its_places(tmp_path: Path, place: str) -> None:
    home = Path.home()
    if place == "pointer":
        put(home, ".lmstudio-home-pointer", data=f"{tmp_path}\n".encode())
        models = tmp_path / "models"
    elif place == "settings":
        settings = json.dumps({"downloadsFolder": str(tmp_path / "moved")})
        put(home, ".lmstudio/settings.json", data=settings.encode())
        models = tmp_path / "moved"
    else:
        models = home / ".cache" / "lm-studio" / "models"
    put(models, "pub/repo/m.gguf")
    assert find_lm_studio("repo") is not None


@pytest.mark.parametrize("data", [b"", b"\xff\x00", b"[" * 100_000, b'{"downloadsFolder": 1}'])
def test_invalid_lm_studio_settings_are_ignored(data: bytes) -> None:
    home = Path.home()
    put(home, ".lmstudio/settings.json", ".lmstudio-home-pointer", data=data[:4000])
    put(home, ".lmstudio/models/pub/repo/m.gguf")
    assert find_lm_studio("repo") is not None


# The hub's cache


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def download(cache: Path, repo: str, *names: str, commit: str = COMMIT, ref: str = "main") -> None:
    """The files that huggingface_hub writes: blobs, links to them, and a ref."""
    folder = cache / ("models--" + repo.replace("/", "--"))
    for name in names:
        blob = folder / "blobs" / name.replace("/", "_")
        put(blob.parent, blob.name)
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    put(folder, f"refs/{ref}", data=commit.encode())


def test_find_hub_cached_by_quantisation_file_and_revision() -> None:
    assert find_hub_cached(HubModel(repo="org/name")) is None
    download(hub_cache_folder(), "org/name", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "config.json")
    result = find_hub_cached(HubModel(repo="org/name", quant="q8_0"))
    assert result is not None
    assert (result.label, result.origin) == ("org/name:Q8_0", Origin.HUB_CACHE)
    assert first_bytes(result) == b"GGUF"
    config = find_hub_cached(HubModel(repo="org/name", filename="config.json"))
    assert config is not None
    assert config.container is Container.CONFIG
    assert find_hub_cached(HubModel(repo="org/other")) is None
    assert find_hub_cached(HubModel(repo="org/name", revision="v2")) is None
    assert find_hub_cached(HubModel(repo="org/name", revision=COMMIT)) is not None


def test_broken_links_in_the_hub_cache_are_ignored() -> None:
    cache = hub_cache_folder()
    download(cache, "org/name", "model.safetensors", "config.json")
    (cache / "models--org--name" / "blobs" / "model.safetensors").unlink()
    result = find_hub_cached(HubModel(repo="org/name"))
    assert result is not None
    assert result.container is Container.CONFIG
    (cache / "models--org--name" / "blobs" / "config.json").unlink()
    assert find_hub_cached(HubModel(repo="org/name")) is None


def test_quantisation_missing_from_the_hub_cache_lists_the_others() -> None:
    download(hub_cache_folder(), "org/name", "m-Q4_K_M.gguf")
    with pytest.raises(NotFoundError, match="no Q8_0") as caught:
        find_hub_cached(HubModel(repo="org/name", quant="Q8_0"))
    assert caught.value.candidates == ("Q4_K_M",)


def test_find_hub_cached_name_ignores_the_owner_and_case() -> None:
    cache = hub_cache_folder()
    download(cache, "org/Name", "config.json")
    download(cache, "gpt2", "config.json")
    assert find_hub_cached_name("name") is not None
    assert find_hub_cached_name("gpt2") is not None
    assert find_hub_cached_name("org") is None
    download(cache, "other/name", "config.json")
    with pytest.raises(NotFoundError, match="more than once") as caught:
        find_hub_cached_name("name")
    assert caught.value.candidates == ("org/Name", "other/name")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"HF_HOME": "/a/b"},
        {"HF_HOME": "~/b"},
        {"HF_HOME": "$HOME/b"},
        {"HF_HUB_CACHE": "/a/cache"},
        {"HF_HUB_CACHE": "~/cache", "HF_HOME": "/a"},
        {"HUGGINGFACE_HUB_CACHE": "/legacy"},
        {"HUGGINGFACE_HUB_CACHE": "/legacy", "HF_HUB_CACHE": "${HOME}/new"},
        {"XDG_CACHE_HOME": "/x"},
        {"XDG_CACHE_HOME": "~/x"},
        {"HF_HOME": ""},
    ],
)
def test_hub_cache_folder_agrees_with_huggingface_hub(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    clean = {"HOME": str(Path.home()), "PATH": os.environ["PATH"], **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True
    )
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert hub_cache_folder() == Path(done.stdout.strip())


# Samples


@pytest.mark.parametrize(("name", "tensors"), [("gemma-3-27b", 808), ("qwen3-30b-a3b", 579)])
def test_sample_is_a_valid_header_with_the_size_of_the_real_file(
    tmp_path: Path, name: str, tensors: int
) -> None:
    files = locate(f"sample:{name.upper()}")
    assert (files.origin, files.container) == (Origin.SAMPLE, Container.GGUF)
    source = files.weights[0].open()
    assert source.size_bytes == files.weights[0].size_bytes
    # In a sparse file of that size, gguf's own reader must find every tensor.
    with (tmp_path / "m.gguf").open("wb") as out:
        out.write(source.read(0, 1_000_000))
        out.truncate(source.size_bytes)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert len(reader.tensors) == tensors
    last = max(reader.tensors, key=lambda tensor: tensor.data_offset)
    assert -(-(last.data_offset + last.n_bytes) // 32) * 32 == source.size_bytes


def test_reading_the_weights_of_a_sample_is_an_error() -> None:
    source = locate_sample("gemma-3-27b").weights[0].open()
    header = source.read(0, 1_000_000)
    assert len(header) == 48_960
    assert source.read(48_950, 100) == header[-10:]
    assert source.read(source.size_bytes, 10) == b""
    with pytest.raises(SourceError, match="byte 48,960 is not included"):
        source.read(48_960, 1)
    with pytest.raises(SourceError, match="only a header"):
        source.read(source.size_bytes - 1, 1)
    source.close()


def test_unknown_sample_suggests_existing_ones() -> None:
    with pytest.raises(NotFoundError) as caught:
        locate("sample:gemma-3-27")
    assert caught.value.candidates == ("gemma-3-27b",)
    with pytest.raises(NotFoundError) as caught:
        locate("sample:zzz")
    assert caught.value.candidates == sample_names()


# The order of the stores


def test_locating_a_sample_imports_no_network_and_no_slow_modules() -> None:
    code = (
        "import sys; from edgekit.sources.locator import locate; locate('sample:gemma-3-27b').weights[0].open();"
        "print([m for m in ('httpx2', 'huggingface_hub', 'ssl', 'difflib', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_bare_name_is_searched_in_each_store_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path.home()
    monkeypatch.chdir(tmp_path)
    locate_thing = partial(locate, "thing", reach=OFFLINE)
    with pytest.raises(NotFoundError, match="network was not searched"):
        locate_thing()
    download(hub_cache_folder(), "org/thing", "config.json")
    assert locate_thing().origin is Origin.HUB_CACHE
    put(home, ".lmstudio/models/pub/thing/m.gguf")
    assert locate_thing().origin is Origin.LM_STUDIO
    pull("registry.ollama.ai/library/thing/latest", layer(MODEL, "a"), blobs="a")
    assert locate_thing().origin is Origin.OLLAMA_STORE
    assert locate_thing().reference == "thing"
    put(tmp_path, "thing")
    assert locate_thing().origin is Origin.LOCAL


def test_known_names_are_suggested_for_an_unknown_name() -> None:
    pull("registry.ollama.ai/library/qwen3/8b", layer(MODEL, "a"), blobs="a")
    pull("hf.co/me/mine/q8", layer(MODEL, "a"))
    put(Path.home(), ".lmstudio/models/pub/gemma-3/m.gguf")
    download(hub_cache_folder(), "org/name", "config.json")
    names = known_names()
    assert names == ("hf.co/me/mine:q8", "qwen3:8b", "pub/gemma-3", "org/name")
    with pytest.raises(NotFoundError) as caught:
        locate("qwen3-8b", reach=OFFLINE)
    assert "qwen3:8b" in caught.value.candidates


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", None])
def test_hub_model_offline_comes_from_a_store_on_this_machine(
    variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "1")
    reach = Reach(network=variable is not None)
    with pytest.raises(
        RemoteInspectError, match=r"not in the Hugging Face cache .* network is off"
    ):
        locate("org/name", reach=reach)
    put(Path.home(), ".lmstudio/models/org/name/m-Q8_0.gguf")
    assert locate("org/name:q8_0", reach=reach).origin is Origin.LM_STUDIO
    download(hub_cache_folder(), "org/name", "config.json")
    files = locate("hf.co/org/name", reach=reach)
    assert (files.origin, files.reference) == (Origin.HUB_CACHE, "hf.co/org/name")


@pytest.mark.parametrize("text", ["https://127.0.0.1:9/m.gguf", "llama3:8b", "ollama:x"])
def test_remote_model_offline_is_an_error(text: str) -> None:
    with pytest.raises(RemoteInspectError, match="not on this machine, and --offline is set"):
        locate(text, reach=OFFLINE)


def test_find_weights_of_a_url_says_to_download_the_file() -> None:
    """The network is allowed, so the message must not blame --offline."""
    with pytest.raises(RemoteInspectError) as caught:
        find_weights("https://127.0.0.1:9/m.gguf")
    assert str(caught.value) == (
        "https://127.0.0.1:9/m.gguf is not on this machine: download the file and give its path"
    )


class _NotFoundHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def not_found_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _NotFoundHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("down", [False, True])
def test_hub_cache_is_used_if_the_hub_is_down_or_has_no_such_model(
    not_found_server: str, monkeypatch: pytest.MonkeyPatch, *, down: bool
) -> None:
    reach = Reach(connect_timeout_s=5.0, total_timeout_s=20.0, cache=False)
    download(hub_cache_folder(), "org/name", "config.json")
    closed_port = "http://127.0.0.1:9"
    monkeypatch.setenv("HF_ENDPOINT", closed_port if down else not_found_server)
    files = locate("org/name", reach=reach)
    assert files.origin is Origin.HUB_CACHE
    assert "could not read it from Hugging Face" in files.notes[-1]
    with pytest.raises(RemoteInspectError):
        locate("org/other", reach=reach)


def test_name_unknown_to_all_stores_and_registries_is_not_found(
    not_found_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", not_found_server)
    pull("registry.ollama.ai/library/llama3.2/3b", layer(MODEL, "a"), blobs="a")
    with pytest.raises(NotFoundError, match="or in Ollama's registry") as caught:
        locate("llama3.2-3b")
    assert caught.value.candidates == ("llama3.2:3b",)
    with pytest.raises(EdgekitError):
        locate("llama3.2:70b")
