"""Model names: looking up entries in any spelling, and deriving the id, family and purposes of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from edgekit.errors import (
    EdgekitError,
    NotFoundError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.index import read_catalog
from edgekit.index.repositories import model_of_original, original_repository
from edgekit.index.types import Catalog, Entry, ModelPurpose
from edgekit.sources import hub_model_of, locate, path_of
from edgekit.sources.filenames import MODEL_SUFFIXES, close_names
from edgekit.sources.types import Reach

SHOWN = 6  # names in one message


# -- look-up -------------------------------------------------------------------------------------


def find_entry(name: str, catalog: Catalog | None = None) -> Entry:
    """The entry of an id or repository in any spelling: 'Gemma 3 27B', 'gemma3:27b', 'google/gemma-3-27b-it'.

    Raises NotFoundError with the nearest ids if there is none, or if several match.
    """
    entries = (catalog or read_catalog()).entries
    plain_name = name.strip().lower()
    published = model_of_original(plain_name)
    for entry in entries:
        names = {entry.id.lower(), (entry.repository or "").lower()}
        if plain_name and (plain_name in names or published == entry.id):
            return entry
    for looseness in range(3) if plain_name else ():
        loose_name = spellings(name)[looseness]
        matches = []
        for entry in entries if loose_name else ():
            names_of_entry = (known for known in (entry.id, entry.repository) if known)
            if any(spellings(known)[looseness] == loose_name for known in names_of_entry):
                matches.append(entry)
        if len(matches) == 1:
            return matches[0]
        if matches:
            near = tuple(entry.id for entry in matches[:SHOWN])
            raise NotFoundError(
                f"{name[:80]!r} matches several models of the catalog", candidates=near
            )
    raise NotFoundError(
        f"{name[:80]!r} is not in the catalog (edgekit catalog list shows all models)",
        candidates=near_ids(name, entries),
    )


def near_ids(name: str, entries: Iterable[Entry]) -> tuple[str, ...]:
    """The ids that are most similar to the name; those that start with it come first."""
    ids = {spellings(entry.id)[1]: entry.id for entry in entries}
    plain_name = spellings(name)[1]
    longer = sorted(known for known in ids if plain_name and known.startswith(f"{plain_name} "))
    near = dict.fromkeys((*longer, *close_names(plain_name, ids)))
    return tuple(ids[known] for known in near)[:SHOWN]


def find_quantised(name: str, catalog: Catalog) -> tuple[Entry, str | None]:
    """The entry that a name refers to, and the quantisation in the name. Raises NotFoundError."""
    try:
        return find_entry(name, catalog), None
    except NotFoundError:
        plain, quant = split_quant(name)
        if quant is None:
            raise
        return find_entry(plain, catalog), quant


def entry_named(name: str, catalog: Catalog, *, absolute: bool) -> tuple[Entry | None, str | None]:
    """The entry and the quantisation; (None, None) for a path, even a missing one, and for a URL outside the hub."""
    try:
        is_file = (
            name.lower().endswith(MODEL_SUFFIXES)
            or path_of(name, absolute_only=absolute) is not None
        )
        if is_file or ("://" in name and hub_model_of(name) is None):
            return None, None
        entry, quant = find_quantised(ollama_latest(name) or name, catalog)
    except (NotFoundError, UsageError, ValueError):  # ValueError: a NUL in the name
        return None, None
    exact = {entry.id.lower(), (entry.repository or "").lower()}
    if entry.is_users and may_be_elsewhere(name) and split_quant(name.lower())[0] not in exact:
        return None, None  # a hub id never means a user's model with a similar name
    return entry, quant


def may_be_elsewhere(name: str) -> bool:
    """Whether a name may mean a file of the hub or of Ollama's registry: org/name, gemma3:27b, llama3.3."""
    return "/" in name or ":" in split_quant(name)[0] or ollama_latest(name) is not None


def is_catalog_first(name: str, entry: Entry, *, absolute: bool) -> bool:
    """Whether the catalog answers for this name without querying the network.

    True for the entry's id, with or without a quantisation, and for other spellings of models that are not on this
    machine. A hub id, an Ollama name (gemma3:27b) and a user's entry refer to files, which are read if possible.
    """
    if entry.is_users:
        return False
    plain = split_quant(name)[0]
    if entry.id.lower() in {name.strip().lower(), plain.strip().lower()}:
        return True
    if may_be_elsewhere(name):
        return False
    try:
        locate(name, reach=Reach(network=False, within=() if absolute else None))
    except EdgekitError:
        return True
    return False


def may_stand_in(name: str, error: NotFoundError | RemoteInspectError) -> bool:
    """Whether the catalog may answer for a name that could not be read.

    Not for a hub id that the hub refuses, nor for one that this machine has only in another quantisation.
    """
    refused = NotFoundError | RemoteNotFoundError | RemoteAccessError
    return not ("/" in name and isinstance(error, refused))


