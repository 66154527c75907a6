"""What ranks do in `test_stacks.py` with what comity.torch has beside torch: smaller forms of gradients, and figures."""

from __future__ import annotations

import torch
import torch.distributed as dist
from stack_bodies import agree, home, net, train
from torch.nn.parallel import DistributedDataParallel as DDP


def compression(rank: int, size: int) -> None:
    """Comity's own hooks and options: ranks agree, and what they learn is close to the uncompressed."""
    import comity.torch as ct

    plain = train(DDP(net()), rank, steps=5)
    for hook, state, tolerance in (
        (ct.hooks.fp16, None, 2e-2),
        (ct.hooks.bf16, None, 1e-1),
        (ct.hooks.int8, None, 1e-1),
        (ct.hooks.top_k, ct.hooks.TopKState(0.25), None),
        (ct.hooks.top_k, ct.hooks.TopKState(1.0), 1e-5),
    ):
        model = DDP(net())
        model.register_comm_hook(state, hook)
        out = train(model, rank, steps=5)
        agree(out[-6:], size)
        if tolerance is not None:
            for a, b in zip(out, plain, strict=True):
                assert (a - b).abs().max() < tolerance, (hook, (a - b).abs().max())
    x = torch.linspace(-1, 1, 5000) * (rank + 1)
    total = torch.linspace(-1, 1, 5000) * sum(range(1, size + 1))
    for name, tolerance in (("fp16", 1e-2), ("bf16", 1e-1), ("int8", 5e-2), ("topk", None)):
        t, tiny = x.clone(), torch.full((3,), 1 / 3)
        options = ct.Options(compression=name, threshold=1000, ratio=0.1)
        group = dist.new_group(pg_options=options)
        dist.all_reduce(t, group=group)
        if tolerance:
            assert (t - total).abs().max() < tolerance * size, (name, (t - total).abs().max())
        else:
            # A tenth of the elements, and never a wrong one.
            assert 500 <= t.count_nonzero() <= 500 * size
        agree([t], size)
        if name in ("bf16", "int8"):
            # A wire of the core: an infinity stays what it is, alone.
            wide = torch.where(torch.arange(5000) == 7, torch.inf, x)
            dist.all_reduce(wide, group=group)
            assert wide[7] == torch.inf and wide.isfinite().sum() == 4999, name
        dist.all_reduce(tiny, group=group)
        assert torch.equal(tiny, sum([torch.full((3,), 1 / 3)] * size)), "small tensors are not compressed"


def hooks_on_wires(rank: int, size: int) -> None:
    """Where the group is Comity's, the hooks' averages are calls on a wire; any backend takes them otherwise."""
    import comity.torch as ct

    group = dist.distributed_c10d._get_default_group()
    core = group._get_backend(torch.device("cpu"))._channels.here().group
    for form, share in ((ct.hooks._BF16, 0.5), (ct.hooks._INT8, 0.26)):
        grads = torch.linspace(-1, 1, 60_000) * (rank + 1)
        before = core.stats()["bytes_sent"]
        future = ct.hooks._on_wire(form, group, grads)
        assert future is not None and future.wait() is grads
        assert (grads - torch.linspace(-1, 1, 60_000) * (size + 1) / 2).abs().max() < 0.03
        sent = core.stats()["bytes_sent"] - before
        assert sent < share * 1.02 * 2 * (size - 1) / size * 4 * 60_000, sent
    assert ct.hooks._on_wire(ct.hooks._INT8, group, torch.ones(4, dtype=torch.float64)) is None


def feedback(rank: int, size: int) -> None:
    """What top-k leaves out comes with later calls: the sums of many steps are right."""
    from comity.torch import TopK

    codec = TopK(ratio=0.1)
    group = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    t, seen = torch.empty(100), torch.zeros(100)
    g = torch.Generator(device=home()).manual_seed(rank)
    given = torch.zeros(100)
    opts = dist.AllreduceOptions()
    for step in range(40):
        t.copy_(torch.rand(100, generator=g) if step < 20 else torch.zeros(100))
        given += t
        codec.all_reduce(group, t, "sum", opts, [t]).wait()
        seen += t
    dist.all_reduce(given)
    torch.testing.assert_close(seen, given, rtol=1e-4, atol=1e-4)


def metrics(rank: int, size: int) -> dict:
    import comity.torch as ct

    ct.reset_metrics()
    assert ct.get_metrics()["total_ops"] == 0
    dist.all_reduce(torch.ones(1000))
    dist.all_reduce(torch.ones(1000), async_op=True).wait()
    dist.barrier()
    ct.log_metrics()
    return ct.get_metrics()
