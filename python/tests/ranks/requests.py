"""Calls in the background."""

import asyncio
import gc
import threading
import time

import numpy as np
import pytest

import comity


def check_order_is_kept(g: comity.Group) -> None:
    x = np.ones(10_000, np.float32)
    pending = [g.all_reduce(x * i, async_=True) for i in range(20)]
    now = g.all_sum(x * 100)
    assert all(p.done() for p in pending), "a call waits for those before it"
    for i, p in enumerate(pending):
        np.testing.assert_array_equal(p.wait(), x * i * g.size)
        assert p.exception() is None
        assert p.wait() is p.wait()
    np.testing.assert_array_equal(now, x * 100 * g.size)


def check_memory_lives_as_long_as_the_call(g: comity.Group) -> None:
    requests = []
    for i in range(50):
        requests.append(g.all_sum(np.full(100_000, i, np.float32), async_=True))
        if i % 2:
            # Forgotten: the call goes on and nothing it uses is freed.
            requests.pop()
    gc.collect()
    for k, request in enumerate(requests):
        result = request.wait()
        assert result[0] == result[-1] == 2 * k * g.size


def check_callbacks_may_make_calls(g: comity.Group) -> None:
    ended = threading.Event()
    seen: list = []

    def then(request: comity.Request) -> None:
        seen.append(request.wait())
        # All ranks make this call here, after the first and before the barrier below.
        seen.append(g.all_sum(10, async_=True).wait())
        ended.set()

    g.all_sum(1, async_=True).add_done_callback(then)
    assert ended.wait(30)
    assert seen == [g.size, 10 * g.size]
    late: list = []
    request = g.barrier(async_=True)
    request.wait()
    request.add_done_callback(late.append)
    assert late == [request]


def check_await(g: comity.Group) -> None:
    async def work() -> list:
        first = g.all_sum(np.ones(5), async_=True)
        second = g.all_gather(g.rank, async_=True)
        return [await second, (await first)[0], await g.barrier(async_=True)]

    assert asyncio.run(work()) == [list(range(g.size)), g.size, None]

    async def many() -> list:
        return await asyncio.gather(*(_of(g.all_sum(i, async_=True)) for i in range(30)))

    async def _of(request: comity.Request) -> int:
        return await request

    assert asyncio.run(many()) == [i * g.size for i in range(30)]


def check_waits_have_limits(g: comity.Group) -> None:
    if g.size == 1:
        return
    # The others do not come to it before this rank has looked.
    other = g.split(0)
    assert other is not None
    if g.rank == 0:
        request = other.barrier(async_=True)
        start = time.monotonic()
        with pytest.raises(comity.TimeoutError, match="still under way"):
            request.wait(timeout=0.05)
        # The call's own limit is 60 s.
        assert time.monotonic() - start < 30
        assert not request.done()
        assert request.exception() is None
        g.barrier()
        if g.size == 2:
            other.sendrecv(0, 1, 1, tag=1)
        request.wait()
    else:
        g.barrier()
        other.barrier()
        if g.size == 2:
            other.sendrecv(0, 0, 0, tag=1)


def check_results_of_failed_checks(g: comity.Group) -> None:
    request = g.all_sum(np.ones(3, np.float32), async_=True)
    request.wait()
    with pytest.raises(comity.MisuseError, match="not defined"):
        g.all_reduce(np.ones(3, np.float32), "xor", async_=True).wait()
    failed = g.all_reduce(np.ones(3, np.float32), "xor", async_=True)
    while not failed.done():
        time.sleep(0.001)
    assert isinstance(failed.exception(), comity.MisuseError) and failed.exception().rank == g.rank
    with pytest.raises(comity.MisuseError, match="more than 0 seconds") as e:
        request.wait(-1)
    assert e.value.rank == g.rank
    assert g.all_sum(1) == g.size


def check_many_threads(g: comity.Group) -> None:
    # Each thread has a group of its own, so their calls have an order of their own.
    groups = [g.split(0, 0) for _ in range(3)]
    found: list = [None] * 3

    def work(i: int) -> None:
        found[i] = [groups[i].all_sum(np.full(1000, k + i))[0] for k in range(30)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert found == [[(k + i) * g.size for k in range(30)] for i in range(3)]
