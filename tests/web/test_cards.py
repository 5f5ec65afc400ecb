"""Cards equal plans, come in order of rank, are shared_cards between streams, and survive a crash of their worker."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import replace
from itertools import islice
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.web.model_files import write_model
from tests.web.serving import LOCAL, ask, events, start

from edgekit.cli import main
from edgekit.engines import engine_named
from edgekit.index import checked_entries, read_index
from edgekit.index.names import find_entry
from edgekit.index.types import Index
from edgekit.machine.types import Machine
from edgekit.plan.recommend import rank_of, smallest_bytes
from edgekit.request import Request as ModelRequest
from edgekit.web.cards import (
    KEPT_MACHINES,
    MOST_FOLLOWED,
    MOST_STARTS,
    Card,
    CardOrder,
    Cards,
    Deck,
    Maker,
    sort_entries,
    work,
)
from edgekit.web.failures import TooManyError
from edgekit.web.jobs import JobEvent
from edgekit.web.serving import warm

SMALL = ModelRequest(ram="2G")
PATH = "/api/v1/cards/events"


# --- contents of a card

# Models that fit on the GPU, fit in part, do not fit, or fit only in few bits; MoE, state-space and embedding models.
SAMPLES = {
    ("qwen3-8b", "mixtral-8x7b", "nomic-embed-text-v1.5", "mamba-2.8b"): (
        "--device", "RTX 4090", "--ram", "64G",
    ),
    ("gemma-3-27b",): ("--device", "2x RTX 3090", "--ram", "32G"),
    ("gpt-oss-20b", "qwen2.5-32b"): ("--device", "m3-max-36"),
    ("llama-3.1-8b", "phi-3-small-8k-instruct", "qwen2.5-14b"): ("--ram", "8G"),
}  # fmt: skip
OTHER_ENGINES = {
    ("qwen3-8b", "llama-3.1-70b"): ("--device", "RTX 4090", "--engine", "vllm"),
    ("qwen3-32b", "phi-3-mini-4k", "nomic-embed-text-v1.5"): (
        "--device",
        "m3-max-36",
        "--engine",
        "mlx",
    ),
}


@pytest.mark.parametrize(("ids", "words"), [*SAMPLES.items(), *OTHER_ENGINES.items()])
def test_card_equals_the_plan(
    capsys: pytest.CaptureFixture[str], ids: tuple[str, ...], words: tuple[str, ...]
) -> None:
    fields = dict(zip(words[::2], words[1::2], strict=True))
    engine = fields.get("--engine", "llama.cpp")
    devices = tuple(filter(None, [fields.get("--device")]))
    machine = ModelRequest(devices=devices, ram=fields.get("--ram")).find_machine()
    cards = {card["id"]: card for card in cards_of(ids, request_for(machine, engine))}
    assert set(cards) == set(ids)
    for name, card in cards.items():
        main(["plan", f"catalog:{name}", "--engine", engine, "--no-drafter", "--json", *words])
        plan = json.loads(capsys.readouterr().out)
        if "error" in plan:
            assert (card["status"], card["told"]) == ("refused", plan["error"]["message"])
            continue
        assert card["status"] == plan["status"]
        assert card["variant"] == plan["variant"]["name"]
        assert card["is_good"] == plan["variant"]["is_good"]
        assert card["context_tokens"] == plan["context_tokens"]
        assert card["way"] == plan["way"]
        assert card["cache"] in {plan["cache"]["name"], "bfloat16", None}
        assert card["speed"] == (plan["speed"] and without_because(plan["speed"]))
        assert [bar["required_bytes"] for bar in card["bars"]] == [
            budget["required_bytes"] for budget in plan["budgets"]
        ]


def request_for(machine: Machine, engine: str = "llama.cpp", **limits: Any) -> ModelRequest:
    return ModelRequest(machine=machine, engines=(engine,), **limits)


def cards_of(ids: tuple[str, ...], request: ModelRequest) -> Iterator[Card]:
    catalog = Index(entries=tuple(find_entry(name) for name in ids))
    return Maker(LOCAL).cards(request, catalog.entries)


def without_because(speed: dict[str, Any]) -> dict[str, Any]:
    left_out = {"because", "users", "speculative"}  # of a plan's JSON, not of a card
    return {name: value for name, value in speed.items() if name not in left_out}


def test_cards_respect_reserve_and_max_use() -> None:
    machine = ModelRequest(devices=("RTX 4060",), ram="32G").find_machine()
    default, no_reserve, half = (
        next(cards_of(("llama-3.1-8b",), request_for(machine, **limits)))["bars"][0]
        for limits in ({}, {"reserve_bytes": 0}, {"max_use": 0.5})
    )
    assert no_reserve["available_bytes"] == default["free_bytes"]
    assert half["utilization"] <= 0.5 < default["utilization"]


def test_model_that_cannot_run_has_a_card_with_the_reason() -> None:
    request = request_for(SMALL.find_machine())
    (card,) = cards_of(("phi-3-small-8k-instruct",), request)
    assert (card["status"], card["variant"], card["bars"]) == ("refused", None, [])
    assert "no GGUF of it to run" in card["told"]
    assert card["entry"]["family"] == find_entry("phi-3-small-8k-instruct").family


def test_unexpected_error_for_one_model_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def break_down(*_: object) -> None:
        raise ZeroDivisionError

    maker, request = Maker(LOCAL), request_for(SMALL.find_machine())
    entries = [find_entry("qwen3-0.6b"), find_entry("qwen2.5-0.5b")]
    monkeypatch.setattr("edgekit.web.cards.task_to_plan", break_down)
    cards = list(maker.cards(request, entries))
    assert [card["status"] for card in cards] == ["refused", "refused"]
    assert "internal error in EdgeKit" in cards[0]["told"]


def test_cards_already_made_are_skipped() -> None:
    entries = [find_entry("qwen3-0.6b"), find_entry("qwen2.5-0.5b")]
    cards = Maker(LOCAL).cards(
        request_for(SMALL.find_machine()), entries, frozenset({"qwen3-0.6b"})
    )
    assert [card["id"] for card in cards] == ["qwen2.5-0.5b"]


def test_cards_sort_in_the_order_of_recommend(capsys: pytest.CaptureFixture[str]) -> None:
    """Sorted as the page sorts them, the first cards are the suggestions of `edgekit recommend`."""
    machine = ("--device", "RTX 4090", "--ram", "64G")
    assert main(["recommend", *machine, "--all-sizes", "--limit", "4", "--json"]) == 0
    best = [suggestion["id"] for suggestion in json.loads(capsys.readouterr().out)["suggestions"]]
    request = request_for(ModelRequest(devices=("RTX 4090",), ram="64G").find_machine())
    cards = list(cards_of(tuple({*best, "step-3.7-flash", "qwen3.5-122b-a10b"}), request))
    sort_keys = {
        card["id"]: (
            card["status"] == "failed",
            not card["is_good"],
            not card["is_notable"],
            -card["worth"],
        )
        for card in cards
    }
    assert sorted(sort_keys, key=lambda name: (sort_keys[name], name))[:4] == best
    assert sort_keys["step-3.7-flash"][0]  # does not fit: it would need fewer than four bits


def test_sort_entries_by_where_they_fit_then_by_rank() -> None:
    machine = ModelRequest(devices=("RTX 4090",), ram="64G").find_machine()
    entries = sort_entries(read_index().entries, machine, "llama.cpp")
    capacities = (machine.devices[0].free_bytes, engine_named("llama.cpp").capacity_bytes(machine))
    # 0: fits the GPU; 1: fits all memory; 2: does not fit.
    groups = [sum(smallest_bytes(entry) > size for size in capacities) for entry in entries]
    assert groups == sorted(groups)
    assert set(groups) == {0, 1, 2}
    for number in (0, 1, 2):
        ranks = [
            rank_of(entry) for entry, group in zip(entries, groups, strict=True) if group == number
        ]
        assert ranks == sorted(ranks, reverse=True)


@pytest.fixture
def users_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a model that the user added to the catalog as "mine"."""
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "data"))
    file = write_model(tmp_path)
    main(["catalog", "add", str(file), "--id", "mine"])
    return file


