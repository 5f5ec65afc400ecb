"""Model names: looking up entries in any spelling, and deriving the id, family and purposes of a model."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from edgekit.errors import (
    AmbiguousNameError,
    EdgekitError,
    NotFoundError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.index import index_entries, users_entries
from edgekit.index.database import index_file
from edgekit.index.repositories import Form, model_at, original_repository
from edgekit.index.types import Entry, Index, ModelPurpose
from edgekit.sources import hub_model_of, locate, path_of
from edgekit.sources.filenames import MODEL_SUFFIXES, SHORT_MIXES, quant_tag
from edgekit.sources.types import Reach

SHOWN = 6  # names in one message


# -- look-up -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What a name means."""

    entry: Entry
    quant: str | None = (
        None  # stated in the name, or by the form of the repository: "Q4_K_M", "4bit"
    )
    note: str = ""  # how the name was understood, if it is not one that the index has


def find_entry(name: str, index: Index | None = None) -> Entry:
    """The entry of a name in any spelling, without a quantisation. See `find_model`."""
    return _find(name, index, whole=name).entry


def find_model(name: str, index: Index | None = None) -> Match:
    """The model that a name means, and the quantisation in the name.

    A name is an id ('gemma-3-27b'), a repository of the publisher or of somebody who quantised it
    ('unsloth/Qwen3-8B-GGUF'), an address of one, an Ollama tag ('gemma3:27b'), or any of these in other spellings
    ('Gemma 3 27B', 'qwen3 coder 30b q4_k_m'). `index`: only its entries are searched; otherwise the models that the
    user added and then all that EdgeKit knows. Raises NotFoundError with the nearest ids if there is none, or with all
    candidates if several different models match.
    """
    plain, quant, form = _without_address(name)
    try:
        return replace(_find(plain, index, whole=name, near=False), quant=quant or form)
    except AmbiguousNameError:
        raise
    except NotFoundError:
        pass
    shorter, stated = split_quant(plain)
    if stated is None:
        return replace(_find(plain, index, whole=name), quant=quant or form)
    return replace(_find(shorter, index, whole=name), quant=_file_tag(stated))


def _without_address(name: str) -> tuple[str, str | None, str | None]:
    """A hub address or id -> its repository, the quantisation it names, and that of its form: 'org/x-4bit' -> '4bit'.

    Other names stay as they are.
    """
    text = name.strip()
    hub = None
    with suppress(UsageError, ValueError):  # ValueError: a NUL in the name
        hub = hub_model_of(text)
    if hub is None:
        text = re.sub(
            r"\.gguf$",
            "",
            text.rpartition("/")[2] if text.lower().endswith(".gguf") else text,
            flags=re.IGNORECASE,
        )
        return re.sub(r"-\d{5}-of-\d{5}$", "", text), None, None
    quant = hub.quant
    if quant is None and hub.filename is not None:
        quant = quant_tag(hub.filename)
    stated = split_quant(hub.repo)[1]
    return hub.repo, quant, None if stated is None else _file_tag(stated)


def _file_tag(text: str) -> str:
    """A quantisation as people type it -> as files are named: 'q4' and 'Q4_K' -> 'Q4_K_M', '4 bit' -> '4bit'."""
    plain = re.sub(r"[ -]+", "_", text.strip().upper()).replace("_BIT", "BIT")
    if plain.endswith("BIT"):
        return plain.lower()
    plain = {
        "Q2": "Q2_K",
        "Q3": "Q3_K_M",
        "Q4": "Q4_K_M",
        "Q5": "Q5_K_M",
        "Q6": "Q6_K",
        "Q8": "Q8_0",
        "FP16": "F16",
    }.get(plain, plain)
    return SHORT_MIXES.get(plain, plain).replace("UD_", "UD-")


def _find(name: str, index: Index | None, *, whole: str, near: bool = True) -> Match:
    """The match of a name without a quantisation, by the tightest spelling that finds one, else the nearest name."""
    typed = name.strip().lower()
    if not typed:
        raise NotFoundError("the name is empty", candidates=())
    for level, spelling in enumerate((typed, *spellings(typed))):
        if not spelling:
            continue
        matches = _spelled(spelling, level, index)
        if not matches:
            continue
        best = _winner(matches)
        if best is not None:
            return Match(entry=best)
        raise AmbiguousNameError(
            f"{whole[:80]!r} matches several models",
            candidates=tuple(e.id for e in matches[:SHOWN]),
        )
    ranked = near_entries(name, index) if near else []
    if ranked and _is_clear(ranked):
        score, entry = ranked[0]
        return Match(entry=entry, note=f"understood {whole[:80]!r} as {entry.id} ({score} % alike)")
    raise NotFoundError(
        f"{whole[:80]!r} is not in the index (edgekit index list shows all models)",
        candidates=tuple(entry.id for _, entry in ranked[:SHOWN]),
    )


