"""The engines and modes of the embedder, and its plan."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from edgekit.engines import default_engine
from edgekit.errors import UsageError

if TYPE_CHECKING:
    from edgekit.engines.native.encoder_plan import PlanLine
    from edgekit.engines.native.types import Pooling


BUILT_IN = "edgekit"
ENGINES = (BUILT_IN, default_engine().name)


class Mode(enum.Enum):
    """How the tokens of a text become a vector."""

    TOKENS = "tokens"  # the mean of their rows in the embedding table: no layer is run
    ENCODER = "encoder"  # the model's own forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedPlan:
    """What an embedder holds, settled before the first weight is read."""

    label: str
    mode: Mode
    engine: str
    kernels: str  # "native" or "numpy", which compute
    threads: int
    dimensions: int
    pooling: Pooling | None  # None: the mean of token rows
    budget_bytes: int
    budget_because: str
    lines: tuple[PlanLine, ...]
    pass_tokens: int  # tokens of all texts that share a reading of the weights
    text_tokens: int  # of the longest text
    text_tokens_because: str
    read_bytes: int  # of weights, from the file, in every pass
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(line.size_bytes for line in self.lines)


class Prefixes(NamedTuple):
    query: str
    document: str


_INSTRUCT = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
# A pattern for the model's name in lower case, and what its card says. The first row that fits any of
# its names is taken, so what is special stands before what is general: a converter's basename has
# neither version nor "instruct", its name has.
_TABLE: tuple[tuple[str, Prefixes], ...] = (
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
    (
        r"bge[-_ ].*[-_ ]en",
        Prefixes("Represent this sentence for searching relevant passages: ", ""),
    ),
    (r"bge[-_ ].*[-_ ]zh", Prefixes("为这个句子生成表示以用于检索相关文章\uff1a", "")),
    (
        r"mxbai[-_ ]embed[-_ ](large|2d)",
        Prefixes("Represent this sentence for searching relevant passages: ", ""),
    ),
    (
        r"snowflake[-_ ]arctic[-_ ]embed.*v2|arctic[-_ ]embed.*v2",
        Prefixes("query: ", ""),
    ),
    (
        r"arctic[-_ ]embed",
        Prefixes("Represent this sentence for searching relevant passages: ", ""),
    ),
    (r"all[-_ ]minilm|all[-_ ]mpnet|jina[-_ ]embeddings[-_ ]v2", Prefixes("", "")),
)
_NAMES = ("general.name", "general.basename")


def prefixes_of(keys: Mapping[str, object]) -> Prefixes:
    """UsageError when the table has no row: a prefix that is guessed spoils every vector."""
    names = [name for key in _NAMES if isinstance(name := keys.get(key), str)]
    for pattern, prefixes in _TABLE:
        if any(re.search(pattern, name[:200].lower()) for name in names):
            return prefixes
    told = f"'{names[0][:60]}'" if names else "a model without a name"
    raise UsageError(
        f"the prefixes of {told} are unknown: look at its model card and use --prefix "
        "TEXT (prefix=), which may be empty, instead of --query or --document; the table "
        "is embed/prefixes.py"
    )
