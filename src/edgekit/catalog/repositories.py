"""repositories.tsv, made by tools/repositories.py -> where a model can be downloaded, and in which form."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

PATH = Path(__file__).with_name("repositories.tsv")


class Form(enum.Enum):
    """What a repository holds."""

    ORIGINAL = "original"  # the publisher's own weights
    GGUF = "gguf"
    MLX = "mlx"
    FP8 = "fp8"
    AWQ = "awq"
    OLLAMA = "ollama"  # a tag of Ollama's library


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A hub repository, or a tag of Ollama's library, with a model of the catalog."""

    model: str  # id of the catalog
    form: Form
    name: str  # "unsloth/Qwen3-8B-GGUF", "qwen3:8b"
    quants: tuple[str, ...]  # tags as the repository spells them: "Q4_K_M", "UD-Q4_K_M", "4bit"
    listed: (
        bool  # a source lists the quantisations; otherwise they are the usual ones of its publisher
    )
    sources: tuple[str, ...]

    def tag(self, mix: str) -> str | None:
        """The tag of its file at this mix, None where it has none."""
        wanted = _plain(mix)
        return next((tag for tag in self.quants if _plain(tag) == wanted), None)


def _plain(tag: str) -> str:
    """Unsloth's UD-Q4_K_M is a Q4_K_M, and MXFP4_MOE is called MXFP4 in repositories."""
    return tag.upper().removeprefix("UD-").removesuffix("_MOE")


@cache
def known_repositories() -> Mapping[str, tuple[Repository, ...]]:
    """By id of the catalog, in the order in which they are offered."""
    found: dict[str, tuple[Repository, ...]] = {}
    for line in PATH.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        model, form, name, quants, known, sources = line.split("\t")
        one = Repository(
            model=model,
            form=Form(form),
            name=name,
            quants=tuple(filter(None, quants.split(","))),
            listed=known == "listed",
            sources=tuple(sources.split(",")),
        )
        found[model] = (*found.get(model, ()), one)
    return MappingProxyType(found)


def repositories_of(model: str, form: Form | None = None) -> tuple[Repository, ...]:
    """By id, by a label such as sample:gemma-3-27b, or by the name of any of its hub repositories."""
    name = model.removeprefix("sample:").removeprefix("catalog:").lower()
    rows = known_repositories().get(name) or known_repositories().get(_by_name().get(name, ""), ())
    return tuple(one for one in rows if form in {None, one.form})


@cache
def _by_name() -> Mapping[str, str]:
    rows = (one for every in known_repositories().values() for one in every)
    return {one.name.lower(): one.model for one in rows if one.form is not Form.OLLAMA}


def repository_at(model: str, form: Form, mix: str) -> Repository | None:
    """The first that has the mix. The publisher's own comes first, then those whose files are listed by a source."""
    owner = original_repository(model).partition("/")[0]

    def is_less_certain(one: Repository) -> bool:
        return not one.listed and one.name.partition("/")[0] != owner

    rows = sorted(repositories_of(model, form), key=is_less_certain)
    return next((one for one in rows if one.tag(mix) is not None), None)


def original_repository(model: str) -> str:
    """The publisher's own repository, of the version that answers questions; empty where none is known."""
    return next((one.name for one in repositories_of(model, Form.ORIGINAL)), "")


def model_of_original(repository: str) -> str:
    """The id of the model whose publisher has this repository; empty where none is known."""
    rows = repositories_of(repository, Form.ORIGINAL)
    return next((one.model for one in rows if one.name.lower() == repository.lower()), "")
