"""JAX arrays: JAX's come back, of the same type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import comity

DTYPES = [jnp.bool_, jnp.uint8, jnp.int16, jnp.int32, jnp.float16, jnp.bfloat16, jnp.float32, jnp.complex64]


def check_every_type(g: comity.Group) -> None:
    for dtype in DTYPES:
        for shape in [(), (2, 3), (1031,)]:
            # By NumPy: JAX would compile each step for each type and shape.
            whole = [((np.arange(np.prod(shape, dtype=int)) + r) % 2).reshape(shape) for r in range(g.size)]
            parts = [jnp.asarray(x.astype(dtype)) for x in whole]
            got = g.all_sum(parts[g.rank])
            assert isinstance(got, jax.Array)
            assert got.dtype == parts[0].dtype
            assert got.shape == shape
            expected = sum(np.asarray(p).astype(np.complex64) for p in parts)
            expected = expected != 0 if dtype is jnp.bool_ else expected
            np.testing.assert_array_equal(np.asarray(got).astype(np.complex64), expected)
            gathered = g.all_gather(parts[g.rank])
            assert gathered.shape == ((g.size,) if shape == () else (g.size * shape[0], *shape[1:]))


def check_results_stay_as_they_are(g: comity.Group) -> None:
    x = jnp.ones((1024,))
    first = g.all_sum(x)
    g.all_sum(x * 5)
    assert float(first.sum()) == 1024 * g.size
    if g.size > 1:
        right, left = (g.rank + 1) % g.size, (g.rank - 1) % g.size
        assert float(g.sendrecv(x * g.rank, right, left)[0]) == left
        if g.rank == 0:
            g.send(x, 1)
        if g.rank == 1:
            assert isinstance(g.recv((1024,), jnp.float32, 0), jax.Array)


def check_refusals(g: comity.Group) -> None:
    x = jnp.ones((2,))
    with pytest.raises(comity.MisuseError, match="cannot be changed"):
        g.all_sum(x, out=x)
    with pytest.raises(comity.MisuseError, match=r"jax\.jit"):
        jax.jit(g.all_sum)(x)
    assert float(g.all_sum(x)[0]) == g.size
