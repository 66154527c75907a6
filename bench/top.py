"""What a rank pays for being looked at: all_reduce on 2 ranks alone, and while `comity top` looks at the job each second.

    python bench/top.py --comity target/release/comity

Each round starts a job for each way of looking, in another order each time. Printed: the median over rounds of each row's median, with the
quartiles, in us; and what the ranks' processors worked for 1e9 bytes. The load beside it is printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import statistics
import subprocess
import termios
import threading
import time
from collections import defaultdict
from collections.abc import Callable

#: Seconds between two looks: the default of `comity top`.
EVERY = 1.0
Row = tuple[str, int]


def alone(_: str, job: subprocess.Popen[str]) -> None:
    job.wait()


def once(comity: str, job: subprocess.Popen[str]) -> None:
    """`comity top --once` each second: each is a process, which looks twice."""
    begun = time.monotonic()
    looks, shown = 0, 0
    while job.poll() is None:
        looks += 1
        time.sleep(max(0.0, begun + looks * EVERY - time.monotonic()))
        # The job may not yet have its door, or end meanwhile, which is no matter.
        look = subprocess.run([comity, "top", "--once", str(job.pid)], capture_output=True, check=False)
        shown += look.returncode == 0
    assert shown, "comity top --once showed nothing"


def live(comity: str, job: subprocess.Popen[str]) -> None:
    """`comity top` on a terminal."""
    ours, its = pty.openpty()
    # A terminal of 0 rows shows nothing.
    termios.tcsetwinsize(its, (40, 120))
    # Before this the launcher has no door to knock at.
    time.sleep(EVERY / 2)
    env = os.environ | {"TERM": "xterm-256color"}
    top = subprocess.Popen([comity, "top", str(job.pid)], stdin=its, stdout=its, stderr=its, env=env)
    os.close(its)
    shown = [0]

    def read() -> None:
        try:
            while text := os.read(ours, 65536):
                shown[0] += len(text)
        except OSError:
            # The other side is closed.
            pass

    reader = threading.Thread(target=read)
    reader.start()
    job.wait()
    time.sleep(0.2)
    top.terminate()
    top.wait()
    reader.join()
    os.close(ours)
    assert shown[0] > 1000, "comity top showed nothing"


WAYS: dict[str, Callable[[str, subprocess.Popen[str]], None]] = {
    "alone": alone,
    "`--once` each second": once,
    "live": live,
}


def measure(comity: str, way: str, args: argparse.Namespace) -> dict[int, tuple[float, float, float]]:
    """By bytes: the median and 99 of 100 in us, and processor seconds for 1e9 bytes."""
    bench = [comity, "bench", "all_reduce", "--sizes", args.sizes, "--budget", str(args.budget), "--json"]
    job = subprocess.Popen([comity, "launch", "-n", "2", "--", *bench], stdout=subprocess.PIPE, text=True)
    WAYS[way](comity, job)
    out, _ = job.communicate()
    assert job.returncode == 0, out
    rows = [json.loads(line.partition("] ")[2]) for line in out.splitlines() if '"median_us"' in line]
    return {r["bytes"]: (r["median_us"], r["p99_us"], r["cpu_s_per_GB"]) for r in rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--comity", default="comity", help="the program")
    parser.add_argument("--sizes", default="8,64k,1m")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds for each row")
    args = parser.parse_args()
    seen: dict[Row, list[tuple[float, float, float]]] = defaultdict(list)
    loads = []
    ways = list(WAYS)
    for number in range(args.rounds):
        for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
            loads.append(os.getloadavg()[0])
            for size, row in measure(args.comity, way, args).items():
                seen[way, size].append(row)
                print(f"# round {number}, {way}, {size} B: {row[0]:.3f} us", flush=True)
    print(
        f"load before each job: {min(loads):.1f} to {max(loads):.1f}, median {statistics.median(loads):.1f}"
    )
    print("| bytes | looked at | median, us | quartiles | 99 of 100, us | processor, s for 1e9 bytes |")
    print("|---:|---|---:|---|---:|---:|")
    for size in sorted({size for _, size in seen}):
        for way in ways:
            rows = seen[way, size]
            low, middle, high = statistics.quantiles([r[0] for r in rows], n=4, method="inclusive")
            late, work = (statistics.median(column) for column in list(zip(*rows, strict=True))[1:])
            print(f"| {size} | {way} | {middle:.3f} | {low:.3f} to {high:.3f} | {late:.3f} | {work:.3f} |")


if __name__ == "__main__":
    main()
