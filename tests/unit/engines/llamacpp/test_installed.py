"""engines/llamacpp/installed.py: the programs that run llama.cpp, by what they say of themselves."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.llama_server import write_llama_server
from tests.patience import PATIENCE_S
from tests.programs import FAIL, FLOOD, HANG, answering, write_program
from tests.unit.machine.trees import machine

from edgekit.engines import lm_studio
from edgekit.engines.llamacpp.installed import installations, read_devices
from edgekit.engines.program import Installation
from edgekit.machine.types import System

NOBODY = {"OLLAMA_HOST": "127.0.0.1:1"}  # no Ollama listens there
NONE = "Available devices:\n  (none)\n"
TWO_CARDS = """\
ggml_cuda_init: found 2 CUDA devices (Total VRAM: 48128 MiB):
  Device 0: NVIDIA GeForce RTX 4090, compute capability 8.9, VMM: yes
Available devices:
  CUDA0: NVIDIA GeForce RTX 4090 (24080 MiB, 23650 MiB free)
  CUDA1: NVIDIA GeForce RTX 3090 (24048 MiB, 12 MiB free)
  Vulkan0: NVIDIA GeForce RTX 4090 (24564 MiB, 24000 MiB free)
  BLAS: OpenBLAS (0 MiB, 0 MiB free)
  RPC0: RPC[192.168.1.2:50052] (8192 MiB, 8192 MiB free)
