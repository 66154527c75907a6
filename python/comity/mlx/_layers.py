"""Linear layers whose weights are spread over the ranks.

A layer with sharded outputs, only element-wise work or work of single heads, and a layer with sharded inputs need one sum
over all ranks together.
"""

import math
from typing import Any, Self

import mlx.core as mx
from mlx import nn

import comity
from comity.errors import MisuseError
from comity.mlx._groups import Group, of
from comity.mlx._ops import all_sum, sum_gradients
from comity.mlx._sharding import PREDICATES, Segments, bounds, own


class _Sharded:
    """What the four layers have in common."""

    group: Group
    sharding: str
    # What the layer has less of on each rank, for messages and `repr`.
    cut = ""

    def _take(self, whole: nn.Module, segments: Segments, group: comity.Group | None) -> None:
        """This rank's part of the parameters of `whole`, and its settings."""
        self.group = of(group)
        # Also on one rank, so that a mistake shows before the job is large.
        rows = self.cut == "output"
        weight = whole["weight"]
        length = weight.shape[0] if rows else _inputs(whole)
        bounds(segments, length, f"the {self.cut}")
        mine = own(whole, "", PREDICATES[self.sharding], segments, self.group)
        for name, x in list(whole.items()):
            self[name] = mine.get(name, x)

    def _extra_repr(self) -> str:
        n, rows = self.group.size(), self.cut == "output"
        out = self["weight"].shape[0] * (n if rows else 1)
        inputs = _inputs(self) * (1 if rows else n)
        quantized = ""
        if "scales" in self:
            quantized = f", group_size={self.group_size}, bits={self.bits}, mode={self.mode}"
        return f"input_dims={inputs}, output_dims={out}, bias={'bias' in self}{quantized}, ranks={n}"


def _inputs(layer: Any) -> int:
    if "scales" in layer:
        return layer["weight"].shape[-1] * 32 // layer.bits
    return layer["weight"].shape[-1]


def _divides(size: int, what: str, group: Group) -> None:
    if size % group.size():
        words = f"the {what} of size {size} cannot be sharded across {group.size()} ranks"
        raise MisuseError(words, group.rank())


class _Linear(_Sharded, nn.Linear):
    """A part of `nn.Linear`. With the same seed on all ranks it begins as the part of the layer that one process would make."""

    def __init__(
        self, input_dims: int, output_dims: int, bias: bool = True, group: comity.Group | None = None
    ) -> None:
        g = of(group)
        _divides(output_dims if self.cut == "output" else input_dims, self.cut, g)
        super().__init__(input_dims, output_dims, bias)
        # nn.Linear has drawn the whole; the same on all ranks where their seeds are.
        self._take(self, 1, g)

    @classmethod
    def from_linear(
        cls, linear: nn.Module, *, segments: Segments = 1, group: comity.Group | None = None
    ) -> Self:
        """This rank's part of a layer that every rank has whole."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._take(linear, segments, group)
        return layer

    def to_quantized(
        self,
        group_size: int | None = None,
        bits: int | None = None,
        mode: str = "affine",
        quantize_input: bool = False,
    ) -> nn.Module:
        """The same layer, still sharded, with a quantized weight."""
        if quantize_input:
            raise MisuseError("a sharded layer does not quantize its inputs")
        local = nn.Linear.__new__(nn.Linear)
        nn.Module.__init__(local)
        for name, x in self.items():
            local[name] = x
        quantized = nn.QuantizedLinear.from_linear(local, group_size, bits, mode=mode)
        return _QUANTIZED[self.sharding]._of_part(quantized, self.group)


class AllToShardedLinear(_Linear):
    """A linear layer that takes the whole input on every rank and gives each rank its part of the outputs."""

    sharding, cut = "all-to-sharded", "output"

    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(sum_gradients(self.group)(x))


class ShardedToAllLinear(_Linear):
    """A linear layer that takes each rank's part of the input and gives every rank the whole output."""

    sharding, cut = "sharded-to-all", "input"

    def __call__(self, x: mx.array) -> mx.array:
        y = all_sum(x @ self["weight"].T, group=self.group)
        return y + self["bias"] if "bias" in self else y


