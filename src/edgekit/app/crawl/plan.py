"""From the listed repositories to models: what belongs together, what is left out, and where a geometry may be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from edgekit.app.crawl.types import FetchTask, GeometrySource, Listed, Status, TaskKind
from edgekit.app.index import AS_STORED
from edgekit.errors import NotFoundError
from edgekit.model.architectures import section_by_name
from edgekit.sources.filenames import (
    CONFIG_NAME,
    DEFAULT_QUANTS,
    FileSet,
    base_of,
    group_shards,
    safetensors_set,
)
from edgekit.sources.types import ByteSource, ModelFile

MAX_CHAIN = 8  # a quantisation of a quantisation of ...
MAX_CANDIDATES = 3  # files that are tried for one geometry
OWN, QUANTISED = "original", "quantized"

# Tasks of the hub that no language model has: huggingface.co/tasks.
_OTHER_TASKS = frozenset({
    "audio-classification", "audio-to-audio", "automatic-speech-recognition", "depth-estimation", "graph-ml",
    "image-classification", "image-feature-extraction", "image-segmentation", "image-to-3d", "image-to-image",
    "image-to-video", "keypoint-detection", "mask-generation", "object-detection", "reinforcement-learning",
    "robotics", "tabular-classification", "tabular-regression", "text-to-3d", "text-to-audio", "text-to-image",
    "text-to-speech", "text-to-video", "time-series-forecasting", "unconditional-image-generation",
    "video-classification", "video-to-video", "voice-activity-detection", "zero-shot-image-classification",
    "zero-shot-object-detection",
})  # fmt: skip
_OTHER_LIBRARIES = frozenset(
    {"diffusers", "stable-baselines3", "ml-agents", "sample-factory", "timm", "keras"}
)
# Bytes of an element where each is one weight. Packed integers are left out: what the hub counts of them differs.
_PLAIN = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
_DTYPE_NAMES = {"F8_E4M3": "FP8", "F8_E5M2": "FP8"}
_BITS = re.compile(r"(?:^|[-_.])([2-8])[-_]?bit(?=$|[-_.])", re.IGNORECASE)
_MODE = re.compile(r"(?:^|[-_.])(mxfp4|mxfp8|nvfp4|bf16|fp16)(?=$|[-_.])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRule:
    """A row of forms.tsv."""

    name: str
    tag: str
    methods: frozenset[str]
    word: re.Pattern[str]
    is_own: bool


@cache
def _forms() -> tuple[FormRule, ...]:
    lines = Path(__file__).with_name("forms.tsv").read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return tuple(
        FormRule(
            name=name,
            tag=tag,
            methods=frozenset(filter(None, methods.split("|"))),
            word=re.compile(rf"(?:^|[-_.]){re.escape(word)}(?=$|[-_.\d])", re.IGNORECASE),
            is_own=own == "yes",
        )
        for name, tag, methods, word, own in rows
    )


# -- one repository ------------------------------------------------------------------------------


def gguf_sets(item: Listed) -> list[FileSet]:
    """The complete GGUF models of the repository; if it has several models, those of the one with the most files."""
    return _gguf_sets(item.files or ())


@lru_cache(maxsize=256)  # each repository is asked about several times in a row
def _gguf_sets(listed: tuple[tuple[str, int | None], ...]) -> list[FileSet]:
    sets = [
        group
        for group in group_shards(_files(listed), ".gguf")
        if not group.is_companion and not group.missing_count
    ]
    counts: dict[str, int] = {}
    for group in sets:
        counts[group.model] = counts.get(group.model, 0) + 1
    chosen = min(counts, key=lambda model: (-counts[model], model), default="")
    return [group for group in sets if group.model == chosen]


def weights_of(item: Listed) -> FileSet | None:
    """The safetensors that would be loaded; None if there are none, or no complete set."""
    root = [file for file in _files(item.files or ()) if "/" not in file.name]
    try:
        found = safetensors_set(root, item.name)
    except NotFoundError:  # several models, and no index
        return None
    return None if found is None or found.missing_count else found


def _files(listed: tuple[tuple[str, int | None], ...]) -> tuple[ModelFile, ...]:
    return tuple(ModelFile(name=path, open=_never, size_bytes=size) for path, size in listed)


def _never() -> ByteSource:
    raise AssertionError


def has_config(item: Listed) -> bool:
    return any(path == CONFIG_NAME for path, _ in item.files or ())


def why_not_a_model(item: Listed) -> str | None:
    """Why the listing alone says that this is not a language model with weights; None if it may be one."""
    if item.task in _OTHER_TASKS:
        return f"its task is {item.task}"
    if item.library in _OTHER_LIBRARIES:
        return f"a model of {item.library}"
    if item.model_type and (other := section_by_name("not_a_language_model").get(item.model_type)):
        return str(other)
    if item.files is None:
        return None
    names = {base_of(path) for path, _ in item.files}
    if "adapter_config.json" in names and not has_config(item):
        return "an adapter, which changes a base model and does not run alone"
    if "model_index.json" in names:
        return "a diffusion pipeline"
    if gguf_sets(item):
        return None
    if not any(name.endswith((".safetensors", ".bin")) for name in names):
        return "no weights"
    return None if has_config(item) else "no config.json"


def needs_files(item: Listed, *, sizes: bool) -> bool:
    """Whether the hub must be asked for the files of this repository: it listed none, or no sizes that matter."""
    if why_not_a_model(item) is not None:
        return False
    if item.files is None:
        return True
    if not sizes:
        return False
    if any(bytes_of(group) is None for group in gguf_sets(item)):
        return True
    weights = weights_of(item)
    return weights is not None and bytes_of(weights) is None and plain_bytes(item) is None


def bytes_of(group: FileSet) -> int | None:
    """The size of all files of a set; None unless each is known."""
    sizes = [file.size_bytes for file in group.files]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def plain_bytes(item: Listed) -> int | None:
    """The bytes of the tensors by the hub's count of their elements; None if some are packed, or none was counted."""
    if not item.dtypes or any(dtype not in _PLAIN for dtype, _ in item.dtypes):
        return None
    return sum(_PLAIN[dtype] * count for dtype, count in item.dtypes)


