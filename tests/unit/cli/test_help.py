"""What --help says of defaults is what the parser and the code have."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

from edgekit.catalog.names import find_entry
from edgekit.cli.parser import build_parser
from edgekit.request import Request

# "(default 120)", "default 127.0.0.1", "default 64"
STATED = re.compile(r"\bdefault ([0-9][0-9.]*)(?![0-9kKMG.]| GiB)")


def commands() -> dict[str, argparse.ArgumentParser]:
    [actions] = [
        _action
        for _action in build_parser()._actions
        if isinstance(_action, argparse._SubParsersAction)
    ]
    return dict(actions.choices)


@pytest.mark.parametrize("name", commands())
def test_defaults_of_the_parser_are_those_that_help_states(name: str) -> None:
    for action in commands()[name]._actions:
        stated = STATED.search(action.help or "")
        if stated and action.default not in (None, argparse.SUPPRESS):
            assert str(action.default).removesuffix(".0") == stated[1].rstrip("."), action.help


@pytest.mark.parametrize("name", ["check", "plan"])
def test_a_context_that_is_not_given_is_chosen_to_fit(name: str) -> None:
    output = " ".join(commands()[name].format_help().split())
    assert "default: chosen to fit" in output


def test_serve_does_not_offer_metrics() -> None:
    assert "/metrics" not in commands()["serve"].format_help()


@pytest.mark.parametrize(
    "name", ["check", "plan", "recommend", "estimate", "compare", "run", "serve"]
)
def test_examples_are_command_lines_that_work(name: str) -> None:
    """They parse, name models that the catalog has, and machines that are known."""
    answer = commands()[name].epilog or ""
    result = re.findall(rf"^  (?:git diff \| )?edgekit ({name}\b.*)$", answer, re.MULTILINE)
    assert 2 <= len(result) <= 3
    for line in result:
        arguments = build_parser().parse_args(shlex.split(line.partition(" > ")[0]))
        Request.from_argv(arguments).find_machine()
        models = [getattr(arguments, "model", None), *getattr(arguments, "models", ())]
        for model in filter(None, models):
            if "/" not in model and not model.endswith(".gguf"):
                find_entry(model)


@pytest.mark.parametrize("name", commands())
def test_help_lines_stand_alone(name: str) -> None:
    for action in commands()[name]._actions:
        if action.help and action.help != argparse.SUPPRESS:
            assert not re.match(r"(and|or|the same|it|they|those|its|each) ", action.help), action
