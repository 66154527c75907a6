"""The backend with CUDA tensors, one process per GPU: the bodies of the other tests with a GPU as default device, then what only GPUs have.
By hand, for no machine of CI has one:

    python python/tests/pytorch/on_devices.py [--ranks 2] [--only NAME,NAME]

The training stacks are compared with torch's own nccl, bit for bit on 2 ranks.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

#: Read by `stack_bodies` when it is imported.
os.environ["COMITY_TEST_REFERENCE"] = "nccl"
# Else JAX keeps three quarters of each device from what comes after it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, str(Path(__file__).parent))

import block_bodies
import collective_bodies
import numpy as np
import own_bodies
import pytest
import send_bodies
import stack_bodies
import strided_bodies
import torch
import torch.distributed as dist
import work_bodies
from fault_bodies import FAULTS, KILLED
from torch import nn

import comity


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    """Equal in every element; CUDA lacks the comparison for some types."""
    assert a.device == b.device and a.dtype == b.dtype and a.shape == b.shape, (a, b)
    a, b = a.cpu(), b.cpu()
    if a.dtype is torch.float8_e4m3fn:
        a, b = a.view(torch.uint8), b.view(torch.uint8)
    assert torch.equal(a, b), (a, b)


def streams(rank: int, size: int) -> None:
    """Calls keep the order of the caller's stream; `wait` has it wait, not the processor."""
    n, total = 1 << 22, float(sum(range(1, size + 1)))
    x = torch.zeros(n)
    dist.all_reduce(x)
    for _ in range(5):
        torch.cuda._sleep(200_000_000)
        x.fill_(rank + 1.0)
        begun = time.perf_counter()
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        took = time.perf_counter() - begun
        y = x * 2
        # The stream sleeps for about 100 ms: nothing here waited for it.
        assert took < 0.05 and not torch.cuda.current_stream().query(), took
        same(y, torch.full((n,), 2 * total))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        x.fill_(rank + 1.0)
        dist.all_reduce(x)
        y = x + 1
    side.synchronize()
    same(y, torch.full((n,), total + 1))
    # Memory of calls that nobody waits for is not given to others too early.
    for i in range(50):
        dist.all_reduce(torch.full((n,), float(i)), async_op=True)
        torch.full((n,), -1.0)
    parts = [dist.all_reduce(torch.full((n,), rank + float(i)), async_op=True) for i in range(8)]
    for i, w in enumerate(parts):
        w.wait()
        same(w.result()[0][:8], torch.full((8,), sum(r + float(i) for r in range(size))))
    torch.cuda.synchronize()


def host_beside_device(rank: int, size: int) -> None:
    """CPU tensors in the same group, between calls on the GPU."""
    for i in range(20):
        a, b = torch.full((100,), rank + 1.0), torch.full((100,), rank + 1.0, device="cpu")
        w = dist.all_reduce(a, async_op=True)
        dist.all_reduce(b)
        w.wait()
        assert a.sum().item() == b.sum().item() == 100.0 * sum(range(1, size + 1)), i


