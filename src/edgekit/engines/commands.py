"""Commands to paste: what engines need to write them, names of models, and LM Studio's settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote_plus

from edgekit.bill.types import Load, Placement, Setup, Variant, Verdict
from edgekit.errors import UsageError, printable
from edgekit.index.repositories import original_repository
from edgekit.machine.types import Device, Machine, System, Vendor
from edgekit.sources.local import expand_home, is_here
from edgekit.sources.reference import Reference, parse_reference
from edgekit.sources.types import ModelFiles, Origin

COMMAND, FILE, SETTINGS = "command", "file", "settings"
# NVML counts cards by their place on the bus; CUDA counts the fastest first by default.
AS_NVML_COUNTS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
PLACEHOLDER = "MODEL"
# Words of a command that the user has to replace.
_GAPS = frozenset({PLACEHOLDER, *(f"{part}.gguf" for part in (PLACEHOLDER, "MMPROJ", "DRAFT"))})
UNCONVERTED = "Q4_K_M"  # engines.llamacpp.architectures.DEFAULT_MIX
LM_STUDIO = "lm-studio"
OLLAMA = "ollama"
# Products that run several engines, or hide the one they run: people look for these names, not for the engine's.
PRODUCTS = MappingProxyType({OLLAMA: "Ollama", LM_STUDIO: "LM Studio"})
HUB_PAGES = "https://huggingface.co/"
LM_STUDIO_CONTEXT = "llm.load.contextLength"
LM_STUDIO_PARALLEL = "llm.load.numParallelSessions"
LM_STUDIO_OFFLOAD = "llm.load.llama.acceleration.offloadRatio"
_LMS_LOAD_FLAGS = frozenset({LM_STUDIO_CONTEXT, LM_STUDIO_PARALLEL, LM_STUDIO_OFFLOAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A text to paste: a command, a file, or settings to enter by hand."""

    program: str  # that runs it, as --for takes it: "llama-server", "ollama"
    name: str  # "llama-server", "Ollama Modelfile"
    kind: str  # COMMAND, FILE or SETTINGS
    text: str
    notes: tuple[str, ...] = ()  # what to know before pasting it
    where: str = ""  # of several machines: "on the first machine"
    words: tuple[str, ...] = ()  # of a command, before it became one line for a shell
    environment: Mapping[str, str] = field(default_factory=dict)
    served_name: str | None = (
        None  # of the model in requests, if this starts a server; "": any name will do
    )

    @property
    def is_complete(self) -> bool:
        """Whether it can be pasted as it is: it names a file or a repository that exists."""
        return _GAPS.isdisjoint(self.words)


@dataclass(frozen=True, kw_only=True)
class Startup:
    """A verdict, and what else its commands depend on."""

    verdict: Verdict
    variant: Variant  # the weights of the verdict
    label: str  # the model's name
    devices: tuple[Device, ...] = ()  # of the machine, that the engine would use
    repository: str = ""  # on the hub, of the weights or of their source; "": unknown
    files: ModelFiles | None = field(default=None, repr=False)  # None: nothing was looked up
    given: Mapping[str, Any] = field(default_factory=dict)  # the engine's flags that were given
    users: int | None = None
    nodes: int = 1  # machines like this one

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """How the engine resolved the load."""
        return MappingProxyType(dict(self.verdict.estimate.facts))

    @property
    def load(self) -> Load:
        return self.verdict.load

    @property
    def placement(self) -> Placement:
        return self.verdict.way

    @property
    def setup(self) -> Setup:
        return self.verdict.way.setup

    @property
    def machine(self) -> Machine:
        return self.verdict.machine

    @property
    def context_tokens(self) -> int:
        """The context of one user."""
        return self.verdict.context_tokens // self.verdict.streams

    @property
    def repository_word(self) -> str:
        """What vLLM and mlx-lm call the model: a hub id or a folder."""
        if self.files is not None and self.variant.reference in {"", self.files.reference}:
            return repository_word(self.files)
        repository = self.repository or original_repository(self.label)
        return self.variant.reference or repository or repository_word(self.files)

    @property
    def environment(self) -> dict[str, str]:
        """Environment that limits the engine to the placement's cards. Empty if it uses all of them."""
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
        """A command of these words, with a note if the user has to fill in the model."""
        if PLACEHOLDER in words:
            note = f"replace {PLACEHOLDER} with the repository on Hugging Face, or the folder with the files"
            notes = (*notes, note)
        text = shell_text(words, environment or {}, self.machine.system)
        return Command(
            program=program,
            name=name,
            kind=COMMAND,
            text=text,
            notes=tuple(notes),
            words=tuple(words),
            environment=environment or {},
        )


def shell_text(words: Sequence[str], environment: Mapping[str, str], system: System) -> str:
    """One line for the system's usual shell: PowerShell on Windows, else a POSIX shell."""
    words = [printable(word) for word in words]
    if system is not System.WINDOWS:
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        return f"{variables} {shlex.join(words)}".strip()
    parts = [f"$env:{name}={_powershell(value)}" for name, value in environment.items()]
    # PowerShell needs quotes where sh does, and around @ and commas.
    quoted = [
        word if shlex.quote(word) == word and not set("@,") & set(word) else _powershell(word)
        for word in words
    ]
    return "; ".join([*parts, " ".join(quoted)])


def _powershell(word: str) -> str:
    """Single-quoted for PowerShell, with quotes doubled."""
    return "'" + word.replace("'", "''") + "'"


