"""--help: defaults, examples, wording, and what it imports."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys

import pytest

from edgekit.cli.parser import build_parser
from edgekit.index.names import find_entry
from edgekit.request import Request

# matches "(default 120)" and "default 64"
STATED = re.compile(r"\bdefault ([0-9][0-9.]*)(?![0-9kKMG.]| GiB)")


def commands() -> dict[str, argparse.ArgumentParser]:
    [actions] = [
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return dict(actions.choices)


@pytest.mark.parametrize("name", commands())
def test_defaults_stated_in_help_are_those_of_the_parser(name: str) -> None:
    for action in commands()[name]._actions:
        stated = STATED.search(action.help or "")
        if stated and action.default not in (None, argparse.SUPPRESS):
            assert str(action.default).removesuffix(".0") == stated[1].rstrip("."), action.help


@pytest.mark.parametrize("name", ["check", "plan"])
def test_help_says_that_the_context_is_chosen_to_fit(name: str) -> None:
    output = " ".join(commands()[name].format_help().split())
    assert "default: chosen to fit" in output


def test_serve_help_does_not_mention_metrics() -> None:
    assert "/metrics" not in commands()["serve"].format_help()


@pytest.mark.parametrize(
    "name", ["check", "share", "plan", "recommend", "search", "estimate", "compare", "run", "serve"]
)
def test_examples_in_help_parse_and_name_known_models_and_machines(name: str) -> None:
    text = commands()[name].epilog or ""
    examples = re.findall(rf"^  (?:git diff \| )?edgekit ({name}\b.*)$", text, re.MULTILINE)
    assert 2 <= len(examples) <= 6
    for line in examples:
        arguments = build_parser().parse_args(shlex.split(line.partition(" > ")[0]))
        Request.from_argv(arguments).find_machine()
        models = [getattr(arguments, "model", None), *getattr(arguments, "models", ())]
        for model in filter(None, models):
            if "/" not in model and not model.endswith(".gguf"):
                find_entry(model)


@pytest.mark.parametrize("name", commands())
def test_help_line_does_not_begin_with_a_reference_to_another(name: str) -> None:
    for action in commands()[name]._actions:
        if action.help and action.help != argparse.SUPPRESS:
            assert not re.match(r"(and|or|the same|it|they|those|its|each) ", action.help), action


def test_parser_imports_nothing_heavy() -> None:
    code = "import sys, edgekit.cli.parser as p; p.build_parser().format_help(); print(' '.join(sys.modules))"
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(completed.stdout.split())
    assert loaded.isdisjoint(
        {
            "dataclasses", "fastapi", "httpx2", "huggingface_hub", "json", "numpy", "pathlib", "pydantic", "shlex",
            "ssl", "uvicorn", "edgekit.bill", "edgekit.formats", "edgekit.model", "edgekit.report", "edgekit.sources",
            "edgekit.web",
        }
    )  # fmt: skip
    of_engines = {name for name in loaded if name.startswith("edgekit.engines.")}
    packages = {f"edgekit.engines.{name}" for name in ("llamacpp", "vllm", "mlx", "native")}
    flags = {f"{name}.flags" for name in (*packages, "edgekit.engines")}
    assert of_engines - packages == {"edgekit.engines.protocol", *flags}
