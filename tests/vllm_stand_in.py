"""A program that behaves as `vllm serve` does, as far as EdgeKit sees it: vLLM itself needs an NVIDIA GPU.

It takes the same arguments, logs the lines of vLLM 0.32.0 with the figures that it is given, and answers chats.
"""

from __future__ import annotations

import sys
from pathlib import Path

_SCRIPT = """\
#!{python}
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

words = sys.argv[1:]
assert words[0] == "serve", words
given = dict(zip(words[2::2], words[3::2], strict=False))
LOG = {log!r}
for line in LOG:
    print(line, flush=True)
if {dies!r}:
    sys.exit(1)
key, name, window = os.environ.get("VLLM_API_KEY"), given["--served-model-name"], int(given["--max-model-len"])

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def reply(self, status, body):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status); self.send_header("Content-Length", str(len(raw))); self.end_headers()
        self.wfile.write(raw)
    def do_GET(self):
        self.reply(200, {{}})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if key and self.headers.get("Authorization") != "Bearer " + key:
            return self.reply(401, {{"error": "Unauthorized"}})
        if body["model"] != name:
            return self.reply(404, {{"error": {{"message": "no such model", "type": "NotFoundError"}}}})
        words = json.dumps(body.get("messages") or body["prompt"]).split()
        if len(words) > window:
            message = f"This model's maximum context length is {{window}} tokens. However, you requested more."
            return self.reply(400, {{"error": {{"message": message, "type": "BadRequestError", "code": 400}}}})
        usage = {{"prompt_tokens": len(words), "completion_tokens": 2}}
        pieces = [{{"delta": {{"content": "as "}}}}, {{"delta": {{"content": "asked"}}, "finish_reason": "stop"}}]
        events = [{{"choices": [piece]}} for piece in pieces] + [{{"choices": [], "usage": usage}}]
        raw = b"".join(b"data: " + json.dumps(event).encode() + b"\\n\\n" for event in events)
        self.reply(200, raw + b"data: [DONE]\\n\\n")

httpd = ThreadingHTTPServer((given["--host"], int(given["--port"])), Handler)
print("(APIServer pid=1) INFO 11-19 12:00:00 [entry.py:139] Starting vLLM server on http://x", flush=True)
httpd.serve_forever()
"""


def log_lines(weights_gib: float, pool_gib: float) -> list[str]:
    """What vLLM logs about memory while it loads, on one GPU."""
    engine = "(EngineCore pid=41) INFO 11-19 12:00:00"
    return [
        f"{engine} [model_runner.py:389] Model loading took {weights_gib:.2f} GiB memory and 3.141593 seconds",
        f"{engine} [gpu_worker.py:585] Available KV cache memory: {pool_gib:.2f} GiB",
        f"{engine} [kv_cache_utils.py:1880] GPU KV cache size: 36,736 tokens, Maximum concurrency for 32,768 tokens",
    ]


def write_vllm(folder: Path, log: list[str], *, dies: bool = False) -> Path:
    """An executable named vllm in the folder."""
    path = folder / "vllm"
    path.write_text(_SCRIPT.format(python=sys.executable, log=log, dies=dies))
    path.chmod(0o755)
    return path
