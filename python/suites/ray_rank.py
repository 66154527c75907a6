"""An actor of `ray_suite.py`: a rank that makes calls of `ray.util.collective` and compares with what NumPy says."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import ray
import torch
from ray.util import collective
from ray.util.collective.types import RecvOptions, ReduceOp

import comity
import comity.ray

BACKEND = "comity"
#: Seconds that anything may take.
LIMIT = 120

SHAPES = ((), (7,), (3, 5), (0,), (1 << 18,))
TYPES = {
    "numpy": ("float32", "float64", "float16", "int32", "int64", "uint8"),
    "torch": ("float32", "int64", "bfloat16"),
}
REDUCTIONS = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


@dataclass(frozen=True)
class Case:
    """Arrays of one kind. `apart`: elements do not lie side by side."""

    framework: str
    dtype: str
    shape: tuple[int, ...]
    apart: bool

    def values(self, rank: int, salt: int) -> np.ndarray:
        """Small whole numbers, which every type holds, as do their products."""
        random = np.random.default_rng([rank, salt, len(self.shape)])
        return random.integers(1, 4, self.shape).astype(np.float64)

    def array(self, values: np.ndarray) -> Any:
        shape = (*self.shape[:-1], 2 * self.shape[-1]) if self.apart else self.shape
        if self.framework == "numpy":
            whole: Any = np.zeros(shape, self.dtype)
        else:
            whole = torch.zeros(shape, dtype=getattr(torch, self.dtype))
        x = whole[..., ::2] if self.apart else whole
        if self.framework == "numpy":
            x[...] = values
        else:
            x.copy_(torch.from_numpy(values))
        return x

    def same(self, x: Any, values: np.ndarray) -> None:
        got = x if isinstance(x, np.ndarray) else x.to(torch.float64).numpy()
        np.testing.assert_array_equal(got.astype(np.float64), values, str(self))


def cases() -> Iterator[Case]:
    for framework, types in TYPES.items():
        for shape, apart in itertools.product(SHAPES, (False, True)):
            # A number has no gaps.
            if shape or not apart:
                yield Case(framework, types[0], shape, apart)
        for dtype in types[1:]:
            yield Case(framework, dtype, SHAPES[2], apart=False)


@ray.remote
class Rank:
    """One rank of each group that it is in."""

    def __init__(self, rank: int, size: int) -> None:
        comity.ray.register()
        self._rank, self._size = rank, size
        self._calls = 0
        self._lost_at = 0.0
        self._texts: list[str] = []

    def join(self, group: str) -> None:
        collective.init_collective_group(self._size, self._rank, BACKEND, group)

    def leave(self, group: str) -> None:
        collective.destroy_collective_group(group)

    def every_operation(self, group: str) -> int:
        """How many calls were made and found right."""
        self._calls = 0
        for case in cases():
            for op in REDUCTIONS:
                self._reduce(group, case, op)
            for root in range(self._size):
                self._broadcast(group, case, root)
            self._allgather(group, case)
            self._ring(group, case)
        collective.barrier(group)
        assert collective.get_rank(group) == self._rank
        assert collective.get_collective_group_size(group) == self._size
        return self._calls + 1

    def _all(self, case: Case, salt: int) -> list[np.ndarray]:
        return [case.values(r, salt) for r in range(self._size)]

    def _reduce(self, group: str, case: Case, op: ReduceOp) -> None:
        ranks = self._all(case, 1)
        want = REDUCTIONS[op].reduce(ranks)
        x = case.array(ranks[self._rank])
        collective.allreduce(x, group, op)
        case.same(x, want)
        root = self._size - 1
        x = case.array(ranks[self._rank])
        collective.reduce(x, root, group, op)
        case.same(x, want if self._rank == root else ranks[self._rank])
        # Part p of each rank's list has numbers of its own.
        lists = [self._all(case, 10 + r) for r in range(self._size)]
        x = case.array(np.zeros(case.shape))
        parts = [case.array(v) for v in lists[self._rank]]
        collective.reducescatter(x, parts, group, op)
        case.same(x, REDUCTIONS[op].reduce([one[self._rank] for one in lists]))
        for part, values in zip(parts, lists[self._rank], strict=True):
            case.same(part, values)
        self._calls += 3

    def _broadcast(self, group: str, case: Case, root: int) -> None:
        ranks = self._all(case, 2)
        x = case.array(ranks[self._rank])
        collective.broadcast(x, root, group)
        case.same(x, ranks[root])
        self._calls += 1

    def _allgather(self, group: str, case: Case) -> None:
        ranks = self._all(case, 3)
        parts = [case.array(np.zeros(case.shape)) for _ in ranks]
        collective.allgather(parts, case.array(ranks[self._rank]), group)
        for part, values in zip(parts, ranks, strict=True):
            case.same(part, values)
        self._calls += 1

    def _ring(self, group: str, case: Case) -> None:
        """Even ranks send to the next first, odd ones receive first: none waits for ever, however long the arrays are."""
        ranks = self._all(case, 4)
        before, after = (self._rank - 1) % self._size, (self._rank + 1) % self._size
        x, into = case.array(ranks[self._rank]), case.array(np.zeros(case.shape))
        if self._rank % 2 == 0:
            collective.send(x, after, group)
            collective.recv(into, before, group)
        else:
            collective.recv(into, before, group)
            collective.send(x, after, group)
        case.same(into, ranks[before])
        self._calls += 2

    def rounds(self, group: str, count: int) -> int:
        """So many sums, each of other numbers; the group's own size and rank count, for it may be smaller."""
        size = collective.get_group_handle(group).world_size
        rank = collective.get_rank(group)
        for n in range(count):
            x = np.full(1000 + n, rank + n, np.float64)
            collective.allreduce(x, group)
            assert (x == sum(r + n for r in range(size))).all(), (group, n, x)
        return count

    def until_lost(self, group: str) -> None:
        """Sums until one fails, which it does."""
        x = np.ones(10_000, np.float32)
        try:
            while True:
                collective.allreduce(x, group, ReduceOp.MAX)
                self._calls += 1
        except comity.PeerLostError:
            self._lost_at = time.monotonic()
            raise

    def calls(self) -> int:
        return self._calls

    def lost_at(self) -> float:
        """Seconds of the machine's clock."""
        return self._lost_at

    def misuse(self, group: str) -> None:
        """A list whose arrays are of another type."""
        parts = [np.zeros(3, np.float32) for _ in range(self._size)]
        collective.allgather(parts, np.zeros(3), group)

    def late(self, group: str, seconds: float) -> None:
        """Receive what nobody sends."""
        options = RecvOptions()
        options.src_rank = 1 - self._rank
        options.timeout_ms = timedelta(seconds=seconds)
        collective.get_group_handle(group).recv([np.zeros(3)], options)

    def differ(self, group: str) -> None:
        """Another size on each rank."""
        collective.allreduce(np.zeros(10 + self._rank), group)

    def remember_texts(self) -> None:
        """Keep what rank 0 tells the others, to look for it in the logs."""
        texts = self._texts

        class Remembering(comity.ray._Answers):
            def set(self, key: str, text: str) -> None:
                texts.append(text)
                super().set(key, text)

        comity.ray._Answers = Remembering  # type: ignore[misc]

    def texts(self) -> list[str]:
        return self._texts
