"""Models that are already on this machine, by name; samples; and in which order places are tried."""

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
from edgekit.sources import locate
from edgekit.sources.download import find_weights
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


def first_bytes(found: ModelFiles) -> bytes:
    source = found.weights[0].open()
    try:
        return source.read(0, 4)
    finally:
        source.close()


# Ollama


def layer(kind: str, digit: str, **more: Any) -> dict[str, Any]:
    return {"mediaType": kind, "digest": "sha256:" + digit * 64, "size": 4, **more}


def pull(name: str, *layers: Any, blobs: str = "", store: Path | None = None) -> Path:
    """What `ollama pull` leaves behind."""
    store = store or Path.home() / ".ollama" / "models"
    manifest = json.dumps({"schemaVersion": 2, "layers": list(layers)}).encode()
    put(store, f"manifests/{name}", data=manifest)
    put(store, *(f"blobs/sha256-{digit * 64}" for digit in blobs))
    return store


def test_ollamas_model_is_its_blob() -> None:
    pull("registry.ollama.ai/library/llama3.2/3b", layer(MODEL, "a"), blobs="a")
    result = find_ollama(OllamaModel(name="llama3.2", tag="3b"))
    assert result is not None
    assert (result.label, result.origin) == ("llama3.2:3b", Origin.OLLAMA_STORE)
    assert result.container is Container.GGUF
    assert first_bytes(result) == b"GGUF"
    assert result.projectors == ()


def test_ollamas_names_ignore_case_and_default_to_latest() -> None:
    pull("registry.ollama.ai/library/Qwen3/latest", layer(MODEL, "a"), blobs="a")
    assert find_ollama(BareName(name="qwen3")) is not None
    assert find_ollama(OllamaModel(name="QWEN3", tag="LATEST")) is not None
    assert find_ollama(OllamaModel(name="qwen3", tag="8b")) is None
    assert find_ollama(OllamaModel(namespace="me", name="qwen3")) is None
    assert find_ollama(BareName(name="not an ollama name")) is None


def test_ollamas_projector_comes_along_and_other_hosts_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    layers = (layer(MODEL, "a"), layer(PROJECTOR, "b"), layer("other; x=1", "c"))
    pull("hf.co/org/X-GGUF/Q4_K_M", *layers, blobs="ab", store=tmp_path)
    files = locate("ollama:hf.co/org/X-GGUF:Q4_K_M", reach=OFFLINE)
    assert files.label == "hf.co/org/X-GGUF:Q4_K_M"
    assert len(files.projectors) == 1


def test_a_blob_that_is_gone_says_so() -> None:
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
def test_a_manifest_that_is_none_is_one_of_our_errors(manifest: bytes) -> None:
    store = Path.home() / ".ollama" / "models"
    put(store, "manifests/registry.ollama.ai/library/m/latest", data=manifest)
    with pytest.raises(HeaderError):
        find_ollama(BareName(name="m"))


def test_a_model_that_runs_in_ollamas_cloud_has_no_files() -> None:
    pull("registry.ollama.ai/library/big/cloud")
    with pytest.raises(NotFoundError, match="no weights"):
        find_ollama(OllamaModel(name="big", tag="cloud"))


def test_a_name_does_not_lead_out_of_the_store(tmp_path: Path) -> None:
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


def test_lm_studios_models_are_found_by_repository_or_file() -> None:
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


def test_lm_studios_name_for_two_models_lists_both() -> None:
    models = Path.home() / ".lmstudio" / "models"
    put(models, "a/Repo/m-Q4_K_M.gguf", "b/Repo/m-Q4_K_M.gguf")
    with pytest.raises(NotFoundError, match="more than once") as caught:
        find_lm_studio("repo")
    assert caught.value.candidates == ("a/Repo", "b/Repo")
    with pytest.raises(NotFoundError, match="more than once") as caught:
        find_lm_studio("m-q4_k_m")
    assert caught.value.candidates == ("a/Repo/m-Q4_K_M.gguf", "b/Repo/m-Q4_K_M.gguf")