def _spelled(spelling: str, level: int, index: Index | None) -> list[Entry]:
    """The entries with this spelling, the most used first. Level 0: exact names; 1 to 3: those of `spellings`."""
    if index is None:
        own = _spelled(spelling, level, Index(entries=users_entries()))
        return own or _spelled_in_file(spelling, level)
    matches = []
    for entry in index.entries:
        known = tuple(filter(None, (entry.id, entry.repository)))
        if level == 0:
            is_match = spelling in {text.lower() for text in known}
        else:
            is_match = any(spellings(text)[level - 1] == spelling for text in known)
        if is_match:
            matches.append(entry)
    return sorted(matches, key=lambda entry: -entry.uses)


def _spelled_in_file(spelling: str, level: int) -> list[Entry]:
    """`_spelled` for the models of the index file."""
    file, order = index_file(), "ORDER BY m.uses DESC, m.id LIMIT 50"
    if level == 0:
        if "/" in spelling:
            exact = file.entries(f"WHERE lower(m.repository) = ? {order}", (spelling,))
            known = None if exact else model_at(spelling)
            return exact if known is None else file.entries("WHERE m.id = ?", (known[0],))
        exact = file.entries("WHERE m.id = ?", (spelling,))
        if exact:
            return exact
    same = "SELECT model FROM names WHERE spelling = ? AND level "
    same += "= 0" if level == 0 else "BETWEEN 1 AND ?"
    values = (spelling,) if level == 0 else (spelling, level)
    return file.entries(f"WHERE m.id IN ({same}) {order}", values)


SAME_SIZE = 1.02  # models whose parameters differ by no more than this factor may be the same model
FEWER_USES = 2.0  # a model with this much less on the scale of `uses` has less than a hundredth of the other's users


def _winner(matches: list[Entry]) -> Entry | None:
    """The entry that people mean, the most used one first; None if models of several shapes match."""
    best, *others = matches
    if all(_is_alike(best, other) or other.uses <= best.uses - FEWER_USES for other in others):
        return best
    return None


def _is_alike(entry: Entry, other: Entry) -> bool:
    """Whether both need the same memory: the same geometry, or the same architecture and about as many parameters."""
    if entry.geometry is not None and entry.geometry == other.geometry:
        return True
    if not entry.parameters or not other.parameters or entry.architecture != other.architecture:
        return False
    return max(entry.parameters, other.parameters) <= SAME_SIZE * min(
        entry.parameters, other.parameters
    )


def near_entries(name: str, index: Index | None = None) -> list[tuple[int, Entry]]:
    """The entries whose names are like this one, with the likeness in percent, the best first."""
    typed = _words(name)
    if not typed:
        return []
    entries = index_entries() if index is None else index.entries
    scored = []
    for entry in entries:
        known = (entry.id, (entry.repository or "").rpartition("/")[2])
        score = max(_likeness(typed, _words(text)) for text in known)
        if score >= LEAST_LIKE:
            scored.append((score, entry))
    return sorted(scored, key=lambda pair: (-pair[0], -pair[1].uses, pair[1].id))


LEAST_LIKE = 50  # percent; less is not worth showing
CLEARLY_LIKE = 80  # percent; a model that is this much alike, and alone, is taken


def _is_clear(ranked: list[tuple[int, Entry]]) -> bool:
    """Whether the first is so much more alike, or so much more used, than every other shape that it can be taken."""
    score, best = ranked[0]
    if score < CLEARLY_LIKE:
        return False
    return all(
        _is_alike(best, entry) or other <= score - 10 or entry.uses <= best.uses - FEWER_USES
        for other, entry in ranked[1:]
    )


_SIZE_WORD = re.compile(r"(?:\d+x)?[ae]?\d+(?:\.\d+)?[bmt]")
_DATE_WORD = re.compile(r"(?:20)?\d{4}|v\d+(?:\.\d+)*|\d+(?:\.\d+)*")
# Words that people leave out, or add, without meaning another model.
_MINOR_WORDS = frozenset({
    "instruct", "it", "chat", "hf", "gguf", "latest", "model", "preview", "meta", "mistralai", "google", "nvidia",
    "distill", "qwen", "llama", "text", "mlx", "bf16", "base",
})  # fmt: skip


@lru_cache(maxsize=16_384)
def _words(name: str) -> tuple[str, ...]:
    """The parts of a name: 'DeepSeek-R1-Distill-Qwen-32B' -> deepseek, r, 1, distill, qwen, 32b."""
    words = []
    for word in _WORDS.findall(name.rstrip("/").rpartition("/")[2][:_LONGEST].lower()):
        if _SIZE_WORD.fullmatch(word):
            words.append(word)
        else:
            words += _PARTS.findall(word)
    return tuple(words)


