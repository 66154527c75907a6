"""The computer's clock is set while a job runs, an hour ahead and an hour back: by NTP after a boot without a battery, or by hand.

Elsewhere limits were counted by that clock: jobs ended at once with a timeout, or waited for an hour. A library that is loaded before the
others shows every process a clock that jumps. Nothing may change: neither sums, nor limits, nor the launcher's.
"""

import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);

/* Each 0.3 s another time: right, an hour ahead, an hour back. */
static long ahead(void) {
    struct timespec now;
    real(CLOCK_MONOTONIC, &now);
    long part = (now.tv_sec * 10 + now.tv_nsec / 100000000) / 3 % 3;
    return part == 1 ? 3600 : part == 2 ? -3600 : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(clock, at);
    if (!done && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += ahead();
    return done;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int done = clock_gettime(CLOCK_REALTIME, &now);
    if (!done && at) *at = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return done;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
#: Seconds in which the ranks make calls, while the clock jumps some ten times.
CALLS = 3


def jumps() -> int:
    """How often this process sees the clock jump within a second."""
    until, last, count = time.monotonic() + 1, time.time(), 0
    while time.monotonic() < until:
        now = time.time()
        count += abs(now - last) > 1000
        last = now
        time.sleep(0.01)
    return count


def rank_main(backend: str) -> None:
    import torch
    import torch.distributed as dist

    import comity

    assert jumps() > 1, "the clock stands: this tries nothing"
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    rank, begun, n = dist.get_rank(), time.monotonic(), 0
    going = torch.ones(1)
    while going.item():
        x = torch.full((1000,), float(rank + n))
        dist.all_reduce(x)
        assert torch.equal(x, torch.full((1000,), 2.0 * n + 1)), (n, x[0])
        n += 1
        going = torch.tensor([float(time.monotonic() < begun + CALLS)])
        dist.broadcast(going, 0)
    took = time.monotonic() - begun
    assert CALLS - 1 <= took < CALLS + 30, took
    dist.barrier()
    dist.destroy_process_group()
    if backend != "comity":
        return
    group = comity.init()
    group.barrier()
    if rank == 0:
        begun, said = time.monotonic(), "no error"
        try:
            group.barrier(timeout=1.5)
        except comity.TimeoutError as e:
            said = str(e)
        took = time.monotonic() - begun
        assert "timed out after 1.5s" in said and 1.4 < took < 30, (took, said)
    else:
        time.sleep(4)


def launch(clock: str, flags: list[str], command: list[str]) -> tuple[int, str, float]:
    """End, output and seconds of a job whose launcher sees that clock, too."""
    env = {n: v for n, v in os.environ.items() if not n.startswith("COMITY_")}
    env |= {"LD_PRELOAD": clock, "OMP_NUM_THREADS": "1"}
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "comity", "launch", *flags, "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        env=env,
        check=False,
    )
    return done.returncode, done.stdout, time.monotonic() - begun


def main(backend: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, clock = Path(folder, "clock.c"), str(Path(folder, "clock.so"))
        source.write_text(CLOCK)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", clock, str(source), "-ldl"], check=True)
        code, said, _ = launch(clock, ["-n", "2"], [sys.executable, __file__, backend, "rank"])
        assert code == 0, said
        if backend == "comity":
            code, said, took = launch(clock, ["--timeout", "2"], ["sleep", "100"])
            assert code == 124 and 2 <= took < 60, (code, took, said)


if __name__ == "__main__":
    rank_main(sys.argv[1]) if sys.argv[2:] == ["rank"] else main(sys.argv[1])
