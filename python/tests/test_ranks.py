"""The checks in `ranks`, on 1 to 4 real processes."""

import importlib.util
import re

import pytest
from conftest import job, succeed

MODULES = {
    "arrays_numpy": ["numpy"],
    "arrays_mlx": ["mlx"],
    "arrays_jax": ["jax"],
    "arrays_torch": ["torch"],
    "arrays_other": ["numpy"],
    "arrays_alike": ["torch", "jax", "mlx", "ml_dtypes"],
    "objects": ["numpy"],
    "requests": ["numpy"],
    "groups": ["numpy"],
    "signals": ["numpy"],
    "mlx_ops": ["mlx"],
    "mlx_layers": ["mlx"],
    "mlx_training": ["mlx"],
}


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("module", MODULES)
def test_checks(module: str, n: int) -> None:
    missing = [m for m in MODULES[module] if importlib.util.find_spec(m) is None]
    assert not missing, f"not installed: {missing}"
    done = re.search(r"(\d+) checks", succeed(job(n, "-m", "ranks", module)))
    assert done is not None
    assert int(done[1]) > 0
