"""Options of a row of a batch, as JSON gives them: which were read, and which the engine does not have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edgekit.engines import engine_named, every_engine
from edgekit.errors import UsageError
from edgekit.sources.filenames import close_names

if TYPE_CHECKING:
    from edgekit.engines.protocol import Engine

_CONTEXT_WORDS = frozenset(
    {"context", "context_length", "context_size", "ctx", "ctx_size", "num_ctx"}
)


class RowOptions(Mapping[str, Any]):
    """A mapping that remembers what was looked up: the rest has changed nothing."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._asked.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(name for name in self._values if name not in self._asked)

    def require_known(self, engine: str) -> None:
        """After all was read: UsageError that names an option which the engine does not have, and the nearest."""
        unused = engine_named(engine).unused_options
        unknown = [name for name in self.ignored if name not in unused]
        if unknown:
            name = str(unknown[0])[:60]
            raise UsageError(
                f"{engine} has no option {name!r}{did_you_mean(name, self._asked, engine)}"
            )


def option_of(engine: Engine, key: str) -> str:
    """What a row of a batch calls the flag with this key."""
    return next((flag.option or key for flag in engine.table if flag.key == key), key)


def context_option(engine: str) -> str:
    return option_of(engine_named(engine), "context")


def did_you_mean(name: str, known: Iterable[str], engine: str) -> str:
    """': did you mean n_ctx?'; empty where nothing is near."""
    near = close_names(name, sorted(known), limit=1)
    people_write = _CONTEXT_WORDS | {context_option(one.name) for one in every_engine()}
    if name.lower() in people_write:
        near = (context_option(engine),)
    return f": did you mean {near[0]}?" if near else ""
