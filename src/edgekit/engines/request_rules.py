"""What an engine's server answers, and the limits on requests that keep it inside its bill.

A bill covers the weights, the cache and the buffers. A request can make an engine allocate more, or compute for minutes
before its first token, with a number, a list or a grammar. Each engine has its own `request_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LARGEST_INT = 2**31 - 1  # engines in C++ read whole numbers into 32 bits
# Tokens of ordinary text have 3 to 6 bytes of UTF-8; the longest are runs of blanks. Text beyond this many bytes for
# each token of the window is not even tokenized.
BYTES_PER_TOKEN = 16
SPARE_BYTES = 16_384  # for the smallest windows: schemas and descriptions of tools
TEMPLATE_TOKENS = 1024  # of a chat template around the tools; in those known up to 600
_TEMPLATE_SHARE = 8  # at most this part of a small window


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A path of the engine's API."""

    path: str
    upstream_path: str = ""  # as the engine spells it; "": the same
    prompts: tuple[str, ...] = ()  # fields with text, in which a list holds independent prompts

    @property
    def target(self) -> str:
        return self.upstream_path or self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberLimit:
    """The range of a number in a request."""

    least: float = 0
    most: float = LARGEST_INT
    reason: str  # completes "at most N: ..."


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """The values that a field may have."""

    values: tuple[object, ...]
    reason: str  # why others are refused


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLimit:
    """The size of a list, of an object, or of one string that stands for a list."""

    most: int
    chars: int | None = None  # of one entry
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimit:
    """Constraints on the output, which an engine compiles before the first token."""

    # Where they are: fields with a grammar, with a regular expression, and with JSON schemas anywhere inside.
    texts: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    chars: int  # of one grammar or pattern
    repetitions: int  # bounds of nested repetitions, multiplied
    choices: int  # entries of one `enum`, `anyOf`, `oneOf` or `allOf`
    # The engine expands schemas as llama.cpp does, so that a small one may become huge.
    expands_schemas: bool = False
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimit:
    """Images in a request, which are decoded to 3 bytes a pixel before the engine looks at their size."""

    images: int = 16
    pixels: int = 32 * 2**20  # of all images of a request together


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRules:
    """What one running engine answers, and the limits on requests, by field: "a.b" is b in the object a."""

    endpoints: tuple[Endpoint, ...]
    # path of an endpoint that this model cannot answer -> why: "is not a reranking model: ..."
    unserved: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, NumberLimit] = field(default_factory=dict)
    lists: Mapping[str, ListLimit] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)  # field -> why, and what to do instead
    only: Mapping[str, OneOf] = field(default_factory=dict)
    # The engine ignores the case of keys, as programs in Go do: "Max_Tokens" would pass the limit of max_tokens.
    ignores_case: bool = False
    grammars: GrammarLimit | None = None
    images: ImageLimit | None = None  # None: the model reads text only
    prompts: int = 512  # in one request
    truncates: bool = False  # the engine silently drops what does not fit into the window

    def endpoint(self, path: str) -> Endpoint | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.path == path), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What a request to one model must keep to."""

    rules: RequestRules = field(repr=False)
    window_tokens: int  # of one request: prompt and answer

    @property
    def most_bytes(self) -> int:
        """Of the text in one request, in UTF-8: more cannot fit into the window; if the engine truncates, might not."""
        if self.rules.truncates:  # a token may be a single byte
            return self.window_tokens - min(TEMPLATE_TOKENS, self.window_tokens // _TEMPLATE_SHARE)
        return self.window_tokens * BYTES_PER_TOKEN + SPARE_BYTES


COMPLETIONS = (
    Endpoint(path="/v1/chat/completions"),
    Endpoint(path="/v1/completions", prompts=("prompt",)),
)
EMBEDDINGS = Endpoint(path="/v1/embeddings", prompts=("input", "content"))
RERANK = tuple(
    Endpoint(path=path, prompts=("query", "documents", "texts"))
    for path in ("/v1/rerank", "/rerank")
)
RESPONSES = Endpoint(path="/v1/responses")
