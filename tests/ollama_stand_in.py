"""A program that behaves as `ollama serve` does, as far as EdgeKit sees it: it runs a real llama-server.

Ollama cannot be installed from PyPI. This one has its API (docs/api.md @ fb30760), its store of manifests and blobs in
the folder of the variable OLLAMA_MODELS, and starts llama-server with the words of llm/llama_server.go.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.llama_server import write_llama_server

_SCRIPT = r"""#!{python}
import hashlib, http.client, json, os, signal, socket, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

if "--version" in sys.argv:
    print("Warning: could not connect to a running Ollama instance\nWarning: client version is 0.14.0")
    sys.exit()
SERVER, LIBRARY = {server!r}, {library!r}  # names that can be pulled -> files
store = Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models")
(store / "blobs").mkdir(parents=True, exist_ok=True)
runner = {{}}

def manifest_of(name):
    name, _, tag = name.partition(":")
    parts = name.split("/")
    return store.joinpath("manifests", *["registry.ollama.ai", "library"][: 3 - len(parts)], *parts, tag or "latest")

def blob_of(digest):
    return store / "blobs" / digest.replace(":", "-")

def write_manifest(name, digest, parameters):
    layer = {{"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": blob_of(digest).stat().st_size}}
    path = manifest_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({{"layers": [layer], "parameters": parameters}}))

def start(name):
    if runner.get("name") == name:
        return
    if runner:
        runner["process"].terminate(); runner["process"].wait()
    manifest = json.loads(manifest_of(name).read_text())
    file, parameters = str(blob_of(manifest["layers"][0]["digest"])), manifest["parameters"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0)); port = probe.getsockname()[1]
    parallel = int(os.environ.get("OLLAMA_NUM_PARALLEL", "1"))
    words = [SERVER, "--model", file, "--port", str(port), "--host", "127.0.0.1", "--offline",
             "-c", str(parameters["num_ctx"] * parallel), "-np", str(parallel), "-lv", os.environ.get("STAND_IN_VERBOSITY", "4"),
             "--no-log-prefix", "--no-log-timestamps"]
    batch = parameters.get("num_batch", 512 if parameters["num_ctx"] <= 4096 else 1024)
    words += ["-b", str(batch), "-ub", str(batch)]
    if cache := os.environ.get("OLLAMA_KV_CACHE_TYPE"):
        words += ["--cache-type-k", cache, "--cache-type-v", cache]
    if "num_gpu" in parameters:
        words += ["-ngl", str(parameters["num_gpu"])]
    if "num_thread" in parameters:
        words += ["-t", str(parameters["num_thread"])]
    process = subprocess.Popen(words)  # its log goes to our standard error
    runner.update(name=name, process=process, port=port)
    while process.poll() is None:
        try:
            if call("GET", "/health", None)[0] == 200:
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("llama-server died")

def call(method, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", runner["port"])
    connection.request(method, path, None if body is None else json.dumps(body))
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read() or b"null")

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def reply(self, status, *lines):
        raw = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self.send_response(status); self.send_header("Content-Length", str(len(raw))); self.end_headers()
        if self.command != "HEAD": self.wfile.write(raw)
    def body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            raw = b""
            while size := int(self.rfile.readline(), 16):
                raw += self.rfile.read(size); self.rfile.readline()
            self.rfile.readline()
            return raw
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))
    def do_GET(self):
        self.reply(200 if self.path == "/api/version" else 404, {{"version": "0.14.0"}})
    def do_HEAD(self):
        self.reply(200 if blob_of(self.path.rpartition("/")[2]).exists() else 404)
    def do_DELETE(self):
        path = manifest_of(json.loads(self.body())["model"])
        if not path.exists():
            return self.reply(404)
        path.unlink()
        self.reply(200)
    def do_POST(self):
        raw = self.body()
        if self.path.startswith("/api/blobs/"):
            digest = self.path.rpartition("/")[2]
            good = digest == "sha256:" + hashlib.sha256(raw).hexdigest()
            if good: blob_of(digest).write_bytes(raw)
            return self.reply(201 if good else 400)
        body = json.loads(raw)
        name = body["model"]
        if self.path == "/api/show":
            return self.reply(200 if manifest_of(name).exists() else 404, {{}})
        if self.path == "/api/pull":
            if name not in LIBRARY:
                return self.reply(200, {{"status": "pulling manifest"}}, {{"error": "file does not exist"}})
            content = Path(LIBRARY[name]).read_bytes()
            digest, size = "sha256:" + hashlib.sha256(content).hexdigest(), len(content)
            blob_of(digest).write_bytes(content)
            write_manifest(name, digest, {{}})
            return self.reply(200, *[{{"status": "pulling", "digest": "sha256:1", "total": size,
                                       "completed": size * part // 4}} for part in range(5)], {{"status": "success"}})
        if self.path == "/api/create":
            if "from" in body:
                digest = json.loads(manifest_of(body["from"]).read_text())["layers"][0]["digest"]
            else:
                (digest,) = body["files"].values()
            write_manifest(name, digest, body["parameters"])
            return self.reply(200, {{"status": "success"}})
        if not manifest_of(name).exists():
            return self.reply(404, {{"error": f"model '{{name}}' not found"}})
        try:
            start(name)
        except RuntimeError as error:
            return self.reply(500, {{"error": str(error)}})
        if "prompt" not in body and "messages" not in body:
            return self.reply(200, {{"model": name, "done": True, "done_reason": "load"}})
        options = body["options"]
        assert body["truncate"] is False
        given = {{"temperature": options.get("temperature"), "n_predict": options.get("num_predict", -1),
                  "stop": options.get("stop", [])}}
        given = {{key: value for key, value in given.items() if value is not None}}
        if "messages" in body:
            given["prompt"] = call("POST", "/apply-template", {{"messages": body["messages"]}})[1]["prompt"]
        else:
            given["prompt"] = body["prompt"]
        status, answer = call("POST", "/completion", given)
        if status != 200:
            return self.reply(400, {{"error": "the input length exceeds the context length"}})
        text, timings = answer["content"], answer["timings"]
        key = {{"message": {{"role": "assistant", "content": text}}}} if "messages" in body else {{"response": text}}
        reason = "length" if answer["stop_type"] == "limit" else "stop"
        self.reply(200, {{**key, "done": False}}, {{"done": True, "done_reason": reason,
                   "prompt_eval_count": answer["tokens_evaluated"], "eval_count": answer["tokens_predicted"],
                   "prompt_eval_duration": int(timings["prompt_ms"] * 1e6),
                   "eval_duration": int(timings["predicted_ms"] * 1e6)}})

host, _, port = os.environ["OLLAMA_HOST"].rpartition(":")
httpd = ThreadingHTTPServer((host, int(port)), Handler)
def end(*_):
    if runner: runner["process"].terminate(); runner["process"].wait()
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print(f"Listening on {{host}}:{{port}} (version 0.14.0)", file=sys.stderr, flush=True)
httpd.serve_forever()
"""


def write_ollama(folder: Path, library: dict[str, str]) -> Path:
    """An executable named ollama in the folder. `library`: the models that it can pull, by name."""
    server = write_llama_server(folder)
    path = folder / "ollama"
    path.write_text(_SCRIPT.format(python=sys.executable, server=str(server), library=library))
    path.chmod(0o755)
    return path
