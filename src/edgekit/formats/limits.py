"""Limits on how much of a header is read or stored, each with the figure of the largest real model.

Together they keep the worst single file under a second and under 64 MB.
"""

from __future__ import annotations

from edgekit.sources.filenames import MAX_SHARDS
from edgekit.sources.types import MAX_HEADER_BYTES

# --- both formats
HEADER_BYTES = MAX_HEADER_BYTES  # Gemma 4's GGUF has 15.8 MB; safetensors has the same limit
NAME_BYTES = 256  # a tensor or module name: about 150 in the longest of nested vision models
TENSORS_PER_FILE = 49_152  # about 40,000 in a GGUF with unmerged experts; 37,300 in Qwen3-30B-FP8
TENSORS = 262_144  # all shards: 60 layers x 384 experts x 9 tensors of a packed Kimi-K2 are 207,360
SHARDS = MAX_SHARDS  # DeepSeek-V3 has 163

# --- GGUF
KEYS = 10_000  # real files have 20 to 60
KEY_BYTES = 1_024  # about 60; the format would allow 65,535
STORED_STRING_BYTES = 65_536  # a chat template has 1 to 20 KB; longer strings are skipped and noted
STORED_BYTES = 4 * 1024**2  # all stored values together: below 0.2 MB in real files
STORED_NUMBERS = 1_024  # per-layer arrays: one number for each of 126 layers of Llama-3.1-405B
STORED_STRINGS = 64  # general.tags, general.languages: 5 to 30
STORED_ENTRY_BYTES = 256
STRINGS_WALKED = 1_572_864  # whole file: Gemma 3 has 262,144 tokens and 514,906 merges
DIMENSIONS = 4  # GGML_MAX_DIMS
ELEMENTS = 2**63 - 1  # ggml counts elements in an int64

# --- safetensors and JSON
ENTRY_BYTES = 65_536  # one tensor's entry has about 150
METADATA_BYTES = 4 * 1024**2  # training tools write their settings and tags here: hundreds of KB
METADATA_ENTRIES = 65_536  # a LoRA trainer writes about 100
SAFETENSORS_DIMENSIONS = 64  # what torch and numpy allow
INDEX_BYTES = 64 * 1024**2  # 207,360 names of 110 bytes are 23 MB
CONFIG_BYTES = 4 * 1024**2  # a ModelOpt config that lists every layer has 0.09 MB
CONFIG_CONTAINERS = 32_768  # a ModelOpt config that lists every layer has 422 brackets and braces
CONFIG_DEPTH = 64  # nested brackets: 7 in the deepest real config
CONFIG_VALUES = 262_144  # counted as commas: 1,141 in a ModelOpt config that lists every layer
