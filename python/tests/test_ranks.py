"""The checks in `ranks`, on 1 to 4 real processes."""

import importlib.util
import re

import pytest
from conftest import job, succeed

MODULES = {
    "arrays_numpy": ["numpy"],
    "arrays_mlx": ["mlx"],
    # In one job: most of the time of each would be the import of the frameworks.
    "arrays_torch arrays_jax arrays_other arrays_alike": ["torch", "jax", "numpy", "mlx", "ml_dtypes"],
    "objects": ["numpy"],
    "requests": ["numpy"],
    "groups": ["numpy"],
    "signals": ["numpy"],
    "mlx_ops": ["mlx"],
    "mlx_layers": ["mlx"],
    "mlx_training": ["mlx"],
}


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("modules", MODULES)
def test_checks(modules: str, n: int) -> None:
    missing = [m for m in MODULES[modules] if importlib.util.find_spec(m) is None]
    assert not missing, f"not installed: {missing}"
    done = re.search(r"(\d+) checks", succeed(job(n, "-m", "ranks", *modules.split())))
    assert done is not None
    assert int(done[1]) >= len(modules.split())
