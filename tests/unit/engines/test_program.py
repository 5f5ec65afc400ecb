"""Engine.program and Engine.starts_for: what EdgeKit can start, and what it says of the rest."""

from __future__ import annotations

import pytest

from edgekit.engines import every_engine, startable
from edgekit.engines.protocol import Engine
from edgekit.errors import UsageError

VERBS = ("run", "serve", "verify", "calibrate")


@pytest.mark.parametrize("engine", every_engine(), ids=lambda engine: engine.name)
def test_program_for_every_engine_and_verb(engine: Engine) -> None:
    assert set(engine.starts_for) <= set(VERBS)
    assert bool(engine.verified_flags) is ("verify" in engine.starts_for)
    for verb in VERBS:
        if verb in engine.starts_for:
            assert isinstance(engine.program(verb).has_budget, bool)
            continue
        wanted = "prints its command" if not engine.starts_for else f"cannot {verb}"
        with pytest.raises(UsageError, match=f"{wanted}|--engine {engine.name} {wanted}"):
            engine.program(verb)


def test_startable_names_the_preferred_engine_first() -> None:
    assert [engine.name for engine in startable("run")] == ["llama.cpp", "stream"]
    assert [engine.name for engine in startable("serve")] == ["llama.cpp"]