def visible_cards(placement: Placement, devices: Sequence[Device]) -> dict[str, str]:
    """The environment that selects the cards. Empty if all are used and their order does not matter."""
    used = placement.cards
    if not used or used[0].vendor is not Vendor.NVIDIA:
        return {}
    if leaves_some(placement, devices) and not any(card.partition for card in used):
        chosen = ",".join(str(card.index) for card in used)
        return {**AS_NVML_COUNTS, "CUDA_VISIBLE_DEVICES": chosen}
    visible = devices if placement.by_number else used
    are_alike = len({card.total_bytes for card in visible}) == 1
    return {} if are_alike else dict(AS_NVML_COUNTS)


def leaves_some(placement: Placement, devices: Sequence[Device]) -> bool:
    """True if the engine must not see all cards. A card that is selected by its number needs no hiding of others."""
    return len(placement.cards) < len(devices) and not placement.by_number


def repository_word(files: ModelFiles | None, known: str = "") -> str:
    """How vLLM and mlx-lm refer to the model: a hub id or a folder. `known`: its id, if there are no files."""
    if files is None:
        return known or PLACEHOLDER
    if files.origin is not Origin.LOCAL:
        return files.label
    path = Path(files.reference)
    return str(path.parent) if path.suffix in {".json", ".safetensors"} else files.reference


def own_word(files: ModelFiles | None, label: str = "", mix: str = "") -> str:
    """How EdgeKit's own commands refer to the model: a file, a hub id, a URL, or a catalog name with a quantisation."""
    if files is None:
        return f"{label.removeprefix('sample:')}:{mix or UNCONVERTED}"
    if files.origin is Origin.URL:
        return files.reference
    return local_file(files)


def as_file(name: str) -> str:
    """A name with every character replaced that is unusual in file names."""
    return "".join(char if char.isalnum() or char in "._-" else "-" for char in name)


def gguf_search(label: str) -> str:
    """A search for GGUF files of a model."""
    return f"https://huggingface.co/models?library=gguf&search={quote_plus(plain_name(label))}"


def plain_name(label: str) -> str:
    """'sample:gemma-3-27b' -> 'gemma-3-27b', 'Qwen/Qwen3-8B' -> 'Qwen3-8B'."""
    name = label.removeprefix("sample:").rsplit("/", maxsplit=1)[-1]
    return name.partition(":")[0] or PLACEHOLDER


def local_file(files: ModelFiles) -> str:
    """The first file of the set, in the given folder."""
    if files.origin is not Origin.LOCAL or not files.weights:
        return files.label
    path = expand_home(files.reference)
    return str(path / files.weights[0].name) if path.is_dir() else files.reference


def parsed(reference: str, *, is_name: bool = False) -> Reference | None:
    """The parsed reference; None for a path. `is_name`: never a path, even if there is a file of this name."""
    is_path = reference.startswith((".", "/", "~", "\\")) or reference[1:3] == ":\\"
    if is_path or (not is_name and is_here(reference)):
        return None
    try:
        return parse_reference(reference)
    except UsageError:
        return None


class LmStudioSetting(NamedTuple):
    """One setting. LM Studio runs models with llama.cpp or MLX: each engine has its own settings.

    Keys: lmstudio-js packages/lms-kv-config/src/schema.ts @ 6ec11db; flags: lms src/subcommands/load.ts @ 07b7252.
    """

    name: str  # on the screen; "": not shown on the screen
    key: str
    value: Any
    shown: str = ""  # the value as the screen shows it; "": as it is
    is_default: bool = False  # the value is LM Studio's default


def lm_studio_texts(
    startup: Startup,
    settings: Sequence[LmStudioSetting],
    *,
    model: str,
    download: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Iterator[Command]:
    """The settings three times: as LM Studio's screen names them, as a preset file, and as an `lms load` command.

    `model`: LM Studio's name for the model. `download`: the words after `lms get`, which comes first; empty if the
    model is on this machine or no repository is known.
    """
    if download:
        yield startup.command(LM_STUDIO, "lms get", ["lms", "get", *download])
    listed, not_flags = "", []
    for setting in settings:
        shown = setting.shown or str(setting.value)
        if isinstance(setting.value, bool):
            shown = "on" if setting.value else "off"
        if setting.name:
            listed += f"{setting.name}: {shown}\n"
            if setting.key not in _LMS_LOAD_FLAGS and not setting.is_default:
                not_flags.append(setting.name)
    yield Command(
        program=LM_STUDIO, name="LM Studio settings", kind=SETTINGS, text=listed, notes=tuple(notes)
    )
    fields = [{"key": setting.key, "value": setting.value} for setting in settings]
    preset = {"operation": {"fields": []}, "load": {"fields": fields}}
    text = json.dumps(preset, indent=2) + "\n"
    yield Command(program=LM_STUDIO, name="LM Studio preset", kind=FILE, text=text)
    values = {setting.key: setting.value for setting in settings}
    words = ["lms", "load", model, "--context-length", str(values[LM_STUDIO_CONTEXT])]
    ratio = values.get(LM_STUDIO_OFFLOAD)
    if ratio is not None:
        words += ["--gpu", ratio if isinstance(ratio, str) else f"{ratio:g}"]
    words += ["--parallel", str(values[LM_STUDIO_PARALLEL])]
    load_notes = ["`lms ls` shows the key of the model in LM Studio"]
    if not_flags:
        names = ", ".join(not_flags)
        load_notes.append(f"set these first, as defaults of the model in LM Studio: {names}")
    yield startup.command(LM_STUDIO, "lms load", words, notes=load_notes)
