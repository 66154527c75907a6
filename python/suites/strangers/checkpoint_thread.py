"""A thread that writes checkpoints has a group of its own, in which it waits for the other ranks', while the training goes on.

Elsewhere the two threads' calls were matched with one another, or a barrier of one held up the other.
"""
# ranks: 2

import sys
import threading

import torch
import torch.distributed as dist

import comity  # noqa: F401, an older torch finds the backend by it

STEPS, CHECKPOINTS = 200, 20
dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
checkpoint_group = dist.new_group(backend=sys.argv[1])
wrong: list[str] = []


def checkpoints() -> None:
    try:
        for number in range(CHECKPOINTS):
            dist.barrier(group=checkpoint_group)
            least = torch.tensor([number * 100 + rank])
            dist.all_reduce(least, dist.ReduceOp.MIN, group=checkpoint_group)
            if least.item() != number * 100:
                wrong.append(f"checkpoint {number}: {least.item()}")
    except Exception as e:
        wrong.append(repr(e))


thread = threading.Thread(target=checkpoints)
thread.start()
for step in range(STEPS):
    gradient = torch.full((5000,), float(step + rank))
    dist.all_reduce(gradient)
    expected = float(size * step + size * (size - 1) // 2)
    assert torch.equal(gradient, torch.full((5000,), expected)), (step, gradient[0], expected)
thread.join(60)
assert not thread.is_alive(), "the thread that writes checkpoints hangs"
assert not wrong, wrong
dist.barrier()
dist.destroy_process_group()
