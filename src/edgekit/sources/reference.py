"""Parses references: which model a text means and where it would be, without accessing disk or network."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgekit.errors import UsageError
from edgekit.sources.filenames import MODEL_SUFFIXES

# Hosts of web addresses, in lower case, as host[:port][/prefix]. `edgekit.sources` adds the one of HF_ENDPOINT.
HUB_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co"})
OLLAMA_HOSTS = frozenset({"registry.ollama.ai", "ollama.com", "www.ollama.com"})

# The longest thing people paste is a signed download address: 2 to 4 KB.
MAX_TEXT_CHARS = 8192
# org/name has at most 96 + 1 + 96 characters; revisions and tags are shorter.
MAX_NAME_CHARS = 256
# The longest path in a public repository is under 300 characters.
MAX_PATH_CHARS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleName:
    """A sample header in this package."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    repo: str  # "org/name"
    quant: str | None = None  # as typed: "q4_k_m"
    revision: str | None = None  # branch, tag or commit, decoded: "refs/pr/1"
    filename: str | None = None  # path inside the repository


@dataclass(frozen=True, slots=True, kw_only=True)
class WebFile:
    """One file at an address that is not the hub's."""

    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaModel:
    name: str
    namespace: str = "library"
    tag: str = "latest"
    host: str | None = None  # None: Ollama's own registry

    @property
    def label(self) -> str:
        """The name as `ollama list` shows it, without Ollama's own registry and `library`."""
        is_official = self.host is None or self.host in OLLAMA_HOSTS
        host = "" if is_official else f"{self.host}/"
        namespace = "" if is_official and self.namespace == "library" else f"{self.namespace}/"
        return f"{host}{namespace}{self.name}:{self.tag}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BareName:
    """No slash, no colon: a name in a store on this machine, else in Ollama's registry."""

    name: str


Reference = SampleName | HubModel | WebFile | OllamaModel | BareName

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# huggingface_hub/utils/_validators.py @ 2.4.0: dots and dashes, but not at either end.
_REPO_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_REVISION = re.compile(r"[^\s:@?*\[\\^~]{1,256}")
# huggingface_hub/utils/_hf_uris.py @ 2.4.0: the refs that hold slashes without being encoded.
_SLASHED_REF = re.compile(r"refs/(?:convert/[\w.-]+|pr/[0-9]+)(?=[/:@]|$)", re.ASCII)
_UP_TO_MARK = re.compile(r"[^/:@]*")
_HUB_ID = re.compile(r"(?P<repo>[^/:@]+/[^/:@]+)(?P<tail>.*)", re.DOTALL)
_OTHER_KINDS = {
    "datasets": "a dataset",
    "spaces": "a Space",
    "kernels": "a kernel",
    "buckets": "a bucket",
}
# ollama types/model/name.go @ fb30760: which characters and how many in each part.
_OLLAMA_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_OLLAMA_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_OLLAMA_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}(?::[0-9]{1,5})?")


def parse_reference(text: str, *, hub_hosts: frozenset[str] = HUB_HOSTS) -> Reference:
    """The model that `text` means; UsageError if it cannot be a model.

    `org/name:tag` always means the hub: a user's model in Ollama's registry is `ollama:namespace/name:tag`.
    """
    text = clean_text(text)
    lowered = text.lower()
    if lowered.startswith("sample:"):
        return SampleName(name=_checked_name(text[7:], text))
    if lowered.startswith("hf://"):
        return _parse_hub_id(text[5:].removeprefix("models/"), text)
    if lowered.startswith(("http://", "https://")):
        return _parse_url(text, hub_hosts)
    if lowered.startswith("ollama:"):
        return _parse_ollama(text[7:].removeprefix("//"), text)
    if (body := _after_host(text, hub_hosts)) is not None:
        return _parse_hub_page(body, text)
    if _after_host(text, OLLAMA_HOSTS) is not None:
        return _parse_ollama(text, text)
    if "/" in text:
        return _parse_hub_id(text, text)
    if ":" in text:
        return _parse_ollama(text, text)
    return BareName(name=_checked_name(text, text))


