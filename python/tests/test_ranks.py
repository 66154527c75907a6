"""The checks in `ranks`, on 1 to 4 real processes. Those in a row are one job: most of the time of each would be its start."""

import importlib.util
import re

import pytest
from conftest import job, succeed
from sampling import drawn

MODULES = {
    "arrays_numpy objects requests groups": ["numpy"],
    "signals": ["numpy"],
    "arrays_mlx mlx_ops mlx_layers mlx_training": ["mlx"],
    "arrays_torch arrays_jax arrays_other arrays_alike shared state": [
        "torch",
        "jax",
        "numpy",
        "mlx",
        "ml_dtypes",
    ],
}
HEAVY = "arrays_torch arrays_jax arrays_other arrays_alike shared state"
SIZES = {m: [1, 2, 3, 4] for m in MODULES} | {HEAVY: [1, *drawn("ranks with all frameworks:", [2, 3, 4])]}


@pytest.mark.parametrize(("modules", "n"), [(m, n) for m in MODULES for n in SIZES[m]])
def test_checks(modules: str, n: int) -> None:
    missing = [m for m in MODULES[modules] if importlib.util.find_spec(m) is None]
    assert not missing, f"not installed: {missing}"
    done = re.search(r"(\d+) checks", succeed(job(n, "-m", "ranks", *modules.split())))
    assert done is not None
    assert int(done[1]) >= len(modules.split())
