"""A script of MLX as its users write it: data-parallel and tensor-parallel steps. Only the import below differs for Comity."""

import json

import mlx.core as mx
from mlx import nn, optimizers
from mlx.nn.layers.distributed import shard_linear

group = mx.distributed.init(strict=True)
rank, size = group.rank(), group.size()
found = {"size": size}

x = mx.arange(12.0).reshape(3, 4) / 7 + rank
found["sum"] = mx.distributed.all_sum(x).tolist()
found["max"] = mx.distributed.all_max(x, group=group, stream=mx.cpu).tolist()
found["gather"] = mx.distributed.all_gather(x.astype(mx.bfloat16)).astype(mx.float32).tolist()

# A pass around the ring.
right, left = (rank + 1) % size, (rank - 1) % size
if rank == 0:
    mx.eval(mx.distributed.send(x, right, group=group))
    found["around"] = mx.distributed.recv_like(x, left, group=group).tolist()
else:
    got = mx.distributed.recv(x.shape, x.dtype, left, group=group)
    mx.eval(mx.distributed.send(got * 2, right, group=group))

mx.random.seed(1)
model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))
mx.eval(model.parameters())
optimizer = optimizers.SGD(0.1)


def loss(model, x, y):
    return ((model(x) - y) ** 2).mean()


step = nn.value_and_grad(model, loss)
for i in range(3):
    key = mx.random.key(10 * i + rank)
    value, grads = step(model, mx.random.normal((5, 8), key=key), mx.ones((5, 4)))
    grads = nn.average_gradients(grads, group)
    optimizer.update(model, grads)
    mx.eval(model.parameters())
found["trained"] = model.layers[2].weight.tolist()

sharded = nn.Sequential(
    shard_linear(model.layers[0], "all-to-sharded", group=group),
    nn.ReLU(),
    shard_linear(model.layers[2], "sharded-to-all", group=group),
)
inputs = mx.random.normal((2, 8), key=mx.random.key(5))
found["sharded"] = sharded(inputs).tolist()
found["whole"] = model(inputs).tolist()
value, grads = nn.value_and_grad(sharded, loss)(sharded, inputs, mx.ones((2, 4)))
found["bias gradient"] = grads["layers"][2]["bias"].tolist()

if rank == 0:
    print("found " + json.dumps(found))
