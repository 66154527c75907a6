"""What ranks do in `test_works.py` with futures, and with outputs that another thread writes, in the modes of torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from collective_bodies import same
from failure_bodies import caught
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from work_bodies import until

import comity


def wait_for_others(rank: int, size: int) -> None:
    """Callbacks that wait for what comes later, which `then` and other callbacks must not keep from coming."""

    def sum_of(n: int) -> Any:
        return dist.all_reduce(torch.full((n,), 1.0), async_op=True)

    def ended() -> Any:
        w = sum_of(2)
        w.wait()
        return w

    def value(future: torch.futures.Future) -> float:
        return future.value()[0].sum().item()

    others = dist.new_group()

    def early(*callbacks: Callable[[Any], Any]) -> list[torch.futures.Future]:
        """Futures of these callbacks of rank 0, given to one that is not done: the other ranks make the call after that, and give none."""
        given = []
        if rank == 0:
            future = sum_of(1_000_000).get_future()
            given = [future.then(callback) for callback in callbacks]
        dist.barrier(group=others)
        if rank != 0:
            sum_of(1_000_000).wait()
        return given

    # The caller sets it, after it has given a callback to a future that is done.
    gate = torch.futures.Future()
    first = early(lambda _: gate.wait())
    second = ended().get_future().then(value)
    assert second.wait() == 2.0 * size
    gate.set_result("caller")
    assert all(f.wait() == "caller" for f in first)
    # A callback that was given later sets it, to a future that is done and to one that is not.
    for later in (ended, lambda: sum_of(1_000_000)):
        gate = torch.futures.Future()
        first = early(lambda _, gate=gate: gate.wait())
        later().get_future().add_done_callback(lambda _, gate=gate: gate.set_result("later"))
        assert all(f.wait() == "later" for f in first)
    # Two callbacks of one future.
    gate = torch.futures.Future()
    for f in early(lambda _: gate.wait(), lambda _: gate.set_result("same"))[:1]:
        assert f.wait() == "same"
    # One that was given in a backward pass, or in another, is no other's business.
    gate = torch.futures.Future()
    first = []
    backward(lambda: first.extend(early(lambda _: gate.wait())))
    backward(lambda: sum_of(2).get_future().then(lambda _, gate=gate: gate.set_result("pass")))
    assert all(f.wait() == "pass" for f in first)


def backward(given: Callable[[], Any]) -> None:
    """Call this in a backward pass."""

    def hook(_: torch.Tensor) -> None:
        given()

    leaf = torch.ones(1, requires_grad=True)
    leaf.register_hook(hook)
    leaf.sum().backward()


def hooks_that_wait(rank: int, size: int) -> None:
    """In each backward pass on rank 0 the first bucket's callback waits for an event that the last one's sets. A second's delay in each
    pass would be longer than a body may take."""
    passes, waited, gate, others = 80, [], threading.Event(), dist.new_group()
    model = DDP(nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))), bucket_cap_mb=1e-4)

    def hook(bucket: dist.GradBucket) -> torch.futures.Future:
        first, last = bucket.index() == 0 and not bucket.is_last(), bucket.is_last()

        def callback(f: torch.futures.Future) -> torch.Tensor:
            if last:
                gate.set()
            elif first and rank == 0:
                waited.append(gate.wait())
            return f.value()[0]

        # The callback that waits is given before its call can be done: it does not run where it is given.
        if first and rank:
            dist.barrier(group=others)
        out = dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(callback)
        if first and rank == 0:
            dist.barrier(group=others)
        return out

    model.register_comm_hook(None, lambda _, bucket: hook(bucket))
    for _ in range(passes):
        gate.clear()
        model(torch.ones(1, 8)).sum().backward()
    # The buckets of the first pass may be others.
    assert rank or len(waited) >= passes - 1, len(waited)


def zero_takes_turns(rank: int, size: int) -> None:
    """Callbacks of torch's overlapped optimizer share what they do before their first call: none begins before the one before has ended."""
    module, order = ddp_zero_hook.hook_with_zero_step_interleaved.__module__, []

    def slow(i: int) -> Callable[[Any], None]:
        def callback(_: Any) -> None:
            order.append(i)
            time.sleep(0.3 * ((i + rank) % 2))
            dist.broadcast(torch.ones(1), 0, async_op=True)
            order.append(i)

        callback.__module__ = module
        return callback

    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(6)]
    # From the last to the first: a callback is given to a future that is done, or not yet.
    futures = [w.get_future().then(slow(i)) for i, w in enumerate(reversed(works))]
    for f in futures:
        f.wait()
    assert order == [i // 2 for i in range(12)], order
    dist.barrier()


def errors_in_callbacks(rank: int, size: int) -> None:
    """What a callback raises is what its future raises, and what the next one sees."""

    def fails(_: Any) -> None:
        raise KeyError("gone")

    def seen(future: torch.futures.Future) -> str:
        try:
            future.value()
        except KeyError as e:
            return f"seen {e}"
        return "nothing"

    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    assert isinstance(future, torch.futures.Future)
    failed = future.then(fails)
    assert failed.then(seen).wait() == "seen 'gone'"
    try:
        failed.wait()
    except KeyError:
        pass
    else:
        raise AssertionError("the error was lost")
    # Torch's own ways to wait for several.
    both = [
        dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda f: f.value()[0]) for _ in "ab"
    ]
    for t in torch.futures.wait_all(both):
        same(t, torch.full((2,), float(size)))
    dist.barrier()


