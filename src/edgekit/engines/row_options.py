"""Options of a row, as JSON gives them -> numbers, words and flags, or an error that names the option."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from edgekit.errors import UsageError
from edgekit.sources.naming import close_names

LARGEST = 2**63 - 1
# Options that an engine has and that change nothing: without a share in memory, or unused next to another.
_UNUSED: Mapping[str, frozenset[str]] = {
    "llama.cpp": frozenset({"threads", "n_threads", "n_threads_batch", "n_devices"}),
    "vllm": frozenset({"available_kv_bytes"}),
    "mlx": frozenset(
        {"batch_size", "bits", "context_tokens", "group_size", "max_tokens", "mode", "quant"}
    ),
}
# What the engines call the length of the context; people try them all.
CONTEXT_OPTIONS: Mapping[str, str] = {
    "llama.cpp": "n_ctx",
    "vllm": "max_model_len",
    "mlx": "prompt_tokens",
    "stream": "context_tokens",
}
_CONTEXT_WORDS = frozenset(
    {
        "context",
        "context_length",
        "context_size",
        "ctx",
        "ctx_size",
        "num_ctx",
        *CONTEXT_OPTIONS.values(),
    }
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
        unknown = [name for name in self.ignored if name not in _UNUSED.get(engine, ())]
        if unknown:
            name = str(unknown[0])[:60]
            raise UsageError(
                f"{engine} has no option {name!r}{did_you_mean(name, self._asked, engine)}"
            )


def did_you_mean(name: str, known: Iterable[str], engine: str) -> str:
    """': did you mean n_ctx?'; empty where nothing is near."""
    near = close_names(name, sorted(known), limit=1)
    if name.lower() in _CONTEXT_WORDS:
        near = (CONTEXT_OPTIONS[engine],)
    return f": did you mean {near[0]}?" if near else ""


def whole(options: Mapping[str, Any], name: str) -> int | None:
    """A whole number, or None where it is not given."""
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST:
        raise UsageError(f"{name} {value!r:.60} is not a whole number")
    return value


def text(options: Mapping[str, Any], name: str) -> str | None:
    value = options.get(name)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name} {value!r:.60} is not a string")
    return value


def flag(options: Mapping[str, Any], name: str) -> bool | None:
    value = options.get(name)
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{name} {value!r:.60} is neither true nor false")
    return value
