"""The hub's listing of models: its pages, and each entry as a `Listed`, every field checked.

Which properties a listing may expand: huggingface_hub/hf_api.py, ExpandModelProperty_T @ 2.4.0. Sizes of files are not
among them (only /api/models/NAME?blobs=true has them); a hub that lists them nevertheless saves those requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from edgekit.app.crawl.types import BuildOptions, Listed
from edgekit.errors import HeaderError, RemoteInspectError
from edgekit.sources.address import host_of, hub_endpoint, redirect_target, site_of
from edgekit.sources.async_http import AsyncTransport
from edgekit.sources.hub import NEXT_PAGE, stated_file
from edgekit.units import MIB

PER_PAGE = 500  # the hub allows 1,000; with files and cards 500 are some 5 MB
MAX_PAGE_BYTES = 64 * MIB
MAX_PAGE_VALUES = 4_000_000  # brackets and commas: Python objects of 400 MB at the very most
MAX_PAGES = 100_000  # 50 million repositories; the hub has about 2 million
MAX_STALE_PAGES = 3  # in a row without a repository that is new: the listing repeats itself
MAX_FILES = 20_000  # of one repository
MAX_TAGS = 500
MAX_BASES = 16
MAX_DTYPES = 16

EXPANDED = (
    "cardData", "config", "createdAt", "disabled", "downloads", "gated", "library_name", "pipeline_tag", "private",
    "safetensors", "siblings", "tags",
)  # fmt: skip
# The files that the index looks at. Others only cost space in the journal.
_KEPT = (".gguf", ".safetensors", ".safetensors.index.json")
_KEPT_NAMES = frozenset(
    {"config.json", "adapter_config.json", "model_index.json", "pytorch_model.bin"}
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(?:/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?")
_DATE = re.compile(r"(20[0-9]{2}-[01][0-9]-[0-3][0-9])T")
_BEFORE_DATES = "2022-03-02"  # the hub states it for every older repository
_MAX_COUNT = 2**62
_BASE_TAG = "base_model:"
_RELATIONS = frozenset({"finetune", "adapter", "merge", "quantized"})


def first_page(options: BuildOptions) -> str:
    """The address of the listing's first page.

    With a limit the most downloaded come first. Without one they are sorted by age, which does not change while a
    long listing is being read; by downloads some would be listed twice and others never.
    """
    query: list[tuple[str, str]] = []
    if options.author is not None:
        query.append(("author", options.author))
    if options.search is not None:
        query.append(("search", options.search))
    query += [("filter", tag) for tag in options.filters]
    query.append(("sort", "downloads" if options.limit is not None else "createdAt"))
    query.append(("limit", str(min(PER_PAGE, options.limit or PER_PAGE))))
    query += [("expand", name) for name in EXPANDED]
    return f"{hub_endpoint()}/api/models?{urlencode(query)}"


async def read_page(transport: AsyncTransport, url: str) -> tuple[list[Any], str | None]:
    """The entries of a page, and the address of the next one. Raises RemoteInspectError."""
    name = f"the listing of {host_of(url)}"
    try:
        page = await transport.get_json(
            url, name=name, limit_bytes=MAX_PAGE_BYTES, limit_values=MAX_PAGE_VALUES
        )
    except HeaderError as error:
        raise RemoteInspectError(f"{error}; check HF_ENDPOINT") from error
    if not isinstance(page.value, list):
        raise RemoteInspectError(f"{name}: not a list of models; check HF_ENDPOINT")
    link = NEXT_PAGE.search(page.headers.get("link", ""))
    if link is None or not page.value:
        return page.value, None
    target = redirect_target(url, link[1], name=name)
    if site_of(target) != site_of(url):
        raise RemoteInspectError(
            f"{name} continues on another host ({host_of(target)}), which is not followed"
        )
    return page.value, target


def read_entry(item: Any) -> Listed | str:
    """The repository of an entry; a printable text that names it if it is malformed."""
    if not isinstance(item, Mapping):
        return f"a {type(item).__name__}"
    name = item.get("id") or item.get("modelId")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        return ascii(name)[:200]
    card = item.get("cardData")
    card = card if isinstance(card, Mapping) else {}
    config = item.get("config")
    config = config if isinstance(config, Mapping) else {}
    quantisation = config.get("quantization_config")
    quantisation = quantisation if isinstance(quantisation, Mapping) else {}
    tags = [tag for tag in _list(item.get("tags"))[:MAX_TAGS] if _is_word(tag)]
    return Listed(
        name=name,
        downloads=_count(item.get("downloads")) or 0,
        created=_date(item.get("createdAt")),
        gated=item.get("gated") not in {None, False, "", "false"}
        if _is_plain(item.get("gated"))
        else False,
        licence=_licence(card, tags),
        library=_word(item.get("library_name") or card.get("library_name")),
        task=_word(item.get("pipeline_tag") or card.get("pipeline_tag")),
        tags=tuple(sorted({tag.lower() for tag in tags if ":" not in tag})),
        bases=tuple(_bases(card, tags)),
        model_type=_word(config.get("model_type")),
        quantisation=_word(quantisation.get("quant_method")),
        dtypes=tuple(_dtypes(item.get("safetensors"))),
        files=read_files(item.get("siblings")),
    )


def read_files(siblings: Any) -> tuple[tuple[str, int | None], ...] | None:
    """Path and size of the files that matter, sorted; None if there is no list of files."""
    if not isinstance(siblings, list):
        return None
    files: dict[str, int | None] = {}
    for sibling in siblings[:MAX_FILES]:
        if not isinstance(sibling, Mapping):
            continue
        file = stated_file(sibling, sibling.get("rfilename"))
        if file is None:
            continue
        path, size_bytes = file
        if path.lower().endswith(_KEPT) or path in _KEPT_NAMES:
            files.setdefault(path, size_bytes)
    return tuple(sorted(files.items()))


def _bases(card: Mapping[str, Any], tags: list[str]) -> Iterator[tuple[str, str]]:
    """Each stated base model once, with its relation if that is stated: in the card, or in the hub's tags."""
    relations: dict[str, str] = {}
    stated = card.get("base_model")
    relation = card.get("base_model_relation")
    for base in _list(stated) if isinstance(stated, list) else [stated]:
        if isinstance(base, str) and _NAME.fullmatch(base):
            known = isinstance(relation, str) and relation in _RELATIONS
            relations[base] = relation if known and isinstance(relation, str) else ""
    for tag in tags:
        if tag.startswith(_BASE_TAG):
            kind, _, base = tag.removeprefix(_BASE_TAG).partition(":")
            kind, base = (kind, base) if kind in _RELATIONS else ("", kind)
            if _NAME.fullmatch(base) and not relations.get(base):
                relations[base] = kind
    for base in sorted(relations)[:MAX_BASES]:
        yield relations[base], base


def _licence(card: Mapping[str, Any], tags: list[str]) -> str | None:
    """The licence of the card, by its own name if the hub has no identifier for it; else of the tags."""
    stated = card.get("license")
    licences = [text for text in map(_word, _list(stated) or [stated]) if text]
    if licences == ["other"]:
        licences = [_word(card.get("license_name")) or "other"]
    if not licences:
        tagged = (tag.removeprefix("license:") for tag in tags if tag.startswith("license:"))
        licences = [text for text in map(_word, tagged) if text]
    return ", ".join(sorted(set(licences))[:4]) or None


def _dtypes(safetensors: Any) -> Iterator[tuple[str, int]]:
    """The types of the stored elements and how many there are of each."""
    parameters = safetensors.get("parameters") if isinstance(safetensors, Mapping) else None
    if isinstance(parameters, Mapping):
        for name in sorted(filter(_is_word, parameters))[:MAX_DTYPES]:
            count = _count(parameters[name])
            if count:
                yield name, count


def _date(value: Any) -> str | None:
    match = _DATE.match(value) if isinstance(value, str) else None
    return match[1] if match and match[1] != _BEFORE_DATES else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MAX_COUNT else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | str)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable()


def _word(value: Any) -> str | None:
    return value if _is_word(value) else None