@pytest.mark.usefixtures("users_model")
def test_card_of_a_users_model_needs_its_file_inside_models_dir(tmp_path: Path) -> None:
    request = request_for(ModelRequest(ram="32G").find_machine())
    entries = [find_entry("mine")]
    (outside,) = Maker(LOCAL).cards(request, entries)
    assert outside["status"] == "refused"
    assert "--models-dir" in outside["told"]
    (inside,) = Maker(replace(LOCAL, models_dirs=(tmp_path,))).cards(request, entries)
    assert (inside["status"], inside["variant"]) == ("passed", "Q4_K_M")
    # No `mix`: the file determines the weights.
    assert set(inside["flags"]) <= {"context", "type_k", "type_v"}


def test_card_of_a_public_server_shows_no_folder(users_model: Path, tmp_path: Path) -> None:
    users_model.write_bytes(b"GGUF" + b"\xff" * 60)
    request = request_for(ModelRequest(ram="32G").find_machine())
    public = replace(LOCAL, host="0.0.0.0", models_dirs=(tmp_path.resolve(),))
    (card,) = Maker(public).cards(request, [find_entry("mine")])
    assert card["status"] == "refused"
    assert card["told"].startswith(f"{users_model.name}: GGUF version")


# --- the stream of events


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with start(LOCAL) as result:
        yield result


