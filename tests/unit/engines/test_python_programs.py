"""engines/python_programs.py, and mlx and vllm on this machine: environments of Python, asked for their versions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.programs import write_program
from tests.unit.machine.trees import machine

from edgekit.engines.mlx.installed import installations as mlx_installations
from edgekit.engines.program import Installation
from edgekit.engines.python_programs import interpreter_of, python_programs
from edgekit.engines.vllm.installed import installations as vllm_installations
from edgekit.machine.types import System

MLX_CUDA = {"mlx-lm": "0.32.2", "mlx": "0.32.4", "mlx-cuda-13": "0.32.4"}


def write_environment(folder: Path, script: str, packages: dict[str, str]) -> Path:
    """A Python environment that has these distributions, as far as their metadata tells, and a script."""
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for name, version in packages.items():
        metadata = site / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    return write_program(folder / "bin" / script, "", interpreter=str(folder / "bin" / "python"))


def on_path(folder: Path, program: str, found: tuple[Installation, ...]) -> Installation:
    """The installation whose script is in a folder."""
    (item,) = (item for item in found if item.path == str(folder / "bin" / program))
    return item


def test_mlx_on_the_path(tmp_path: Path) -> None:
    write_environment(tmp_path / "env", "mlx_lm.server", MLX_CUDA)
    here = machine(tmp_path / "root", environment={"PATH": str(tmp_path / "env" / "bin")})
    found = on_path(tmp_path / "env", "mlx_lm.server", mlx_installations(PATIENCE_S, here))
    assert (found.program, found.origin, found.problem) == ("mlx", "PATH", "")
    assert (found.version, found.build, found.backends) == ("0.32.2", "MLX 0.32.4", ("CUDA",))


@pytest.mark.parametrize(
    ("packages", "problem"),
    [
        ({"mlx-lm": "0.32.2"}, "MLX itself is missing: pip install mlx"),
        ({"mlx-lm": "0.32.2", "mlx": "0.32.4"}, "MLX has no backend: on Linux, pip install 'mlx[cuda13]' or 'mlx[cpu]'"),
    ],
    ids=["no mlx", "no backend"],
)  # fmt: skip
def test_mlx_that_is_incomplete(tmp_path: Path, packages: dict[str, str], problem: str) -> None:
    write_environment(tmp_path / "env", "mlx_lm.server", packages)
    here = machine(tmp_path / "root", environment={"PATH": str(tmp_path / "env" / "bin")})
    found = on_path(tmp_path / "env", "mlx_lm.server", mlx_installations(PATIENCE_S, here))
    assert found.problem == problem


@pytest.mark.parametrize(
    ("packages", "backends"),
    [
        ({"vllm": "0.32.0", "torch": "2.11.0", "nvidia-cuda-runtime": "13.0.96"}, ("CUDA",)),
        ({"vllm": "0.32.0", "torch": "2.11.0+cu130"}, ("CUDA",)),
        ({"vllm": "0.32.0+cpu", "torch": "2.11.0+cpu"}, ("CPU",)),
        ({"vllm": "0.32.0+rocm700", "torch": "2.11.0+gitabc"}, ("ROCm",)),
        ({"vllm": "0.32.0", "torch": "2.11.0"}, ()),
    ],
    ids=["PyPI", "cu130", "cpu", "rocm", "unknown"],
)
def test_vllm_on_the_path(
    tmp_path: Path, packages: dict[str, str], backends: tuple[str, ...]
) -> None:
    write_environment(tmp_path / "env", "vllm", packages)
    here = machine(tmp_path / "root", environment={"PATH": str(tmp_path / "env" / "bin")})
    found = on_path(tmp_path / "env", "vllm", vllm_installations(PATIENCE_S, here))
    assert (found.version, found.backends, found.problem) == (packages["vllm"], backends, "")
    assert found.build == f"PyTorch {packages['torch']}"


def test_script_whose_environment_lost_the_package(tmp_path: Path) -> None:
    write_environment(tmp_path / "env", "vllm", {"torch": "2.11.0"})
    here = machine(tmp_path / "root", environment={"PATH": str(tmp_path / "env" / "bin")})
    found = on_path(tmp_path / "env", "vllm", vllm_installations(PATIENCE_S, here))
    assert found.problem.endswith("has no vllm")


def test_script_with_an_interpreter_that_lies(tmp_path: Path) -> None:
    write_program(tmp_path / "python3", "print('edgekit-versions [1, 2')")
    write_program(tmp_path / "vllm", "", interpreter=str(tmp_path / "python3"))
    here = machine(tmp_path / "root", environment={"PATH": str(tmp_path)})
    (found,) = (item for item in vllm_installations(PATIENCE_S, here) if item.origin == "PATH")
    assert found.problem == f"its Python ({tmp_path / 'python3'}) reports no versions"


def test_own_environment_is_listed_without_starting_anything(tmp_path: Path) -> None:
    here = machine(tmp_path, environment={"PATH": str(Path(sys.executable).parent)})
    (found,) = python_programs("pytest", "pytest", ("pytest",), here=here, timeout_s=PATIENCE_S)
    assert (found.origin, found.versions) == ("Python package", {"pytest": pytest.__version__})
    assert Path(found.path).name == "pytest"


@pytest.mark.parametrize(
    ("first", "name"),
    [
        ("#!{python} -I\n", "python3"),
        ("#!/usr/bin/env python3\n", "python3"),
        ("#!/usr/bin/env -S python3 -E\n", "python3"),
        ("#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n", "python3"),
        ("#!/bin/bash\n", None),
        ("#!/bin/sh\nexec rm -rf /\n", None),
        ("#!\n", None),
        ("", None),
        ("#!'{python}\n", None),
        ("#!{python}/missing/python\n", None),
        ("\x7fELF\0\0\0", None),
    ],
)  # fmt: skip
def test_interpreter_of(tmp_path: Path, first: str, name: str | None) -> None:
    folder = tmp_path / "with blanks"
    python = write_program(folder / "python3", "")
    is_quoted = "exec" in first
    (tmp_path / "plain").symlink_to(folder)
    shown = python if is_quoted else tmp_path / "plain" / "python3"
    script = tmp_path / "script"
    script.write_text(first.replace("{python}", str(shown)))
    here = machine(tmp_path / "root", environment={"PATH": str(folder)})
    found = interpreter_of(script, here)
    assert (None if found is None else found.name) == name


def test_interpreter_of_a_launcher_on_windows_is_next_to_it(tmp_path: Path) -> None:
    write_program(tmp_path / "Scripts" / "python.exe", "")
    launcher = write_program(tmp_path / "Scripts" / "vllm.exe", "")
    here = machine(tmp_path / "root", system=System.WINDOWS)
    assert interpreter_of(launcher, here) == tmp_path / "Scripts" / "python.exe"