"""
NEW = "version: 0.6.0-dev (build 11549, commit 0c1e570)\nbuilt with GNU 13.3.0 for Linux x86_64"


def others(folder: Path, **environment: str) -> tuple[Installation, ...]:
    """Everything that is found on a machine with this PATH, except for the wheel of the environment of the tests."""
    here = machine(folder / "root", environment={"PATH": str(folder), **NOBODY, **environment})
    found = installations(PATIENCE_S, here)
    return tuple(item for item in found if item.program != "xllamacpp")


def only(folder: Path, code: str) -> Installation:
    write_program(folder / "llama-server", code)
    (found,) = others(folder)
    assert found.program == "llama-server"
    assert found.path == str(folder / "llama-server")
    return found


def test_real_llama_server(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    write_llama_server(tmp_path)
    (found,) = others(tmp_path)
    assert (found.program, found.origin, found.problem) == ("llama-server", "PATH", "")
    assert (found.version, found.build[:1], found.rules_version) == (
        "0.6.0-dev",
        "b",
        "0.6.0-dev (b11549)",
    )
    assert "CPU" in found.backends


def test_the_wheel_of_this_environment(tmp_path: Path) -> None:
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    here = machine(tmp_path, environment=NOBODY)
    (found,) = (item for item in installations(PATIENCE_S, here) if item.program == "xllamacpp")
    assert (found.origin, found.problem) == ("Python package", "")
    assert found.build.startswith("llama.cpp 0.")
    assert Path(found.path).name == "xllamacpp"


@pytest.mark.parametrize(
    ("printed", "version", "build", "rules"),
    [
        (NEW, "0.6.0-dev", "b11549", "0.6.0-dev (b11549)"),
        ("version: 9294 (0c1e570)\nbuilt with cc", "b9294", "0c1e570", "b9294"),
        ("version: 0.5.0-dev (build 1, commit 0c1e570)", "0.5.0-dev", "0c1e570", "0.5.0-dev (0c1e570)"),
        ("version: 0.4.0 (build 10850, commit 0c1e570)", "0.4.0", "b10850", "b10850"),
        ("version: 0.6.0 (build 0, commit unknown)", "0.6.0", "", "0.6.0-dev (b11549)"),
        ("version: 1 (dd1ea52)", "", "dd1ea52", "0.6.0-dev (b11549)"),  # compiled from an archive
        ("version: 12345 (0c1e570)", "b12345", "0c1e570", "b12345"),
        (f"load_backend: loaded CUDA backend\n{NEW}", "0.6.0-dev", "b11549", "0.6.0-dev (b11549)"),
    ],
)  # fmt: skip
def test_version_of_a_llama_server(
    tmp_path: Path, printed: str, version: str, build: str, rules: str
) -> None:
    found = only(tmp_path, answering({"--version": printed, "--list-devices": NONE}))
    assert (found.version, found.build, found.rules_version) == (version, build, rules)
    assert found.problem == ""


@pytest.mark.parametrize(
    ("printed", "problem"),
    [
        ("version: 8000 (0c1e570)", "llama.cpp b8000 is too old: edgekit supports b8608"),
        (
            "usage: llama-server",
            "--version printed 'usage: llama-server', which is not a llama.cpp version",
        ),
        ("", "--version printed '', which is not a llama.cpp version"),
        ("version: \x1b[31m" + "9" * 40, "--version printed 'version: [31m"),
    ],
    ids=["too old", "another program", "silent", "hostile"],
)
def test_program_that_is_no_known_llama_server(tmp_path: Path, printed: str, problem: str) -> None:
    found = only(tmp_path, answering({"--version": printed, "--list-devices": NONE}))
    assert found.problem.startswith(problem)
    assert found.problem.isprintable()


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (FLOOD, "it prints more than 64 KiB"),
        (FAIL, "it ends with exit code 1: error while loading shared libraries"),
    ],
    ids=["flood", "missing library"],
)
def test_program_that_cannot_be_asked(tmp_path: Path, code: str, problem: str) -> None:
    found = only(tmp_path, code)
    assert found.problem.startswith(problem)
    assert found.devices == ()


def test_program_that_hangs_does_not_hide_the_others(tmp_path: Path) -> None:
    write_program(tmp_path / "hanging" / "llama-server", HANG)
    write_program(
        tmp_path / "good" / "llama-server",
        answering({"--version": NEW, "--list-devices": NONE}),
    )
    path = f"{tmp_path / 'hanging'}{os.pathsep}{tmp_path / 'good'}"
    here = machine(tmp_path / "root", environment={"PATH": path, **NOBODY})
    timeout_s = 1.0
    while True:  # on a busy machine even the good one may need longer
        found = [item for item in installations(timeout_s, here) if item.program == "llama-server"]
        if not found[0].problem:
            break
        timeout_s *= 2
    assert [Path(item.path).parent.name for item in found] == ["good", "hanging"]
    assert found[1].problem == f"it does not answer within {timeout_s:g} s"


def test_devices_of_a_build_for_gpus(tmp_path: Path) -> None:
    found = only(tmp_path, answering({"--version": NEW, "--list-devices": TWO_CARDS}))
    assert found.devices == (
        "CUDA0: NVIDIA GeForce RTX 4090",
        "CUDA1: NVIDIA GeForce RTX 3090",
        "Vulkan0: NVIDIA GeForce RTX 4090",
    )
    assert found.backends == ("CUDA", "Vulkan", "CPU")


@pytest.mark.parametrize(
    "text",
    ["", "CUDA0: a card (1 MiB, 1 MiB free)", "Available devices:\n  CUDA0: a card\n"],
    ids=["nothing", "no heading", "no sizes"],
)
def test_read_devices_of_other_text(text: str) -> None:
    assert read_devices(text) == ()


def test_read_devices_is_limited() -> None:
    lines = "".join(f"  CUDA{i}: {'x' * 150} (1 MiB, 1 MiB free)\n" for i in range(1000))
    devices = read_devices(f"Available devices:\n{lines}")
    assert len(devices) == 64
    assert max(map(len, devices)) <= len("CUDA63: ") + 100


def test_backends_of_a_build_without_a_gpu_are_read_from_its_libraries(tmp_path: Path) -> None:
    for name in (
        "libggml-cuda.so",
        "libggml-vulkan.so.0.9.1",
        "libggml-cpu-haswell.so",
        "libggml-base.so",
    ):
        (tmp_path / name).touch()
    found = only(tmp_path, answering({"--version": NEW, "--list-devices": NONE}))
    assert (found.backends, found.devices) == (("CUDA", "Vulkan", "CPU"), ())


def test_backend_of_a_static_build_without_a_gpu_is_read_from_its_log(tmp_path: Path) -> None:
    log = "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\n"
    found = only(tmp_path, answering({"--version": NEW, "--list-devices": log + NONE}))
    assert (found.backends, found.devices) == (("CUDA", "CPU"), ())


def test_faster_builds_come_first(tmp_path: Path) -> None:
    builds = {
        "cpu": NONE,
        "vulkan": "Available devices:\n  Vulkan0: A card (8 MiB, 8 MiB free)\n",
        "cuda": "Available devices:\n  CUDA0: A card (8 MiB, 8 MiB free)\n",
    }
    for name, listed in builds.items():
        code = answering({"--version": NEW, "--list-devices": listed})
        write_program(tmp_path / name / "llama-server", code)
    path = os.pathsep.join(str(tmp_path / name) for name in builds)
    here = machine(tmp_path / "root", environment={"PATH": path, **NOBODY})
    found = [item for item in installations(PATIENCE_S, here) if item.program == "llama-server"]
    assert [Path(item.path).parent.name for item in found] == ["cuda", "vulkan", "cpu"]


def test_llama_fit_params_next_to_a_llama_server(tmp_path: Path) -> None:
    code = answering({"--version": NEW, "--list-devices": NONE})
    write_program(tmp_path / "real" / "llama-server", code)
    write_program(tmp_path / "real" / "llama-fit-params", code)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "llama-server").symlink_to(tmp_path / "real" / "llama-server")
    here = machine(tmp_path / "root", environment={"PATH": str(tmp_path / "bin"), **NOBODY})
    found = [item for item in installations(PATIENCE_S, here) if item.program != "xllamacpp"]
    assert [(item.program, item.path) for item in found] == [
        ("llama-server", str(tmp_path / "bin" / "llama-server")),
        ("llama-fit-params", str(tmp_path / "real" / "llama-fit-params")),
    ]
    assert found[1].build == "b11549"


@pytest.mark.parametrize(
    ("variable", "folder", "origin"),
    [
        (
            "LOCALAPPDATA",
            "Microsoft/WinGet/Packages/ggml.llamacpp_Microsoft.Winget.Source_8wekyb3d8bbwe",
            "winget",
        ),
        ("SCOOP", "apps/llama.cpp/current", "Scoop"),
        ("USERPROFILE", "scoop/apps/llama.cpp-cuda/current", "Scoop"),
    ],
)
def test_llama_server_of_windows_package_managers(
    tmp_path: Path, variable: str, folder: str, origin: str
) -> None:
    code = answering({"--version": NEW, "--list-devices": NONE})
    path = write_program(tmp_path / folder / "llama-server.exe", code)
    here = replace(
        machine(tmp_path / "root", environment={variable: str(tmp_path), **NOBODY}),
        system=System.WINDOWS,
    )
    (found,) = (item for item in installations(PATIENCE_S, here) if item.program == "llama-server")
    assert (found.origin, found.path, found.problem) == (origin, str(path), "")


# --- LM Studio


def write_runtime(
    home: Path, name: str, version: str, framework: str | None, notes: str = ""
) -> Path:
    folder = home / ".lmstudio" / "extensions" / "backends" / f"{name}-{version}"
    folder.mkdir(parents=True)
    manifest = {"engine": "llama.cpp", "name": name, "version": version}
    gpu = {} if framework is None else {"gpu": {"make": "any", "framework": framework}}
    (folder / "backend-manifest.json").write_text(json.dumps(manifest | gpu))
    texts = {"releaseNotes": [{"version": version, "releaseNotes": notes}]}
    (folder / "display-data.json").write_text(json.dumps([["en", texts]]))
    return folder


@pytest.fixture
def home() -> Path:
    """The home folder of the test."""
    return Path(os.environ["HOME"])


def test_lm_studio_is_listed_with_its_newest_runtimes(tmp_path: Path, home: Path) -> None:
    write_runtime(home, "llama.cpp-linux-x86_64-avx2", "2.9.0", None)
    write_runtime(home, "llama.cpp-linux-x86_64-avx2", "2.14.1", None)
    folder = write_runtime(
        home, "llama.cpp-linux-x86_64-cuda", "2.14.1", "CUDA", "Updated to llama.cpp release b9294 (commit 1)"
    )  # fmt: skip
    (found,) = others(tmp_path)
    assert (found.program, found.origin) == ("lm-studio", "LM Studio")
    assert (found.version, found.build, found.rules_version) == ("2.14.1", "b9294", "b9294")
    assert set(found.backends) == {"CPU", "CUDA"}
    assert found.path == str(folder.parent)
    assert found.problem.startswith("only LM Studio can start it")


@pytest.mark.parametrize(
    "manifest",
    ["", "[]", "{", '{"version": "1.0; rm -rf", "engine": "llama.cpp"}', '{"version": 3}', "[" * 100_000, "9" * 5000],
    ids=["empty", "list", "cut", "no version", "a number", "nested", "huge number"],
)  # fmt: skip
def test_runtimes_ignore_a_broken_manifest(home: Path, manifest: str) -> None:
    folder = write_runtime(home, "llama.cpp-a", "1.0.0", "CUDA")
    (folder / "backend-manifest.json").write_text(manifest)
    assert lm_studio.runtimes("llama.cpp") == ()


@pytest.mark.parametrize(
    "display", ["", "{}", "[[1]]", '[["en", {"releaseNotes": 1}]]', '[["en", {}]]', "[" * 100_000]
)
def test_runtimes_with_broken_release_notes_have_no_release(home: Path, display: str) -> None:
    folder = write_runtime(home, "llama.cpp-a", "1.0.0", "CUDA")
    (folder / "display-data.json").write_text(display)
    (runtime,) = lm_studio.runtimes("llama.cpp")
    assert (runtime.version, runtime.backend, runtime.release) == ("1.0.0", "CUDA", "")
