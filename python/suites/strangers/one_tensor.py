"""Outputs that are one tensor: views of it as a list, and calls that take it whole.

Elsewhere lists of views were gathered into copies, and the tensor that they are views of stayed as it was.
"""
# ranks: 3

import sys

import torch
import torch.distributed as dist

import comity  # noqa: F401, an older torch finds the backend by it

dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
every = torch.arange(size, dtype=torch.float32).repeat_interleave(3)

whole = torch.zeros(size * 3)
dist.all_gather(list(whole.chunk(size)), torch.full((3,), float(rank)))
assert torch.equal(whole, every), whole

whole = torch.zeros(size, 3)
dist.all_gather_into_tensor(whole, torch.full((1, 3), float(rank)))
assert torch.equal(whole.flatten(), every), whole

# In place: the input is the rank's part of the output.
whole = torch.zeros(size * 3)
mine = whole[rank * 3 : rank * 3 + 3].fill_(rank)
dist.all_gather_into_tensor(whole, mine)
assert torch.equal(whole, every), whole

whole = torch.zeros(size * 3)
parts = list(whole.chunk(size)) if rank == 0 else None
dist.gather(torch.full((3,), float(rank)), parts, dst=0)
assert rank != 0 or torch.equal(whole, every), whole

columns = torch.zeros(3, size)
dist.all_gather(list(columns.unbind(1)), torch.full((3,), float(rank)))
assert torch.equal(columns.t().flatten(), every), columns

dist.barrier()
dist.destroy_process_group()