def clean_text(text: str) -> str:
    """The text without white space around it. UsageError if it cannot be a name, path or address."""
    text = text.strip()
    if not text:
        raise UsageError("no model given: give a path, org/name, name:tag or an address")
    if len(text) > MAX_TEXT_CHARS:
        raise UsageError(
            f"the model name has {len(text):,} characters; the limit is {MAX_TEXT_CHARS:,}"
        )
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError(f"{text[:80]!r} is not valid UTF-8; rename the file first")
    if _UNSAFE.search(text):
        raise UsageError(f"{text[:80]!r} contains control characters; rename the file first")
    return text


def _after_host(text: str, hosts: frozenset[str]) -> str | None:
    """The text after one of the hosts and a slash; None if it does not start with a host."""
    lowered = text.lower()
    # Longest first: an endpoint may be another host with a path appended.
    for host in sorted(hosts, key=len, reverse=True):
        if lowered == host or lowered.startswith(host + "/"):
            return text[len(host) :].strip("/")
    return None


def _parse_url(text: str, hub_hosts: frozenset[str]) -> Reference:
    """A web address: a page or file of the hub, a model of Ollama's registry, or any other file."""
    address = text.partition("://")[2].partition("#")[0]
    location = address.partition("?")[0]
    if (body := _after_host(location, hub_hosts)) is not None:
        return _parse_hub_page(body, text)
    # Ollama's registry also serves plain blobs, under /v2/: those are files.
    if (body := _after_host(location, OLLAMA_HOSTS)) is not None and not body.startswith("v2/"):
        return _parse_ollama(location, text)
    host, _, path = location.partition("/")
    if not host or not path.strip("/") or " " in text:
        raise UsageError(
            f"{text!r} does not point to a file: give the address of a .gguf, "
            ".safetensors or config.json"
        )
    return WebFile(url=text.partition("#")[0])


def _parse_hub_page(body: str, text: str) -> HubModel:
    """A page or a file on the hub: org/name, then /tree/, /blob/ or /resolve/."""
    body = body.removeprefix("models/")
    parts = body.split("/")
    if len(parts) < 3 or ":" in parts[1] or "@" in parts[1]:
        return _parse_hub_id(body, text)
    repo, (action, *rest) = "/".join(parts[:2]), parts[2:]
    if action not in {"tree", "blob", "resolve", "raw"} or not rest:
        return _parse_hub_id(body, text)
    revision, path = _split_revision("/".join(rest))
    filename = _unquote(path.strip("/")) or None
    if action != "tree":
        return _hub_model(text, repo=repo, revision=revision, filename=filename)
    if filename is not None and "/" in filename:
        raise UsageError(
            f"{text!r} is a folder inside a repository: give the address of a file in it"
        )
    # Repositories with a folder per quantisation name it after the quantisation.
    return _hub_model(text, repo=repo, revision=revision, quant=filename)


def _parse_hub_id(body: str, text: str) -> HubModel:
    """org/name, then at most one @revision and one :tag in any order, or a /path at the end."""
    match = _HUB_ID.fullmatch(body.strip("/"))
    if match is None:
        raise UsageError(
            f"{text[:200]!r} is not a Hugging Face model: write org/name or org/name@revision:Q4_K_M"
        )
    parts: dict[str, str] = {}
    tail = match["tail"]
    while tail:
        mark, tail = tail[0], tail[1:]
        if mark == "@":
            kind = "revision"
            value, tail = _split_revision(tail)
        elif mark == ":":
            kind = "tag"
            value, mark, tail = tail.partition("@")
            tail = mark + tail
        else:
            kind, value, tail = "path", tail, ""
        if kind in parts or not value:
            raise UsageError(
                f"{text!r} has an empty or repeated {kind}: write org/name@revision:Q4_K_M"
            )
        parts[kind] = value
    quant, filename = parts.get("tag"), parts.get("path")
    if quant is not None and quant.lower().endswith(MODEL_SUFFIXES):
        quant, filename = None, filename or quant
    if filename is not None and not filename.lower().endswith(MODEL_SUFFIXES):
        raise UsageError(
            f"{text!r}: {filename!r} after org/name is not a .gguf, .safetensors or .json file"
        )
    return _hub_model(
        text, repo=match["repo"], quant=quant, revision=parts.get("revision"), filename=filename
    )