def refusals(rank: int, size: int) -> None:
    dist.all_reduce(torch.ones(1))
    group = comity_group()
    wrongs = [(torch.ones(1, device="meta"), "on meta")]
    if torch.cuda.device_count() > 1:
        other = f"cuda:{(rank + 1) % torch.cuda.device_count()}"
        wrongs.append((torch.ones(1, device=other), "one device per rank"))
    for wrong, words in wrongs:
        with pytest.raises(comity.MisuseError, match=f"rank {rank}.*{words}") as e:
            dist.all_reduce(wrong)
        assert e.value.call == "all_reduce"
    if size > 1:
        with pytest.raises(comity.MisuseError, match="one device"):
            dist.all_gather([torch.ones(1), torch.ones(1, device="cpu")] * (size // 2), torch.ones(1))
    with pytest.raises(comity.MisuseError, match="nccl"):
        group.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(1))


def comity_group(backend: str = "any") -> comity.Group:
    """A group of the package's own, which meets at torch's store."""
    store = dist.distributed_c10d._get_default_store()

    def get(key: str, left: float) -> bytes:
        store.wait([key], timedelta(seconds=left))
        return store.get(key)

    raw = comity._core.init_with_store(
        dist.get_rank(), dist.get_world_size(), store.set, get, prefix=f"own/{backend}",
        variables={"COMITY_BACKEND": backend},
    )  # fmt: skip
    return comity.Group(raw)


def package(rank: int, size: int) -> None:
    """`comity.init("nccl")`: torch, CuPy, JAX and the CUDA array interface."""
    assert comity.is_available("nccl")
    group = comity_group("nccl")
    assert group.device == rank
    everything(group, rank, size, torch.tensor, lambda t: t.tolist())
    x = torch.full((1 << 20,), rank + 1.0)
    pending = [group.all_sum(x, async_=True) for _ in range(5)]
    for p in pending:
        same(p.wait(), torch.full((1 << 20,), float(sum(range(1, size + 1)))))
    strided = torch.zeros(6, 2)
    group.all_reduce(torch.ones(6), out=strided[:, 0])
    assert strided[:, 0].tolist() == [size] * 6 and strided[:, 1].sum().item() == 0
    total = group.all_reduce(np.full(3, rank + 1.0))
    assert total.tolist() == [sum(range(1, size + 1))] * 3
    half = group.split(rank % 2)
    assert half.all_sum(torch.ones(2)).tolist() == [half.size] * 2
    try:
        import cupy
    except ImportError:
        print(f"rank {rank}: no CuPy", flush=True)
    else:
        cupy.cuda.Device(rank).use()
        everything(
            group, rank, size, lambda v: cupy.asarray(v, dtype=cupy.float32), lambda a: a.get().tolist()
        )

        class Plain:
            """Only the interface."""

            def __init__(self, a: cupy.ndarray) -> None:
                self.a = a

            @property
            def __cuda_array_interface__(self) -> dict:
                return self.a.__cuda_array_interface__

        a, b = Plain(cupy.full(5, rank + 1.0)), Plain(cupy.zeros(5))
        assert group.all_reduce(a, out=b) is b
        assert b.a.get().tolist() == [sum(range(1, size + 1))] * 5
        with pytest.raises(comity.MisuseError, match="`out`"):
            group.all_reduce(a)
        print(f"rank {rank}: CuPy {cupy.__version__}", flush=True)
    try:
        import jax
    except ImportError:
        print(f"rank {rank}: no JAX", flush=True)
    else:
        with jax.default_device(jax.devices()[rank]):
            everything(
                group,
                rank,
                size,
                lambda v: jax.numpy.asarray(v, dtype="float32"),
                lambda a: np.asarray(a).tolist(),
            )
        print(f"rank {rank}: JAX {jax.__version__}", flush=True)
    group.close()


def everything(group: comity.Group, rank: int, size: int, make: Callable, read: Callable) -> None:
    """Each operation once, with arrays of one kind."""
    total = float(sum(range(1, size + 1)))
    x = make([rank + 1.0] * 4)
    kind = type(x)
    out = group.all_sum(x)
    assert isinstance(out, kind) and read(out) == [total] * 4
    assert read(group.all_max(x)) == [float(size)] * 4 and read(x) == [rank + 1.0] * 4
    assert read(group.broadcast(x, size - 1)) == [float(size)] * 4
    assert read(group.all_gather(x)) == [r + 1.0 for r in range(size) for _ in range(4)]
    got = group.reduce(x, 0)
    assert rank or read(got) == [total] * 4
    wide = make([float(10 * rank + i) for i in range(2 * size)])
    assert read(group.reduce_scatter(wide)) == [
        sum(10.0 * r + 2 * rank + i for r in range(size)) for i in range(2)
    ]
    assert read(group.all_to_all(wide)) == [10.0 * r + 2 * rank + i for r in range(size) for i in range(2)]
    got = group.gather(x, size - 1)
    assert rank != size - 1 or read(got) == [r + 1.0 for r in range(size) for _ in range(4)]
    part = group.scatter(wide, 0, like=make([0.0] * 2))
    assert read(part) == [2.0 * rank, 2.0 * rank + 1]
    if size > 1:
        right, left = (rank + 1) % size, (rank - 1) % size
        assert read(group.sendrecv(x, right, left)) == [left + 1.0] * 4
    if size == 1:
        pass
    elif rank == 0:
        group.send(x, 1, tag=3)
        group.send(wide, 1, tag=4)
    elif rank == 1:
        # The later tag first.
        assert read(group.recv_like(wide, 0, tag=4)) == [float(i) for i in range(2 * size)]
        assert read(group.recv_like(x, 0, tag=3)) == [1.0] * 4
    group.barrier()


def trained(rank: int, size: int) -> None:
    """DistributedDataParallel in earnest: more steps, buckets, overlap."""

    def run(group: dist.ProcessGroup) -> list[torch.Tensor]:
        torch.manual_seed(7)
        model = nn.Sequential(
            nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )
        ddp = nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=1)
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
        g = torch.Generator(device="cpu").manual_seed(rank)
        losses = []
        for _ in range(20):
            x = torch.randn(32, 64, generator=g, device="cpu").cuda()
            optimizer.zero_grad()
            loss = ddp(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [
            *losses,
            *(p.detach().clone() for p in ddp.parameters()),
            *(p.grad.clone() for p in ddp.parameters()),
        ]

    stack_bodies.like_gloo(run, size)


def asked(rank: int, size: int) -> None:
    """A work has not ended while its stream has not come there, though its future is done."""
    x = torch.full((1 << 20,), rank + 1.0)
    dist.all_reduce(x)
    torch.cuda._sleep(400_000_000)
    work = dist.all_reduce(x, async_op=True)
    work_bodies.until(work.get_future().done)
    # The stream sleeps for about 200 ms.
    assert not work.is_completed()
    torch.cuda.synchronize()
    assert work.is_completed()


C, S = collective_bodies, stack_bodies
BODIES = [
    C.reductions, C.shapes, C.moving, C.uneven, C.reduce_and_scatter, C.coalesced, C.objects, C.works, C.sparse, C.groups,
    C.functional, C.options, send_bodies.mailbox, streams, host_beside_device, refusals, package, trained, S.ddp, S.uneven_inputs,
    S.hooks, S.zero, S.fsdp2, S.tensor_parallel, S.checkpoint, S.compiled, own_bodies.compression, own_bodies.feedback,
    work_bodies.parts, strided_bodies.strided, asked, block_bodies.graphs, block_bodies.batches, block_bodies.blocks,
]  # fmt: skip
#: Of these, those that take two ranks.
OF_TWO = {"mailbox"}


def rank_main(rank: int, args: argparse.Namespace, port: int, names: list[str]) -> None:
    torch.cuda.set_device(rank)
    torch.set_default_device(f"cuda:{rank}")
    collective_bodies.same = send_bodies.same = work_bodies.same = block_bodies.same = same
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, timeout=timedelta(seconds=60))
    failed = []
    for i, body in enumerate([*BODIES, *FAULTS]):
        if body.__name__ not in names:
            continue
        begun = time.monotonic()
        # Says where it hangs.
        faulthandler.dump_traceback_later(50)
        dist.init_process_group(
            args.backend,
            store=dist.PrefixStore(str(i), store),
            rank=rank,
            world_size=args.ranks,
            timeout=timedelta(seconds=40),
        )
        said = "ok"
        try:
            body(rank, args.ranks)
        except (Exception, pytest.fail.Exception):
            said = "FAILED"
            failed.append(body.__name__)
            print(f"--- {body.__name__}, rank {rank}\n{traceback.format_exc()}", flush=True)
        try:
            dist.destroy_process_group()
        except Exception as e:
            # A group that has failed may say so once more.
            if body not in FAULTS:
                said = "FAILED"
                failed.append(body.__name__)
            print(f"--- destroy after {body.__name__}, rank {rank}: {e}", flush=True)
        if rank == 0 or said != "ok":
            print(f"{body.__name__}, rank {rank}: {said} ({time.monotonic() - begun:.1f} s)", flush=True)
    faulthandler.cancel_dump_traceback_later()
    # The store is rank 0's: it leaves last.
    if not any(name in KILLED for name in names) and store.add("done", 1) == args.ranks:
        store.set("all done", "")
    elif rank == 0 and not any(name in KILLED for name in names):
        store.wait(["all done"])
    raise SystemExit(1 if failed else 0)