class _Quantized(_Sharded, nn.QuantizedLinear):
    def __init__(
        self,
        input_dims: int,
        output_dims: int,
        bias: bool = True,
        group_size: int = 64,
        bits: int = 4,
        mode: str = "affine",
        group: comity.Group | None = None,
    ) -> None:
        g = of(group)
        _divides(output_dims if self.cut == "output" else input_dims, self.cut, g)
        nn.Module.__init__(self)
        scale = math.sqrt(1 / input_dims)
        whole = nn.Linear(input_dims, output_dims, bias=False)
        whole.weight = mx.random.uniform(low=-scale, high=scale, shape=(output_dims, input_dims))
        if bias:
            whole.bias = mx.zeros((output_dims,))
        self._take_quantized(nn.QuantizedLinear.from_linear(whole, group_size, bits, mode=mode), 1, g)

    def _take_quantized(self, whole: nn.Module, segments: Segments, group: comity.Group | None) -> None:
        self.group_size, self.bits, self.mode = whole.group_size, whole.bits, whole.mode
        self._take(whole, segments, group)
        self.freeze()

    def unfreeze(self, *args: Any, **kwargs: Any) -> None:
        """As `nn.Module.unfreeze`, for what is inside; the layer's own parameters are not trained."""
        super().unfreeze(*args, **kwargs)
        self.freeze(recurse=False)

    @classmethod
    def from_quantized_linear(
        cls, quantized: nn.Module, *, segments: Segments = 1, group: comity.Group | None = None
    ) -> Self:
        """This rank's part of a layer that every rank has whole."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._take_quantized(quantized, segments, group)
        return layer

    @classmethod
    def _of_part(cls, quantized: nn.Module, group: Group) -> Self:
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.group_size, layer.bits, layer.mode = quantized.group_size, quantized.bits, quantized.mode
        layer.group = group
        for name, x in quantized.items():
            layer[name] = x
        layer.freeze()
        return layer


class QuantizedAllToShardedLinear(_Quantized):
    """As `AllToShardedLinear`, with a quantized weight, which is not trained."""

    sharding, cut = "all-to-sharded", "output"

    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(sum_gradients(self.group)(x))


class QuantizedShardedToAllLinear(_Quantized):
    """As `ShardedToAllLinear`, with a quantized weight, which is not trained. Each rank's part of the input holds whole
    groups of the quantization."""

    sharding, cut = "sharded-to-all", "input"

    def __call__(self, x: mx.array) -> mx.array:
        y = mx.quantized_matmul(
            x,
            self["weight"],
            scales=self["scales"],
            biases=self.get("biases"),
            transpose=True,
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
        )
        y = all_sum(y, group=self.group)
        return y + self["bias"] if "bias" in self else y


_LINEAR: dict[str, type[_Linear]] = {
    "all-to-sharded": AllToShardedLinear,
    "sharded-to-all": ShardedToAllLinear,
}
_QUANTIZED: dict[str, type[_Quantized]] = {
    "all-to-sharded": QuantizedAllToShardedLinear,
    "sharded-to-all": QuantizedShardedToAllLinear,
}


def shard_linear(
    module: nn.Module, sharding: str, *, segments: Segments = 1, group: comity.Group | None = None
) -> nn.Module:
    """A layer that does the same as `nn.Linear` or `nn.QuantizedLinear` with this rank's part of its parameters.

    Args:
        module: The whole layer, the same on all ranks.
        sharding: ``"all-to-sharded"`` or ``"sharded-to-all"``.
        segments: For fused layers: a number of equal parts, indices or fractions; each part is sharded by itself.
        group: Default: the group of the job.
    """
    if sharding not in PREDICATES:
        raise MisuseError(f"there is no sharding {sharding!r}; there are {', '.join(PREDICATES)}")
    if isinstance(module, nn.QuantizedLinear):
        return _QUANTIZED[sharding].from_quantized_linear(module, segments=segments, group=group)
    if isinstance(module, nn.Linear):
        return _LINEAR[sharding].from_linear(module, segments=segments, group=group)
    raise MisuseError(
        f"{type(module).__name__} is neither nn.Linear nor nn.QuantizedLinear; shard_inplace shards any module"
    )
