"""One model -> what every engine allocates for the same load."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from edgekit.app.estimate import EstimateAnswer, estimate_named
from edgekit.app.open import open_named
from edgekit.engines import every_engine
from edgekit.engines.flags import read_flags
from edgekit.errors import EdgekitError
from edgekit.plan.fit import DEFAULT_TOKENS
from edgekit.request import Request, Session
from edgekit.sources.types import Container


class EngineComparison(NamedTuple):
    """One load of one model on every engine."""

    label: str
    context_tokens: int
    users: int
    answers: dict[str, EstimateAnswer | EdgekitError]  # engine -> its bill, or why there is none
    hint: str = ""  # how to get answers from the engines that have none
    notes: tuple[str, ...] = ()  # how the name was understood


def compare(reference: str, request: Request, session: Session) -> EngineComparison:
    """One answer per engine, which may be an error; the built-in engine is left out if it cannot run the model.

    Raises EdgekitError if all engines fail.
    """
    resolved = open_named(reference, session, quant=request.quant)
    opened = resolved.as_file(resolved.engine())
    native = opened.model.geometry.native_context or DEFAULT_TOKENS
    context = request.context or min(native, DEFAULT_TOKENS)
    answers: dict[str, EstimateAnswer | EdgekitError] = {}
    same_load = replace(request, context=context, devices=(), vram=None)
    for rules in every_engine():
        # By default one sequence, with weights and cache on the GPU.
        sequences = rules.one_sequence if request.users is None else {}
        engine, default = rules.name, read_flags(rules.flags, {**rules.on_gpu, **sequences})
        on_engine = same_load.with_flags(engine, {**default, **request.flags.get(engine, {})})
        try:
            answers[engine] = estimate_named(resolved, on_engine, session)
        except EdgekitError as error:
            if rules.page.is_compared:
                answers[engine] = error
    errors = [answer for answer in answers.values() if isinstance(answer, EdgekitError)]
    if len(errors) == len(answers):
        raise errors[0]
    hint = ""
    if resolved.found is not None and opened.model.header.container is Container.GGUF:
        hint = "For vLLM and MLX give the repository that this file was converted from."
    return EngineComparison(
        label=opened.label,
        context_tokens=context,
        users=request.users or 1,
        answers=answers,
        hint=hint,
        notes=resolved.notes,
    )
