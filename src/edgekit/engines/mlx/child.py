"""The child process that runs mlx_lm.server inside the memory that was promised.

Run as a script by the Python that has mlx-lm: `python -P child.py TITLE`. It imports nothing from EdgeKit. The first
line of standard input is the request. Standard output carries only JSON lines for the parent; everything else goes to
standard error. It ends when standard input does.

mlx_lm.server loads any model that a request names, and reads prompts of any length. Here it only serves the model that
it was started with, and refuses what does not fit in the window.
"""

from __future__ import annotations

import hmac
import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any, NoReturn

# How the message of a prompt begins that is longer than the window.
TOO_LONG = "the prompt is longer than the window"
_BAD_REQUEST, _UNAUTHORIZED = 400, 401
_MOST_BODY_BYTES = 2**20  # of a refused request, read so that the client gets the answer
_DEFAULT_MODEL = "default_model"  # mlx_lm/server.py: the model of the command line
# Connections that wait to be accepted. Of 32 clients that connect at once, Python's 5 would lose some.
_BACKLOG = 512

Tell = Callable[..., None]


def main() -> None:
    tell = _parent()
    line = sys.stdin.buffer.readline()
    if not line:
        os._exit(1)  # the parent is gone
    request = json.loads(line)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        import mlx.core as mx
        from mlx_lm import server
        from mlx_lm._version import __version__ as version

        _check_names(server)
    except (ImportError, AttributeError) as error:
        _fail(f"this mlx-lm cannot be used: {error}; update it (pip install -U mlx-lm)")
    mx.set_cache_limit(request["pool_bytes"])
    # mlx_lm.server itself limits only what batches leave, and --prompt-cache-bytes counts running requests too.
    server.LRUPromptCache = partial(server.LRUPromptCache, max_bytes=request["old_prompts_bytes"])
    tell(version=version)
    _serve_one_model(server, mx, tell)
    _keep_to_window(server, request["window_tokens"])
    _report_address(tell)
    ThreadingHTTPServer.request_queue_size = _BACKLOG
    # Without a key no web page may use the server; its default is all of them.
    origins = "*" if request["api_key"] else ""
    if request["api_key"]:
        _demand_key(server, request["api_key"])
    sys.argv = ["mlx_lm.server", *request["words"], "--allowed-origins", origins]
    server.main()


def _parent() -> Tell:
    """A function that sends messages to the parent. Standard output of all other code becomes standard error."""
    channel = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def tell(**message: Any) -> None:
        with suppress(BrokenPipeError):
            channel.write(json.dumps(message) + "\n")
            channel.flush()

    return tell


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _fail(why: str) -> NoReturn:
    sys.stderr.write(f"error: {why}\n")
    sys.stderr.flush()
    os._exit(1)


def _check_names(server: Any) -> None:
    """AttributeError if mlx-lm lacks what is changed here."""
    for owner, name in (
        ("ModelProvider", "load"),
        ("ResponseGenerator", "_tokenize"),
        ("APIHandler", "_set_completion_headers"),
        ("LRUPromptCache", "trim_to"),
        ("APIHandler", "do_GET"),
        ("APIHandler", "do_POST"),
    ):
        getattr(getattr(server, owner), name)


def _serve_one_model(server: Any, mx: Any, tell: Tell) -> None:
    """Loads the model of the command line whatever a request names, and reports what it takes."""
    from mlx.utils import tree_flatten

    load: Callable[..., Any] = server.ModelProvider.load

    def load_default(provider: Any, *_names: object) -> Any:
        if provider.model is not None:
            return provider.model, provider.tokenizer
        try:
            loaded = load(provider, _DEFAULT_MODEL, None, _DEFAULT_MODEL)
        except Exception as error:  # noqa: BLE001 - mlx_lm.server would go on without a model
            _fail(f"{type(error).__name__}: {error}")
        model, _tokenizer = loaded
        arrays = [array for _, array in tree_flatten(model.parameters())]
        tell(
            tensors=len(arrays),
            weights_bytes=sum(array.nbytes for array in arrays),
            active_bytes=mx.get_active_memory(),
        )
        return loaded

    server.ModelProvider.load = load_default


class _TooLongError(ValueError):
    pass


def _keep_to_window(server: Any, window_tokens: int) -> None:
    """Refuses a prompt that is longer than the window, and ends an answer where the window does."""
    set_headers = server.APIHandler._set_completion_headers  # noqa: SLF001
    tokenize = server.ResponseGenerator._tokenize  # noqa: SLF001 - where the tokens of a prompt are first known

    def tokenize_within(generator: Any, tokenizer: Any, request: Any, arguments: Any) -> Any:
        result = tokenize(generator, tokenizer, request, arguments)
        count = len(result[0] if isinstance(result, tuple) else result)
        if count >= window_tokens:
            raise _TooLongError(
                f"{TOO_LONG}: it has {count:,} tokens, and the window holds {window_tokens:,} with the answer"
            )
        arguments.max_tokens = min(arguments.max_tokens, window_tokens - count)
        return result

    def set_headers_for(handler: Any, status: int = 200) -> None:
        is_ours = isinstance(sys.exc_info()[1], _TooLongError)
        set_headers(handler, _BAD_REQUEST if is_ours else status)

    server.ResponseGenerator._tokenize = tokenize_within  # noqa: SLF001
    server.APIHandler._set_completion_headers = set_headers_for  # noqa: SLF001


def _demand_key(server: Any, key: str) -> None:
    """Refuses requests without the key. mlx_lm.server has none."""
    expected = f"Bearer {key}".encode()

    def with_key(answer: Callable[[Any], None]) -> Callable[[Any], None]:
        def answer_with_key(handler: Any) -> None:
            sent = handler.headers.get("Authorization", "").encode("latin-1", "replace")
            if hmac.compare_digest(sent, expected):
                answer(handler)
                return
            length = handler.headers.get("Content-Length", "")
            if length.isdecimal() and int(length) <= _MOST_BODY_BYTES:
                handler.rfile.read(int(length))
            handler._set_completion_headers(_UNAUTHORIZED)  # noqa: SLF001
            handler.end_headers()
            handler.wfile.write(b'{"error": "send Authorization: Bearer KEY"}')

        return answer_with_key

    server.APIHandler.do_GET = with_key(server.APIHandler.do_GET)
    server.APIHandler.do_POST = with_key(server.APIHandler.do_POST)


def _report_address(tell: Tell) -> None:
    """Tells on which address the server listens, as soon as it does."""
    activate = ThreadingHTTPServer.server_activate

    def activate_and_tell(httpd: Any) -> None:
        activate(httpd)
        host, port = httpd.server_address[:2]
        tell(address=f"{host}:{port}")

    ThreadingHTTPServer.server_activate = activate_and_tell  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    main()
