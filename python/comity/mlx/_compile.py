"""`mx.compile` for scripts that communicate inside of compiled functions, as with `mx.distributed` they may.

Calls of Comity communicate when they are made, and MLX makes them only once: when it traces the function. So a function that turns out to
make such calls is left uncompiled.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx

from comity.errors import MisuseError

_compile = mx.compile
_said = False


def compile_or_not(
    fun: Callable[..., Any], inputs: Any = None, outputs: Any = None, shapeless: bool = False
) -> Callable[..., Any]:
    """As `mx.compile`, but a function that communicates is called as it is, and the first such is told on stderr."""
    compiled = _compile(fun, inputs=inputs, outputs=outputs, shapeless=shapeless)
    plain = traced = False

    @functools.wraps(fun, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal plain, traced
        if plain:
            return fun(*args, **kwargs)
        # A trace that is given up leaves arrays without a value in what the function changes.
        before = [] if traced else [(c, c.copy()) for c in _containers([inputs, outputs])]
        key = None if traced else _random_key()
        try:
            found = compiled(*args, **kwargs)
        except MisuseError:
            for container, was in before:
                _restore(container, was)
            if key is not None:
                mx.random.seed(key)
            plain = True
            _say(fun)
            return fun(*args, **kwargs)
        traced = True
        return found

    return call


def _containers(tree: Any) -> Iterator[list[Any] | dict[Any, Any]]:
    """Every list and dict in a tree; modules are dicts."""
    if isinstance(tree, dict):
        yield tree
        for item in tree.values():
            yield from _containers(item)
    elif isinstance(tree, list | tuple):
        if isinstance(tree, list):
            yield tree
        for item in tree:
            yield from _containers(item)


def _restore(container: list[Any] | dict[Any, Any], was: Any) -> None:
    if isinstance(container, list):
        container[:] = was
    else:
        dict.clear(container)
        dict.update(container, was)


def _random_key() -> int | None:
    """What `mx.random.seed` makes the state of MLX's random numbers of, which has no other setter."""
    try:
        high, low = mx.random.state[0].tolist()
    except (RuntimeError, ValueError):
        # Inside of another function's trace, at whose start the same was kept.
        return None
    return high << 32 | low


def _say(fun: Callable[..., Any]) -> None:
    """Once in a process."""
    global _said  # noqa: PLW0603
    if not _said:
        _said = True
        name = getattr(fun, "__qualname__", type(fun).__name__)
        print(f"comity: {name} communicates, so mx.compile leaves it as it is", file=sys.stderr, flush=True)
