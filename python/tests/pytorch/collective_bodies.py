"""What ranks do in `test_collectives.py`: every collective of torch.distributed, against values that each rank knows."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

VERSION = tuple(int(x) for x in torch.__version__.split(".")[:2])
NEW = VERSION >= (2, 14)
#: Torch 2.14 splits only groups that were made with a `device_id`.
SPLITS = VERSION >= (2, 15)
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ALL = [
    torch.bool,
    *INTS,
    *FLOATS,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
]


def mine(rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (3, 4)) -> torch.Tensor:
    """A tensor that tells its rank."""
    n = 1
    for s in shape:
        n *= s
    t = (torch.arange(n) % 3 + rank).reshape(shape)
    if dtype is torch.bool:
        return (t % 2).bool()
    if dtype.is_complex:
        return torch.complex(t.double(), -t.double()).to(dtype)
    return t.to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    """Equal in every element."""
    assert a.dtype == b.dtype and a.shape == b.shape, (a, b)
    if a.dtype is torch.float8_e4m3fn:
        a, b = a.view(torch.uint8), b.view(torch.uint8)
    assert torch.equal(a, b), (a, b)


def monitored_barrier(**settings: Any) -> None:
    """Torch 2.13 and older refuse it by name for every backend but gloo; the group has it all the same."""
    (dist if NEW else dist.group.WORLD).monitored_barrier(**settings)


def reductions(rank: int, size: int) -> None:
    everyone = range(size)
    R = dist.ReduceOp
    for dtype in [*INTS, *FLOATS]:
        parts = torch.stack([mine(r, dtype).double() for r in everyone])
        for op, want in [
            (R.SUM, parts.sum(0)),
            (R.PRODUCT, parts.prod(0)),
            (R.MIN, parts.amin(0)),
            (R.MAX, parts.amax(0)),
            (R.AVG, parts.sum(0) / size),
        ]:
            t = mine(rank, dtype)
            dist.all_reduce(t, op)
            exact = want.trunc() if op == R.AVG and dtype in INTS else want
            torch.testing.assert_close(t, exact.to(dtype), msg=lambda m, d=dtype, o=op: f"{d} {o}: {m}")
    for dtype in [torch.bool, *INTS]:
        for op, fold in [(R.BAND, torch.bitwise_and), (R.BOR, torch.bitwise_or), (R.BXOR, torch.bitwise_xor)]:
            t, want = mine(rank, dtype), mine(0, dtype)
            for r in range(1, size):
                want = fold(want, mine(r, dtype))
            dist.all_reduce(t, op)
            same(t, want)
    for dtype in (torch.complex64, torch.complex128):
        t = mine(rank, dtype)
        dist.all_reduce(t)
        same(t, sum(mine(r, dtype) for r in everyone))
    t = mine(rank, torch.bool)
    dist.all_reduce(t, R.MAX)
    same(t, torch.stack([mine(r, torch.bool) for r in everyone]).any(0))
    t = mine(rank, torch.float32)
    dist.all_reduce(t, dist._make_nccl_premul_sum(0.5))
    same(t, 0.5 * sum(mine(r, torch.float32) for r in everyone))


def shapes(rank: int, size: int) -> None:
    """Strides, nothing at all, numbers, conjugates, leaves of autograd."""
    total = sum(range(1, size + 1))
    t = torch.full((4, 6), rank + 1.0)
    view = t[:, ::2]
    dist.all_reduce(view)
    assert (t[:, ::2] == total).all() and (t[:, 1::2] == rank + 1).all()
    for layout in (
        t.new_full((4, 6), rank + 1.0).t(),
        torch.full((2, 3, 4, 4), rank + 1.0).to(memory_format=torch.channels_last),
    ):
        dist.all_reduce(layout)
        assert (layout == total).all()
    for shape in [(0,), (3, 0, 2), ()]:
        t = torch.full(shape, rank + 1.0)
        dist.all_reduce(t)
        same(t, torch.full(shape, float(total)))
        dist.broadcast(t, 0)
        out = torch.empty((size, *shape)) if shape else torch.empty(size)
        dist.all_gather_into_tensor(out.view(-1), t.view(-1) if t.numel() else t.reshape(-1))
        same(out, torch.full_like(out, total))
    p = torch.nn.Parameter(torch.full((3,), rank + 1.0))
    dist.all_reduce(p)
    same(p.detach(), torch.full((3,), float(total)))


def moving(rank: int, size: int) -> None:
    """Every operation that moves elements, on every type."""
    for dtype in ALL:
        everyone = [mine(r, dtype) for r in range(size)]
        me = mine(rank, dtype)
        for root in {0, size - 1}:
            t = me.clone()
            dist.broadcast(t, root)
            same(t, everyone[root])
            outs = [torch.zeros_like(me) for _ in range(size)] if rank == root else None
            dist.gather(me, outs, dst=root)
            for a, b in zip(outs or [], everyone, strict=rank == root):
                same(a, b)
            t = torch.zeros_like(me)
            dist.scatter(t, everyone if rank == root else None, src=root)
            same(t, me)
        outs = [torch.zeros_like(me) for _ in range(size)]
        dist.all_gather(outs, me)
        for a, b in zip(outs, everyone, strict=True):
            same(a, b)
        # The same into one tensor's chunks, which lie one after the other.
        flat = torch.zeros((size * 3, 4), dtype=dtype)
        dist.all_gather(list(flat.chunk(size)), me)
        other = torch.zeros_like(flat)
        dist.all_gather_into_tensor(other, me)
        same(flat, other)
        for a, b in zip(flat.chunk(size), everyone, strict=True):
            same(a, b)
        wide = mine(rank, dtype, (size, 2))
        out = torch.zeros_like(wide)
        dist.all_to_all_single(out, wide)
        for r in range(size):
            same(out[r], mine(r, dtype, (size, 2))[rank])
        outs = [torch.zeros(2, dtype=dtype) for _ in range(size)]
        dist.all_to_all(outs, list(wide.unbind()))
        for r in range(size):
            same(outs[r], mine(r, dtype, (size, 2))[rank])


def uneven(rank: int, size: int) -> None:
    outs = [torch.zeros(r + 1, 2) for r in range(size)]
    dist.all_gather(outs, torch.full((rank + 1, 2), float(rank)))
    for r, o in enumerate(outs):
        same(o, torch.full((r + 1, 2), float(r)))
    # Rank r gives j + 1 rows to rank j.
    rows = [j + 1 for j in range(size)]
    inp = torch.cat([torch.full((j + 1, 3), 10.0 * rank + j) for j in range(size)])
    out = torch.empty(size * (rank + 1), 3)
    dist.all_to_all_single(out, inp, [rank + 1] * size, rows)
    same(out, torch.cat([torch.full((rank + 1, 3), 10.0 * r + rank) for r in range(size)]))
    outs = [torch.empty(rank + 1) for _ in range(size)]
    dist.all_to_all(outs, [torch.full((j + 1,), 10.0 * rank + j) for j in range(size)])
    for r, o in enumerate(outs):
        same(o, torch.full((rank + 1,), 10.0 * r + rank))


def reduce_and_scatter(rank: int, size: int) -> None:
    R = dist.ReduceOp
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex128):
        everyone = [mine(r, dtype, (size, 5)) for r in range(size)]
        want = sum(everyone[1:], everyone[0].clone())[rank]
        out = torch.zeros(5, dtype=dtype)
        dist.reduce_scatter(out, list(mine(rank, dtype, (size, 5)).unbind()))
        same(out, want)
        out = torch.zeros(5, dtype=dtype)
        dist.reduce_scatter_tensor(out, mine(rank, dtype, (size, 5)).view(-1))
        same(out, want)
    out = torch.zeros(5)
    dist.reduce_scatter_tensor(out, mine(rank, torch.float32, (size * 5,)), R.AVG)
    torch.testing.assert_close(
        out, sum(mine(r, torch.float32, (size * 5,)) for r in range(size)).view(size, 5)[rank] / size
    )
    t = torch.full((3,), rank + 1.0)
    dist.reduce(t, size - 1)
    same(t, torch.full((3,), float(sum(range(1, size + 1))) if rank == size - 1 else rank + 1.0))
    strided = torch.full((3, 2), rank + 1.0)
    dist.reduce(strided[:, 0], 0)
    same(strided[:, 1].contiguous(), torch.full((3,), rank + 1.0))


def coalesced(rank: int, size: int) -> None:
    total = float(sum(range(1, size + 1)))
    ts = [torch.full((n,), rank + 1.0) for n in (3, 0, 7)]
    ts.append(torch.full((300_000,), rank + 1.0))
    dist.all_reduce_coalesced(ts)
    for t in ts:
        same(t, torch.full_like(t, total))
    xs = [torch.full((4,), rank + 1.0) for _ in range(3)]
    with dist._coalescing_manager() as cm:
        for x in xs:
            dist.all_reduce(x)
    outs, ins = (
        [torch.zeros(2 * size) for _ in range(2)],
        [torch.full((2,), float(rank + i)) for i in range(2)],
    )
    with dist._coalescing_manager(async_ops=True) as cm:
        for o, i in zip(outs, ins, strict=True):
            dist.all_gather_into_tensor(o, i)
    cm.wait()
    for x in xs:
        same(x, torch.full((4,), total))
    for i, o in enumerate(outs):
        same(o, torch.tensor([float(r + i) for r in range(size) for _ in range(2)]))
    outs, ins = (
        [torch.zeros(2) for _ in range(2)],
        [torch.full((2 * size,), float(rank + 1)) for i in range(2)],
    )
    with dist._coalescing_manager(async_ops=True) as cm:
        for o, i in zip(outs, ins, strict=True):
            dist.reduce_scatter_tensor(o, i)
    cm.wait()
    for o in outs:
        same(o, torch.full((2,), total))


def objects(rank: int, size: int) -> None:
    thing = {"rank": rank, "t": torch.arange(rank + 1)}
    out = [None] * size
    dist.all_gather_object(out, thing)
    assert [o["rank"] for o in out] == list(range(size)) and out[-1]["t"].numel() == size
    some = [thing, "x"] if rank == 0 else [None, None]
    dist.broadcast_object_list(some, 0)
    assert some[0]["rank"] == 0 and some[1] == "x"
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(thing, gathered, 0)
    assert rank or [g["rank"] for g in gathered] == list(range(size))
    mine_ = [None]
    dist.scatter_object_list(mine_, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
    assert mine_ == [f"for {rank}"]
    if size > 1:
        if rank == 0:
            dist.send_object_list([thing], 1)
        elif rank == 1:
            got = [None]
            dist.recv_object_list(got, 0)
            assert got[0]["rank"] == 0


def works(rank: int, size: int) -> None:
    """Work: asked, waited for, thrown away, with callbacks."""
    total = float(sum(range(1, size + 1)))
    t = torch.full((3,), rank + 1.0)
    w = dist.all_reduce(t, async_op=True)
    assert w.wait() is True
    if t.is_cuda:
        # Only the stream has waited.
        torch.cuda.synchronize()
    assert w.is_completed()
    # Those on a device are nccl's.
    assert t.is_cuda or (w.is_success() and w.exception() is None)
    same(w.result()[0], torch.full((3,), total))
    seen = []
    f = (
        dist.all_reduce(t, async_op=True)
        .get_future()
        .then(lambda f: seen.append(f.value()[0].sum().item()) or "done")
    )
    assert f.wait() == "done" and seen == [3 * total * size]
    w = dist.barrier(async_op=True)
    w.wait()
    while not w.is_completed():
        pass
    # Nobody keeps these; the memory must stay until they have ended.
    for i in range(100):
        dist.all_reduce(torch.full((1000,), float(i)), async_op=True)
        dist.all_gather([torch.empty(50) for _ in range(size)], torch.ones(50), async_op=True)
    # A later call waits for the earlier ones.
    dist.all_reduce(t)

    # A callback may wait for a later call of the same group.
    def again(f: torch.futures.Future) -> float:
        x = f.value()[0]
        return dist.all_reduce(x, async_op=True).get_future().wait()[0].sum().item()

    x = torch.ones(2)
    assert dist.all_reduce(x, async_op=True).get_future().then(again).wait() == 2.0 * size * size
    strided = torch.full((4, 2), rank + 1.0)
    dist.all_reduce(strided[:, 0], async_op=True).wait()
    same(strided[:, 0].contiguous(), torch.full((4,), total))
    pg = dist.distributed_c10d._get_default_group()
    w = pg.allreduce([x])
    w.wait()
    w = pg.allreduce(torch.ones(1))
    w.wait()


def sparse(rank: int, size: int) -> None:
    t = torch.sparse_coo_tensor([[0, rank + 1]], [[1.0, 2.0], [3.0, 4.0]], (size + 1, 2))
    dist.all_reduce(t)
    want = torch.zeros(size + 1, 2)
    want[0] = torch.tensor([1.0, 2.0]) * size
    want[1:] = torch.tensor([3.0, 4.0])
    same(t.to_dense(), want)


def groups(rank: int, size: int) -> None:
    """new_group and what can be done with groups."""
    everyone = dist.new_group(list(reversed(range(size))))
    t = torch.full((2,), float(rank))
    dist.broadcast(t, size - 1, group=everyone)
    same(t, torch.full((2,), size - 1.0))
    other = dist.new_group(backend="gloo")
    dist.all_reduce(t, group=other)
    even = dist.new_group([r for r in range(size) if r % 2 == 0])
    if rank % 2 == 0:
        x = torch.ones(1)
        dist.all_reduce(x, group=even)
        assert x.item() == (size + 1) // 2
        dist.destroy_process_group(even)
    halves, _ = dist.new_subgroups(max(size // 2, 1))
    x = torch.ones(1)
    dist.all_reduce(x, group=halves)
    assert x.item() == max(size // 2, 1)
    dist.barrier()
    if SPLITS:
        ranks = [list(range(size // 2)), list(range(size // 2, size))] if size > 1 else [[0]]
        half = dist.split_group(split_ranks=ranks)
        x = torch.ones(1)
        dist.all_reduce(x, group=half)
        assert x.item() == half.size()
        # Overlap: calls of different groups do not wait for each other.
        w = dist.all_reduce(x, async_op=True)
        dist.barrier(group=half)
        w.wait()
    monitored_barrier()
    assert dist.get_backend() == "comity"


def functional(rank: int, size: int) -> None:
    import torch.distributed._functional_collectives as F

    group = dist.group.WORLD
    x = torch.full((4,), rank + 1.0)
    total = float(sum(range(1, size + 1)))
    same(F.all_reduce(x, "sum", group) + 0, torch.full((4,), total))
    same(F.all_gather_tensor(x, 0, group) + 0, torch.cat([torch.full((4,), r + 1.0) for r in range(size)]))
    wide = torch.full((4 * size,), rank + 1.0)
    same(F.reduce_scatter_tensor(wide, "sum", 0, group) + 0, torch.full((4,), total))
    same(
        F.all_to_all_single(torch.arange(size) + 10 * rank, None, None, group) + 0,
        torch.arange(size) * 10 + rank,
    )
    same(F.broadcast(x, 0, group) + 0, torch.full((4,), 1.0))
    for a in F.all_reduce_coalesced([x, x * 2], "sum", group):
        assert a.sum().item() in (4 * total, 8 * total)


def options(rank: int, size: int) -> None:
    """Limits of calls and groups, and what torch asks of a backend."""
    from datetime import timedelta

    pg = dist.distributed_c10d._get_default_group()
    backend = pg._get_backend(torch.device("cpu"))
    assert dist.get_backend_config().count("comity") >= 1
    backend.set_timeout(timedelta(seconds=30))
    dist.barrier()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=40), pg)
    opts = dist.AllreduceOptions()
    opts.timeout = timedelta(seconds=20)
    t = torch.ones(1)
    pg.allreduce([t], opts).wait()
    assert t.item() == size
    # As long as all ranks live, which is more than a thread of Python's waits for.
    backend.set_timeout(timedelta.max)
    dist.barrier()
    if rank == 0 and size > 1:
        dist.send(t, 1)
    elif rank == 1:
        dist.recv(t, 0)
    dist.all_reduce(t, async_op=True).wait()
    backend.set_timeout(timedelta(seconds=40))