def with_near(
    error: NotFoundError | RemoteInspectError, name: str, catalog: Catalog
) -> NotFoundError | RemoteInspectError:
    """The error with similar names of the catalog added, and a note if part of the catalog is unreadable."""
    near = near_ids(split_quant(name)[0], catalog.entries)
    if isinstance(error, RemoteInspectError):
        is_answer = isinstance(error, RemoteNotFoundError | RemoteAccessError)
        if is_answer or not near or "://" in name:
            return error
        return type(error)(f"{error}. Similar names in the catalog: {', '.join(near)}")
    if any(sign in name for sign in "/\\") or name.lower().endswith(MODEL_SUFFIXES):
        return error
    if name.lower().startswith("sample:"):
        return error
    local = tuple(
        candidate for candidate in error.candidates if not candidate.startswith("sample:")
    )
    message = str(error).partition(". Did you mean: ")[0]
    if catalog.problems:
        message += f"; part of the catalog is unreadable: {catalog.problems[0]}"
    return NotFoundError(message, candidates=tuple(dict.fromkeys((*local, *near))))


# Publishers whose plain names mean base models; their instruct versions have longer names.
_BASE_OWNERS = frozenset({
    "01-ai", "bigcode", "bigscience", "databricks", "google", "internlm", "meta-llama", "mistralai", "tiiuae",
})  # fmt: skip
_ANSWERS = re.compile(
    r"(?:^|[-_.])(?:it|instruct|chat|thinking|reasoning|devstral|magistral|codestral)(?:$|[-_.])",
    re.IGNORECASE,
)


def base_note(entry: Entry, name: str = "") -> tuple[str, ...]:
    """A warning that a base model does not answer questions, unless the name asks for an instruct model."""
    repository = original_repository(entry.id) or entry.repository or ""
    owner, _, model = repository.partition("/")
    is_base = owner in _BASE_OWNERS and _ANSWERS.search(model) is None
    asks_for_instruct = _ANSWERS.search(re.sub(r"[\s:]+", "-", name)) is not None
    if asks_for_instruct or not is_base or ModelPurpose.CHAT not in entry.kinds:
        return ()
    return (f"{repository} is a base model; for chat use its instruct version (same size)",)


# -- names ---------------------------------------------------------------------------------------

# The first of these words ends the family name: sizes and versions follow.
_VARIANT = re.compile(
    r"(?:\d+x)?[ae]?\d+(?:\.\d+)?[bmk]|mini|small|medium|large|nano|super|ultra|tiny|micro|lite|flash|pro|max|scout"
    r"|maverick|lightning|base|chat|instruct|it|hf|code|coder|embedding|v0\.\d+|\d{4}|fp8|nvfp4|mxfp4|bf16|gguf|mlx"
    r"|\d+bit"
)
_QUANT = re.compile(
    r"(?:[-._:]|^)(?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|BF16|F16|F32|MXFP4(?:_MOE)?)(?=$|[-._])",
    re.IGNORECASE,
)
_LONGEST = 200  # characters of a name; the longest names on the hub have 96
_NOT_IN_IDS = re.compile(r"[^a-z0-9._:+@-]+")

# Words in a name -> the purpose they indicate; all matches count.
_KINDS: tuple[tuple[re.Pattern[str], ModelPurpose], ...] = (
    (
        re.compile(r"embed|(?:^|-)(?:e5|gte|bge|jina)(?:-|$)|minilm|nomic"),
        ModelPurpose.EMBEDDING,
    ),
    (
        re.compile(r"cod(?:er?|ing|ellama|estral)(?:-|\d|$)|codellama|starcoder|devstral"),
        ModelPurpose.CODE,
    ),
    (
        re.compile(
            r"-vl(?:-|\d|$)|vision|llava|janus|gemma-3-(?:4b|12b|27b)|mistral-small-3\.[12]"
        ),
        ModelPurpose.VISION,
    ),
    (
        re.compile(
            r"reasoning|thinking|-r1(?:-|$)|^qwen3(?:\.\d)?-(?!vl|coder|next|embedding|.*-instruct)|^qwq|gpt-oss|smollm3|glm-(?:4\.[5-9]|5)"
            r"|minimax-m[2-9]|nemotron-(?:3|super)|deepseek-v4|kimi-k2\.[5-9]|kimi-k3|mimo"
        ),
        ModelPurpose.REASONING,
    ),
)
# Models trained to continue a text, not to answer.
_WITHOUT_CHAT = re.compile(r"starcoder|mamba-2\.8b|-base(?:-|$)|nomic-embed-code")


def id_of(label: str) -> str:
    """'unsloth/Qwen3-8B-GGUF:Q4_K_M' -> 'qwen3-8b', 'model.Q8_0.gguf' -> 'model'."""
    name = label.rstrip("/").rpartition("/")[2].removeprefix("sample:")
    name = re.sub(r"\.(?:gguf|safetensors|json)$", "", name, flags=re.IGNORECASE)
    name = _QUANT.sub("", re.sub(r"-\d{5}-of-\d{5}$", "", name))
    name = re.sub(r"[-_.]gguf$", "", name.rstrip(":-._"), flags=re.IGNORECASE)
    return _NOT_IN_IDS.sub("-", name.lower())[:_LONGEST].strip("-.:_@+") or "model"


