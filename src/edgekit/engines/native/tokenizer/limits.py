"""How much a vocabulary and a text may ask for. Each limit stands beside what real ones need."""

from __future__ import annotations

from edgekit.units import KIB, MIB

TOKENS = 1_048_576  # XLM-V has 901,629, Gemma 262,144
MERGES = 1_572_864  # Gemma 4 has 514,906
TOKEN_BYTES = 4 * KIB  # 1,024 in gpt-neox and Command-R: 512 spaces, two bytes each
STRINGS_BYTES = 64 * MIB  # all tokens, or all merges: 5.6 MB in Gemma 4
CHARSMAP_BYTES = 4 * MIB  # 237,539 in XLM-R's
UNIGRAM_CHARACTERS = 128  # of one token of a Unigram vocabulary: 16 in sentencepiece's own
SPECIAL_TOKENS = 65_536  # Gemma 3 has 6,415

STRETCH_CHARACTERS = 8 * KIB  # of a text without a place where it may be parted: see windows.py
WINDOW_CHARACTERS = (
    4 * KIB
)  # of a text that are cut into tokens at once, where there are such places