# Models in few bits, on one of two GPUs, that do not fit, with the KV cache in RAM; and of the other engines.
CHECKED = {
    ("step-3.7-flash", "qwen3-8b", "e5-mistral-7b-instruct"): {
        "device": ["2x RTX 3090"],
        "ram": "64G",
    },
    ("command-r-35b",): {"device": ["RTX 3090", "RTX 4060"], "ram": "32G"},
    ("bloom",): {"device": ["RTX 4090"], "ram": "64G"},
    ("qwen2.5-14b", "nomic-embed-text-v1.5"): {"ram": "8G"},
    ("qwen3-8b", "qwen3-14b"): {"device": ["RTX 4090"], "ram": "64G", "engine": "vllm"},
    ("qwen3-32b", "gpt-oss-20b", "qwen2.5-72b"): {"device": ["m3-max-36"], "engine": "mlx"},
}


@pytest.mark.parametrize(("ids", "fields"), CHECKED.items())
def test_check_with_the_flags_of_a_card_gives_the_same_verdict(
    address: str, ids: tuple[str, ...], fields: dict[str, Any]
) -> None:
    engine = fields.get("engine", "llama.cpp")
    machine = ModelRequest(
        devices=tuple(fields.get("device", ())), ram=fields.get("ram")
    ).find_machine()
    cards = list(cards_of(ids, request_for(machine, engine)))
    assert {card["id"] for card in cards} == set(ids)
    for card in cards:
        request = {"model": f"catalog:{card['id']}", **fields, "engine": engine, **card["flags"]}
        check = ask(address, "/api/v1/check", request).json()
        assert (check["status"], check["context_tokens"]) == (
            card["status"],
            card["context_tokens"],
        )
        assert card["flags"].get("mix") == (card["variant"] if engine == "llama.cpp" else None)


