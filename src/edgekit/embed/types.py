"""The engines and modes of the embedder, its plan, and the prefixes that models expect before a text."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from edgekit.engines import default_engine
from edgekit.errors import UsageError

if TYPE_CHECKING:
    from edgekit.engines.native.crew import Checkpoint
    from edgekit.engines.native.encoder_plan import PlanLine
    from edgekit.engines.native.families import Pooling
    from edgekit.engines.native.kernels.types import Floats


BUILT_IN = "edgekit"
ENGINES = (BUILT_IN, default_engine().name)


class Mode(enum.Enum):
    """How the tokens of a text become a vector."""

    TOKENS = "tokens"  # the mean of their rows in the embedding table, without running a layer
    ENCODER = "encoder"  # the model's own forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedPlan:
    """The memory an embedder uses, decided before the first weight is read."""

    label: str
    mode: Mode
    engine: str
    kernels: str  # "native" or "numpy"
    threads: int
    dimensions: int
    pooling: Pooling | None  # None: the mean of token rows
    budget_bytes: int
    budget_because: str
    lines: tuple[PlanLine, ...]
    pass_tokens: int  # of all texts in a pass, which reads the weights once
    text_tokens: int  # of the longest text
    text_tokens_because: str
    read_bytes: int  # of weights that every pass reads from the file
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(line.size_bytes for line in self.lines)


class Encoder(Protocol):
    """Turns the tokens of several texts into vectors, within the planned memory."""

    @property
    def width(self) -> int:
        """How many floats a vector has."""
        ...

    def encode(self, texts: Sequence[Sequence[int]], into: Floats, checkpoint: Checkpoint) -> None:
        """Writes a pooled vector for each text to a row of `into`, not scaled to length 1 yet."""
        ...

    def close(self) -> None: ...


class Prefixes(NamedTuple):
    query: str
    document: str


_INSTRUCT = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
_REPRESENT = "Represent this sentence for searching relevant passages: "
# Each row has a pattern for the model's name in lower case, and the prefixes from its model card. The first
# row that matches one of the two names in the file is used, so special rows come before general ones:
# general.basename has neither the version nor "instruct", but general.name does.
_PREFIXES: tuple[tuple[str, Prefixes], ...] = (
    (
        r"nomic[-_ ]embed[-_ ]code",
        Prefixes("Represent this query for searching relevant code: ", ""),
    ),
    (r"nomic[-_ ]embed[-_ ]text", Prefixes("search_query: ", "search_document: ")),
    (r"multilingual[-_ ]e5.*instruct|e5[-_ ]mistral", Prefixes(_INSTRUCT + " ", "")),
    (r"\be5[-_ ]|multilingual[-_ ]e5", Prefixes("query: ", "passage: ")),
    (r"qwen3[-_ ]embedding", Prefixes(_INSTRUCT, "")),
    (r"gte[-_ ]qwen2", Prefixes(_INSTRUCT + " ", "")),
    (r"bge[-_ ]m3", Prefixes("", "")),
    (r"bge[-_ ].*[-_ ]en", Prefixes(_REPRESENT, "")),
    (r"bge[-_ ].*[-_ ]zh", Prefixes("为这个句子生成表示以用于检索相关文章\uff1a", "")),
    (r"mxbai[-_ ]embed[-_ ](large|2d)", Prefixes(_REPRESENT, "")),
    (r"arctic[-_ ]embed.*v2", Prefixes("query: ", "")),
    (r"arctic[-_ ]embed", Prefixes(_REPRESENT, "")),
    (r"all[-_ ]minilm|all[-_ ]mpnet|jina[-_ ]embeddings[-_ ]v2", Prefixes("", "")),
)
_NAMES = ("general.name", "general.basename")


def prefixes_of(keys: Mapping[str, object]) -> Prefixes:
    """The prefixes of a model. Raises UsageError if they are unknown: a wrong prefix would spoil every vector."""
    names = [name for key in _NAMES if isinstance(name := keys.get(key), str)]
    for pattern, prefixes in _PREFIXES:
        if any(re.search(pattern, name[:200].lower()) for name in names):
            return prefixes
    model = f"'{names[0][:60]}'" if names else "a model without a name"
    raise UsageError(
        f"the prefixes of {model} are unknown: look at its model card and use --prefix "
        "TEXT (prefix=), which may be empty, instead of --query or --document; the table "
        "is embed/types.py"
    )
