"""The keys of a family -> how far back each of its layers looks, when it generates."""

from __future__ import annotations

from edgekit.engines.native.keys import Keys
from edgekit.engines.native.types import ModelUse, NativeFamily
from edgekit.terminal import quoted

WINDOW_TOKENS = 2**31  # told, and never more than the session's own


def read_windows(keys: Keys, family: NativeFamily, layers: int) -> tuple[int | None, ...]:
    """Of each layer; None where it sees all. Of `period` layers the last one does.

    set_swa_pattern in llama-hparams.cpp:8-18 @ b21e4de: with a period of 0 none does. Families without windows ignore
    the key, as llama.cpp does.
    """
    window = keys.get("attention.sliding_window")
    if keys.use is not ModelUse.GENERATE or family.window_period is None or not window:
        return (None,) * layers
    tokens = keys.whole("attention.sliding_window", most=WINDOW_TOKENS)
    period = _period(keys, family.window_period, layers)
    return tuple(
        tokens if period == 0 or place % period < period - 1 else None for place in range(layers)
    )


def _period(keys: Keys, usual: int, layers: int) -> int:
    told = keys.get("attention.sliding_window_pattern")
    if told is None:
        return usual
    if isinstance(told, tuple):  # llama.cpp passes over it: right if it says what is usual
        if [bool(one) for one in told] != [place % usual < usual - 1 for place in range(layers)]:
            raise keys.error(
                "attention.sliding_window_pattern is not one full layer in every "
                f"{usual}, which llama.cpp does not support either; {keys.use.engine} "
                "refuses it"
            )
        return usual
    if isinstance(told, bool) or not isinstance(told, int) or not 0 <= told <= WINDOW_TOKENS:
        raise keys.error(
            f"attention.sliding_window_pattern is {quoted(told)}, which is not a valid period"
        )
    return told