def test_stream_has_machine_cards_and_end(address: str) -> None:
    machine, *cards, end = events(address, f"{PATH}?ram=8G&engine=vllm")
    assert (machine["event"], end["event"]) == ("machine", "done")
    assert {card["event"] for card in cards} == {"card"}
    assert machine["data"]["name"] == "8 GiB RAM"
    ids = {card["data"]["id"] for card in cards}
    assert ids == {entry.id for entry in checked_entries(read_index())}
    assert len(cards) == len(ids) == machine["data"]["count"] == end["data"]["count"]
    assert end["data"].keys() == {"count"}
    assert {card["data"]["status"] for card in cards} == {"refused"}
    assert "NVIDIA" in cards[0]["data"]["told"]


def test_stream_of_a_machine_with_two_gpus(address: str) -> None:
    path = f"{PATH}?device=RTX+3090&device=RTX+4090&ram=64G"
    machine, first, second = islice(events(address, path), 3)
    assert machine["data"]["name"] == "RTX 3090 + RTX 4090 + 64 GiB RAM"
    assert first["event"] == second["event"] == "card"
    assert "RAM" in {bar["memory"] for bar in first["data"]["bars"]}
    assert first["data"]["status"] in {"passed", "warning"}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("device=RTX+4091", "RTX 4090"),
        ("ram=lots", "--ram"),
        ("engine=stream", "plan"),
        ("engine=nonsense", "nonsense"),
        ("context=5", "unknown field"),
        ("ram=8G&vram=-1", "--vram"),
    ],
)
def test_invalid_query_is_refused_before_the_stream(address: str, query: str, message: str) -> None:
    answer = ask(address, f"{PATH}?{query}")
    assert (answer.status, answer.error["type"]) == (400, "UsageError")
    assert message in answer.error["message"]


def test_disconnect_stops_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    decks: list[Deck] = []

    class RecordedCards(Cards):
        def deck(self, request: ModelRequest) -> Deck:
            decks.append(super().deck(request))
            return decks[-1]

    monkeypatch.setattr("edgekit.web.calls.Cards", RecordedCards)
    with start(LOCAL) as address:
        assert len(list(islice(events(address, f"{PATH}?ram=2G"), 3))) == 3
        wait_until(lambda: not decks[0].followers)
        assert not decks[0].is_begun
        assert not decks[0].has_ended


def test_machines_followed_at_once_are_limited(shared_cards: Cards) -> None:
    async def follow_many(cards: Cards) -> None:
        async with AsyncExitStack() as following:
            for size in range(MOST_FOLLOWED):
                deck = deck_of(cards, ModelRequest(ram=f"{size + 16}G"))
                stream = await following.enter_async_context(aclosing(cards.follow(deck)))
                await anext(stream)
            deck_of(cards, ModelRequest(ram="16G"))  # one of those machines: no more work
            with pytest.raises(TooManyError):
                deck_of(cards, ModelRequest(ram="64G"))

    asyncio.run(follow_many(shared_cards))


def test_deck_dropped_from_the_cache_can_still_be_followed(shared_cards: Cards) -> None:
    """A deck may be dropped from the cache between its request and the start of its stream."""

    async def follow_first(cards: Cards) -> None:
        sizes = range(100, 100 + KEPT_MACHINES + 4)
        decks = [deck_of(cards, ModelRequest(ram=f"{size}G")) for size in sizes]
        assert len(cards._decks) == KEPT_MACHINES
        async with aclosing(cards.follow(decks[0])) as stream, asyncio.timeout(PATIENCE_S):
            assert len(await next_cards(stream, 2)) == 2
        assert not cards._followed

    asyncio.run(follow_first(shared_cards))


def test_deck_replaced_by_a_newer_one_can_still_be_followed(
    monkeypatch: pytest.MonkeyPatch, shared_cards: Cards
) -> None:
    request = ModelRequest(ram="3G")

    async def follow_across_renewal(cards: Cards) -> None:
        first = deck_of(cards, request)
        async with aclosing(cards.follow(first)) as stream, asyncio.timeout(PATIENCE_S):
            await next_cards(stream, 1)
            monkeypatch.setattr("edgekit.web.cards.KEPT_S", 0.0)
            assert deck_of(cards, request) is not first
            before = len(first.cards)
            assert len(await next_cards(stream, before + 2)) == before + 2

    asyncio.run(follow_across_renewal(shared_cards))


