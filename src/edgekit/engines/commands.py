"""Texts that are ready to paste, and what every engine needs to write the ones that start it as it was judged."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgekit.bill.types import Load, Placement, Variant
from edgekit.bill.verdict import Verdict
from edgekit.catalog.repositories import original_repository
from edgekit.engines.model_words import PLACEHOLDER, repository_word
from edgekit.machine.types import Device, Machine, System, Vendor
from edgekit.terminal import printable

if TYPE_CHECKING:
    from edgekit.sources.types import ModelFiles

COMMAND, FILE, SETTINGS = "command", "file", "settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One text that is ready to paste: a command, a file, or settings to make by hand."""

    program: str  # that runs it, as --for takes it: "llama-server", "ollama"
    name: str  # "llama-server", "Ollama Modelfile"
    kind: str  # COMMAND, FILE or SETTINGS
    text: str
    notes: tuple[str, ...] = ()  # what to know before pasting it
    where: str = ""  # of several machines: "on the first machine"


@dataclass(frozen=True, kw_only=True)
class Startup:
    """A verdict, and what else the commands that start the engine like this depend on."""

    verdict: Verdict
    variant: Variant  # the weights of the verdict
    label: str  # the model's name
    devices: tuple[Device, ...] = ()  # of the machine, that the engine would use
    repository: str = ""  # on the hub: what the weights are, or are made from; "": not known
    files: ModelFiles | None = field(default=None, repr=False)  # None: nothing was looked up
    given: Mapping[str, Any] = field(default_factory=dict)  # the engine's flags that were given
    users: int | None = None
    nodes: int = 1  # machines like this one

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """What the engine made of the load."""
        return MappingProxyType(dict(self.verdict.estimate.facts))

    @property
    def load(self) -> Load:
        return self.verdict.load

    @property
    def placement(self) -> Placement:
        return self.verdict.way

    @property
    def setup(self) -> Any:
        return self.verdict.way.setup

    @property
    def machine(self) -> Machine:
        return self.verdict.machine

    @property
    def context_tokens(self) -> int:
        """Of one user."""
        return self.verdict.context_tokens // self.verdict.streams

    @property
    def repository_word(self) -> str:
        """What vLLM and mlx-lm call the model: a hub id or a folder."""
        if self.files is not None and self.variant.reference in {"", self.files.reference}:
            return repository_word(self.files)
        known = original_repository(self.label) or self.repository
        return self.variant.reference or known or repository_word(self.files)

    @property
    def environment(self) -> dict[str, str]:
        """Keeps the engine to the cards of the placement. Empty where it uses all of them anyway."""
        if self.nodes > 1:
            return {}
        return visible_cards(self.placement, self.devices)

    def has_part(self, part: str) -> bool:
        """Whether a companion of the model (projector, drafter ...) is in the bill."""
        return any(line.part == part for line in self.verdict.estimate.lines)

    def command(
        self,
        program: str,
        name: str,
        words: Sequence[str],
        environment: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
    ) -> Command:
        if PLACEHOLDER in words:
            more = f"replace {PLACEHOLDER} with the repository on Hugging Face, or the folder with the files"
            notes = (*notes, more)
        text = shell_text(words, environment or {}, self.machine.system)
        return Command(program=program, name=name, kind=COMMAND, text=text, notes=tuple(notes))


def shell_text(words: Sequence[str], environment: Mapping[str, str], system: System) -> str:
    """One line for the shell that people use there: PowerShell on Windows, else a POSIX shell."""
    words = [printable(word) for word in words]
    if system is not System.WINDOWS:
        set_first = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        return f"{set_first} {shlex.join(words)}".strip()
    parts = [f"$env:{name}={_powershell(value)}" for name, value in environment.items()]
    return "; ".join([*parts, " ".join(map(_bare_or_quoted, words))])


def _bare_or_quoted(word: str) -> str:
    """PowerShell needs quotes where sh does, and around @ and commas."""
    plain = shlex.quote(word) == word and not set("@,") & set(word)
    return word if plain else _powershell(word)


def _powershell(word: str) -> str:
    """In single quotes only the quote itself is special: it is doubled."""
    return "'" + word.replace("'", "''") + "'"


# NVML counts cards by their place on the bus; CUDA the fastest first unless it is told otherwise.
AS_NVML_COUNTS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def visible_cards(placement: Placement, devices: Sequence[Device]) -> dict[str, str]:
    """Of the devices that the engine would use. Empty where all are used and their order does not matter."""
    used = placement.cards
    if not used or used[0].vendor is not Vendor.NVIDIA:
        return {}
    if leaves_some(placement, devices) and not any(card.partition for card in used):
        chosen = ",".join(str(card.index) for card in used)
        return {**AS_NVML_COUNTS, "CUDA_VISIBLE_DEVICES": chosen}
    seen = devices if placement.by_number else used
    alike = len({card.total_bytes for card in seen}) == 1
    return {} if alike else dict(AS_NVML_COUNTS)


def leaves_some(placement: Placement, devices: Sequence[Device]) -> bool:
    """Whether the machine has cards that the engine must not use. A card that is named by number hides no other."""
    return len(placement.cards) < len(devices) and not placement.by_number
