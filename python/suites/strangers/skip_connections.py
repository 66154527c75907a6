"""A pipeline with skip connections: rank 0 sends each activation to the next rank and past it, to the last one.

Elsewhere the last rank's receives were matched in the order of arrival and not by who sent, or the first stage waited for ever: its second
send to the same rank stood behind one that nobody had asked for yet.
"""
# ranks: 4

import sys

import torch
import torch.distributed as dist

import comity  # noqa: F401, an older torch finds the backend by it

BATCHES = 6
dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
last = size - 1


def activation(batch: int, stage: int) -> torch.Tensor:
    return torch.full((4, 1024), float(batch * 10 + stage))


under_way = []
for batch in range(BATCHES):
    if rank == 0:
        x = activation(batch, 0)
        # The skip goes first: its receiver asks for it last.
        under_way += [dist.isend(x, last), dist.isend(x + 1, 1)]
    elif rank < last:
        x = torch.empty(4, 1024)
        dist.recv(x, rank - 1)
        assert torch.equal(x, activation(batch, rank)), (batch, x[0, 0])
        under_way.append(dist.isend(x + 1, rank + 1))
    else:
        near, skip = torch.empty(4, 1024), torch.empty(4, 1024)
        dist.recv(near, rank - 1)
        dist.recv(skip, 0)
        assert torch.equal(near, activation(batch, last)), (batch, near[0, 0])
        assert torch.equal(skip, activation(batch, 0)), (batch, skip[0, 0])
for work in under_way:
    work.wait()

# Backwards, in batches of sends and receives at once: gradients meet activations on the way.
back, forth = torch.empty(1024), torch.full((1024,), float(rank))
left, right = (rank - 1) % size, (rank + 1) % size
works = dist.batch_isend_irecv([dist.P2POp(dist.isend, forth, right), dist.P2POp(dist.irecv, back, left)])
for work in works:
    work.wait()
assert torch.equal(back, torch.full((1024,), float(left))), back[0]
dist.barrier()
dist.destroy_process_group()