def test_stream_is_in_the_openapi_document(address: str) -> None:
    spec = ask(address, "/api/v1/openapi.json").json()["paths"][PATH]["get"]
    assert list(spec["responses"]["200"]["content"]) == ["text/event-stream"]
    assert {parameter["name"] for parameter in spec["parameters"]} == {
        "device",
        "ram",
        "vram",
        "cpu",
        "engine",
        "max_use",
        "reserve",
    }


def test_warm_probes_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cached: list[tuple[float, Machine]] = []
    monkeypatch.setattr("edgekit.web.calls._machine", cached)
    warm().join(PATIENCE_S)
    assert [machine.what_if for _, machine in cached] == [False]


def test_warm_continues_after_a_failed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def break_down() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("edgekit.web.serving._STEPS", (break_down, lambda: done.append("next")))
    warm().join(PATIENCE_S)
    assert done == ["next"]


# --- the worker that makes the cards


@contextmanager
def opened_cards() -> Iterator[Cards]:
    cards = Cards(LOCAL)
    try:
        yield cards
    finally:
        cards.close()


@pytest.fixture(scope="module")
def shared_cards() -> Iterator[Cards]:
    """One worker for all tests that do not end it. Each test uses its own machines."""
    with opened_cards() as cards:
        yield cards


def deck_of(cards: Cards, request: ModelRequest = SMALL) -> Deck:
    return cards.deck(request_for(request.find_machine()))


async def next_cards(stream: AsyncIterator[JobEvent], count: int) -> list[str]:
    """The ids of the next `count` cards."""
    ids: list[str] = []
    async for event in stream:
        assert event.name != "failed", event.data
        if event.name == "card":
            ids.append(json.loads(event.data)["id"])
            if len(ids) == count:
                break
    return ids


def test_streams_of_one_machine_share_the_work(shared_cards: Cards) -> None:
    async def listen(cards: Cards) -> None:
        deck = deck_of(cards, ModelRequest(ram="5G"))
        assert deck_of(cards, ModelRequest(ram="5G")) is deck
        async with aclosing(cards.follow(deck)) as early, aclosing(cards.follow(deck)) as late:
            first_ids = await next_cards(early, 3)
            more_ids, late_ids = await asyncio.gather(next_cards(early, 3), next_cards(late, 6))
            assert [*first_ids, *more_ids] == late_ids
        assert len({str(card["id"]) for card in deck.cards}) == len(deck.cards)

    asyncio.run(listen(shared_cards))


def test_unfollowed_deck_pauses_and_resumes(shared_cards: Cards) -> None:
    async def leave_and_return(cards: Cards) -> None:
        deck = deck_of(cards, ModelRequest(ram="6G"))
        async with aclosing(cards.follow(deck)) as stream:
            first_ids = await next_cards(stream, 2)
        count = len(deck.cards)
        assert not deck.is_begun
        async with aclosing(cards.follow(deck_of(cards, ModelRequest(ram="7G")))) as other:
            await next_cards(other, 3)  # the worker goes on, but not with the first deck
        assert len(deck.cards) == count
        async with aclosing(cards.follow(deck)) as stream:
            ids = await next_cards(stream, count + 2)
        assert ids[:2] == first_ids
        assert len(set(ids)) == len(ids)

    asyncio.run(leave_and_return(shared_cards))


def test_two_machines_get_cards_in_turn(shared_cards: Cards) -> None:
    async def listen(cards: Cards) -> None:
        small, large = (deck_of(cards, ModelRequest(ram=size)) for size in ("9G", "10G"))
        async with aclosing(cards.follow(small)) as first, aclosing(cards.follow(large)) as second:
            await asyncio.gather(next_cards(first, 3), next_cards(second, 3))
        assert not small.is_done
        assert not large.is_done

    asyncio.run(listen(shared_cards))