def family_of(name: str) -> str:
    """'qwen3-vl-30b-a3b-instruct' -> 'qwen3-vl': everything before sizes and versions."""
    words = name.lower().split("-")
    family_words = next(
        (i for i, word in enumerate(words) if i and _VARIANT.fullmatch(word)), len(words)
    )
    return "-".join(words[:family_words])


def kinds_of(name: str, *, causal: bool, pooled: bool, sees: bool) -> tuple[ModelPurpose, ...]:
    """Purposes in the order of the enum. A model that generates text is for chat, unless its name says otherwise."""
    purposes = {kind for words, kind in _KINDS if words.search(name.lower())}
    if sees:
        purposes.add(ModelPurpose.VISION)
    if not causal or pooled:
        purposes.add(ModelPurpose.EMBEDDING)
    if ModelPurpose.EMBEDDING in purposes:
        purposes -= {ModelPurpose.REASONING}
    elif not _WITHOUT_CHAT.search(name.lower()):
        purposes.add(ModelPurpose.CHAT)
    return tuple(kind for kind in ModelPurpose if kind in purposes)


# Words that do not affect memory: tuning, container, Ollama's default tag.
_SAME_SHAPE = frozenset({"instruct", "it", "chat", "hf", "gguf", "latest"})
# Publisher names that people put in front: "Meta-Llama-3.1-8B", "Google Gemma 3 27B".
_PUBLISHERS = frozenset({
    "alibaba", "google", "ibm", "meta", "microsoft", "mistralai", "nvidia", "openai",
})  # fmt: skip
_ACTIVE = re.compile(r"a\d+(?:\.\d+)?[bm]")  # A3B: the active parameters
_WORDS = re.compile(r"[a-z0-9]+(?:\.[0-9]+[a-z]*)*")
_PARTS = re.compile(r"[0-9]+(?:\.[0-9]+)?|[a-z]+")


@lru_cache(maxsize=4096)
def spellings(name: str) -> tuple[str, str, str]:
    """The name in three spellings, each looser than the one before; equal ones mean the same model.

    1. without capitals, separators and publisher: 'google/Gemma-3-27B-it', 'gemma3:27b_it'
    2. also without words such as 'it' and 'instruct', which do not change the shape: 'Gemma 3 27B'
    3. also without the number of active parameters: 'qwen3-30b' for 'qwen3-30b-a3b'

    >>> spellings("Qwen/Qwen3-30B-A3B-Instruct")
    ('qwen 3 30 ba 3 binstruct', 'qwen 3 30 ba 3 b', 'qwen 3 30 b')
    """
    words = _WORDS.findall(name.rstrip("/").rpartition("/")[2][:_LONGEST].lower())
    if len(words) > 1 and words[0] in _PUBLISHERS:
        words = words[1:]
    shape = [word for word in words if word not in _SAME_SHAPE]
    size = [word for word in shape if not _ACTIVE.fullmatch(word)]
    return _join_letters(words), _join_letters(shape), _join_letters(size)


def _join_letters(words: list[str]) -> str:
    """Joins adjacent words of letters: 'gpt-oss-20b' and 'gptoss 20B' both become 'gptoss 20 b'."""
    parts = [part for word in words for part in _PARTS.findall(word)]
    return re.sub(r"(?<=[a-z]) (?=[a-z])", "", " ".join(parts))


_TAG = r"(?:UD-)?I?Q\d(?:_[A-Z0-9]+)*|TQ\d_0|BF16|F16|FP16|F32|MXFP4(?:_MOE)?|NVFP4|FP8|AWQ|GPTQ|\d-?bit|q\d_g\d+"
_QUANTISED = re.compile(rf"(?P<name>.+?)(?P<mark>[-._: ]+)(?P<quant>{_TAG})", re.IGNORECASE)


def split_quant(name: str) -> tuple[str, str | None]:
    """'qwen3-8b:Q8_0' -> ('qwen3-8b', 'Q8_0'), 'qwen3-8b' -> ('qwen3-8b', None)."""
    match = _QUANTISED.fullmatch(name.strip()[: 2 * _LONGEST])
    return (name, None) if match is None else (match["name"], match["quant"])


# The size that Ollama's library serves for a name without a tag.
_OLLAMA_LATEST = {
    "gemma2": "9b", "gemma3": "4b", "gpt-oss": "20b", "llama2": "7b", "llama3": "8b", "llama3.1": "8b",
    "llama3.2": "3b", "llama3.3": "70b", "mixtral": "8x7b", "qwen2.5": "7b", "qwen3": "8b",
}  # fmt: skip


def ollama_latest(name: str) -> str | None:
    """'llama3.3', 'llama3.3:latest' -> 'llama3.3:70b'; None for a name that is not in the table."""
    plain = name.strip().lower().removesuffix(":latest")
    size = _OLLAMA_LATEST.get(plain)
    return None if size is None else f"{plain}:{size}"
