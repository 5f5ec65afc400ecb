"""Model names: looking up entries in any spelling, and deriving the id, family and purposes of a model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from edgekit.errors import (
    AmbiguousNameError,
    EdgekitError,
    HeaderError,
    NotFoundError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.index import index_problems, users_entries
from edgekit.index.database import index_file
from edgekit.index.likeness import (
    FEWER_USES,
    RENAMED_SIZE,
    SAME_SIZE,
    corrected,
    is_size,
    meant,
    words_of,
)
from edgekit.index.repositories import Form, model_at, original_repository
from edgekit.index.typed import TypedName, maker_of_closed, read_name
from edgekit.index.types import Entry, Index, ModelPurpose
from edgekit.sources import hub_model_of, locate, path_of
from edgekit.sources.filenames import MODEL_SUFFIXES
from edgekit.sources.local import expand_home
from edgekit.sources.reference import clean_text
from edgekit.sources.types import Reach
from edgekit.units import format_count

SHOWN = 6  # names in one message
LEAST_MISSPELT = 75  # percent; a misspelt name that is less like a model's is not taken
MOST_CHOICES = 12  # of one family


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
    """The entry of a name in any spelling. See `find_model`."""
    return find_model(name, index).entry


def find_model(name: str, index: Index | None = None) -> Match:
    """The model that a name means, and the quantisation in the name.

    A name is an id ('gemma-3-27b'), a repository of the publisher or of somebody who quantised it
    ('unsloth/Qwen3-8B-GGUF'), an address or a path of one, an Ollama tag ('gemma3:27b'), or any of these in other
    spellings ('Gemma 3 27B', 'qwen3 coder 30b q4_k_m'). `index`: only its entries are searched, in every spelling but
    not for similar names; otherwise the models that the user added and then all that EdgeKit knows. Raises
    AmbiguousNameError with all candidates if several different models match, or NotFoundError with the nearest ids.
    """
    typed = read_name(name)
    if not typed.typed:
        raise NotFoundError("the name is empty: nothing to look for in the index", candidates=())
    for exact in _exact_forms(typed):
        match = _named(exact, 0, index, typed)
        if match is not None:
            is_as_it_stands = index is not None or split_quant(name)[0] == match.entry.id
            match = match if is_as_it_stands else _usually_meant(match, typed)
            return replace(match, quant=typed.quant)
    for reading in typed.readings():
        for level, spelling in enumerate((reading.lower(), *spellings(reading))):
            match = _named(spelling, level, index, typed)
            if match is not None and _has_tuning(typed, match.entry):
                match = match if index is not None else _usually_meant(match, typed)
                note = _change(typed, reading, match.entry) or match.note
                return replace(match, quant=typed.quant, note=note)
    shown = repr(name[:80])
    if index is not None:
        raise NotFoundError(f"{shown} is not in the index", candidates=())
    return _nearest(typed, shown)


def _exact_forms(typed: TypedName) -> list[str]:
    """Names under which the index may have it as it stands, the longest first."""
    whole = typed.typed.lower().removeprefix("ollama://")
    forms = [whole, whole.rpartition("@")[0], typed.repository.lower()]
    if typed.owner and typed.quant:
        forms.append(f"{typed.owner}/{typed.plain}".lower())
    if "/" not in whole or not typed.owner:
        forms.append(typed.name.lower())
        name, _, tag = typed.plain.lower().partition(":")
        forms += [typed.plain.lower()] if tag else []
        forms += [name] if tag in {"latest", "instruct", "chat", "it"} else []
    return [form for form in dict.fromkeys(forms) if form]


def _named(spelling: str, level: int, index: Index | None, typed: TypedName) -> Match | None:
    """The match of one spelling. Raises AmbiguousNameError if models of several shapes have it."""
    if not spelling:
        return None
    matches = _spelled(spelling, level, index)
    if level == 0 and matches and index is None and _is_written_out(typed, spelling):
        # "Mixtral" is a family of models; "mixtral" is also Ollama's name of one of them
        matches = [entry for entry in matches if spelling in _own_names(entry)]
    if not matches:
        return None
    best = _winner(matches)
    if best is None:
        raise _ambiguous(typed.typed, [(entry.id, entry.parameters) for entry in matches])
    return Match(entry=best)


_BASE = re.compile(r"(?:^|[-_:. ])(?:base|pt|pretrained|text)(?:$|[-_:. ])", re.IGNORECASE)


def _usually_meant(match: Match, typed: TypedName) -> Match:
    """The match, or the one that the name usually means unless it is the name of a repository.

    That is the original for a copy of it under another publisher, and the instruct model for a base model.
    """
    entry = match.entry
    own = (entry.repository or "").lower()
    if entry.is_users or typed.repository.lower() == own or _BASE.search(typed.name):
        return match
    answers = {ModelPurpose.CHAT, ModelPurpose.EMBEDDING}
    for level, spelling in enumerate(spellings(entry.id.partition("@")[0])[:2], 1):
        if level == 2 and (typed.owner or answers.intersection(entry.kinds)):
            break
        for other in _spelled_in_file(spelling, level):
            if other.uses > entry.uses and answers.intersection(other.kinds):
                note = f"taken to be {other.repository}; {entry.repository} is the base model"
                return replace(match, entry=other, note=match.note or (note if level == 2 else ""))
    return match


def _own_names(entry: Entry) -> set[str]:
    return {entry.id.lower(), (entry.repository or "").lower()}


def _is_written_out(typed: TypedName, spelling: str) -> bool:
    """Whether the name has capitals and neither size nor tag: the title of a family, not a name of Ollama's."""
    is_title = typed.typed != typed.typed.lower() and ":" not in typed.typed and "/" not in spelling
    return is_title and not any(map(is_size, words_of(spelling)))