def kill(cards: Cards) -> None:
    process = cards.process
    assert process is not None
    process.kill()
    wait_until(lambda: not process.is_alive())


def test_killed_worker_is_replaced() -> None:
    async def listen(cards: Cards) -> None:
        deck = deck_of(cards)
        async with aclosing(cards.follow(deck)) as stream:
            before = await next_cards(stream, 2)
            kill(cards)
            after = await next_cards(stream, len(deck.cards))
        assert len({*before, *after}) == len(before) + len(after)

    with opened_cards() as cards:
        asyncio.run(listen(cards))


def wait_for_crashes(deck: Deck, count: int) -> None:
    wait_until(lambda: deck.starts >= count)


def test_worker_that_keeps_crashing_is_given_up() -> None:
    def kill_each(cards: Cards, deck: Deck) -> None:
        for count in range(1, MOST_STARTS + 1):
            wait_until(lambda: cards.process is not None)
            kill(cards)
            wait_for_crashes(deck, count)

    async def listen(cards: Cards) -> JobEvent:
        deck = deck_of(cards)
        async with aclosing(cards.follow(deck)) as stream:
            await anext(stream)
            await asyncio.to_thread(kill_each, cards, deck)
            return [event async for event in stream][-1]

    with opened_cards() as cards:
        last = asyncio.run(listen(cards))
        assert not deck_of(cards).fault  # the next request gets a new deck
    assert last.name == "failed"
    assert "keeps crashing" in json.loads(last.data)["error"]["message"]


def test_close_ends_streams_and_the_process() -> None:
    async def listen(cards: Cards) -> JobEvent:
        async with aclosing(cards.follow(deck_of(cards))) as stream:
            await next_cards(stream, 1)
            process = cards.process
            assert process is not None
            threading.Thread(target=cards.close).start()
            last = [event async for event in stream][-1]
            wait_until(lambda: not process.is_alive())
            return last

    before = set(multiprocessing.active_children())
    with opened_cards() as cards:
        last = asyncio.run(listen(cards))
        assert last.name == "failed"
        assert "stopped" in json.loads(last.data)["error"]["message"]
        assert cards.process is None
        cards.close()  # idempotent
    assert set(multiprocessing.active_children()) <= before


def test_cards_are_made_in_a_thread_if_no_process_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: SpawnProcess) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(SpawnProcess, "start", refuse)

    async def listen(cards: Cards) -> None:
        async with aclosing(cards.follow(deck_of(cards))) as stream:
            assert len(await next_cards(stream, 2)) == 2
        assert cards.process is None

    with opened_cards() as cards:
        asyncio.run(listen(cards))


def test_idle_worker_ends() -> None:
    server_end, worker_end = multiprocessing.Pipe()
    with server_end:
        work(worker_end, settings=LOCAL, idle_s=0.05)
        with pytest.raises(EOFError):
            server_end.recv()


def test_idle_worker_whose_server_is_gone_ends() -> None:
    server_end, worker_end = multiprocessing.Pipe()
    server_end.close()
    worker = threading.Thread(
        target=work,
        args=(worker_end,),
        kwargs={"settings": LOCAL, "idle_s": 10 * PATIENCE_S},
        daemon=True,
    )
    worker.start()
    worker.join(PATIENCE_S)
    assert not worker.is_alive()


def test_busy_worker_whose_server_is_gone_ends() -> None:
    server_end, worker_end = multiprocessing.Pipe()
    worker = threading.Thread(target=work, args=(worker_end,), kwargs={"settings": LOCAL})
    worker.start()
    server_end.send(CardOrder(7, request_for(SMALL.find_machine()), frozenset()))
    number, card = server_end.recv()
    assert (number, card is None) == (7, False)
    server_end.close()
    worker.join(PATIENCE_S)
    assert not worker.is_alive()
