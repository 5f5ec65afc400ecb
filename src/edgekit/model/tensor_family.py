"""A recipe with the words of one config: what the builders of tensors ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edgekit.errors import HeaderError, UnknownArchitectureError
from edgekit.model.hyper import MAX_NUMBER
from edgekit.model.tensor_roles import ExpectedTensor, TensorKind, TensorRole
from edgekit.model.tensor_rows import Said, TensorRecipe

Rows = Iterator[ExpectedTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFamily:
    name: str  # the architecture, as its file calls it
    recipe: TensorRecipe
    section: Mapping[str, Any]  # the language model's part of config.json; empty without one
    hidden: int

    def says(self, switch: Said) -> bool:
        return switch.holds(self.section)

    @property
    def embedding(self) -> int:
        """Numbers of a token in the table, before they become the hidden width."""
        word = self.recipe.embedding_width
        return self.number(word, self.hidden) if word else self.hidden

    def number(self, word: str, default: int | None = None) -> int:
        """A width that geometry has no place for."""
        value = self.section.get(word, default)
        if value is None:
            raise UnknownArchitectureError(
                f"the tensors of {self.name!r} depend on {word}, which only its config.json states"
            )
        return _width(word, value)

    def second(self, word: str) -> int | None:
        """The second of several widths, None where there is one."""
        value = self.section.get(word)
        return _width(word, value[1]) if isinstance(value, list) and len(value) > 1 else None


def _width(word: str, value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
        raise HeaderError(
            f"{word} is {value!r:.60}, which is not a valid width", file="config.json"
        )
    return value


def linear(role: TensorRole, out: int, into: int, *, bias: bool = False) -> Rows:
    """A matrix, and its bias if it has one; nothing where it has no size."""
    if out and into:
        yield ExpectedTensor(role=role, kind=TensorKind.LINEAR, shape=(out, into))
        if bias:
            yield ExpectedTensor(role=role, kind=TensorKind.BIAS, shape=(out,))


def array(role: TensorRole, kind: TensorKind, *shape: int) -> ExpectedTensor:
    return ExpectedTensor(role=role, kind=kind, shape=shape)


def norm(family: TensorFamily, role: TensorRole = TensorRole.NORM, width: int = 0) -> Rows:
    """A norm as wide as the hidden stream, or as said."""
    yield array(role, TensorKind.NORM, width or family.hidden)
    if family.says(family.recipe.norm_bias):
        yield array(role, TensorKind.BIAS, width or family.hidden)
