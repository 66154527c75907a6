"""NumPy arrays through every operation."""

import ml_dtypes
import numpy as np
import pytest

import comity

DTYPES = [
    np.bool_,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.float16,
    ml_dtypes.bfloat16,
    np.float32,
    np.float64,
    np.complex64,
]


def of_rank(rank: int, shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    """Small whole numbers, so that sums are exact in every type."""
    n = int(np.prod(shape))
    values = (np.arange(n) * 7 + rank * 3) % 5
    return (values % 2 if dtype is np.bool_ else values).reshape(shape).astype(dtype)


def check_every_type(g: comity.Group) -> None:
    for dtype in DTYPES:
        for shape in [(), (1,), (0,), (2, 3), (1031,)]:
            x = of_rank(g.rank, shape, dtype)
            parts = [of_rank(r, shape, dtype) for r in range(g.size)]
            got = g.all_sum(x)
            assert isinstance(got, np.ndarray)
            assert got.dtype == x.dtype
            assert got.shape == shape
            wide = sum(p.astype(np.int64) if p.dtype.kind != "c" else p for p in parts)
            expected = wide != 0 if dtype is np.bool_ else wide.astype(dtype)
            np.testing.assert_array_equal(got, expected)
            np.testing.assert_array_equal(x, of_rank(g.rank, shape, dtype), "the input is not changed")
            gathered = g.all_gather(x)
            together = np.stack(parts) if shape == () else np.concatenate(parts)
            np.testing.assert_array_equal(gathered, together)
            np.testing.assert_array_equal(g.broadcast(x, g.size - 1), parts[-1])


def check_reductions(g: comity.Group) -> None:
    parts = [of_rank(r, (5, 2), np.int32) + 1 for r in range(g.size)]
    x = parts[g.rank]
    for op, reference in {
        "sum": np.add,
        "product": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }.items():
        expected = reference.reduce(parts)
        np.testing.assert_array_equal(g.all_reduce(x, op), expected)
        np.testing.assert_array_equal(comity.all_reduce(x, op, group=g), expected)
        reduced = g.reduce(x, g.size - 1, op)
        if g.rank == g.size - 1:
            np.testing.assert_array_equal(reduced, expected)
        else:
            assert reduced is None
        np.testing.assert_array_equal(x, parts[g.rank], "the input is not changed")
    mean = g.all_reduce(x.astype(np.float64), "avg")
    np.testing.assert_allclose(mean, np.mean(parts, axis=0))
    np.testing.assert_array_equal(mean, g.all_reduce(x.astype(np.float64), "mean"))


def check_memory_of_any_layout(g: comity.Group) -> None:
    whole = np.arange(60, dtype=np.float32).reshape(3, 4, 5) + g.rank
    expected = [np.arange(60, dtype=np.float32).reshape(3, 4, 5) + r for r in range(g.size)]
    views = {
        "transposed": lambda a: a.T,
        "every second": lambda a: a[:, ::2],
        "reversed": lambda a: a[::-1],
        "broadcast": lambda a: np.broadcast_to(a[0, 0], (7, 5)),
        "odd address": lambda a: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(np.float32),
    }
    for name, view in views.items():
        got = g.all_sum(view(whole))
        np.testing.assert_array_equal(got, sum(view(e) for e in expected), name)
    # Results into memory of any layout.
    out = np.zeros((5, 4, 6), np.float32)[:, :, ::2]
    assert g.all_sum(whole.T, out=out) is out
    np.testing.assert_array_equal(out, sum(expected).T)
    in_place = whole.copy()
    assert g.all_sum(in_place, out=in_place) is in_place
    np.testing.assert_array_equal(in_place, sum(expected))
    across = np.asfortranarray(whole)
    g.all_sum(across, out=across)
    np.testing.assert_array_equal(across, sum(expected))


def check_results_do_not_copy(g: comity.Group) -> None:
    x = np.ones(1 << 20, np.float32)
    out = np.empty_like(x)
    before = out.__array_interface__["data"]
    assert g.all_sum(x, out=out).__array_interface__["data"] == before
    assert out[0] == g.size


def check_parts(g: comity.Group) -> None:
    n, r = g.size, g.rank
    x = np.arange(6 * n, dtype=np.int64).reshape(2 * n, 3) * (r + 1)
    total = np.arange(6 * n).reshape(2 * n, 3) * sum(range(1, n + 1))
    np.testing.assert_array_equal(g.sum_scatter(x), total[2 * r : 2 * r + 2])
    np.testing.assert_array_equal(
        g.reduce_scatter(x, "max"), np.arange(6 * n).reshape(2 * n, 3)[2 * r : 2 * r + 2] * n
    )
    got = g.all_to_all(x)
    for s in range(n):
        expected = np.arange(6 * n).reshape(2 * n, 3)[2 * r : 2 * r + 2] * (s + 1)
        np.testing.assert_array_equal(got[2 * s : 2 * s + 2], expected)
    for root in range(n):
        gathered = g.gather(x[:2], root)
        if r == root:
            expected = np.concatenate([x[:2] // (r + 1) * (s + 1) for s in range(n)])
            np.testing.assert_array_equal(gathered, expected)
        else:
            assert gathered is None
        scattered = g.scatter(total if r == root else None, root, like=total[:2])
        np.testing.assert_array_equal(scattered, total[2 * r : 2 * r + 2])


def check_uneven_parts(g: comity.Group) -> None:
    n, r = g.size, g.rank
    counts = [s % 3 for s in range(n)]
    starts = np.cumsum([0, *counts])
    whole = np.arange(2 * sum(counts), dtype=np.float64).reshape(-1, 2)
    got = g.all_gather(whole[starts[r] : starts[r + 1]], counts=counts)
    np.testing.assert_array_equal(got, whole)
    got = g.reduce_scatter(whole, "sum", counts=counts)
    np.testing.assert_array_equal(got, whole[starts[r] : starts[r + 1]] * n)
    sends = [(r + s) % 3 for s in range(n)]
    takes = [(s + r) % 3 for s in range(n)]
    x = np.concatenate([np.full((c, 2), 10 * r + s) for s, c in enumerate(sends)])
    got = g.all_to_all(x, send_counts=sends, recv_counts=takes)
    expected = np.concatenate([np.full((c, 2), 10 * s + r) for s, c in enumerate(takes)])
    np.testing.assert_array_equal(got, expected)


def check_wires(g: comity.Group) -> None:
    n, r = g.size, g.rank
    parts = [np.sin(np.arange(5003, dtype=np.float32) * (s + 1)) for s in range(n)]
    total = np.sum(parts, axis=0, dtype=np.float64)
    for wire, off in {"bf16": 1 / 127, "f16": 1 / 1000, "int8": 1 / 124}.items():
        got = g.all_reduce(parts[r], wire=wire)
        assert np.abs(got - total).max() <= off * n
        assert (got != total.astype(np.float32)).any() or n == 1, "it is rounded"
        every = g.all_gather(got)
        assert (every.reshape(n, -1) == got).all(), "the same bits on all ranks"
        later = g.all_reduce(parts[r], "avg", wire=wire, async_=True).wait()
        assert np.abs(later - total / n).max() <= off
        mine = g.reduce_scatter(np.tile(parts[r], n), wire=wire)
        assert np.abs(mine - total).max() <= off * n
        joined = g.all_gather(parts[r], wire=wire).reshape(n, -1)
        assert np.abs(joined - parts).max() <= off
    for words, call in {
        "not for i32": lambda: g.all_reduce(np.ones(3, np.int32), wire="bf16"),
        "not for max": lambda: g.all_reduce(parts[r], "max", wire="bf16"),
        "do you mean 'avg'": lambda: g.all_reduce(parts[r], "avgg"),
        "there are sum, .*mean": lambda: g.all_reduce(parts[r], "?"),
        "there are bf16, f16, int8": lambda: g.all_reduce(parts[r], wire="fp8"),
    }.items():
        with pytest.raises(comity.MisuseError, match=words) as e:
            call()
        assert e.value.rank == r


def check_sends(g: comity.Group) -> None:
    n, r = g.size, g.rank
    x = of_rank(r, (3, 4))
    if n == 1:
        with pytest.raises(comity.MisuseError, match="cannot send to itself"):
            g.send(x, 0)
        return
    right, left = (r + 1) % n, (r - 1) % n
    np.testing.assert_array_equal(g.sendrecv(x, right, left), of_rank(left, (3, 4)))
    longer = g.sendrecv(np.zeros(r + 1), right, left, like=np.zeros(left + 1, np.float64))
    assert longer.shape == (left + 1,)
    if r == 0:
        assert g.send(x, n - 1, tag=7) is x
        g.send(x * 2, n - 1, tag=8)
    if r == n - 1:
        np.testing.assert_array_equal(g.recv((3, 4), np.float32, 0, tag=8), of_rank(0, (3, 4)) * 2)
        out = np.zeros((3, 4), np.float32)
        assert g.recv((3, 4), "float32", 0, tag=7, out=out) is out
        np.testing.assert_array_equal(out, of_rank(0, (3, 4)))
    if r == 0:
        g.send(x, 1)
    if r == 1:
        np.testing.assert_array_equal(g.recv_like(x, 0), of_rank(0, (3, 4)))
    g.barrier()


def check_refusals_leave_the_group_unharmed(g: comity.Group) -> None:
    x = np.ones((g.size, 2), np.float32)
    buffer = np.ones(9, np.float32)
    frozen = np.ones(2, np.float32)
    frozen.flags.writeable = False
    for words, call in {
        "byte order": lambda: g.all_sum(np.ones(2, ">f4")),
        "complex128": lambda: g.all_sum(np.ones(2, np.complex128)),
        "object": lambda: g.all_sum(np.array([None])),
        "no reduction": lambda: g.all_reduce(x, "median"),
        "and is not defined on f32": lambda: g.all_reduce(x, "and"),
        "is no array": lambda: g.all_sum("text"),
        "is no array: ": lambda: g.all_sum([1.0, 2.0]),
        "shape": lambda: g.all_sum(x, out=np.ones(g.size * 2, np.float32)),
        "must be the same": lambda: g.all_sum(x, out=np.ones((g.size, 2), np.float64)),
        "cannot be written": lambda: g.all_sum(np.ones(2, np.float32), out=frozen),
        "does not divide": lambda: g.sum_scatter(np.ones(())),
        "root": lambda: g.broadcast(x, g.size),
        "more than 0 seconds": lambda: g.all_sum(x, timeout=0),
        "both|neither": lambda: g.all_to_all(x, send_counts=[1] * g.size),
        "like|divide": lambda: g.scatter(np.ones(()), 0) if g.rank == 0 else g.scatter(),
        "counts were given": lambda: g.all_gather(x, counts=[1] * (g.size + 1)),
        "overlap": lambda: g.all_sum(buffer[:8], out=buffer[1:]),
    }.items():
        with pytest.raises(comity.MisuseError, match=words) as e:
            call()
        assert e.value.rank == g.rank
    np.testing.assert_array_equal(g.all_sum(x), x * g.size)


def ended(x: object) -> None:
    # What the group itself refuses, a request tells when it has ended.
    if isinstance(x, comity.Request):
        x.wait()


def check_numbers_that_nothing_has(g: comity.Group) -> None:
    x, n = np.ones((g.size, 2), np.float32), g.size
    short, below, bad = [1] * (n - 1), [1] * (n - 1) + [-1], "must be 0 or more"
    for call, words in [
        (lambda **o: g.broadcast(x, -1, **o), f"broadcast: the root is -1, and must be .* 0 to {n - 1}"),
        (lambda **o: g.reduce(x, -2, **o), "reduce: the root is -2"),
        (lambda **o: g.gather(x, -1, **o), "gather: the root is -1"),
        (lambda **o: g.scatter(x, -1, like=x, **o), "scatter: the root is -1"),
        (lambda **o: g.broadcast(x, 1 << 40, **o), "is not in a group"),
        (lambda **o: g.send(x, -1, **o), "send: the peer is -1"),
        (lambda **o: g.recv_like(x, -1, **o), "recv: the peer is -1"),
        (lambda **o: g.sendrecv(x, 0, -1, **o), "sendrecv: the source is -1"),
        (lambda **o: g.send(x, 0, tag=-1, **o), "send: the tag is -1, and must be 0 to 4294967295"),
        (lambda **o: g.recv_like(x, 0, tag=1 << 32, **o), "recv: the tag is 4294967296"),
        (lambda **o: g.all_gather(x, counts=below, **o), bad),
        (lambda **o: g.reduce_scatter(x, counts=below, **o), bad),
        (lambda **o: g.all_to_all(x, send_counts=below, recv_counts=[1] * n, **o), bad),
        (lambda **o: g.all_gather(x, counts=short, **o), f"all_gather: {n - 1} counts were given"),
        (lambda **o: g.reduce_scatter(x, counts=short, **o), f"reduce_scatter: {n - 1} counts were given"),
        (lambda **o: g.all_to_all(x, send_counts=[1] * n, recv_counts=short, **o), "counts were given"),
    ]:
        for options in ({}, {"async_": True}):
            with pytest.raises(comity.MisuseError, match=words) as e:
                ended(call(**options))
            assert e.value.call is not None and e.value.rank == g.rank
            assert words == "is not in a group" or f"rank {g.rank}: " in str(e.value)
    with pytest.raises(comity.MisuseError, match="the root is -1"):
        g.broadcast_object("x", -1)
    assert g.all_sum(1) == n