def _split_revision(text: str) -> tuple[str, str]:
    """The revision at the start of `text`, decoded, and the rest."""
    match = _SLASHED_REF.match(text) or _UP_TO_MARK.match(text)
    end = match.end() if match else 0
    return _unquote(text[:end]), text[end:]


def _hub_model(
    text: str,
    *,
    repo: str,
    quant: str | None = None,
    revision: str | None = None,
    filename: str | None = None,
) -> HubModel:
    """A HubModel with every part validated; all other code creates it through this function."""
    owner, _, name = repo.partition("/")
    if owner in _OTHER_KINDS:
        raise UsageError(f"{text!r} is {_OTHER_KINDS[owner]}, not a model: write org/name")
    is_valid = _REPO_PART.fullmatch(owner) and _REPO_PART.fullmatch(name)
    if not is_valid or "--" in repo or ".." in repo or repo.endswith(".git"):
        raise UsageError(
            f"{text[:200]!r} is not a Hugging Face model: org and name may have up to 96 "
            "letters, digits, '-', '_' and '.' each, without '--' or '..', and may not "
            "end in '.git'"
        )
    if quant is not None and not _TAG.fullmatch(quant):
        raise UsageError(f"{text!r}: {quant!r} is not a quantisation such as Q4_K_M")
    if revision is not None and (not _REVISION.fullmatch(revision) or _escapes(revision)):
        raise UsageError(f"{text!r}: {revision!r} is not a branch, tag or commit")
    if filename is not None and (len(filename) > MAX_PATH_CHARS or _escapes(filename)):
        raise UsageError(f"{text!r}: {filename[:80]!r} is not a path inside a repository")
    # Ollama users write hf.co/org/name:latest for the default quantisation.
    quant = None if quant is None or quant.lower() == "latest" else quant
    return HubModel(repo=repo, quant=quant, revision=revision, filename=filename)


def _escapes(path: str) -> bool:
    """Whether a path leaves its folder, or could not be listed by a server."""
    parts = path.split("/")
    return (
        any(part in {"", ".", ".."} for part in parts) or "\\" in path or bool(_UNSAFE.search(path))
    )


def _parse_ollama(body: str, text: str) -> OllamaModel:
    """[host/][namespace/]name[:tag], as `ollama run` reads it."""
    parts = body.strip("/").split("/")
    host: str | None = None
    if len(parts) == 3 or parts[0].lower() in OLLAMA_HOSTS:
        host = parts.pop(0)
    name, colon, tag = parts[-1].partition(":") if parts else ("", "", "")
    tag = tag if colon else "latest"
    namespace = parts[0] if len(parts) == 2 else "library"
    checks = (
        _OLLAMA_PART.fullmatch(name),
        _OLLAMA_PART.fullmatch(tag),
        _OLLAMA_NAMESPACE.fullmatch(namespace),
        host is None or _OLLAMA_HOST.fullmatch(host),
    )
    if len(parts) > 2 or ".." in body or not all(checks):
        raise UsageError(
            f"{text[:200]!r} is not an Ollama model: write name:tag or ollama:namespace/name:tag"
        )
    host = None if host is not None and host.lower() in OLLAMA_HOSTS else host
    return OllamaModel(name=name, namespace=namespace, tag=tag, host=host)


def ollama_model(name: BareName) -> OllamaModel:
    """A bare name as a model of Ollama's registry; UsageError if it cannot be one."""
    return _parse_ollama(name.name, name.name)


def _checked_name(name: str, text: str) -> str:
    name = name.strip()
    if not name or len(name) > MAX_NAME_CHARS or _escapes(name):
        raise UsageError(f"{text[:80]!r} is not a model name: give a path, org/name or name:tag")
    return name


def _unquote(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote  # rare, and slow to import

    return unquote(text)
