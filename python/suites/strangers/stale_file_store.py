"""A `file://` store that a job which was killed has left behind, and that the next job names again.

Elsewhere the second job met the first one's ranks, or waited for half an hour. It is right to sum up, or to refuse within the limit of the
meeting; a wrong sum, or silence, is not.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import comity  # noqa: F401, an older torch finds the backend by it

RANKS, LIMIT = 2, 20


def rank_main(rank: int, backend: str, file: str, dies: bool) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    for name in [n for n in os.environ if n.startswith("COMITY_")]:
        del os.environ[name]
    store = f"file://{file}"
    limit = timedelta(seconds=LIMIT)
    try:
        dist.init_process_group(backend, init_method=store, rank=rank, world_size=RANKS, timeout=limit)
        x = torch.full((1000,), float(rank + 1))
        dist.all_reduce(x)
    except Exception as e:
        print(f"refused: {type(e).__name__}", flush=True)
        os._exit(7)
    if dies:
        os._exit(0)  # without a goodbye: the file stays as it is
    assert torch.equal(x, torch.full((1000,), 3.0)), x[0]
    dist.destroy_process_group()


def job(backend: str, file: str, dies: bool) -> list[int | None]:
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=rank_main, args=(r, backend, file, dies)) for r in range(RANKS)]
    until = time.monotonic() + 6 * LIMIT
    for p in ranks:
        p.start()
    for p in ranks:
        p.join(max(until - time.monotonic(), 0.1))
    codes = [p.exitcode for p in ranks]
    for p in ranks:
        p.kill()
    return codes


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "store")
        assert job(sys.argv[1], file, dies=True) == [0, 0]
        assert os.path.exists(file), "the first job left nothing behind: this tries nothing"
        codes = job(sys.argv[1], file, dies=False)
        assert codes in ([0, 0], [7, 7]), codes
