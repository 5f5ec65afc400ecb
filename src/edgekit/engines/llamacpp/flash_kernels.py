"""For which heads CUDA has a flash attention kernel: fattn.cu @ 0c1e570."""

from __future__ import annotations

SAME_HEADS = frozenset({40, 64, 72, 80, 96, 112, 128, 256, 512})
WIDER_KEYS = {192: 128, 320: 256, 576: 512}  # key size -> the value size there is a kernel for
GQA_MULTIPLE = {192: 8, 320: 32}
NEEDS_GQA = frozenset({192, 320, 512, 576})


def has_flash_kernel(keys: int, values: int, ratio: int) -> bool:
    """Whether CUDA has one for heads of these sizes, `ratio` of them for each KV head."""
    if keys in WIDER_KEYS:
        fits = values == WIDER_KEYS[keys] and ratio % GQA_MULTIPLE.get(keys, 1) == 0
    else:
        fits = keys in SAME_HEADS and values == keys
    return fits and (keys not in NEEDS_GQA or ratio >= 2)
