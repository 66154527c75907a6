"""Training of a transformer whose layers are divided among ranks: MLX over Comity, MLX over its own ring, torch's DTensor over gloo.

    comity launch -n 2 -- python bench/tensor_parallel.py comity
    comity launch -n 2 -- python bench/tensor_parallel.py ring
    comity launch -n 2 -- python bench/tensor_parallel.py torch

The model is that of `crates/comity-candle/examples/gpt`, with numbers in the place of a text. Rank 0 prints the median of the steps after
the first. Set OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1 for one thread a rank.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Different letters of the text that the example learns, about.
LETTERS = 96
Step = Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", choices=("comity", "ring", "torch"))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--heads", type=int, default=16)
    args = parser.parse_args()
    rank, size, step = (torch_step if args.library == "torch" else mlx_step)(args)
    times = []
    for _ in range(args.steps):
        begun = time.perf_counter()
        loss = step()
        times.append(time.perf_counter() - begun)
    if rank == 0:
        median = statistics.median(times[1:] or times)
        print(
            f"{args.library} on {size}: loss {loss:.4f}, {1e3 * median:.1f} ms a step, "
            f"{args.batch * args.context / median:.0f} letters/s"
        )


def mlx_model(args: argparse.Namespace, layers: Any, group: Any) -> Any:
    import mlx.core as mx
    from mlx import nn

    width, heads = args.width, args.heads // group.size()

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q = layers.AllToShardedLinear(width, width, bias=False, group=group)
            self.k = layers.AllToShardedLinear(width, width, bias=False, group=group)
            self.v = layers.AllToShardedLinear(width, width, bias=False, group=group)
            self.o = layers.ShardedToAllLinear(width, width, bias=False, group=group)
            self.up = layers.AllToShardedLinear(width, 2 * width, group=group)
            self.gate = layers.AllToShardedLinear(width, 2 * width, group=group)
            self.down = layers.ShardedToAllLinear(2 * width, width, group=group)

        def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
            h = self.norm1(x)
            rows, time_, _ = h.shape

            def split(y: mx.array) -> mx.array:
                return y.reshape(rows, time_, heads, -1).swapaxes(1, 2)

            y = mx.fast.scaled_dot_product_attention(
                split(self.q(h)),
                split(self.k(h)),
                split(self.v(h)),
                scale=(width // args.heads) ** -0.5,
                mask=mask,
            )
            x = x + self.o(y.swapaxes(1, 2).reshape(rows, time_, -1))
            h = self.norm2(x)
            return x + self.down(nn.silu(self.gate(h)) * self.up(h))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.letters = nn.Embedding(LETTERS, width)
            self.places = nn.Embedding(args.context, width)
            self.blocks = [Block() for _ in range(args.layers)]
            self.norm = nn.RMSNorm(width)
            self.scores = nn.Linear(width, LETTERS, bias=False)

        def __call__(self, ids: mx.array) -> mx.array:
            x = self.letters(ids) + self.places(mx.arange(ids.shape[1]))
            mask = nn.MultiHeadAttention.create_additive_causal_mask(ids.shape[1])
            for block in self.blocks:
                x = block(x, mask)
            return self.scores(self.norm(x))

    return Model()


def mlx_step(args: argparse.Namespace) -> tuple[int, int, Step]:
    import mlx.core as mx
    import mlx.optimizers as optim
    from mlx import nn

    if args.library == "comity":
        from comity import mlx as layers

        group = layers.init()
    else:
        layers = nn
        group = mx.distributed.init(backend="ring")
    # CPU wheels have no other device; said for those that have.
    mx.set_default_device(mx.cpu)
    mx.random.seed(1)
    model = mlx_model(args, layers, group)
    optimizer = optim.AdamW(learning_rate=0.003, weight_decay=0.0)
    mx.eval(model.parameters())
    ids = mx.random.randint(0, LETTERS, (args.batch, args.context + 1))

    def loss_of(model: nn.Module, ids: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(ids[:, :-1]), ids[:, 1:], reduction="mean")

    gradient = nn.value_and_grad(model, loss_of)

    def step() -> float:
        loss, gradients = gradient(model, ids)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state, loss)
        return loss.item()

    return group.rank(), group.size(), step


def torch_model(args: argparse.Namespace, heads: int) -> torch.nn.Module:
    import torch
    import torch.nn.functional as F
    from torch import nn

    width = args.width

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q = nn.Linear(width, width, bias=False)
            self.k = nn.Linear(width, width, bias=False)
            self.v = nn.Linear(width, width, bias=False)
            self.o = nn.Linear(width, width, bias=False)
            self.up, self.gate = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
            self.down = nn.Linear(2 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.norm1(x)
            rows, time_, _ = h.shape

            def split(y: torch.Tensor) -> torch.Tensor:
                return y.view(rows, time_, heads, -1).transpose(1, 2)

            y = F.scaled_dot_product_attention(
                split(self.q(h)), split(self.k(h)), split(self.v(h)), is_causal=True
            )
            x = x + self.o(y.transpose(1, 2).reshape(rows, time_, -1))
            h = self.norm2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.letters = nn.Embedding(LETTERS, width)
            self.places = nn.Embedding(args.context, width)
            self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
            self.norm = nn.RMSNorm(width)
            self.scores = nn.Linear(width, LETTERS, bias=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.letters(ids) + self.places(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.scores(self.norm(x))

    return Model()


def torch_step(args: argparse.Namespace) -> tuple[int, int, Step]:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    model = torch_model(args, args.heads // size)
    if size > 1:
        mesh = init_device_mesh("cpu", (size,))
        columns = {name: ColwiseParallel() for name in ("q", "k", "v", "up", "gate")}
        rows = {name: RowwiseParallel() for name in ("o", "down")}
        for block in model.blocks:
            parallelize_module(block, mesh, columns | rows)
    # AdamW's fused loops take parameters of one kind.
    own = [p for p in model.parameters() if isinstance(p, DTensor)]
    whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
    groups = [{"params": p} for p in (own, whole) if p]
    optimizer = torch.optim.AdamW(groups, lr=0.003, weight_decay=0.0)
    ids = torch.randint(0, LETTERS, (args.batch, args.context + 1))

    def step() -> float:
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return dist.get_rank(), size, step


if __name__ == "__main__":
    main()