def _change(typed: TypedName, reading: str, entry: Entry) -> str:
    """A note if the typed name is a repository or a tuning that the index does not have."""
    tuned = [word for word in typed.tuned if word not in reading.lower() and word != "qat"]
    owners = {(entry.repository or "").partition("/")[0].lower(), (entry.publisher or "").lower()}
    if typed.is_path:
        return (
            f"{typed.typed[-80:]} is not a file on this machine; taken to be {entry.id} by its name"
        )
    if tuned:
        return (
            f"{typed.typed[:80]} is taken to be {entry.id}, of the same shape ({', '.join(tuned)})"
        )
    if typed.owner and typed.owner.lower() not in owners and entry.repository:
        by = f" quantised by {typed.owner}" if typed.quant else f" from {typed.owner}"
        return f"{typed.typed[:80]} is not in the index; taken to be {entry.repository}{by}"
    return ""


def _has_tuning(typed: TypedName, entry: Entry) -> bool:
    """Whether the entry may be what somebody else's repository has: its name says "instruct" if that name does."""
    if not typed.owner or not entry.repository:
        return True
    words = {"instruct", "it", "chat", "thinking"}
    stated = words.intersection(words_of(typed.plain))
    return (
        stated <= set(words_of(entry.repository))
        or typed.owner.lower() == entry.repository.partition("/")[0].lower()
    )


def _nearest(typed: TypedName, shown: str) -> Match:
    """The model whose name is nearest, if that is clear. Raises AmbiguousNameError or NotFoundError."""
    _refuse_closed(typed.typed)
    text, misspelt = corrected(typed.plain)
    if misspelt:
        for reading in (text, *read_name(text).readings()):
            for level, spelling in enumerate((reading.lower(), *spellings(reading))):
                match = _named(spelling, level, None, typed)
                if match is not None and _has_tuning(typed, match.entry):
                    score = max(50, 100 - 8 * misspelt)
                    note = f"understood {shown} as {match.entry.id} ({score} % alike)"
                    return replace(match, quant=typed.quant, note=note)
    owner = typed.owner if typed.owner and not typed.is_path else ""
    answer = meant(text)
    score = answer.taken.score - 8 * misspelt if answer.taken is not None else 0
    is_near = score >= (LEAST_MISSPELT if misspelt else 0)
    if answer.taken is not None and is_near and _has_tuning(typed, _entry(answer.taken.model.id)):
        model = answer.taken.model
        entry = _entry(model.id)
        note = f"understood {shown} as {model.id} ({max(50, score)} % alike)"
        if answer.taken.extra:
            note = f"{shown} is not in the index; taken to be {model.repository} in another tuning"
        elif owner or typed.is_path:
            note = _change(typed, typed.plain, entry) or note
        return Match(entry=entry, quant=typed.quant, note=note)
    if answer.choices:
        raise _ambiguous(
            typed.typed,
            [(model.id, model.parameters) for model in answer.choices],
            most=MOST_CHOICES,
        )
    problems = "".join(f"; {problem}" for problem in index_problems())
    raise NotFoundError(
        f"{shown} is not in the index (edgekit index list shows all models){problems}",
        candidates=tuple(model.id for model in answer.near[:SHOWN]),
    )


def _refuse_closed(name: str) -> None:
    """Raises NotFoundError for a model whose weights are not published, and names the open ones of its maker."""
    maker = maker_of_closed(split_quant(name)[0])
    if maker is None:
        return
    query = "SELECT id FROM models WHERE publisher LIKE ? AND kinds LIKE '%chat%' ORDER BY uses DESC LIMIT 2"
    models = ", ".join(str(row[0]) for row in index_file().rows(query, (f"%{maker}%",)))
    others = f"; open models of {maker}: {models}" if models else ""
    raise NotFoundError(
        f"{name[:80]!r} is a closed model: {maker} does not publish its weights, so it cannot run here{others}",
        candidates=(),
    )


def _entry(model: str) -> Entry:
    return index_file().entries("WHERE m.id = ?", (model,))[0]


def _ambiguous(
    name: str, models: Iterable[tuple[str, int | None]], *, most: int = SHOWN
) -> AmbiguousNameError:
    shown = list(models)[:most]
    sizes = ", ".join(
        f"{model} ({format_count(size).replace(' ', '')})" if size else model
        for model, size in shown
    )
    return AmbiguousNameError(
        f"{name[:80]!r} matches several models: {sizes}. Give one of these",
        candidates=tuple(model for model, _ in shown),
    )


