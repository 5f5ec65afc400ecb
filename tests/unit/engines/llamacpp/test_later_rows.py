"""later_rows: how much RAM llama.cpp may use later, compared with the RAM that is left."""

from __future__ import annotations

import pytest
from tests.unit.report.verdicts import LINES, card, check_from_lines, line, machine

from edgekit.bill.types import Component
from edgekit.engines.llamacpp.estimate import later_rows
from edgekit.machine.types import HOST
from edgekit.units import GIB


@pytest.mark.parametrize(
    ("prompts_gib", "checkpoints_gib", "ram_gib", "advice"),
    [
        # 21 - 1 reserved - 1.5 required = 18.5 left
        (8, 0, 21, "; 18.50 GiB is left"),
        (8, 7, 21, "; 18.50 GiB is left"),
        # 10 - 1 - 1.5 = 7.5 left, all of it for prompts
        (8, 0, 10, ", but only 7.50 GiB is left: --cache-ram 7680 limits it"),
        # 2 for checkpoints leave 5.5 for prompts
        (8, 2, 10, ", but only 7.50 GiB is left: --cache-ram 5632 limits it"),
        # 32 checkpoints of 2 each: half of the 7.5 for prompts, one checkpoint in the other 3.75
        (8, 64, 10, ", but only 7.50 GiB is left: --cache-ram 3840 --ctx-checkpoints 1 limits it"),
        # 24.5 left: 8 for prompts, which is all they take; 8 checkpoints of 2 in the other 16.5
        (8, 64, 27, ", but only 24.50 GiB is left: --ctx-checkpoints 8 limits it"),
        (8, 0, 2, ", but only 0 B is left: --cache-ram 0 limits it"),
    ],
)  # fmt: skip
def test_later_rows_limit_growth_to_the_ram_that_is_left(
    prompts_gib: int, checkpoints_gib: int, ram_gib: int, advice: str
) -> None:
    grows = (
        line(Component.PROMPT_CACHE, prompts_gib * GIB, HOST, reserved=False),
        line(Component.CHECKPOINTS, checkpoints_gib * GIB, HOST, reserved=False),
    )
    check = check_from_lines((*LINES[:-1], *grows), machine(card("RTX 4090", 24), ram_gib=ram_gib))
    sizes = f"{prompts_gib}.00 GiB of prompt cache"
    if checkpoints_gib:
        sizes += f" and {checkpoints_gib}.00 GiB of checkpoints"
    assert list(later_rows(check.result)) == [f"RAM use may grow by up to {sizes}{advice}"]


def test_later_rows_are_empty_if_nothing_grows() -> None:
    assert list(later_rows(check_from_lines(LINES[:-1]).result)) == []


def test_later_rows_count_unified_memory_as_ram() -> None:
    unified = machine(card("Orin", 21, unified=True), ram_gib=21)
    # 21 - 1 reserved - 11.5 - 1.5 required = 7
    assert "only 7.00 GiB is left: --cache-ram 7168" in next(
        later_rows(check_from_lines(on=unified).result)
    )
