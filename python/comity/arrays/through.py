"""CUDA arrays of frameworks that let no one write theirs (JAX, DLPack), by way of one that does: torch, or else CuPy."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from comity.arrays import kind_of
from comity.arrays.block import Block
from comity.errors import MisuseError


def on_device() -> "Through":
    """What makes memory of such arrays; `MisuseError` where neither framework is installed."""
    try:
        return Through()
    except ImportError as e:
        raise MisuseError(
            "the array is on a CUDA device, and neither torch nor CuPy is installed to take it over; copy it to host memory first"
        ) from e


class Through:
    """Such arrays as those of a framework that lets them be written."""

    def __init__(self) -> None:
        name = "torch" if "torch" in sys.modules or not _has("cupy") else "cupy"
        self.kind = kind_of(name)
        #: The framework itself, which both kinds keep under its name.
        self.framework = getattr(self.kind, name)

    def through(self, x: Any, back: Callable[[Any], Any] | None) -> Block:
        """What `x` holds; `back` makes its kind of the other's."""
        try:
            taken = self.framework.from_dlpack(x)
        except Exception as e:  # each framework has classes of its own for this
            raise MisuseError(
                f"the array is on a CUDA device and {self.kind.name} cannot take it over ({e}); copy it to host memory first"
            ) from e
        block = self.kind.read(taken)
        # A copy may have been made: that is what is read.
        block.keep = _Kept(x, block.keep, back)
        return block

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        block = self.kind.make(shape, Block(0, like.code, (), like.dtype, like.keep.real))
        array, back = block.keep, like.keep.back
        block._result = (lambda: back(array)) if back else None
        return block


class _Kept:
    """An array, and the other framework's view of it."""

    def __init__(self, x: Any, real: Any, back: Callable[[Any], Any] | None) -> None:
        self.x, self.real, self.back = x, real, back


def _has(module: str) -> bool:
    return module in sys.modules or find_spec(module) is not None
