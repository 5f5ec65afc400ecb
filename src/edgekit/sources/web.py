"""The address of a file on any web server -> the files of the model it belongs to."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from edgekit.errors import HeaderError, RemoteAccessError, RemoteNotFoundError, UsageError
from edgekit.sources.address import shown, site_of
from edgekit.sources.choose import choose_files
from edgekit.sources.naming import (
    CONFIG_NAME,
    INDEX_NAME,
    MODEL_SUFFIXES,
    base_of,
    shard_names,
)
from edgekit.sources.remote import HttpFile, opened_file, stride_of
from edgekit.sources.transport import Transport
from edgekit.sources.types import Container, ModelFile, ModelFiles, Origin, Reach

_GGUF_MAGIC = b"GGUF"


def locate_url(url: str, reach: Reach) -> ModelFiles:
    """A .gguf or .safetensors with the rest of its shard set, or a config.json.

    What lies beside a .safetensors is asked for by name: a plain server has no listing.
    """
    try:
        site_of(url)
    except ValueError as error:
        raise UsageError(f"{shown(url)!r} is not the address of a file on the web") from error
    transport = Transport(reach)
    filename = base_of(unquote(urlsplit(url).path))
    lowered = filename.lower()
    if not lowered.endswith(MODEL_SUFFIXES):
        return _by_magic(url, filename, transport)
    files = [_file(name, _sibling(url, name), transport) for name in _set_names(filename)]
    if lowered.endswith((".safetensors", ".index.json")):
        beside = [CONFIG_NAME] + [INDEX_NAME] * (len(files) > 1)
        files += filter(None, (_probed(name, _sibling(url, name), transport) for name in beside))
    found = choose_files(
        files, reference=shown(url), label=filename, origin=Origin.URL, filename=filename
    )
    return replace(found, label=filename)


def _set_names(filename: str) -> list[str]:
    """GGUF sets count from 1; of a safetensors set that counts from 0, the first shard says so."""
    names = shard_names(filename)
    if len(names) == 1:
        return names
    return names[:-1] if filename == names[0] else names[1:]


def _sibling(url: str, name: str) -> str:
    parts = urlsplit(url)
    folder = parts.path.rpartition("/")[0]
    return urlunsplit(parts._replace(path=f"{folder}/{quote(name)}"))


def _open(name: str, url: str, transport: Transport) -> HttpFile:
    return HttpFile(transport, url, name=shown(url), stride=stride_of(name))


def _file(name: str, url: str, transport: Transport) -> ModelFile:
    return ModelFile(name=name, open=partial(_open, name, url, transport))


def _probed(name: str, url: str, transport: Transport) -> ModelFile | None:
    """The file if the server has it. Opened once to see, and handed on as it is."""
    try:
        first = _open(name, url, transport)
    except (RemoteNotFoundError, RemoteAccessError):
        return None
    return opened_file(name, first, partial(_open, name, url, transport))


def _by_magic(url: str, filename: str, transport: Transport) -> ModelFiles:
    """An address that ends in no known suffix (a download link): its first bytes say what it is."""
    first = _open(filename, url, transport)
    if first.read(0, len(_GGUF_MAGIC)) != _GGUF_MAGIC:
        first.close()
        raise HeaderError(
            "the address does not end in .gguf, .safetensors or .json, and the file is not a GGUF; "
            "give the address of a model file",
            file=shown(url),
        )
    name = filename or "model"
    file = opened_file(name, first, partial(_open, filename, url, transport))
    return ModelFiles(
        reference=shown(url),
        label=name,
        origin=Origin.URL,
        container=Container.GGUF,
        weights=(file,),
    )