@pytest.mark.parametrize("placement", ["pointer", "cache", "settings"])
def test_lm_studios_folder_is_found_wherever_it_was_moved(tmp_path: Path, placement: str) -> None:
    home = Path.home()
    if placement == "pointer":
        put(home, ".lmstudio-home-pointer", data=f"{tmp_path}\n".encode())
        models = tmp_path / "models"
    elif placement == "settings":
        settings = json.dumps({"downloadsFolder": str(tmp_path / "moved")})
        put(home, ".lmstudio/settings.json", data=settings.encode())
        models = tmp_path / "moved"
    else:
        models = home / ".cache" / "lm-studio" / "models"
    put(models, "pub/repo/m.gguf")
    assert find_lm_studio("repo") is not None


@pytest.mark.parametrize("data", [b"", b"\xff\x00", b"[" * 100_000, b'{"downloadsFolder": 1}'])
def test_lm_studios_broken_settings_do_not_stop_the_search(data: bytes) -> None:
    home = Path.home()
    put(home, ".lmstudio/settings.json", ".lmstudio-home-pointer", data=data[:4000])
    put(home, ".lmstudio/models/pub/repo/m.gguf")
    assert find_lm_studio("repo") is not None


# The hub's cache


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def download(cache: Path, repo: str, *names: str, commit: str = COMMIT, ref: str = "main") -> None:
    """What huggingface_hub leaves behind: blobs, links to them, and a ref."""
    folder = cache / ("models--" + repo.replace("/", "--"))
    for name in names:
        blob = folder / "blobs" / name.replace("/", "_")
        put(blob.parent, blob.name)
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    put(folder, f"refs/{ref}", data=commit.encode())


def test_the_cache_holds_what_was_downloaded() -> None:
    assert find_hub_cached(HubModel(repo="org/name")) is None
    download(hub_cache_folder(), "org/name", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "config.json")
    result = find_hub_cached(HubModel(repo="org/name", quant="q8_0"))
    assert result is not None
    assert (result.label, result.origin) == ("org/name:Q8_0", Origin.HUB_CACHE)
    assert first_bytes(result) == b"GGUF"
    named = find_hub_cached(HubModel(repo="org/name", filename="config.json"))
    assert named is not None
    assert named.container is Container.CONFIG
    assert find_hub_cached(HubModel(repo="org/other")) is None
    assert find_hub_cached(HubModel(repo="org/name", revision="v2")) is None
    assert find_hub_cached(HubModel(repo="org/name", revision=COMMIT)) is not None


def test_a_broken_link_in_the_cache_is_not_there() -> None:
    cache = hub_cache_folder()
    download(cache, "org/name", "model.safetensors", "config.json")
    (cache / "models--org--name" / "blobs" / "model.safetensors").unlink()
    result = find_hub_cached(HubModel(repo="org/name"))
    assert result is not None
    assert result.container is Container.CONFIG
    (cache / "models--org--name" / "blobs" / "config.json").unlink()
    assert find_hub_cached(HubModel(repo="org/name")) is None


def test_what_the_cache_lacks_is_named() -> None:
    download(hub_cache_folder(), "org/name", "m-Q4_K_M.gguf")
    with pytest.raises(NotFoundError, match="no Q8_0") as caught:
        find_hub_cached(HubModel(repo="org/name", quant="Q8_0"))
    assert caught.value.candidates == ("Q4_K_M",)


def test_the_cache_is_searched_by_a_repositorys_name() -> None:
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
def test_the_cache_is_where_huggingface_hub_has_it(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    clean = {"HOME": str(Path.home()), "PATH": os.environ["PATH"], **environment}
    theirs = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True
    )
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert hub_cache_folder() == Path(theirs.stdout.strip())


# Samples