def form_of(item: Listed, *, is_own: bool) -> FormRule | None:
    """The form of quantised safetensors; None for an original, or if nothing tells the form."""
    marks = {*item.tags, (item.library or "").lower()}
    method = (item.quantisation or "").lower()
    name = base_of(item.name)
    tests: tuple[Callable[[FormRule], bool], ...] = (
        lambda form: form.is_own and form.tag in marks and not form.methods,
        lambda form: method in form.methods,
        lambda form: form.word.search(name) is not None,
        lambda form: form.tag in marks,
    )
    for test in tests:
        for form in _forms():
            if test(form):
                return form if form.is_own or not is_own else None
    return None


def quants_of(item: Listed, form: str) -> dict[str, int | None]:
    """The quantisation of the repository's safetensors, and their bytes if they are known."""
    weights = weights_of(item)
    size = None if weights is None else bytes_of(weights)
    size = plain_bytes(item) if size is None else size
    name = base_of(item.name)
    if form == OWN:
        largest = max(item.dtypes, key=lambda pair: (pair[1], pair[0]), default=(AS_STORED, 0))[0]
        return {_DTYPE_NAMES.get(largest, largest if largest in _PLAIN else AS_STORED): size}
    if bits := _BITS.search(name):
        return {f"{bits[1]}bit": size}
    mode = _MODE.search(name)
    return {mode[1].lower() if mode else form.upper(): size}


# -- models --------------------------------------------------------------------------------------


def base_of_quantised(item: Listed) -> str | None:
    """The model that the publisher states to have quantised; None if that is not stated, or of several."""
    bases = {base for relation, base in item.bases if relation == QUANTISED}
    return bases.pop() if len(bases) == 1 else None


def model_of(item: Listed, find: Callable[[str], Listed | None]) -> str:
    """The repository of the model: the end of the chain of stated quantisations; itself if that is a circle."""
    chain = [item.name]
    current: Listed | None = item
    while current is not None and (base := base_of_quantised(current)) is not None:
        current = find(base)
        name = base if current is None else current.name  # in the hub's capitals
        if name in chain or len(chain) > MAX_CHAIN:
            return item.name
        chain.append(name)
    return chain[-1]


def geometry_task(model: str, group: Iterable[Listed]) -> FetchTask:
    """Where the geometry of a model may be read: its own config.json, its own GGUF, then a quantisation's.

    The config.json of a quantisation without GGUFs is small and whole; next to GGUFs it is often a stub.
    """
    ranked = sorted(group, key=lambda item: (item.name != model, -item.downloads, item.name))
    candidates: list[GeometrySource] = []
    for is_gguf in (False, True):
        for item in ranked:
            candidates += _candidates(item, model, is_gguf=is_gguf)
    own = [candidate for candidate in candidates if candidate.repository == model]
    others = [candidate for candidate in candidates if candidate.repository != model]
    return FetchTask(
        kind=TaskKind.GEOMETRY, name=model, candidates=tuple((own + others)[:MAX_CANDIDATES])
    )


def _candidates(item: Listed, model: str, *, is_gguf: bool) -> Iterator[GeometrySource]:
    sets = gguf_sets(item)
    if not is_gguf and has_config(item) and (item.name == model or not sets):
        yield GeometrySource(repository=item.name, paths=(CONFIG_NAME,))
    if is_gguf and sets:
        # Few shards, because each has a part of the tensors; then a usual quantisation.
        best = min(
            sets,
            key=lambda group: (len(group.files), _rank(group.tag), group.files[0].name),
        )
        yield GeometrySource(repository=item.name, paths=tuple(file.name for file in best.files))


def _rank(tag: str | None) -> int:
    return DEFAULT_QUANTS.index(tag) if tag in DEFAULT_QUANTS else len(DEFAULT_QUANTS)


def left_out(item: Listed, *, is_own: bool) -> tuple[Status, str] | None:
    """Why a repository has no row; None if it has one."""
    if (why := why_not_a_model(item)) is not None:
        return Status.NOT_A_MODEL, why
    if item.files is None:
        return Status.UNREADABLE, "the hub does not list its files"
    if is_own or gguf_sets(item) or form_of(item, is_own=is_own) is not None:
        return None
    return Status.NOT_A_MODEL, "quantised in a form that the index does not have"
