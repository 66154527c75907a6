"""What ranks do in `test_stacks.py`: PyTorch's own training stacks, run with comity and with gloo; the results are compared."""

from __future__ import annotations

import copy
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VERSION = tuple(int(x) for x in torch.__version__.split(".")[:2])
NEW = VERSION >= (2, 14)

#: What results are compared with; `on_devices.py` says nccl.
REFERENCE = os.environ.get("COMITY_TEST_REFERENCE", "gloo")


def home() -> torch.device:
    """Where new tensors go."""
    return torch.get_default_device()


def net(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator(device=home()).manual_seed(1000 * step + rank)
    return torch.randn(6, 8, generator=g), torch.randint(0, 3, (6,), generator=g)


def train(model: nn.Module, rank: int, steps: int = 3, optimizer: Any = None) -> list[torch.Tensor]:
    """Losses, then gradients, then weights."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    out = []
    for step in range(steps):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        out.append(loss.detach())
        if step == 0:
            out += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
    return out + [p.detach().clone() for p in model.parameters()]


def like_gloo(
    what: Callable[[Any], list[torch.Tensor]], size: int, tolerance: float = 1e-6, exact: bool = True
) -> None:
    """The same with either backend: on 2 ranks bit for bit, on more up to the order of additions."""
    ours = what(dist.group.WORLD)
    theirs = what(dist.new_group(backend=REFERENCE))
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        if size <= 2 and exact:
            assert torch.equal(a, b), (a - b).abs().max()
        else:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def ddp(rank: int, size: int) -> None:
    for settings in (
        {"bucket_cap_mb": 0.01},
        {"find_unused_parameters": True},
        {"static_graph": True, "gradient_as_bucket_view": True},
    ):
        like_gloo(lambda g, s=settings: train(DDP(net(), process_group=g, **s), rank), size)

    # Buffers, and steps without synchronisation.
    def accumulate(group: Any) -> list[torch.Tensor]:
        model = DDP(
            nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)), process_group=group
        )
        with model.no_sync():
            model(batch(rank, 0)[0]).sum().backward()
        model(batch(rank, 1)[0]).sum().backward()
        return [p.grad.clone() for p in model.parameters()] + [b.clone().float() for b in model.buffers()]

    def seeded(group: Any) -> list[torch.Tensor]:
        torch.manual_seed(5)
        return accumulate(group)

    like_gloo(seeded, size)


def uneven_inputs(rank: int, size: int) -> None:
    """Ranks with more batches than others: `join()`."""

    def run(group: Any) -> list[torch.Tensor]:
        model = DDP(net(), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for step in range(2 + rank):
                optimizer.zero_grad()
                x, y = batch(rank, step)
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    like_gloo(run, size)


def hooks(rank: int, size: int) -> None:
    """Torch's own communication hooks."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    for hook in (
        default_hooks.allreduce_hook,
        default_hooks.fp16_compress_hook,
        default_hooks.bf16_compress_hook,
    ):

        def run(group: Any, hook: Any = hook) -> list[torch.Tensor]:
            model = DDP(net(), process_group=group, bucket_cap_mb=0.01)
            model.register_comm_hook(group, hook)
            return train(model, rank)

        like_gloo(run, size, 1e-2)

    # One that is built in, in C++.
    def builtin(group: Any) -> list[torch.Tensor]:
        model = DDP(net(), process_group=group, bucket_cap_mb=0.01)
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        return train(model, rank)

    like_gloo(builtin, size, 1e-2)
    # gloo ends the process here (torch 2.15), so there is nothing to compare with: ranks must agree. With several buckets, calls made
    # when some bucket's sum is there come beside those for the next buckets.
    for cap in (25, 0.01):
        model = DDP(net(), bucket_cap_mb=cap)
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        agree(train(model, rank, steps=6)[-6:], size)