@pytest.mark.parametrize(("name", "tensors"), [("gemma-3-27b", 808), ("qwen3-30b-a3b", 579)])
def test_a_sample_is_the_header_of_a_file_of_its_real_size(
    tmp_path: Path, name: str, tensors: int
) -> None:
    files = locate(f"sample:{name.upper()}")
    assert (files.origin, files.container) == (Origin.SAMPLE, Container.GGUF)
    source = files.weights[0].open()
    assert source.size_bytes == files.weights[0].size_bytes
    # A file with a hole for its weights: gguf's own reader must find every tensor inside it.
    with (tmp_path / "m.gguf").open("wb") as out:
        out.write(source.read(0, 1_000_000))
        out.truncate(source.size_bytes)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert len(reader.tensors) == tensors
    last = max(reader.tensors, key=lambda tensor: tensor.data_offset)
    assert -(-(last.data_offset + last.n_bytes) // 32) * 32 == source.size_bytes


def test_a_sample_has_no_weights() -> None:
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


def test_an_unknown_sample_names_those_there_are() -> None:
    with pytest.raises(NotFoundError) as caught:
        locate("sample:gemma-3-27")
    assert caught.value.candidates == ("gemma-3-27b",)
    with pytest.raises(NotFoundError) as caught:
        locate("sample:zzz")
    assert caught.value.candidates == sample_names()


# The order of places


def test_importing_the_source_loads_no_network_and_no_slow_modules() -> None:
    code = (
        "import sys, edgekit.sources; edgekit.sources.locate('sample:gemma-3-27b').weights[0].open();"
        "print([m for m in ('httpx2', 'huggingface_hub', 'ssl', 'difflib', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_bare_name_is_looked_for_in_each_store_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path.home()
    monkeypatch.chdir(tmp_path)
    look = partial(locate, "thing", reach=OFFLINE)
    with pytest.raises(NotFoundError, match="network was not searched"):
        look()
    download(hub_cache_folder(), "org/thing", "config.json")
    assert look().origin is Origin.HUB_CACHE
    put(home, ".lmstudio/models/pub/thing/m.gguf")
    assert look().origin is Origin.LM_STUDIO
    pull("registry.ollama.ai/library/thing/latest", layer(MODEL, "a"), blobs="a")
    assert look().origin is Origin.OLLAMA_STORE
    assert look().reference == "thing"
    put(tmp_path, "thing")
    assert look().origin is Origin.LOCAL


def test_an_unknown_name_lists_what_this_machine_has() -> None:
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
def test_offline_a_hub_model_comes_from_the_cache_or_not_at_all(
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
def test_without_a_network_nothing_is_asked_of_it(text: str) -> None:
    with pytest.raises(RemoteInspectError, match="not on this machine, and --offline is set"):
        locate(text, reach=OFFLINE)


def test_find_weights_of_an_address_says_to_download_the_file() -> None:
    """The network is allowed, so --offline is not the reason."""
    with pytest.raises(RemoteInspectError) as caught:
        find_weights("https://127.0.0.1:9/m.gguf")
    assert str(caught.value) == (
        "https://127.0.0.1:9/m.gguf is not on this machine: download the file and give its path"
    )


class _Refuser(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refuser() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refuser) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("down", [False, True])
def test_the_hubs_cache_is_read_where_the_hub_is_down_or_says_no(
    refuser: str, monkeypatch: pytest.MonkeyPatch, *, down: bool
) -> None:
    reach = Reach(connect_timeout_s=5.0, total_timeout_s=20.0, cache=False)
    download(hub_cache_folder(), "org/name", "config.json")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9" if down else refuser)  # 9: discard
    files = locate("org/name", reach=reach)
    assert files.origin is Origin.HUB_CACHE
    assert "could not read it from Hugging Face" in files.notes[-1]
    with pytest.raises(RemoteInspectError):
        locate("org/other", reach=reach)


def test_a_name_that_no_place_knows_is_not_found(
    refuser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", refuser)
    pull("registry.ollama.ai/library/llama3.2/3b", layer(MODEL, "a"), blobs="a")
    with pytest.raises(NotFoundError, match="or in Ollama's registry") as caught:
        locate("llama3.2-3b")
    assert caught.value.candidates == ("llama3.2:3b",)
    with pytest.raises(EdgekitError):
        locate("llama3.2:70b")
