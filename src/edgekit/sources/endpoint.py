"""The hub's own address and the token for it, as huggingface_hub finds them; and Ollama's registry."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from edgekit.errors import EdgekitError, RemoteAccessError, UsageError
from edgekit.sources.address import is_private_way, shown, site_of

if TYPE_CHECKING:
    import httpx2

DEFAULT_REGISTRY = "https://registry.ollama.ai"

_TRUE = {"1", "ON", "YES", "TRUE"}  # huggingface_hub/constants.py: ENV_VARS_TRUE_VALUES


def hub_library() -> ModuleType:
    """huggingface_hub, on first use: a local file needs none."""
    try:
        import huggingface_hub
        from huggingface_hub import constants  # noqa: F401 - reads its settings when it is imported
    except ValueError as error:
        raise UsageError(
            f"invalid huggingface_hub setting ({error}): check HF_ENDPOINT and the "
            "HF_HUB_... variables"
        ) from error
    return huggingface_hub


def hub_client() -> httpx2.Client:
    """The hub's own client: its proxies, its certificates, the factory a program may have set."""
    try:
        client: httpx2.Client = hub_library().get_session()
    except EdgekitError:
        raise
    except Exception as error:  # a factory may raise anything; the words may hold a password
        said = "" if "@" in str(error) else f": {error}"
        raise UsageError(
            f"cannot set up the network ({type(error).__name__}{said}); check HTTP_PROXY, "
            "HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
        ) from error
    return client


def env_is_true(name: str) -> bool:
    """Read now, not when huggingface_hub was imported: a program may set it later."""
    return os.environ.get(name, "").upper() in _TRUE


def is_offline() -> bool:
    """The rule of huggingface_hub/constants.py @ 2.4.0; its client then refuses every host."""
    asked = "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
    return env_is_true(asked)


def hub_endpoint() -> str:
    """HF_ENDPOINT, or the public hub; without a slash at the end."""
    address = os.environ.get("HF_ENDPOINT")
    if not address:
        address = str(hub_library().constants.ENDPOINT)
    return _checked("HF_ENDPOINT", address)


def ollama_registry() -> str:
    """EDGEKIT_OLLAMA_REGISTRY, or Ollama's own; without a slash at the end."""
    variable = "EDGEKIT_OLLAMA_REGISTRY"
    return _checked(variable, os.environ.get(variable) or DEFAULT_REGISTRY)


def _checked(variable: str, address: str) -> str:
    try:
        site_of(address)
    except ValueError as error:
        raise UsageError(
            f"{variable}={shown(address)!r} is not a web address: write https:// and the host"
        ) from error
    return address.rstrip("/")


def hub_token() -> str | None:
    """HF_TOKEN, then the file that `hf auth login` writes; None when implicit tokens are off."""
    if env_is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return None
    library = hub_library()
    _refuse_pipe(Path(library.constants.HF_TOKEN_PATH))
    try:
        token: str | None = library.get_token()
    except Exception as error:  # a login provider failed: its errors share no class but this
        raise RemoteAccessError(
            f"cannot get the Hugging Face token ({type(error).__name__}): log in again "
            "with `hf auth login`, or set HF_TOKEN"
        ) from error
    if token is not None and not (token.isascii() and token.isprintable()):
        raise RemoteAccessError(
            "the Hugging Face token (HF_TOKEN or `hf auth login`) has characters that no "
            "token contains: set it again"
        )
    return token


def _refuse_pipe(path: Path) -> None:
    """The hub's library opens the file as it is: a pipe without a writer would hold it for ever.

    A pipe that the user named in HF_TOKEN_PATH has a writer: <(...) of a shell.
    """
    if not os.environ.get("HF_TOKEN_PATH") and path.is_fifo():
        raise RemoteAccessError(
            f"{path} is a pipe: log in again with `hf auth login`, or set HF_TOKEN"
        )


def token_for(url: str) -> str | None:
    """The token, if `url` is on the hub's own site and nobody on the way can read it."""
    site = site_of(url)
    if site != site_of(hub_endpoint()) or not is_private_way(site):
        return None
    return hub_token()


def is_hub(url: str) -> bool:
    return site_of(url) == site_of(hub_endpoint())
