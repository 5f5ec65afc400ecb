"""A conversation with the built-in engine: what is read again, and what is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.runnable import write_chatting

from edgekit.bill.types import Load
from edgekit.engines.chat import GenerationResult, Message, Prompt, Sampling
from edgekit.engines.native import text as talking
from edgekit.engines.native.generator import StreamEngine, open_stream
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.engines.native.text import StreamTextGenerator, open_text

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chatting(tmp_path_factory.mktemp("talk") / "talk.gguf", tied=False)


@pytest.fixture
def generator(model: Path) -> Iterator[StreamTextGenerator]:
    setup = StreamSetup(threads=1, rolling=True, sinks=2, keep_bytes=None)
    load = Load(context_tokens=64, microbatch_tokens=8)
    with open_text(model) as text, open_stream(model, load=load, setup=setup) as engine:
        yield StreamTextGenerator(engine=engine, text=text)


def said(
    generator: StreamTextGenerator, tokens: Sequence[int], written: GenerationResult | None = None
) -> str:
    into = written or GenerationResult()
    return "".join(generator.write(tokens, GREEDY, max_tokens=4, into=into))


def test_a_prompt_that_goes_on_is_not_read_again(
    generator: StreamTextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[int] = []
    real = StreamEngine.feed

    def counting(self: StreamEngine, tokens: Sequence[int], *rest: object) -> object:
        fed.append(len(tokens))
        return real(self, tokens, *rest)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(StreamEngine, "feed", counting)
    first = generator.tokens(Prompt(text="hello there"))
    said(generator, first)
    again = [*generator._read, *generator.tokens(Prompt(text=" and more"))]
    fed.clear()
    whole = said(generator, again)
    assert fed[0] == len(again) - len(first) - 3  # four were written, and the last of them not read
    generator.engine.reset()
    generator._read.clear()
    assert said(generator, again) == whole


def test_after_a_prompt_was_broken_off_all_is_read_again(
    generator: StreamTextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = generator.tokens(Prompt(text="a long text that fills the window " * 8))
    expected = said(generator, [*tokens, *tokens])
    generator.engine.reset()
    generator._read.clear()

    def broken(engine: StreamEngine, fed: Sequence[int], *_: object, **__: object) -> Iterator[int]:
        def stop(share: float) -> None:
            if engine.position > 64:
                raise KeyboardInterrupt

        engine.feed(fed, stop)
        raise AssertionError("it was to be broken off")
        yield 0

    with monkeypatch.context() as patch:
        patch.setattr(talking, "generate", broken)
        with pytest.raises(KeyboardInterrupt):
            said(generator, tokens)
    assert generator.engine.needs_reset
    assert said(generator, [*tokens, *tokens]) == expected


def test_half_a_letter_of_an_answer_that_was_left_is_forgotten(
    generator: StreamTextGenerator,
) -> None:
    generator.text.pieces._decoder.decode(b"\xf0\x9f")
    tokens = generator.tokens(Prompt(text="hello"))
    assert not said(generator, tokens).startswith("\N{REPLACEMENT CHARACTER}")


def test_messages_are_written_as_the_model_was_taught(generator: StreamTextGenerator) -> None:
    request = Prompt(messages=(Message(role="user", content="Hi"),))
    plain = generator.tokens(Prompt(text="<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"))
    assert generator.tokens(request) == plain
    written = GenerationResult()
    said(generator, plain, written)
    assert (written.prompt_tokens, written.new_tokens) == (len(plain), 4)
    assert written.finish == "length"