def overlapped_zero(rank: int, size: int) -> None:
    """An optimizer that steps, and sends weights, as soon as a bucket's gradients are there. Torch refuses it to gloo, so that weights
    are compared with those of the same steps one after the other."""
    from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def uneven(state: Any, bucket: dist.GradBucket) -> Any:
        """On each rank the sums of other buckets are seen late."""

        def seen(f: Any) -> torch.Tensor:
            time.sleep(0.005 * ((bucket.index() + rank) % 2))
            return f.value()

        return default_hooks.allreduce_hook(state, bucket).then(seen)

    def run(hook: Any, shard: bool) -> list[torch.Tensor]:
        model = DDP(net(), bucket_cap_mb=0.01)
        if hook is None:
            # The steps before the buckets are known change no weights.
            weights = copy.deepcopy(model.module.state_dict())
            optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
            for step in range(2):
                nn.functional.cross_entropy(model(batch(rank, step)[0]), batch(rank, step)[1]).backward()
            model.module.load_state_dict(weights)
        else:
            optimizer = ZeroRedundancyOptimizer(
                model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1, overlap_with_ddp=True
            )
            model.register_comm_hook(None, hook(uneven, model, optimizer, shard_buckets=shard))
        for step in range(2 if hook is None else 0, 8):
            x, y = batch(rank, step)
            model.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            if hook is None:
                optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    plain = run(None, False)
    agree(plain, size)
    for hook in (ddp_zero_hook.hook_with_zero_step, ddp_zero_hook.hook_with_zero_step_interleaved):
        for shard in (False, True):
            found = run(hook, shard)
            agree(found, size)
            for a, b in zip(found, plain, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def zero(rank: int, size: int) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def run(group: Any) -> list[torch.Tensor]:
        model = DDP(net(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.Adam, process_group=group, lr=0.01
        )
        return train(model, rank, optimizer=optimizer)

    like_gloo(run, size)


def fsdp2(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    for policy in (None, MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)):

        def run(group: Any, policy: Any = policy) -> list[torch.Tensor]:
            mesh = DeviceMesh.from_group(group, home().type)
            model = net()
            more = {"mp_policy": policy} if policy else {}
            for layer in model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh, **more)
            fully_shard(model, mesh=mesh, **more)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            losses = []
            for step in range(3):
                x, y = batch(rank, step)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x).float(), y)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.detach())
            return losses + [p.full_tensor().detach() for p in model.parameters()]

        like_gloo(run, size, 1e-4 if policy is None else 1e-2, exact=True)


def tensor_parallel(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(home().type, (size,), mesh_dim_names=("tp",))
    big = torch.arange(8.0 * size).view(2 * size, 4)
    d = distribute_tensor(big, mesh, [Shard(0)])
    assert torch.equal(d.to_local(), big[2 * rank : 2 * rank + 2])
    assert torch.equal(d.redistribute(mesh, [Replicate()]).to_local(), big)
    if size in (1, 2, 4):
        assert torch.equal(d.redistribute(mesh, [Shard(1)]).full_tensor(), big)
    assert torch.equal((d @ DTensor.from_local(torch.eye(4), mesh, [Replicate()])).full_tensor(), big)
    whole = net()
    split = copy.deepcopy(whole)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    if 64 % size == 0:
        split = parallelize_module(split, mesh, plan)
        x, _ = batch(0, 0)
        a, b = whole(x), split(x)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        a.sum().backward()
        b.sum().backward()
        torch.testing.assert_close(
            whole[0].weight.grad, split[0].weight.grad.full_tensor(), rtol=1e-5, atol=1e-5
        )
    if size == 4:
        grid = init_device_mesh(home().type, (2, 2), mesh_dim_names=("dp", "tp"))
        d = distribute_tensor(big, grid, [Shard(0), Shard(1)])
        assert torch.equal(d.full_tensor(), big)


def checkpoint(rank: int, size: int) -> None:
    """Distributed checkpoints of sharded weights; loaded again on the same ranks."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    model = fully_shard(net())
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    other = fully_shard(net(seed=2))
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=folder[0])
    other.load_state_dict(state["model"])
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.full_tensor(), b.full_tensor())
    dist.barrier()
    if rank == 0:
        import shutil

        shutil.rmtree(folder[0])


def compiled(rank: int, size: int) -> None:
    """torch.compile of a DDP step, and of a function with collectives in it."""
    import torch.distributed._functional_collectives as F

    # These processes ran it with other group sizes before, which are constants of the compiled code.
    torch._dynamo.reset()
    like_gloo(
        lambda g: train(torch.compile(DDP(net(), process_group=g), backend="aot_eager"), rank, steps=2), size
    )
    group = dist.group.WORLD

    @torch.compile(fullgraph=True, backend="aot_eager")
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.all_reduce(x * 2, "sum", group) + F.all_gather_tensor(x, 0, group).sum()

    x = torch.ones(3)
    assert torch.equal(f(x), torch.full((3,), 2.0 * size + 3 * size))


def pipeline(rank: int, size: int) -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(3)
    layers = [nn.Linear(8, 8) for _ in range(size)]
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=lambda o, t: ((o - t) ** 2).mean())
    x, target = torch.randn(8, 8), torch.randn(8, 8)
    if rank == 0:
        schedule.step(x)
    if rank == size - 1:
        out = schedule.step(target=target) if size > 1 else schedule.step(x, target=target)
        want = x
        for layer in layers:
            want = layer(want)
        torch.testing.assert_close(out, want)
    elif rank:
        schedule.step()
    assert layers[rank].weight.grad is not None


def agree(ts: list[torch.Tensor], size: int) -> None:
    for t in ts:
        everyone = [torch.empty_like(t) for _ in range(size)]
        dist.all_gather(everyone, t)
        assert all(torch.equal(e, t) for e in everyone)
