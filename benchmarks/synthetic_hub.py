"""A hub of synthetic repositories behind a real nginx, with real shapes of configs and headers, and faults.

Faults are drawn by nginx for each request (split_clients on the request's id), so a request that is repeated usually
succeeds. A repository's own defects (gated, missing, malformed) are always there.
"""

from __future__ import annotations

import gzip
import json
import random
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "tests" / "data"
PER_PAGE = 500
VARIANTS = 10  # of each recorded config: vocabularies of fine-tunes
QUANTS = {"Q3_K_M": 0.49, "Q4_K_M": 0.6, "Q5_K_M": 0.71, "Q6_K": 0.82, "Q8_0": 1.06}
LICENCES = ("apache-2.0", "mit", "llama3.1", "other", None)
# Of a hundred requests. "slow" sends 100 bytes per second: the client gives up and asks again.
FAULTS = {
    "429": 1.0,
    "503": 0.5,
    "500": 1.0,
    "malformed": 0.5,
    "redirect": 1.0,
    "closed": 0.5,
    "slow": 0.2,
}
START_S = 30.0

_CONFIG = """
daemon off;
master_process off;
worker_rlimit_nofile 65536;
pid {root}/nginx.pid;
error_log {root}/error.log crit;
events {{ worker_connections 4096; }}
http {{
    default_type application/octet-stream;
    types {{ application/json json; }}
    log_format faults '$fault $status $bytes_sent $uri';
    access_log off;
    client_body_temp_path {root}/temp; proxy_temp_path {root}/temp; fastcgi_temp_path {root}/temp;
    uwsgi_temp_path {root}/temp; scgi_temp_path {root}/temp;
    sendfile on;
    keepalive_requests 100000;
    map_hash_max_size 8192;
    split_clients "$request_id" $drawn {{ {faults} * ok; }}
    map $arg_cursor $following {{ default ""; {pages} }}
    map $fault $dated {{ default ""; 503 "Wed, 21 Oct 2015 07:28:00 GMT"; 429 "1"; }}
    map $fault $speed {{ default 0; slow 100; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        root {root}/www;
        access_log {root}/hub.log faults buffer=64k flush=1s;
        add_header Retry-After $dated always;
        limit_rate $speed;
        set $fault ok;
        if (-f {root}/faults) {{ set $fault $drawn; }}
        if ($fault = 429) {{ return 429; }}
        if ($fault = 503) {{ return 503; }}
        if ($fault = 500) {{ return 500; }}
        if ($fault = malformed) {{ return 200 '[{{"id": "cut/of'; }}
        if ($fault = redirect) {{ return 307 $uri?$args&again=1; }}
        if ($fault = closed) {{ return 444; }}
        location = /api/models {{
            default_type application/json;
            add_header Link $following;
            try_files /listing/page$arg_cursor.json =404;
        }}
        location /api/models/ {{
            default_type application/json;
            try_files $uri.json =404;
        }}
        location ~ ^/(?<repo>[^/]+/[^/]+)/resolve/main/(?<file>[^/]+\\.gguf)$ {{
            return 302 http://127.0.0.1:{cdn}/$repo/$file;
        }}
        location ~ ^/(?<repo>[^/]+/[^/]+)/resolve/main/(?<file>.+)$ {{
            if (-f {root}/www/gated/$repo) {{ add_header X-Error-Code GatedRepo always; return 401; }}
            try_files /files/$repo/$file =404;
        }}
    }}
    server {{
        listen 127.0.0.1:{cdn} backlog=4096;
        set $fault ok;
        root {root}/cdn;
        access_log {root}/cdn.log faults buffer=64k flush=1s;
    }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticHub:
    root: Path
    endpoint: str

    def set_faults(self, *, drawn: bool) -> None:
        """Switch faults on or off for the requests from now on."""
        marker = self.root / "faults"
        marker.touch() if drawn else marker.unlink(missing_ok=True)

    def requests(self) -> Counter[str]:
        """How many requests each server has answered with each fault, as far as they are logged."""
        counts: Counter[str] = Counter()
        for server in ("hub", "cdn"):
            for line in (self.root / f"{server}.log").read_text().splitlines():
                counts[f"{server} {line.split(' ', 1)[0]}"] += 1
        return counts


def write_hub(
    root: Path,
    repositories: int,
    *,
    shapes: int | None = None,
    per_page: int = PER_PAGE,
    seed: int = 1,
) -> None:
    """Write what nginx serves: pages of the listing, file lists, configs and headers.

    `shapes`: how many different configs and headers to use; None: all.
    """
    chance = random.Random(seed)
    configs, headers = _shapes(root)
    configs, headers = configs[::-VARIANTS][:shapes] if shapes else configs, headers[:shapes]
    entries: list[dict[str, Any]] = []
    originals: list[dict[str, Any]] = []
    for number in range(repositories):
        kind = chance.random()
        if kind < 0.3 or len(originals) < 5:
            entry = _original(root, number, chance, configs)
            originals.append(entry)
        elif kind < 0.75:
            entry = _gguf(root, number, chance, originals if kind < 0.7 else [], headers)
        elif kind < 0.88:
            entry = _packed(root, number, chance, originals, configs)
        else:
            entry = _other(number, chance)
        entries.append(entry)
    entries.sort(key=lambda entry: (-entry["downloads"], entry["id"]))
    folder = root / "www/listing"
    folder.mkdir(parents=True)
    for page, start in enumerate(range(0, max(len(entries), 1), per_page)):
        name = f"page{page or ''}.json"
        (folder / name).write_text(
            json.dumps([_listed(e) for e in entries[start : start + per_page]])
        )


def _shapes(root: Path) -> tuple[list[Path], list[tuple[Path, int]]]:
    """The distinct configs, and the distinct GGUFs with their sizes; repositories link to them."""
    folder = root / "shapes"
    folder.mkdir(parents=True)
    configs, headers = [], list[tuple[Path, int]]()
    for name, config in json.loads((DATA / "configs.json").read_text()).items():
        for variant in range(VARIANTS):
            own = json.loads(json.dumps(config))
            section = own.get("text_config", own)
            if variant and isinstance(section.get("vocab_size"), int):
                section["vocab_size"] += 64 * variant
            path = folder / f"{name}-{variant}.json"
            path.write_text(json.dumps(own))
            configs.append(path)
    seen = set()
    for model in json.loads(gzip.decompress((DATA / "models.json.gz").read_bytes())):
        file = model["header_without_vocabulary"]
        recorded = DATA / "headers" / f"{file}.novocab.gguf.head.gz"
        path = recorded if recorded.is_file() else DATA / "headers" / file
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        header = gzip.decompress(path.read_bytes())
        size = -(-len(header) // 32) * 32 + model["data_section_bytes"]
        target = folder / f"{len(headers)}.gguf"
        with target.open("wb") as out:
            out.write(header)
            out.truncate(size)  # a hole: the weights are never read
        headers.append((target, size))
    return configs, headers


def _entry(
    name: str, chance: random.Random, files: dict[str, int], **fields: Any
) -> dict[str, Any]:
    return {
        "id": name,
        "downloads": int(chance.paretovariate(0.6) * 10),
        "createdAt": f"2025-{chance.randint(1, 12):02d}-{chance.randint(1, 28):02d}T10:00:00.000Z",
        "gated": False,
        "private": False,
        "files": {".gitattributes": 1519, "README.md": 5000, **files},
        "tags": [],
        **fields,
    }


def _original(
    root: Path, number: int, chance: random.Random, configs: list[Path]
) -> dict[str, Any]:
    name = f"lab{number % 300}/Model-{number}-Instruct"
    folder = root / "www/files" / name
    folder.mkdir(parents=True)
    defect = chance.random()
    config = chance.choice(configs)
    gated: Any = False
    if defect < 0.03:
        gated = chance.choice(["auto", "manual"])
        marker = root / "www/gated" / name
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    elif defect < 0.04:
        pass  # listed, but not there
    elif defect < 0.05:
        (folder / "config.json").write_text('{"model_type": "llama", "hidden_size": ')
    else:
        (folder / "config.json").symlink_to(config)
    elements = chance.randint(1, 70) * 10**9
    licence = chance.choice(LICENCES)
    entry = _entry(
        name,
        chance,
        {
            "config.json": 900,
            "model-00001-of-00002.safetensors": elements,
            "model-00002-of-00002.safetensors": elements,
        },
        gated=gated,
        tags=["transformers", "safetensors", "region:us"],
        cardData={} if licence is None else {"license": licence, "language": ["en"]},
        config={"model_type": json.loads(config.read_text()).get("model_type")},
        pipeline_tag="text-generation",
        library_name="transformers",
        safetensors={"parameters": {"BF16": elements}, "total": elements},
    )
    if number > 100 and chance.random() < 0.4:
        entry["cardData"]["base_model"] = f"lab{number % 100}/Model-{number % 100}-Instruct"
    return entry


def _gguf(
    root: Path,
    number: int,
    chance: random.Random,
    originals: list[dict[str, Any]],
    headers: list[tuple[Path, int]],
) -> dict[str, Any]:
    """A repository of GGUFs, of a stated base if there are `originals` to choose from."""
    base = _popular(chance, originals)["id"] if originals else None
    stem = f"Model-{number}" if base is None else f"{base.rpartition('/')[2]}-{number}"
    name = f"maker{number % 40}/{stem}-GGUF"
    header, size = chance.choice(headers)
    files = {}
    folder = root / "cdn" / name
    folder.mkdir(parents=True)
    for quant, share in QUANTS.items():
        path = f"{stem}.{quant}.gguf"
        files[path] = size if quant == "Q4_K_M" else int(size * share / 0.6)
        if quant == "Q4_K_M":
            (folder / path).symlink_to(header)
    entry = _entry(name, chance, files, tags=["gguf", "region:us"], library_name="gguf")
    if base is not None:
        entry["tags"] += [f"base_model:{base}", f"base_model:quantized:{base}"]
        entry["cardData"] = {"base_model": base, "base_model_relation": "quantized"}
    _write_files(root, entry)
    return entry


def _packed(
    root: Path,
    number: int,
    chance: random.Random,
    originals: list[dict[str, Any]],
    configs: list[Path],
) -> dict[str, Any]:
    """MLX, AWQ, GPTQ, FP8 or NVFP4 of a stated base."""
    base = _popular(chance, originals)["id"]
    form, suffix = chance.choice(
        [
            ("mlx", "4bit"),
            ("mlx", "8bit"),
            ("awq", "AWQ"),
            ("gptq", "GPTQ-Int4"),
            ("fp8", "FP8"),
            ("nvfp4", "NVFP4"),
        ]
    )
    name = f"packer{number % 30}/{base.rpartition('/')[2]}-{number}-{suffix}"
    folder = root / "www/files" / name
    folder.mkdir(parents=True)
    (folder / "config.json").symlink_to(chance.choice(configs))
    size = chance.randint(1, 30) * 10**9
    entry = _entry(
        name,
        chance,
        {"config.json": 1100, "model.safetensors": size},
        tags=["safetensors", form, f"base_model:quantized:{base}"],
        safetensors={"parameters": {"U32": size // 5, "BF16": size // 50}},
        library_name=form if form == "mlx" else "transformers",
    )
    _write_files(root, entry)
    return entry


def _other(number: int, chance: random.Random) -> dict[str, Any]:
    """What the listing alone shows not to be a language model."""
    name = f"user{number % 900}/thing-{number}"
    kind = chance.randint(0, 3)
    if kind == 0:
        files = {"adapter_config.json": 700, "adapter_model.safetensors": 10**8}
        return _entry(name, chance, files, library_name="peft", tags=["lora"])
    if kind == 1:
        return _entry(name, chance, {"model_index.json": 500}, library_name="diffusers")
    if kind == 2:
        return _entry(name, chance, {})
    return _entry(name, chance, {"model.bin": 10**8}, pipeline_tag="text-to-image")


def _popular(chance: random.Random, originals: list[dict[str, Any]]) -> dict[str, Any]:
    """An original: a few have most of the quantisations."""
    return originals[min(int(chance.paretovariate(0.8)) - 1, len(originals) - 1)]


def _write_files(root: Path, entry: dict[str, Any]) -> None:
    path = root / "www/api/models" / f"{entry['id']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    siblings = [
        {"rfilename": name, "size": 134, "lfs": {"size": size, "sha256": "0" * 64}}
        if size > 10**6
        else {"rfilename": name, "size": size}
        for name, size in entry["files"].items()
    ]
    path.write_text(json.dumps({**_listed(entry), "siblings": siblings}))


def _listed(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry as the listing has it: files without sizes."""
    siblings = [{"rfilename": name} for name in entry["files"]]
    return {**{key: value for key, value in entry.items() if key != "files"}, "siblings": siblings}


