"""Results that are worked out once for a model. Threads may share them: at worst two work out the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
MOST_RESULTS = 256  # of one kind: a search over the placements of a large model has some twenty


class Cached(Generic[V]):
    """One result."""

    __slots__ = ("_result",)

    def __init__(self) -> None:
        self._result: tuple[V] | None = None

    def get(self, make: Callable[[], V]) -> V:
        """The result of the first call of `make` that returned."""
        found = self._result
        if found is None:
            found = self._result = (make(),)
        return found[0]


class CachedBy(Generic[K, V]):
    """Results by what they depend on besides the model. The oldest are dropped."""

    __slots__ = ("_results",)

    def __init__(self) -> None:
        self._results: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The result of the first call of `make` for this key that returned."""
        results = self._results
        try:
            return results[key]
        except KeyError:
            pass
        found = make()
        while len(results) >= MOST_RESULTS:
            with suppress(KeyError, RuntimeError, StopIteration):  # another thread was faster
                del results[next(iter(results))]
        results[key] = found
        return found
