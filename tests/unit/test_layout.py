"""The structure of the package: one folder per engine, imports in one direction, values parsed once."""

from __future__ import annotations

import subprocess
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from tools.engine_names import dependences
from tools.goldens import response_of
from tools.structure import Checkout, cycles, import_graph, parameters, upward_imports
from tools.traced_command import Trace

import edgekit
from edgekit.cli import main
from edgekit.engines import LIST
from edgekit.models import model_preflight

ROOT = Path(__file__).parents[2]
ENGINES = "edgekit.engines"
FOLDERS = (*LIST, "edgekit.engines.memo")
# Modules outside of an engine's folder that may import from it.
ALLOWED: dict[str, tuple[str, ...]] = {
    # `embed` runs on its encoder, `runtime` exports its documented names, the reports of `embed` use its array
    # types, and `calibrate` measures the disk as it reads weights.
    "edgekit.engines.native": (
        "edgekit.embed",
        "edgekit.runtime",
        "edgekit.report.embed",
        "edgekit.app.calibrate",
    ),
    # `embed --engine llama.cpp` starts the same child process as `run`.
    "edgekit.engines.llamacpp": ("edgekit.embed.llamacpp",),
    # Answers about tiers have types of this folder.
    "edgekit.engines.memo": (
        "edgekit.app.tiers",
        "edgekit.report.tier",
        "edgekit.cli.plan",
    ),
}
MODEL = "qwen3-0.6b"
CONTEXT = "8192"


@pytest.fixture(scope="module")
def checkout() -> Checkout:
    return Checkout(ROOT)


@pytest.fixture(scope="module")
def imports(checkout: Checkout) -> dict[str, set[str]]:
    """Module -> the modules it imports, also only for types."""
    return import_graph(checkout.trees, with_typing=True)


def folder_of(module: str) -> str:
    """The engine folder of a module; "" if it is in none."""
    return next((item for item in FOLDERS if f"{module}.".startswith(f"{item}.")), "")


def test_only_an_engines_own_folder_depends_on_its_name(checkout: Checkout) -> None:
    """Scripts of the web page included. Messages, examples and the list of engines may name engines."""
    assert dependences(ROOT, strict=True, trees=checkout.trees) == []


def test_engine_list_has_every_engine_folder() -> None:
    result = Path(edgekit.__file__).with_name("engines").glob("*/__init__.py")
    assert {f"{ENGINES}.{path.parent.name}" for path in result} == set(FOLDERS)


def test_engines_do_not_import_each_other(imports: dict[str, set[str]]) -> None:
    crossing = {
        (module, other)
        for module, imported in imports.items()
        for other in imported
        if folder_of(module) and folder_of(other) not in {"", folder_of(module)}
    }
    assert crossing == set()


def test_no_file_outside_an_engines_folder_imports_from_it(imports: dict[str, set[str]]) -> None:
    """Types included. Other files ask the engine: `engine_named(...)`, `default_engine()`."""
    crossing = {
        (module, folder)
        for module, imported in imports.items()
        for folder in map(folder_of, imported)
        if folder not in {"", folder_of(module)} and not module.startswith(ALLOWED.get(folder, ()))
    }
    assert crossing == set()


def test_only_the_flag_table_spells_parameters_of_llama_cpp(checkout: Checkout) -> None:
    assert parameters(checkout).places == ("engines/llamacpp/flags.py: 18",)


def test_no_import_cycles_even_for_types(imports: dict[str, set[str]]) -> None:
    assert cycles(imports) == []


def test_no_import_cycles_at_run_time(checkout: Checkout) -> None:
    assert cycles(import_graph(checkout.trees, with_typing=False)) == []


def test_no_upward_imports_in_the_order_of_import_linter(imports: dict[str, set[str]]) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    assert upward_imports(imports, layers) == []
    named = {".".join(module.split(".")[:2]) for module in imports}
    assert named - set(layers) == {"edgekit", "edgekit.__main__", "edgekit.source"}


def test_every_engine_imports_flags_but_no_rules() -> None:
    """--help imports every engine for its flags, and must be instant."""
    code = (
        "import sys; from edgekit.engines import every_engine; every_engine(); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    result = set(done.stdout.split())
    edgekit_modules = {name for name in result if name.split(".")[0] == "edgekit"}
    allowed = {"edgekit", ENGINES, f"{ENGINES}.flags", f"{ENGINES}.protocol"}
    allowed |= {module for item in LIST for module in (item, f"{item}.flags")}
    allowed |= {"edgekit.errors", "edgekit.units"}
    assert edgekit_modules == allowed
    others = {name.split(".")[0] for name in result - edgekit_modules} - sys.stdlib_module_names
    assert others & {"numpy", "pydantic", "fastapi", "psutil", "gguf", "huggingface_hub"} == set()


def parses(function: Callable[[], object]) -> Counter[str]:
    """Function -> how many times it parsed CONTEXT as a number."""
    trace = Trace(Path(edgekit.__file__).parent, CONTEXT)
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return trace.parses


@pytest.mark.parametrize("command", ["check", "plan", "estimate"])
def test_commands_parse_a_context_once(capsys: pytest.CaptureFixture[str], command: str) -> None:
    machine = () if command == "estimate" else ("--ram", "64G")
    arguments = [command, MODEL, "-c", CONTEXT, *machine]
    assert parses(lambda: main(arguments)) == {"units.py:parse_tokens": 1}
    assert "8K" in (text := capsys.readouterr().out) or "8,192" in text


@pytest.mark.parametrize("call", ["check", "plan", "estimate", "fit"])
def test_rest_calls_parse_a_context_once(call: str) -> None:
    import_module("edgekit.web.app")  # here, because tracing would slow the import down
    fields = {"model": MODEL, "context": CONTEXT}
    if call != "estimate":
        fields["ram"] = "64G"
    statuses: list[int] = []
    result = parses(lambda: statuses.append(response_of("POST", call, fields)[0]))
    assert (statuses, result) == ([200], {"units.py:parse_tokens": 1})


def test_model_preflight_parses_no_number() -> None:
    result = parses(lambda: model_preflight(MODEL, context=int(CONTEXT), ram="64G"))
    assert result == {}