@contextmanager
def serve_hub(root: Path, *, faults: Mapping[str, float] = FAULTS) -> Iterator[SyntheticHub]:
    """Nginx over what `write_hub` wrote. `faults`: of a hundred requests, once `set_faults` has switched them on."""
    (root / "temp").mkdir(exist_ok=True)
    pages = len(list((root / "www/listing").glob("page*.json")))
    drawn = " ".join(f"{percent}% {fault};" for fault, percent in faults.items())
    for _ in range(10):  # a port that is free now may be taken by the time nginx asks for it
        port, cdn = _free_ports()
        links = " ".join(
            f'"{page or ""}" \'<http://127.0.0.1:{port}/api/models?cursor={page + 1}>; rel="next"\';'
            for page in range(pages - 1)
        )
        text = _CONFIG.format(root=root, port=port, cdn=cdn, faults=drawn, pages=links)
        (root / "nginx.conf").write_text(text)
        for server in ("hub", "cdn"):
            (root / f"{server}.log").write_text("")
        (root / "nginx.pid").unlink(missing_ok=True)
        command = [
            "nginx",
            "-p",
            str(root),
            "-c",
            str(root / "nginx.conf"),
            "-e",
            f"{root}/error.log",
        ]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        while not (root / "nginx.pid").exists() and process.poll() is None:
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        if process.poll() is None:
            break
    else:
        raise RuntimeError("nginx did not start: " + (root / "error.log").read_text())
    try:
        yield SyntheticHub(root=root, endpoint=f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(START_S)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
