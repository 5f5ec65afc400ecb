"""Engine.program and startable: the engines that EdgeKit can start, and the error for the others."""

from __future__ import annotations

import pytest

from edgekit.engines import every_engine, startable
from edgekit.engines.protocol import Engine
from edgekit.errors import UsageError

VERBS = ("run", "serve", "verify", "calibrate")


@pytest.mark.parametrize("engine", every_engine(), ids=lambda engine: engine.name)
def test_program_exists_or_is_an_error_for_every_engine_and_verb(engine: Engine) -> None:
    assert set(engine.starts_for) <= set(VERBS)
    assert bool(engine.verified_flags) is ("verify" in engine.starts_for)
    for verb in VERBS:
        if verb in engine.starts_for:
            assert isinstance(engine.program(verb).has_budget, bool)
            continue
        message = (
            f"--engine {engine.name} cannot {verb}" if engine.starts_for else "prints its command"
        )
        with pytest.raises(UsageError, match=message):
            engine.program(verb)


def test_startable_engines_begin_with_the_preferred_one() -> None:
    assert [engine.name for engine in startable("run")] == ["llama.cpp", "vllm", "mlx", "stream"]
    assert [engine.name for engine in startable("serve")] == ["llama.cpp", "vllm", "mlx"]