def run(args: argparse.Namespace, names: list[str]) -> bool:
    """Run these in processes of their own. Whether all ended as they should."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    spawn = torch.multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=rank_main, args=(r, args, port, names)) for r in range(args.ranks)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    codes = [p.exitcode for p in ranks]
    print(f"{', '.join(names)}: exit codes {codes}")
    last = -9 if any(name in KILLED for name in names) else 0
    return codes == [0] * (args.ranks - 1) + [last]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count())
    parser.add_argument("--backend", default="comity")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    if args.ranks < 1:
        parser.error("there is no device: nothing was tested")
    bodies, faults = [b.__name__ for b in BODIES], [f.__name__ for f in FAULTS]
    if args.ranks == 1:
        bodies, faults = [b for b in bodies if b not in OF_TWO], []
        print(f"not run, for it takes two ranks: {', '.join([*OF_TWO, *(f.__name__ for f in FAULTS)])}")
    wanted = list(filter(None, args.only.split(","))) or [*bodies, *faults]
    if unknown := {*wanted} - {*bodies, *faults}:
        parser.error(
            f"there is no test {', '.join(sorted(unknown))}; there are {', '.join(sorted([*bodies, *faults]))}"
        )
    runs = [[b for b in bodies if b in wanted], *([f] for f in faults if f in wanted)]
    went = [run(args, names) for names in runs if names]
    print(f"torch {torch.__version__}, {args.ranks} x {torch.cuda.get_device_name(0)}")
    if not all(went):
        raise SystemExit("FAILED")


if __name__ == "__main__":
    main()
