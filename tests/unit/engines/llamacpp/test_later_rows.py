"""What may grow after the start, held against what is left on the host."""

from __future__ import annotations

import pytest
from tests.unit.report.verdicts import LINES, card, line, machine, made

from edgekit.bill.types import Component
from edgekit.engines.llamacpp.estimate import later_rows
from edgekit.machine.types import HOST
from edgekit.units import GIB


def _sizes(prompts: int, checkpoints: int) -> str:
    answer = f"{prompts}.00 GiB of prompt cache"
    return f"{answer} and {checkpoints}.00 GiB of checkpoints" if checkpoints else answer


@pytest.mark.parametrize(
    ("prompts", "checkpoints", "host_gib", "told"),
    [
        # 21 - 1 reserved - 1.5 required = 18.5 left
        (8, 0, 21, "; 18.50 GiB is left"),
        (8, 7, 21, "; 18.50 GiB is left"),
        # 10 - 1 - 1.5 = 7.5 left: all of it for prompts
        (8, 0, 10, ", but only 7.50 GiB is left: --cache-ram 7680 limits it"),
        # 2 of checkpoints leave 5.5
        (8, 2, 10, ", but only 7.50 GiB is left: --cache-ram 5632 limits it"),
        # 64 of checkpoints, 2 for each of 32: half for prompts, of 3.75 for checkpoints one
        (8, 64, 10, ", but only 7.50 GiB is left: --cache-ram 3840 --ctx-checkpoints 1 limits it"),
        # 24.5 left: prompts have the 8 they would take anyway, of the 16.5 eight times 2
        (8, 64, 27, ", but only 24.50 GiB is left: --ctx-checkpoints 8 limits it"),
        (8, 0, 2, ", but only 0 B is left: --cache-ram 0 limits it"),
    ],
)  # fmt: skip
def test_what_may_grow_is_held_against_what_is_left(
    prompts: int, checkpoints: int, host_gib: int, told: str
) -> None:
    grows = (
        line(Component.PROMPT_CACHE, prompts * GIB, HOST, reserved=False),
        line(Component.CHECKPOINTS, checkpoints * GIB, HOST, reserved=False),
    )
    check = made((*LINES[:-1], *grows), machine(card("RTX 4090", 24), ram_gib=host_gib))
    assert list(later_rows(check.result)) == [
        f"RAM use may grow by up to {_sizes(prompts, checkpoints)}{told}"
    ]


def test_nothing_that_grows_is_no_line() -> None:
    assert list(later_rows(made(LINES[:-1]).result)) == []


def test_a_unified_memory_is_the_hosts() -> None:
    unified = machine(card("Orin", 21, unified=True), ram_gib=21)
    # 21 - 1 reserved - 11.5 and 1.5 required
    assert "only 7.00 GiB is left: --cache-ram 7168" in next(later_rows(made(on=unified).result))
