"""Laws of what a program gets to see."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgekit.machine.nvidia import Seen, visible
from edgekit.machine.types import Device, Vendor

SEEN = tuple(
    Seen(
        device=Device(
            name=f"card {index}", vendor=Vendor.NVIDIA, index=index, total_bytes=1, free_bytes=1
        ),
        uuids=(f"GPU-{index}f",),
    )
    for index in range(12)
)


@given(st.text() | st.text(alphabet="0123456789,-GPU "))
def test_nothing_is_shown_twice_and_nothing_that_is_not_there(wish: str) -> None:
    shown = visible(wish, SEEN)
    assert len({device.index for device in shown}) == len(shown)
    assert all(device in [each.device for each in SEEN] for device in shown)


@given(st.lists(st.integers(0, 11), unique=True))
def test_what_is_asked_for_comes_in_that_order(indices: list[int]) -> None:
    shown = visible(",".join(map(str, indices)), SEEN)
    assert [device.index for device in shown] == indices


def test_not_set_is_all() -> None:
    assert visible(None, SEEN) == tuple(each.device for each in SEEN)
