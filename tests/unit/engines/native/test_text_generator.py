"""StreamTextGenerator: a prompt that continues the last one is not read again; messages and counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.runnable import write_chatting

from edgekit.bill.types import Load
from edgekit.engines.chat import Fitted, GenerationResult, Message, Prompt, Sampling
from edgekit.engines.native import text as text_module
from edgekit.engines.native.generator import StreamEngine, open_stream
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.engines.native.text import StreamTextGenerator, open_text

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chatting(tmp_path_factory.mktemp("generator") / "model.gguf", tied=False)


@pytest.fixture
def generator(model: Path) -> Iterator[StreamTextGenerator]:
    setup = StreamSetup(threads=1, rolling=True, sinks=2, keep_bytes=None)
    load = Load(context_tokens=64, microbatch_tokens=8)
    with open_text(model) as text, open_stream(model, load=load, setup=setup) as engine:
        yield StreamTextGenerator(engine=engine, text=text)


def write(
    generator: StreamTextGenerator, tokens: Sequence[int], written: GenerationResult | None = None
) -> str:
    into = written or GenerationResult()
    fitted = Fitted(prompt=Prompt(text="unused"), tokens=tuple(tokens), max_tokens=4)
    return "".join(generator.write(fitted, GREEDY, into=into))


def test_text_generator_reads_only_the_new_part_of_a_prompt(
    generator: StreamTextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[int] = []
    real = StreamEngine.feed

    def counting(self: StreamEngine, tokens: Sequence[int], *rest: object) -> object:
        fed.append(len(tokens))
        return real(self, tokens, *rest)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(StreamEngine, "feed", counting)
    first = generator.tokens(Prompt(text="hello there"))
    write(generator, first)
    again = [*generator._read, *generator.tokens(Prompt(text=" and more"))]
    fed.clear()
    output = write(generator, again)
    assert fed[0] == len(again) - len(first) - 3  # of the four tokens written, the last was not fed
    generator.engine.reset()
    generator._read.clear()
    assert write(generator, again) == output


def test_text_generator_reads_everything_again_after_an_interrupt(
    generator: StreamTextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = generator.tokens(Prompt(text="a long text that fills the window " * 8))
    expected = write(generator, [*tokens, *tokens])
    generator.engine.reset()
    generator._read.clear()

    def interrupted_generate(
        engine: StreamEngine, fed: Sequence[int], *_: object, **__: object
    ) -> Iterator[int]:
        def stop(share: float) -> None:
            if engine.position > 64:
                raise KeyboardInterrupt

        engine.feed(fed, stop)
        raise AssertionError("feed was not interrupted")
        yield 0

    with monkeypatch.context() as patch:
        patch.setattr(text_module, "generate", interrupted_generate)
        with pytest.raises(KeyboardInterrupt):
            write(generator, tokens)
    assert generator.engine.needs_reset
    assert write(generator, [*tokens, *tokens]) == expected


def test_text_generator_discards_a_partial_character_of_the_last_answer(
    generator: StreamTextGenerator,
) -> None:
    generator.text.pieces._decoder.decode(b"\xf0\x9f")
    tokens = generator.tokens(Prompt(text="hello"))
    assert not write(generator, tokens).startswith("\N{REPLACEMENT CHARACTER}")


def test_text_generator_applies_the_chat_template_to_messages(
    generator: StreamTextGenerator,
) -> None:
    prompt = Prompt(messages=(Message(role="user", content="Hi"),))
    plain = generator.tokens(Prompt(text="<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"))
    assert generator.tokens(prompt) == plain
    written = GenerationResult()
    write(generator, plain, written)
    assert (written.prompt_tokens, written.new_tokens) == (len(plain), 4)
    assert written.finish == "length"