def _spelled(spelling: str, level: int, index: Index | None) -> list[Entry]:
    """The entries with this spelling, the most used first. Level 0: exact names; 1 to 3: those of `spellings`."""
    if index is None:
        users = users_entries()
        own = _spelled(spelling, level, Index(entries=users)) if users else []
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
            if known is not None:
                return file.entries("WHERE m.id = ?", (known[0],))
            if exact:
                return exact
        exact = file.entries("WHERE m.id = ?", (spelling,))
        if exact:
            return exact
    same = "SELECT model FROM names WHERE spelling = ? AND level "
    if level > 0:
        same += " BETWEEN 1 AND ? AND (scheme IS NULL OR spelling GLOB '*[0-9]*')"
        return file.entries(f"WHERE m.id IN ({same}) {order}", (spelling, level))
    ollama = file.entries(f"WHERE m.id IN ({same} = 0 AND scheme = 'ollama') {order}", (spelling,))
    if ollama or not any(map(str.isdigit, spelling)):  # "deepseek" is the name of a family
        return ollama
    return file.entries(f"WHERE m.id IN ({same} = 0) {order}", (spelling,))


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
    names = {
        spellings(re.sub(r"-\d{4}$", "", item.repository or item.id))[1] for item in (entry, other)
    }
    if not entry.parameters or not other.parameters:
        return len(names) == 1
    if entry.architecture != other.architecture:
        return False
    factor = RENAMED_SIZE if len(names) == 1 else SAME_SIZE
    sizes = entry.parameters, other.parameters
    return max(sizes) <= factor * min(sizes)


def near_ids(name: str) -> tuple[str, ...]:
    """The ids of the models whose names are most like this one."""
    answer = meant(corrected(read_name(name).plain)[0])
    first = (answer.taken.model,) if answer.taken is not None else answer.choices
    ids = dict.fromkeys(model.id for model in (*first, *answer.near))
    return tuple(ids)[:SHOWN]


def entry_named(name: str, *, absolute: bool) -> Match | None:
    """What a name means; None for a URL outside the hub, and a name that nothing has.

    A path is not looked for: it means the model that its file name states. Raises AmbiguousNameError with the
    candidates for a name that several different models have.
    """
    typed = read_name(name)
    try:
        clean_text(name)
        if "://" in name and not typed.is_address and hub_model_of(name) is None:
            return None
        is_model = typed.quant is not None or re.search(r"\.gguf$|models--", name, re.IGNORECASE)
        if not is_model and is_path(name, absolute=absolute):
            return None
        match = find_model(name)
        match = _usually_meant(match, typed)
    except AmbiguousNameError:
        if typed.is_path:
            return None
        raise
    except (NotFoundError, UsageError):
        return None
    entry = match.entry
    exact = {entry.id.lower(), (entry.repository or "").lower()}
    if entry.is_users and may_be_elsewhere(name) and split_quant(name.lower())[0] not in exact:
        return None  # a hub id never means a user's model with a similar name
    return match


def is_path(name: str, *, absolute: bool = False) -> bool:
    """Whether the name is spelled as a file or folder on some machine, and cannot be one on the hub."""
    is_file = read_name(name).is_path or path_of(name, absolute_only=absolute) is not None
    return is_file and hub_model_of(name) is None


def is_folder_here(name: str, *, absolute: bool) -> bool:
    """Whether the folder of a path is on this machine: then the file's name was mistyped. Not for a bare file name."""
    path = expand_home(name)
    has_folder = os.sep in name and (path.is_absolute() or not absolute)
    return has_folder and path.parent.is_dir()


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


def is_id_of(name: str, entry: Entry) -> bool:
    """Whether the name is the entry's id, with or without a quantisation."""
    plain = split_quant(name)[0]
    return entry.id.lower() in {name.strip().lower(), plain.strip().lower()}


def is_catalog_first(name: str, match: Match, *, absolute: bool) -> bool:
    """Whether the index answers for this name without querying the network.

    True for the entry's id, with or without a quantisation, and for other spellings of models that are not on this
    machine. A hub id, an Ollama name (gemma3:27b) and a user's entry refer to files, which are read if possible.
    """
    if match.entry.is_users:
        return False
    if is_id_of(name, match.entry):
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
    """The error with similar names of the index added, or the one that says that the model is closed."""
    try:
        _refuse_closed(name)
        near = near_ids(split_quant(name)[0])
    except NotFoundError as closed:
        return closed
    except HeaderError:  # the index cannot be read
        return error
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
    r"(?:^|[-_.])(?:it|instruct|chat|thinking|reasoning|devstral|magistral|codestral|mathstral|pixtral|mistral-medium"
    r"|mistral-small-4|bloomz|mix|ft|reward|guard|llamaguard|shieldgemma|h1r|intern-s\d)(?:$|[-_.])",
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


@lru_cache(maxsize=16_384)
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
