"""Nouns of ready commands: a text to paste, and how words become one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgekit.catalog.repositories import original_repository
from edgekit.engines.model_words import PLACEHOLDER, repository_word
from edgekit.machine.types import System
from edgekit.report.lines import printable

if TYPE_CHECKING:
    from edgekit.plan.planned import Plan
    from edgekit.sources.types import ModelFiles

COMMAND, FILE, SETTINGS = "command", "file", "settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One text that is ready to paste: a command, a file, or settings to make by hand."""

    name: str  # "llama-server", "Ollama Modelfile"
    kind: str  # COMMAND, FILE or SETTINGS
    text: str
    notes: tuple[str, ...] = ()  # what is to be known before it is pasted
    where: str = ""  # "on the first machine", of several


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan, and the files its model was found in; None where nothing was looked up."""

    plan: Plan
    files: ModelFiles | None = field(default=None, repr=False)
    more: tuple[str, ...] = ()  # flags of llama.cpp that neither load nor setup say, as typed

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """What the engine made of the load."""
        return MappingProxyType(dict(self.plan.result.estimate.facts))

    @property
    def setup(self) -> Any:
        return self.plan.result.way.setup

    @property
    def system(self) -> System:
        return self.plan.wish.machine.system

    @property
    def layers(self) -> int:
        """Blocks as llama.cpp counts them: those that guess further tokens too."""
        geometry = self.plan.variant.model.geometry
        return len(geometry.layers) + geometry.mtp_layers

    @property
    def repository_word(self) -> str:
        """What vLLM and mlx-lm call the model: a hub id or a folder."""
        variant, files = self.plan.variant, self.files
        if files is not None and variant.reference in {"", files.reference}:
            return repository_word(files)
        wish = self.plan.wish
        known = original_repository(wish.label) or wish.repository
        return variant.reference or known or repository_word(files)

    def has_part(self, part: str) -> bool:
        """Whether something that stands beside the model is in the bill."""
        return any(line.part == part for line in self.plan.result.estimate.lines)

    def command(
        self,
        name: str,
        words: Sequence[str],
        environment: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
    ) -> Command:
        told = [printable(word) for word in words]  # a stranger's name steers no terminal
        if PLACEHOLDER in words:
            more = f"replace {PLACEHOLDER} with the repository on Hugging Face, or the folder with the files"
            notes = (*notes, more)
        text = shell_text(told, environment or {}, self.system)
        return Command(name=name, kind=COMMAND, text=text, notes=tuple(notes))


def shell_text(words: Sequence[str], environment: Mapping[str, str], system: System) -> str:
    """One line for the shell that people have there: PowerShell on Windows, else any of sh's family."""
    if system is not System.WINDOWS:
        set_first = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        return f"{set_first} {shlex.join(words)}".strip()
    parts = [f"$env:{name}={_powershell(value)}" for name, value in environment.items()]
    return "; ".join([*parts, " ".join(map(_bare_or_quoted, words))])


def _bare_or_quoted(word: str) -> str:
    """What sh needs no quotes for PowerShell needs none for either, but for @ and a comma, its own signs."""
    plain = shlex.quote(word) == word and not set("@,") & set(word)
    return word if plain else _powershell(word)


def _powershell(word: str) -> str:
    """Nothing is special between single quotes but the quote itself, which is doubled."""
    return "'" + word.replace("'", "''") + "'"