def torch_is_as_it_was(rank: int, size: int) -> None:
    """Nothing of torch is another after a group was made."""
    ours = str(Path(comity.__file__).parent)
    classes = (torch._C.Future, torch.futures.Future, dist.Work, dist.ProcessGroup, dist.Backend, dist.Store)
    modules = (torch.futures, dist, dist.distributed_c10d, dist.rendezvous, torch.nn.parallel.distributed)
    for owner in (*classes, *modules, torch.nn.parallel.DistributedDataParallel):
        for name, found in vars(owner).items():
            # A function that wraps one of torch's has the name of that one's module, and its own code.
            code = getattr(found, "__code__", None)
            assert not str(getattr(found, "__module__", "")).startswith("comity"), (owner, name)
            assert code is None or not code.co_filename.startswith(ours), (owner, name)
    assert not torch._C._collect_all.__module__.startswith("comity")

    class Bare(dist.Work):
        pass

    said = caught(Bare().get_future)
    assert said[0] == "RuntimeError" and "getFuture" in said[1], said


def waited(w: Any) -> None:
    w.wait()


def polled(w: Any) -> None:
    until(w.is_completed)
    assert w.is_success(), w.exception()


def watched(w: Any) -> None:
    w.get_future().wait()


def outside(w: Any) -> None:
    with torch.inference_mode(False):
        w.wait()


#: Ways for a work to end, in which another thread may write its outputs.
ENDS = (waited, polled, watched, outside)


def column(rank: int) -> torch.Tensor:
    return torch.full((4, 3), rank + 1.0)[:, 0]


def inference(rank: int, size: int) -> None:
    """Outputs that are written by a copy, in the mode of the call, whichever thread does it."""
    total = float(sum(range(1, size + 1)))

    for _ in range(10):
        for end in ENDS:
            with torch.inference_mode():
                x, turned = column(rank), torch.full((3, 4), rank + 1.0).t()
                works = [dist.all_reduce(t, async_op=True) for t in (x, turned)]
                got, sent = torch.zeros(4, 3)[:, 1], torch.full((4,), float(rank))
                other = (rank + 1) % size
                if size > 1 and rank < 2 and size == 2:
                    works += dist.batch_isend_irecv(
                        [dist.P2POp(dist.irecv, got, other), dist.P2POp(dist.isend, sent, other)]
                    )
                for w in works:
                    end(w)
                same(x.contiguous(), torch.full((4,), total))
                same(turned.contiguous(), torch.full((4, 3), total))
                if size == 2:
                    same(got.contiguous(), torch.full((4,), float(other)))


