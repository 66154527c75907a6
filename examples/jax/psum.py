"""psum, all_gather, ppermute and all_to_all of JAX, one CPU device a process: `comity launch -- psum.py COORDINATOR [gloo|mpi]`."""

import os
import sys

import jax
import numpy as np

rank, size = int(os.environ["COMITY_RANK"]), int(os.environ["COMITY_SIZE"])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", sys.argv[2] if len(sys.argv) > 2 else "mpi")
jax.distributed.initialize(sys.argv[1], size, rank)

from jax import numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

mesh = Mesh(np.array(jax.devices()), ("x",))
assert len(jax.devices()) == size, jax.devices()
ring = [(i, (i + 1) % size) for i in range(size)]


def over_ranks(f, own):
    """What `f` makes on this rank of `own`, one block of the array."""
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    whole = jax.make_array_from_process_local_data(sharding, own, (size * own.shape[0], *own.shape[1:]))
    out = jax.jit(
        jax.shard_map(
            f, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"), check_vma=False
        )
    )(whole)
    return np.asarray(out.addressable_shards[0].data)


own = np.arange(size * 4, dtype=np.float32).reshape(size, 4) + 100 * rank
each = [np.arange(size * 4, dtype=np.float32).reshape(size, 4) + 100 * r for r in range(size)]
np.testing.assert_array_equal(over_ranks(lambda x: jax.lax.psum(x, "x"), own), sum(each))
np.testing.assert_array_equal(over_ranks(lambda x: jax.lax.pmax(x, "x"), own), each[-1])
np.testing.assert_array_equal(
    over_ranks(lambda x: jax.lax.all_gather(x, "x", tiled=True), own), np.concatenate(each)
)
np.testing.assert_array_equal(over_ranks(lambda x: jax.lax.ppermute(x, "x", ring), own), each[rank - 1])
got = over_ranks(lambda x: jax.lax.all_to_all(x, "x", 0, 0, tiled=True), own)
np.testing.assert_array_equal(got, np.stack([e[rank] for e in each]))
got = over_ranks(lambda x: jax.lax.psum_scatter(x, "x", tiled=True), own)
np.testing.assert_array_equal(got, sum(each)[rank : rank + 1])
large = np.full((1 << 20,), rank + 1, dtype=np.float32)
assert over_ranks(lambda x: jax.lax.ppermute(x, "x", ring), large)[-1] == (rank - 1) % size + 1
assert jnp.all(over_ranks(lambda x: jax.lax.psum(x, "x"), large) == size * (size + 1) / 2)
print(f"all right on rank {rank} of {size}", flush=True)
