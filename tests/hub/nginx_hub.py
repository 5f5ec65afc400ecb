"""A hub and its CDN as two servers of one real nginx, serving files from a folder."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.hub.hub_files import (
    gguf_header,
    safetensors_header,
    split_header,
    tensors_header,
    write_gguf,
    write_json,
)
from tests.patience import PATIENCE_S, wait_until

TOKEN = "hf_good"
SIGNATURE = "X-Signature=s3cr3t"  # part of the URL of the hub's redirect to the CDN
COMMIT = "c0ffee" * 6 + "c0de"  # the commit of main in every repository

LLAMA_CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 16,
    "max_position_embeddings": 4096,
}
# Two shards of 16-bit weights, and the same embedding packed by MLX to 4 bits in groups of 64.
LLAMA = (
    {"model.embed_tokens.weight": ("BF16", [16, 32], 1024)},
    {"model.layers.0.self_attn.q_proj.weight": ("BF16", [32, 32], 2048)},
)
MLX = {
    "model.embed_tokens.weight": ("U32", [16, 16], 1024),
    "model.embed_tokens.scales": ("BF16", [16, 4], 128),
    "model.embed_tokens.biases": ("BF16", [16, 4], 128),
}

_ATTEMPTS = 10  # a port that is free now may be taken by the time nginx asks for it
_LAST = "/last-line-of-the-log"

_CONFIG = """
daemon off;
master_process off;
pid {root}/nginx.pid;
error_log {root}/error.log warn;
events {{}}
http {{
    access_log off;
    default_type application/octet-stream;
    types {{ application/json json; text/html html; }}
    log_format requests '$request_method $uri $status $http_range auth=[$http_authorization]';
    client_body_temp_path {root}/temp;
    proxy_temp_path {root}/temp;
    fastcgi_temp_path {root}/temp;
    uwsgi_temp_path {root}/temp;
    scgi_temp_path {root}/temp;

    map_hash_bucket_size 512;
    map $http_authorization $door {{ "" closed; "Bearer hf_good" open; default wrong; }}
    map $uri $linked_etag {{ default ""; {linked} }}
    map $uri $linked_size {{ default ""; {sizes} }}
    map $request_uri $following {{
        default "";
        "/api/models/acme/paged-GGUF/tree/main?recursive=true"
            '<http://127.0.0.1:{hub}/api/models/acme/paged-GGUF/tree/main?cursor=2>; rel="next"';
        ~^/api/models/acme/endless-GGUF/
            '<http://127.0.0.1:{hub}/api/models/acme/endless-GGUF/tree/main?cursor=1>; rel="next"';
        ~^/api/models/acme/strange-GGUF/ '<http://localhost:{cdn}/elsewhere>; rel="next"';
    }}

    server {{
        listen 127.0.0.1:{hub};
        access_log {root}/hub.log requests;
        root {root}/hub;

        location /api/models/ {{
            default_type application/json;
            add_header Link $following;
            error_page 404 = @no_repo;
            try_files $uri/page$arg_cursor.json =404;
        }}
        location = /api/models {{
            default_type application/json;
            try_files /search/$arg_search.json /search/none.json =404;
        }}
        location @no_repo {{
            add_header X-Error-Code RepoNotFound always;
            if ($door = open) {{ return 404; }}
            return 401;
        }}
        location ~ ^/acme/gated-GGUF/resolve/[^/]+/(?<file>.+)$ {{
            if ($door = closed) {{ add_header X-Error-Code GatedRepo always; return 401; }}
            if ($door = wrong) {{ add_header X-Error-Code GatedRepo always; return 403; }}
            add_header X-Linked-ETag $linked_etag always;
            add_header X-Linked-Size $linked_size always;
            add_header X-Repo-Commit {commit} always;
            return 302 http://localhost:{cdn}/acme/gated-GGUF/$file?{signature};
        }}
        location ~ ^/(?<repo>[^/]+/[^/]+)/resolve/[^/]+/(?<file>.+\\.json)$ {{
            error_page 404 = @no_entry;
            add_header X-Repo-Commit {commit} always;
            try_files /files/$repo/$file =404;
        }}
        location ~ ^/(?<repo>acme/whole-[^/]+)/resolve/[^/]+/(?<file>.+)$ {{
            add_header X-Linked-ETag $linked_etag always;
            add_header X-Linked-Size $linked_size always;
            add_header X-Repo-Commit {commit} always;
            return 302 http://localhost:{cdn}/whole/$repo/$file?{signature};
        }}
        location ~ ^/(?<repo>[^/]+/[^/]+)/resolve/[^/]+/(?<file>.+)$ {{
            error_page 404 = @no_entry;
            if ($linked_etag = "") {{ return 404; }}
            add_header X-Linked-ETag $linked_etag always;
            add_header X-Linked-Size $linked_size always;
            add_header X-Repo-Commit {commit} always;
            return 302 http://localhost:{cdn}/$repo/$file?{signature};
        }}
        location @no_entry {{
            add_header X-Error-Code EntryNotFound always;
            return 404;
        }}
        location /v2/ {{
            location ~ ^/v2/(?<model>.+)/blobs/(?<digest>sha256:[0-9a-f]+)$ {{
                return 307 http://localhost:{cdn}/blobs/$digest?{signature};
            }}
            location ~ ^/v2/.+/manifests/ {{
                default_type application/vnd.docker.distribution.manifest.v2+json;
                error_page 404 = @no_manifest;
                try_files $uri =404;
            }}
        }}
        location @no_manifest {{
            default_type application/json;
            return 404 '{{"errors":[{{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}}]}}';
        }}
    }}

    server {{
        listen 127.0.0.1:{cdn};
        access_log {root}/cdn.log requests;
        root {root}/cdn;
        location /whole/ {{ alias {root}/cdn/; max_ranges 0; }}
        location = /page.gguf {{ default_type text/html; return 200 "<html>sign in</html>"; }}
        location = /broken.gguf {{ return 500; }}
        location = /teapot.gguf {{ return 418; }}
        location = /loop.gguf {{ return 302 /loop.gguf; }}
        location ~ ^/hops/(?<rest>y*)$ {{ return 302 /hops/y$rest; }}
        location = /disk.gguf {{ return 302 file:///etc/passwd; }}
        location = /named.gguf {{ return 302 /acme/tiny-GGUF/tiny-Q4_K_M.gguf; }}
    }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    root: Path
    endpoint: str  # http://127.0.0.1:...
    cdn: str  # http://localhost:...

    def log(self, server: str) -> list[str]:
        """The requests that `server` (hub or cdn) got, one line each.

        nginx is one process and logs a request when it has answered it. So we send one more and
        wait for its line: then all earlier ones are in the log.
        """
        path = self.root / f"{server}.log"
        address = self.endpoint if server == "hub" else self.cdn
        host_and_port = address.removeprefix("http://")
        with closing(http.client.HTTPConnection(host_and_port, timeout=PATIENCE_S)) as client:
            client.request("HEAD", _LAST, headers={"Connection": "close"})
            client.getresponse().read()
        wait_until(lambda: f" {_LAST} " in path.read_text())
        lines = path.read_text().splitlines()
        lines = [line for line in lines if f" {_LAST} " not in line]
        path.write_text("".join(f"{line}\n" for line in lines))
        return lines

    def clear_logs(self) -> None:
        for server in ("hub", "cdn"):
            self.log(server)
            (self.root / f"{server}.log").write_text("")


def build(root: Path) -> dict[str, tuple[str, int]]:
    """Writes all repositories; returns the hub's X-Linked-ETag and X-Linked-Size for each /resolve/ path."""
    listings: dict[str, list[dict[str, object]]] = {}
    linked: dict[str, tuple[str, int]] = {}

    def add(repo: str, name: str, header: bytes, weights_bytes: int = 1 << 20) -> None:
        write_gguf(root / "cdn" / repo / name, header, weights_bytes=weights_bytes)
        size_bytes = len(header) + weights_bytes
        digest = hashlib.sha256(repo.encode() + name.encode() + header).hexdigest()
        for revision in ("main", COMMIT):
            linked[f"/{repo}/resolve/{revision}/{name}"] = digest, size_bytes
        lfs = {"oid": digest, "size": size_bytes, "pointerSize": 134}
        listings.setdefault(repo, []).append(
            {"type": "file", "path": name, "size": size_bytes, "lfs": lfs}
        )

    def add_json(repo: str, name: str, value: object) -> None:
        path = root / "hub" / "files" / repo / name
        write_json(path, value)
        listings.setdefault(repo, []).append(
            {"type": "file", "path": name, "size": path.stat().st_size}
        )

    for quant in ("Q4_K_M", "Q8_0"):
        add("acme/tiny-GGUF", f"tiny-{quant}.gguf", gguf_header())
    add("acme/tiny-GGUF", "mmproj-tiny-F16.gguf", gguf_header(architecture="clip"))
    add("acme/large-GGUF", "large-Q4_K_M.gguf", gguf_header(vocabulary=100_000), 64 << 20)
    for number in (1, 2, 3):
        add("acme/split-GGUF", f"Q8_0/split-Q8_0-{number:05d}-of-00003.gguf", gguf_header())
    add("acme/gated-GGUF", "gated-Q4_K_M.gguf", gguf_header())
    add("acme/paged-GGUF", "paged-Q8_0.gguf", gguf_header())
    add("acme/endless-GGUF", "a.gguf", gguf_header())
    add("acme/strange-GGUF", "a.gguf", gguf_header())
    for number in (1, 2):
        name = f"model-{number:05d}-of-00002.safetensors"
        add("acme/tensors", name, safetensors_header(), 128)
    add_json("acme/tensors", "config.json", {"model_type": "llama", "hidden_size": 4})
    add_json("acme/tensors", "model.safetensors.index.json", {"metadata": {"total_size": 256}})
    for number in (0, 1):
        name = f"pair-Q4_K_M-{number + 1:05d}-of-00002.gguf"
        add("acme/pair-GGUF", name, split_header(number, 2))
    add("acme/llama", "model-00001-of-00002.safetensors", tensors_header(LLAMA[0]), 1024)
    add("acme/llama", "model-00002-of-00002.safetensors", tensors_header(LLAMA[1]), 2048)
    add_json("acme/llama", "config.json", LLAMA_CONFIG)
    weight_map = {
        name: f"model-{i + 1:05d}-of-00002.safetensors"
        for i, part in enumerate(LLAMA)
        for name in part
    }
    index = {"metadata": {"total_size": 3072.0}, "weight_map": weight_map}
    add_json("acme/llama", "model.safetensors.index.json", index)
    add("acme/llama-mlx", "model.safetensors", tensors_header(MLX), 1024 + 256)
    quantization = {"bits": 4, "group_size": 64, "mode": "affine"}
    add_json("acme/llama-mlx", "config.json", {**LLAMA_CONFIG, "quantization": quantization})
    _add_whole(add, add_json)
    _write_listings(root, listings)
    _write_registry(root)
    shutil.copytree(root / "hub/files/acme/tensors", root / "cdn/acme/tensors", dirs_exist_ok=True)
    (root / "cdn/empty.gguf").write_bytes(b"")
    return linked


def _add_whole(add: Callable[..., None], add_json: Callable[..., None]) -> None:
    """Repositories behind a CDN that ignores Range."""
    for quant in ("Q4_K_M", "Q8_0"):
        add("acme/whole-GGUF", f"whole-{quant}.gguf", gguf_header())
    for number in (0, 1):
        name = f"split-Q4_K_M-{number + 1:05d}-of-00002.gguf"
        add("acme/whole-split-GGUF", name, split_header(number, 2))
    for number in (1, 2):
        part = {f"model.layers.{number}.weight": ("F32", [256, 128], 128 << 10)}
        name = f"model-{number:05d}-of-00002.safetensors"
        add("acme/whole-llama", name, tensors_header(part), 128 << 10)
    add("acme/whole-llama", "consolidated.safetensors", tensors_header(LLAMA[0]), 128 << 10)
    add_json("acme/whole-llama", "config.json", LLAMA_CONFIG)
    add_json("acme/whole-llama", "hf_quant_config.json", {})
    weight_map = {f"model.layers.{n}.weight": f"model-{n:05d}-of-00002.safetensors" for n in (1, 2)}
    index = {"metadata": {"total_size": 256 << 10}, "weight_map": weight_map}
    add_json("acme/whole-llama", "model.safetensors.index.json", index)


def _write_listings(root: Path, listings: dict[str, list[dict[str, object]]]) -> None:
    for repo, files in listings.items():
        folder = root / "hub/api/models" / repo / "tree/main"
        write_json(folder / "page.json", [{"type": "directory", "path": "Q8_0", "size": 0}, *files])
    more = {"type": "file", "path": "paged-Q4_K_M.gguf", "size": 5}
    write_json(root / "hub/api/models/acme/paged-GGUF/tree/main/page2.json", [more])
    endless = root / "hub/api/models/acme/endless-GGUF/tree/main"
    shutil.copy(endless / "page.json", endless / "page1.json")
    page = root / "hub/api/models/acme/page-GGUF/tree/main/page.json"
    page.parent.mkdir(parents=True)
    page.write_text("<html>maintenance</html>")
    ids = [{"id": "acme/tiny-GGUF"}, {"id": "acme/tensors"}, {"id": "<script>"}, 3]
    write_json(root / "hub/search/tiny-GGFU.json", ids)
    write_json(root / "hub/search/none.json", [])


def _write_registry(root: Path) -> None:
    layers = []
    for kind in ("model", "projector", "license"):
        header = gguf_header(architecture=kind)
        digest = f"sha256:{hashlib.sha256(header).hexdigest()}"
        write_gguf(root / "cdn/blobs" / digest, header, weights_bytes=4096)
        layers.append(
            {
                "mediaType": f"application/vnd.ollama.image.{kind}",
                "digest": digest,
                "size": len(header) + 4096,
            }
        )
    manifests = root / "hub/v2/library/tiny/manifests"
    write_json(manifests / "latest", {"schemaVersion": 2, "layers": layers})
    write_json(manifests / "cloud", {"schemaVersion": 2, "layers": layers[2:]})
    bad = {"mediaType": layers[0]["mediaType"], "digest": "sha256:../../etc/passwd", "size": 1}
    write_json(manifests / "bad", {"layers": [bad]})
    write_json(manifests / "list", [1, 2])


def start(root: Path) -> tuple[Hub, subprocess.Popen[bytes]]:
    (root / "temp").mkdir(parents=True)
    linked = build(root)
    for _ in range(_ATTEMPTS):
        hub_port, cdn_port = _free_ports()
        config = _CONFIG.format(
            root=root,
            hub=hub_port,
            cdn=cdn_port,
            linked="".join(f'"{path}" \'"{digest}"\';\n' for path, (digest, _) in linked.items()),
            sizes="".join(f'"{path}" {size_bytes};\n' for path, (_, size_bytes) in linked.items()),
            signature=SIGNATURE,
            commit=COMMIT,
        )
        (root / "nginx.conf").write_text(config)
        process = subprocess.Popen(
            ["nginx", "-p", str(root), "-c", str(root / "nginx.conf"), "-e", f"{root}/error.log"],
            stderr=subprocess.DEVNULL,
        )
        # nginx writes this file when it listens, and exits if a port has been taken meanwhile.
        wait_until(lambda: (root / "nginx.pid").exists() or process.poll() is not None)  # noqa: B023 - called at once
        if process.poll() is None:
            endpoint, cdn = f"http://127.0.0.1:{hub_port}", f"http://localhost:{cdn_port}"
            return Hub(root=root, endpoint=endpoint, cdn=cdn), process
    raise RuntimeError("nginx did not start: " + (root / "error.log").read_text())


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