def modes(rank: int, size: int) -> None:
    """Outputs that nobody waits for, tensors of one mode in the other, leaves, and receives in the thread that reads."""
    total = float(sum(range(1, size + 1)))
    # Nobody waits, and nobody asks.
    with torch.inference_mode():
        x = column(rank)
        dist.all_reduce(x, async_op=True)
        dist.barrier()
        until(lambda: x[0].item() == total)
    # A tensor of inference mode outside of it, and an ordinary one in it.
    w = dist.all_reduce(x, async_op=True)
    w.wait()
    assert x.is_inference() and x[0].item() == total * size
    plain = column(rank)
    with torch.inference_mode():
        dist.all_reduce(plain, async_op=True).wait()
    assert not plain.is_inference() and plain[0].item() == total
    # A leaf that wants a gradient; its version is the same whoever writes it.
    versions = set()
    for end in ENDS:
        leaf = torch.full((4, 3), rank + 1.0).t().requires_grad_()
        end(dist.all_reduce(leaf, async_op=True))
        assert leaf.requires_grad and leaf.grad_fn is None and leaf[0, 0].item() == total
        versions.add(leaf._version)
    assert len(versions) == 1, versions
    if size == 2:
        # Posted before it comes, and kept until it is asked for.
        with torch.inference_mode():
            t = torch.zeros(3)
            if rank == 0:
                w = dist.irecv(t, 1)
                dist.barrier()
                w.wait()
                dist.barrier()
                time.sleep(0.05)
                dist.recv(t, 1)
                same(t, torch.ones(3))
            else:
                dist.barrier()
                dist.send(torch.ones(3), 0)
                dist.barrier()
                dist.send(torch.ones(3), 0)


def parts_without_all(rank: int, size: int) -> None:
    """Groups of which not all ranks are members, by `split_group` and `new_group`; ranks that are in none are told so."""
    none = dist.GroupMember.NON_GROUP_MEMBER

    def works(group: Any, members: list[int]) -> None:
        if rank not in members:
            assert group is none, group
            return
        assert group.size() == len(members) and group.rank() == members.index(rank)
        t = torch.full((2,), rank + 1.0)
        dist.all_reduce(t, group=group)
        same(t, torch.full((2,), float(sum(m + 1 for m in members))))
        w = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        until(w.is_completed)

    shapes = [
        [[0]],
        [[size - 1]],
        [list(range(size))],
        [list(reversed(range(size)))],
        [[r] for r in range(size)],
    ]
    shapes += [[list(range(1, size))], [[0], list(range(2, size))] if size > 2 else [[1 % size]]]
    for shape in shapes:
        works(dist.split_group(split_ranks=shape), next((p for p in shape if rank in p), []))
        dist.barrier()
    for members in ([0], [size - 1], list(range(1, size))):
        works(dist.new_group(members), members)
    # A part of a part, from which its last rank is left out.
    everyone = dist.split_group(split_ranks=[list(range(size))])
    works(dist.split_group(everyone, [list(range(size - 1))]), list(range(size - 1)))
    # Last, as torch names later groups by how many were made on each rank.
    members = list(range(1, size))
    if rank in members:
        works(dist.new_group(members, use_local_synchronization=True), members)
    dist.barrier()


def parts_of_a_device(rank: int, size: int) -> None:
    """As the group was made with a device, torch asks ranks that are not in a new group as well."""
    members = [0]
    group = dist.new_group(members)
    if rank in members:
        t = torch.ones(1)
        dist.all_reduce(t, group=group)
        assert t.item() == 1
    else:
        assert group is dist.GroupMember.NON_GROUP_MEMBER
    assert (dist.split_group(split_ranks=[[0]]) is dist.GroupMember.NON_GROUP_MEMBER) == (rank != 0)
    dist.barrier()


def parts_of_several_backends(rank: int, size: int) -> str:
    """A group whose calls torch passes on by device: its split cannot leave a rank out, and says so."""
    t = torch.ones(2)
    dist.all_reduce(t)
    same(t, torch.full((2,), float(size)))
    said = ""
    try:
        half = dist.split_group(split_ranks=[[0]])
    except Exception as e:
        said = str(e)
    else:
        t = torch.ones(1)
        dist.all_reduce(t, group=half)
    dist.barrier()
    return said


def done_after_wait(rank: int, size: int) -> None:
    """A work that was waited for has a future that is done: what is given to it runs at once."""
    for _ in range(200):
        work = dist.all_reduce(torch.ones(3), async_op=True)
        future = work.get_future()
        work.wait()
        assert future.done()
