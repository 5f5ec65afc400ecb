"""`edgekit run --with ollama`: what Ollama downloads, and what is refused before."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hub.raw_server import RawServer, Script, hub_script, range_response
from tests.ollama_stand_in import write_ollama
from tests.patience import PATIENCE_S
from tests.runnable import write_chatting
from tests.serving import serving

from edgekit.cli import main
from edgekit.engines.llamacpp.run import ollama
from edgekit.sources import ollama as stores

pytest.importorskip("xllamacpp")
NAME, OWN_NAME = "acme/raw:Q8_0", "hf.co/acme/raw:Q8_0"
CATALOG_NAME, OWN_CATALOG_NAME = "qwen3-0.6b:Q8_0", "hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0"
PROMPT = ("--with", "ollama", "-p", "Hello", "-n", "2", "--raw", "-q")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chatting(tmp_path_factory.mktemp("hub") / "small-Q8_0.gguf", kind="Q8_0")


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ollama is on the PATH, and no server runs."""
    library = {OWN_NAME: str(model), OWN_CATALOG_NAME: str(model)}
    write_ollama(tmp_path / "bin", library)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    monkeypatch.setattr(ollama, "_DELETE_S", PATIENCE_S)


@pytest.fixture
def hub(
    raw_server: Callable[[Script], RawServer], model: Path, monkeypatch: pytest.MonkeyPatch
) -> RawServer:
    """A hub with acme/raw, whose header can be read but whose file is not downloaded whole."""
    content = model.read_bytes()
    server = raw_server(
        hub_script(
            {model.name: content}, lambda request, send: send(range_response(content, request))
        )
    )
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    return server


def stored() -> list[str]:
    """The models in the store of the user's Ollama, as paths of their manifests."""
    manifests = Path(os.environ["HOME"]) / ".ollama" / "models" / "manifests"
    return sorted(
        str(path.relative_to(manifests)) for path in manifests.rglob("*") if path.is_file()
    )


def test_ollama_downloads_the_file_that_was_billed(
    hub: RawServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("run", "acme/raw", *PROMPT)) == 0  # the repository without a quantisation
    assert capsys.readouterr().out
    assert stored() == ["hf.co/acme/raw/Q8_0"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ("--no-download",),
            4,
            "is not on this machine, and --no-download is set: leave it out\n",
        ),
        (("--download-up-to", "10K"), 4, "was not allowed"),
        (("--swa-full",), 2, "no equivalent of --swa-full"),
        (("-ctk", "q8_0", "-ctv", "f16"), 2, "one cache type"),
        (("-md", "qwen3-0.6b"), 2, "from its own models only"),
        (("--lora", "adapter.gguf"), 2, "from its own models only"),
        (("--mmproj", "mmproj.gguf"), 2, "from its own models only"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_ollama_downloads_nothing_that_is_not_allowed_or_refused(
    hub: RawServer,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    assert main(("run", NAME, *PROMPT, *words)) == code
    assert message in capsys.readouterr().err
    assert stored() == []


def test_ollama_downloads_a_catalog_name_only_with_consent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(("run", CATALOG_NAME, *PROMPT)) == 2
    err = capsys.readouterr().err
    assert f"To download {OWN_CATALOG_NAME}, " in err
    assert err.rstrip().endswith("add --yes")
    assert main(("run", CATALOG_NAME, *PROMPT, "--offline")) == 4
    assert "the network is off" in capsys.readouterr().err
    assert stored() == []
    assert main(("run", CATALOG_NAME, *PROMPT, "--yes")) == 0
    assert stored() == ["hf.co/Qwen/Qwen3-0.6B-GGUF/Q8_0"]
    # It is in the store now.
    assert main(("run", CATALOG_NAME, *PROMPT)) == 0
    assert main(("run", CATALOG_NAME, *PROMPT, "--offline")) == 0


def test_a_model_of_the_service_is_copied_not_downloaded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ollama's installer for Linux sets up a service with a store of its own, which the user's Ollama does not use."""
    service = tmp_path / "service"
    content = model.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    manifest = service / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest"
    for path, data in (
        (service / "blobs" / f"sha256-{digest}", content),
        (manifest, json.dumps({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": len(content)}]}).encode()),
    ):  # fmt: skip
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    monkeypatch.setattr(stores, "_SERVICE_STORE", service)
    # Its library does not have the model: a download would fail.
    assert main(("run", "ollama:tiny", *PROMPT, "--no-download")) == 0
    assert stored() == []


def test_a_server_that_is_stopped_leaves_no_model_behind(model: Path) -> None:
    with serving(str(model), "--with", "ollama", "-c", "256") as served:
        (made,) = stored()
        assert made.startswith("registry.ollama.ai/library/edgekit-")
        served.process.terminate()
        assert served.process.wait(PATIENCE_S) == 0
    assert stored() == []
