"""An all_reduce on each wire beside float32, between network namespaces whose cables let a rate pass each way.

    python bench/wires.py --rates 100mbit,1gbit --ranks 2,4

It needs root and Linux. The ranks hang on a switch in a namespace of its own, each by a cable with a token bucket at both ends. Calls take
turns: one on each wire in every round, and the other way around in every second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

WIRES = [None, "bf16", "f16", "int8"]


def ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True, timeout=20)


def shape(space: str, device: str, rate: str) -> None:
    line = f"-n {space} qdisc add dev {device} root tbf rate {rate} burst 128kb latency 400ms"
    subprocess.run(["tc", *line.split()], check=True, timeout=20)


def measure(count: int, rounds: int) -> None:
    """Of this rank; rank 0 prints."""
    import numpy as np

    import comity

    group = comity.init()
    given = np.random.default_rng(group.rank).standard_normal(count, np.float32)
    x = given.copy()
    times: dict[str | None, list[float]] = {wire: [] for wire in WIRES}
    for i in range(rounds + 1):
        for wire in WIRES[:: -1 if i % 2 else 1]:
            np.copyto(x, given)
            group.barrier()
            begun = time.perf_counter()
            group.all_reduce(x, out=x, wire=wire)
            took = group.all_max(time.perf_counter() - begun)
            if i:
                times[wire].append(took)
    if group.rank == 0:
        plain = statistics.median(times[None])
        for wire, all_ in times.items():
            median = statistics.median(all_)
            spread = f"{min(all_) * 1e3:.1f}-{max(all_) * 1e3:.1f}"
            print(
                f"{wire or 'f32':5} {median * 1e3:9.1f} ms [{spread}]  {plain / median:5.2f} times f32",
                flush=True,
            )


def job(rate: str, ranks: int, args: argparse.Namespace, key: str) -> None:
    names = [f"comity-wires-{os.getpid()}-{r}" for r in range(ranks)]
    switch = f"comity-wires-{os.getpid()}-s"
    try:
        for name in (*names, switch):
            ip(f"netns add {name}")
            ip(f"-n {name} link set lo up")
        ip(f"-n {switch} link add switch type bridge")
        ip(f"-n {switch} link set switch up")
        for r, name in enumerate(names):
            ip(f"-n {switch} link add c{r} type veth peer name cable netns {name}")
            ip(f"-n {switch} link set c{r} master switch up")
            ip(f"-n {name} addr add 10.83.0.{r + 1}/24 dev cable")
            ip(f"-n {name} link set cable up")
            shape(name, "cable", rate)
            shape(switch, f"c{r}", rate)
        print(f"{rate}, {ranks} ranks, {args.mib} MiB of float32", flush=True)
        processes = []
        for r, name in enumerate(names):
            env = os.environ | {
                "RANK": str(r),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "10.83.0.1",
                "MASTER_PORT": "29501",
                "COMITY_HOST": name,
                "COMITY_LINKS": "tcp",
                "COMITY_ADDRS": f"10.83.0.{r + 1}",
                "COMITY_KEY_FILE": key,
            }
            command = ["ip", "netns", "exec", name, sys.executable, __file__, "--here"]
            options = ["--mib", str(args.mib), "--rounds", str(args.rounds)]
            processes.append(subprocess.Popen([*command, *options], env=env))
        codes = [p.wait(timeout=args.limit) for p in processes]
        if any(codes):
            raise SystemExit("a rank failed")
    finally:
        for name in (*names, switch):
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="100mbit,1gbit")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=float, default=300, help="seconds for a job")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        return measure(args.mib << 18, args.rounds)
    with tempfile.NamedTemporaryFile() as key:
        key.write(os.urandom(32))
        key.flush()
        for rate in args.rates.split(","):
            for ranks in args.ranks.split(","):
                job(rate, int(ranks), args, key.name)
    return None


if __name__ == "__main__":
    main()
