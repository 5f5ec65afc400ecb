"""Where a model can be downloaded, and in which form: the table `repositories` of the index."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from edgekit.errors import HeaderError


class Form(enum.Enum):
    """The format of a repository."""

    ORIGINAL = "original"  # the publisher's own weights
    GGUF = "gguf"
    MLX = "mlx"
    FP8 = "fp8"
    AWQ = "awq"
    GPTQ = "gptq"
    NVFP4 = "nvfp4"
    OLLAMA = "ollama"  # a tag of Ollama's library


# Makers of many quantised models, in the order in which they are offered after the publisher of the model itself.
MAKERS = (
    "ggml-org", "unsloth", "bartowski", "lmstudio-community", "mlx-community", "redhatai", "nvidia", "mradermacher",
    "neuralmagic", "casperhansen", "thebloke",
)  # fmt: skip


FORM_MAKERS = {Form.MLX: "mlx-community", Form.NVFP4: "nvidia"}  # before all others, in this form
# Tags of Ollama with other weights than the model's own, or more of them.
_OTHER_WEIGHTS = re.compile(r"[-:](mtp|qat|cloud)(?=-|$)")


MAX_TAGS = 4_096  # of one repository; the most in EdgeKit's own index is 27
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


def is_tag(text: str) -> bool:
    """Whether it can be the tag of a quantisation. A command has it as REPOSITORY:TAG, so it needs no quotes."""
    return _TAG.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A hub repository, or a tag of Ollama's library, with a model of the index."""

    model: str  # id of the index
    form: Form
    name: str  # "unsloth/Qwen3-8B-GGUF", "qwen3:8b"
    sizes: Mapping[str, int | None] = field(hash=False)  # tag -> bytes, if a source states them
    listed: bool  # a source lists the quantisations; otherwise they are the publisher's usual ones
    downloads: int | None = None
    sources: tuple[str, ...]

    @property
    def owner(self) -> str:
        return self.name.partition("/")[0].lower()

    @property
    def quants(self) -> tuple[str, ...]:
        """Tags as the repository spells them: "Q4_K_M", "UD-Q4_K_M", "4bit"."""
        return tuple(self.sizes)

    def tag(self, mix: str) -> str | None:
        """The repository's tag for this mix; None if it does not have it."""
        tags = {tag.upper(): tag for tag in self.sizes}
        if mix.upper() in tags or mix.upper().startswith("UD-"):  # a dynamic one has no substitute
            return tags.get(mix.upper())
        plain_mix = _plain(mix)
        return next((tag for tag in self.sizes if _plain(tag) == plain_mix), None)


def _plain(tag: str) -> str:
    """UD-Q4_K_M and Q4_K_M are the same mix; so are MXFP4 and MXFP4_MOE."""
    return tag.upper().removeprefix("UD-").removesuffix("_MOE")


def is_other_training(row: Repository) -> bool:
    """Whether an Ollama tag has other weights than the model: trained for 4 bits, or with prediction layers."""
    if row.form is not Form.OLLAMA:
        return False
    return any(word not in row.model for word in _OTHER_WEIGHTS.findall(row.name))


_COLUMNS = "SELECT model, form, name, quants, listed, downloads, sources FROM repositories"


@lru_cache(maxsize=1024)
def _of_model(model: str) -> tuple[Repository, ...]:
    """The repositories of this id: the publisher's own first, then those of known makers, then by downloads."""
    from edgekit.index.database import index_file  # not needed for a local file

    repositories = []
    for name_of_model, form, name, quants, listed, downloads, sources in index_file().rows(
        f"{_COLUMNS} WHERE model = ?", (model,)
    ):
        try:
            repositories.append(
                Repository(
                    model=name_of_model,
                    form=Form(form),
                    name=name,
                    sizes=MappingProxyType(json.loads(quants or "{}")),
                    listed=bool(listed),
                    downloads=downloads,
                    sources=tuple(
                        index_file().source(number).text for number in json.loads(sources)
                    ),
                )
            )
        except (ValueError, TypeError, KeyError) as error:
            raise HeaderError(f"repository {name!r:.80} of the index: {error}") from error
    owners = {row.owner for row in repositories if row.form is Form.ORIGINAL}

    def order(row: Repository) -> tuple[bool, bool, int, int, int, str]:
        makers = (FORM_MAKERS.get(row.form, ""), *MAKERS)
        place = makers.index(row.owner) if row.owner in makers else len(makers)
        length = (
            len(row.name) if row.form is Form.OLLAMA else 0
        )  # the shortest tag is the usual one
        is_other = is_other_training(row)
        return is_other, row.owner not in owners, place, -(row.downloads or 0), length, row.name

    return tuple(sorted(repositories, key=order))


@lru_cache(maxsize=4096)
def model_at(repository: str) -> tuple[str, Form] | None:
    """The model of a hub repository or Ollama tag in any capitals, and its form.

    None if the index does not know it, or cannot be read: the files can be, without it.
    """
    from edgekit.index.database import index_file

    query = (
        "SELECT model, form FROM repositories WHERE name = ? COLLATE NOCASE ORDER BY model LIMIT 1"
    )
    try:
        rows = index_file().rows(query, (repository,))
        return (rows[0][0], Form(rows[0][1])) if rows else None
    except (HeaderError, ValueError):
        return None


def repositories_of(model: str, form: Form | None = None) -> tuple[Repository, ...]:
    """Repositories of a model, given its id, a label such as sample:gemma-3-27b, or any of its hub repositories."""
    name = model.removeprefix("sample:").removeprefix("catalog:").lower()
    rows = _of_model(name)
    if not rows and "/" in name:
        known = model_at(name)
        rows = _of_model(known[0]) if known is not None else ()
    return tuple(row for row in rows if form in {None, row.form})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A name that people or programs have for a model."""

    spelling: str  # in lower case
    scheme: str  # whose name it is: "ollama", "lmstudio", "xinference" ...


def names_of(model: str) -> tuple[ModelName, ...]:
    """The other names of the model with this id."""
    from edgekit.index.database import index_file

    rows = index_file().rows(
        "SELECT DISTINCT spelling, scheme FROM names WHERE model = ? AND level = 0"
        " AND scheme IS NOT NULL ORDER BY scheme, spelling",
        (model,),
    )
    return tuple(ModelName(spelling=spelling, scheme=scheme) for spelling, scheme in rows)


def repository_at(model: str, form: Form, mix: str) -> Repository | None:
    """The first repository with the mix: the publisher's own, then those whose files a source lists.

    None if there is none, or the index cannot be read: a command is named without it.
    """
    owner = original_repository(model).partition("/")[0].lower()
    rows = sorted(
        _known_repositories(model, form), key=lambda row: not row.listed and row.owner != owner
    )
    return next(
        (row for row in rows if row.tag(mix) is not None and not is_other_training(row)), None
    )


def original_repository(model: str) -> str:
    """The publisher's own repository; empty if unknown, or if the index cannot be read."""
    return next((row.name for row in _known_repositories(model, Form.ORIGINAL)), "")


def _known_repositories(model: str, form: Form) -> tuple[Repository, ...]:
    with suppress(HeaderError):
        return repositories_of(model, form)
    return ()