def _likeness(typed: tuple[str, ...], known: tuple[str, ...]) -> int:
    """How much alike two names are, in percent: what people leave out costs little, what they add or mistype more."""
    left = list(known)
    score = 100.0
    for word in typed:
        if word in left:
            left.remove(word)
            continue
        if _SIZE_WORD.fullmatch(word):
            return 0  # of another size
        if word[0].isdigit():
            score -= 40  # of another version
            continue
        close = next((other for other in left if _is_typo(word, other)), None)
        if close is None:
            score -= 5 if word in _MINOR_WORDS else 45
        else:
            left.remove(close)
            score -= 8
        if score < LEAST_LIKE:
            return 0
    for word in left:
        if word in _MINOR_WORDS:
            score -= 1
        elif _SIZE_WORD.fullmatch(word):
            score -= 3 if word[0] in "ae" else 8
        elif _DATE_WORD.fullmatch(word):
            score -= 4
        else:
            score -= 12
    return max(0, round(score))


def _is_typo(word: str, other: str) -> bool:
    """Whether the words differ by one letter added, left out, changed or swapped with its neighbour."""
    if abs(len(word) - len(other)) > 1 or min(len(word), len(other)) < 3 or other[0].isdigit():
        return False
    start = next(
        (i for i, (a, b) in enumerate(zip(word, other, strict=False)) if a != b),
        min(len(word), len(other)),
    )
    rest, other_rest = word[start:], other[start:]
    return (
        rest[1:] == other_rest[1:]
        or rest[1:] == other_rest
        or rest == other_rest[1:]
        or (rest[:2] == other_rest[:2][::-1] and rest[2:] == other_rest[2:])
    )


def near_ids(name: str) -> tuple[str, ...]:
    """The ids of the models whose names are most like this one."""
    return tuple(entry.id for _, entry in near_entries(name)[:SHOWN])


def entry_named(name: str, *, absolute: bool) -> Match | None:
    """What a name means; None for a path, even a missing one, a URL outside the hub, and a name that nothing has.

    Raises NotFoundError with the candidates for a name that several different models have.
    """
    try:
        is_file = "/" not in name and "://" not in name and name.lower().endswith(MODEL_SUFFIXES)
        if (is_file and not name.lower().endswith(".gguf")) or path_of(
            name, absolute_only=absolute
        ) is not None:
            return None
        if "://" in name and hub_model_of(name) is None and not name.startswith("ollama://"):
            return None
        match = find_model(name.removeprefix("ollama://"))
    except AmbiguousNameError:
        raise
    except (NotFoundError, UsageError, ValueError):  # ValueError: a NUL in the name
        return None
    entry = match.entry
    exact = {entry.id.lower(), (entry.repository or "").lower()}
    if entry.is_users and may_be_elsewhere(name) and split_quant(name.lower())[0] not in exact:
        return None  # a hub id never means a user's model with a similar name
    return match


def may_be_elsewhere(name: str) -> bool:
    """Whether a name may mean a file of the hub or of Ollama's registry: org/name, gemma3:27b, llama3.3."""
    return "/" in name or ":" in split_quant(name)[0] or is_ollama_name(name)


def is_ollama_name(name: str) -> bool:
    """Whether Ollama's library has a model of this name: 'llama3.3', 'gemma3:27b'."""
    known = model_at(name.strip().lower())
    if known is not None and known[1] is Form.OLLAMA:
        return True
    query = "SELECT 1 FROM names WHERE spelling = ? AND level = 0 AND scheme = 'ollama'"
    return bool(index_file().rows(query, (name.strip().lower(),)))


def is_catalog_first(name: str, match: Match, *, absolute: bool) -> bool:
    """Whether the index answers for this name without querying the network.

    True for the entry's id, with or without a quantisation, and for other spellings of models that are not on this
    machine. A hub id, an Ollama name (gemma3:27b) and a user's entry refer to files, which are read if possible.
    """
    if match.entry.is_users:
        return False
    plain = split_quant(name)[0]
    if match.entry.id.lower() in {name.strip().lower(), plain.strip().lower()}:
        return True
    if may_be_elsewhere(name):
        return False
    try:
        locate(name, reach=Reach(network=False, within=() if absolute else None))
    except EdgekitError:
        return True
    return False


def with_near(
    error: NotFoundError | RemoteInspectError, name: str
) -> NotFoundError | RemoteInspectError:
    """The error with similar names of the index added."""
    near = near_ids(split_quant(name)[0])
    if isinstance(error, RemoteInspectError):
        is_answer = isinstance(error, RemoteNotFoundError | RemoteAccessError)
        if is_answer or not near or "://" in name:
            return error
        return type(error)(f"{error}. Similar names in the index: {', '.join(near)}")
    if any(sign in name for sign in "/\\") or name.lower().endswith(MODEL_SUFFIXES):
        return error
    if name.lower().startswith("sample:"):
        return error
    local = tuple(
        candidate for candidate in error.candidates if not candidate.startswith("sample:")
    )
    message = str(error).partition(". Did you mean: ")[0]
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
