"""Queries that wait are searched together, and none suffers from another."""

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loops import run_apart

from eaglenet.search.hit import Hit, Moment
from eaglenet.search.options import Filters, SearchOptions
from eaglenet.search.query import Query
from eaglenet.serve.batching import Batcher


class SlowEngine:
    """Answers each query with hits named after it; holds the first call until told."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int, SearchOptions | None]] = []
        self.go = threading.Event()
        self.threads: set[int] = set()

    def search_many(
        self, queries: Sequence[Query], k: int = 10, *, options: SearchOptions | None = None
    ) -> list[list[Hit]]:
        texts = [query.title for query in queries]
        self.calls.append((texts, k, options))
        self.threads.add(threading.get_ident())
        assert self.go.wait(60)
        if "bad" in texts:
            raise ValueError("bad query")
        return [[hit(f"{text} {rank}", rank) for rank in range(1, k + 1)] for text in texts]


def make_queries(*texts: str) -> list[Query]:
    return [Query(text) for text in texts]


def hit(clip_id: str, rank: int) -> Hit:
    return Hit(rank, clip_id, "/a", 1.0, 1.0, Moment(0.0, 1.0, 0.5), 2.0)


async def started(batcher: Batcher, engine: SlowEngine, *queries: str) -> list[asyncio.Task[Any]]:
    """One query that keeps the engine busy, then the others behind it."""
    first = asyncio.create_task(batcher.search(make_queries("first"), 2, SearchOptions()))
    while not engine.calls:
        await asyncio.sleep(0.001)
    others = [
        asyncio.create_task(batcher.search(make_queries(q), 3, SearchOptions())) for q in queries
    ]
    await asyncio.sleep(0.01)
    return [first, *others]


def test_queries_that_wait_are_answered_in_one_call() -> None:
    async def scenario() -> None:
        engine = SlowEngine()
        sizes: list[int] = []
        batcher = Batcher(engine, on_batch=sizes.append)
        tasks = await started(batcher, engine, "a", "b", "c", "d")
        engine.go.set()
        found = await asyncio.gather(*tasks)
        assert [call[0] for call in engine.calls] == [["first"], ["a", "b", "c", "d"]]
        assert sizes == [1, 4]
        assert [each.hits[0][0].clip_id for each in found] == [
            "first 1",
            "a 1",
            "b 1",
            "c 1",
            "d 1",
        ]
        assert [len(each.hits[0]) for each in found] == [2, 3, 3, 3, 3]
        assert len(engine.threads) == 1
        await batcher.close()

    run_apart(scenario())


def test_only_queries_with_the_same_options_go_together() -> None:
    async def scenario() -> None:
        engine = SlowEngine()
        batcher = Batcher(engine, max_batch=3)
        batcher._divisor = lambda size: 1  # type: ignore[method-assign]
        first = await started(batcher, engine)
        odd = SearchOptions(Filters(tags=("odd",)), True)
        tasks = [
            asyncio.create_task(batcher.search(make_queries(*queries), k, options))
            for queries, k, options in (
                (["a"], 5, SearchOptions()),
                (["b"], 5, odd),
                (["c"], 150, SearchOptions()),
                (["d", "e"], 7, SearchOptions()),
                (["f"], 7, SearchOptions()),
            )
        ]
        await asyncio.sleep(0.01)
        engine.go.set()
        found = await asyncio.gather(*tasks)
        await asyncio.gather(*first)
        calls = engine.calls[1:]
        # A wider shortlist could change the ranking, so the query for 150 stands alone.
        assert [(call[0], call[1]) for call in calls] == [
            (["a", "d", "e"], 7),
            (["b"], 5),
            (["c"], 150),
            (["f"], 7),
        ]
        assert calls[1][2] == odd
        assert calls[0][2] == SearchOptions()
        assert [len(each.hits[0]) for each in found] == [5, 5, 150, 7, 7]
        assert found[3].hits[1][0].clip_id == "e 1"
        await batcher.close()

    run_apart(scenario())


def test_one_bad_query_does_not_spoil_the_others() -> None:
    async def scenario() -> None:
        engine = SlowEngine()
        batcher = Batcher(engine)
        tasks = await started(batcher, engine, "a", "bad", "b")
        engine.go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[2], ValueError)
        assert [each.hits[0][0].clip_id for each in (found[1], found[3])] == ["a 1", "b 1"]
        await batcher.close()

    run_apart(scenario())


def test_who_gave_up_is_not_searched_for() -> None:
    async def scenario() -> None:
        engine = SlowEngine()
        batcher = Batcher(engine)
        first, gone, stays = await started(batcher, engine, "gone", "stays")
        gone.cancel()
        await asyncio.sleep(0)
        engine.go.set()
        await asyncio.gather(first, stays)
        assert engine.calls[1][0] == ["stays"]
        await batcher.close()

    run_apart(scenario())


def test_closing_answers_what_waits_and_takes_no_more() -> None:
    async def scenario() -> None:
        engine = SlowEngine()
        batcher = Batcher(engine)
        tasks = await started(batcher, engine, "a")
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="shutting down"):
            await batcher.search(make_queries("late"), 1, SearchOptions())
        engine.go.set()
        found = await asyncio.gather(*tasks)
        assert found[1].hits[0][0].clip_id == "a 1"
        await closing

    run_apart(scenario())


def test_a_long_line_cuts_the_shortlists_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine the calls of this engine would take time, too.
    stopped = SimpleNamespace(perf_counter=lambda: 0.0)
    monkeypatch.setattr("eaglenet.serve.batching.time", stopped)

    async def scenario() -> None:
        engine = SlowEngine()
        engine.go.set()
        batcher = Batcher(engine, max_batch=4)
        batcher.seconds_per_query = {1: 0.1}
        options = SearchOptions()
        asked = [batcher.search(make_queries(f"q{number}"), 30, options) for number in range(24)]
        found = await asyncio.gather(*asked, batcher.search(make_queries("wide"), 60, options))
        widths = [call[2].shortlist for call in engine.calls]
        # 25 queries of 0.1 s make more than 2 s of work, 8 queries less; the last is alone in line,
        # and wider: half of its clips may be folded.
        assert widths == [30, 30, 50, 50, 50, 50, 120]
        assert {each.shortlist for each in found} == set(widths)
        assert all(len(each.hits[0]) == 30 for each in found[:-1])
        await batcher.close()

    run_apart(scenario())


def test_the_time_of_cut_shortlists_does_not_count_for_whole_ones() -> None:
    """A search takes as long for its text and its scan however few clips are ranked exactly."""

    async def scenario() -> None:
        engine = SlowEngine()
        engine.go.set()
        batcher = Batcher(engine)
        batcher.seconds_per_query = {1: 0.09, 2: 0.08, 4: 0.07, 8: 0.06}
        assert [batcher._divisor(queries) for queries in (1, 2, 25, 26, 57, 58)] == [
            *(1, 2, 2, 4, 4, 8)
        ]
        await batcher.close()

    run_apart(scenario())


def test_workers_share_the_line_and_the_cores() -> None:
    """Six queries wait for two workers: three each, at the same time, on a core each."""

    class Meeting(SlowEngine):
        def __init__(self) -> None:
            super().__init__()
            self.both = threading.Barrier(2, timeout=60)
            self.cores: list[int] = []

        def search_many(
            self, queries: Sequence[Query], k: int = 10, *, options: SearchOptions | None = None
        ) -> list[list[Hit]]:
            self.cores.append(torch.get_num_threads())
            self.both.wait()
            return super().search_many(queries, k, options=options)

    async def scenario() -> None:
        engine = Meeting()
        engine.go.set()
        batcher = Batcher(engine, workers=2)
        batcher._cores = 6
        asked = [batcher.search(make_queries(name), 2, SearchOptions()) for name in "abcdef"]
        found = await asyncio.gather(*asked)
        assert sorted(call[0] for call in engine.calls) == [["a", "b", "c"], ["d", "e", "f"]]
        assert engine.cores == [3, 3]
        assert [each.hits[0][0].clip_id for each in found] == [f"{name} 1" for name in "abcdef"]
        assert len(engine.threads) == 2
        await batcher.close()

    run_apart(scenario())
