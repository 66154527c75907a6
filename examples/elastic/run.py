"""A job that loses a rank, goes on, and takes it back, beside one that nothing happens to.

    python examples/elastic/run.py                         (prints)
    python examples/elastic/run.py --plot elastic.svg      (draws ranks and loss over time as well)

Ends with exit code 1 if the accuracies differ by more than a hundredth.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import comity

TRAIN = Path(__file__).with_name("train.py")
STEP = re.compile(r"([\d.]+) step (\d+) ranks (\d+) loss ([\d.]+)")

#: Seconds since the first step, ranks, loss.
Curve = list[tuple[float, int, float]]


class Job:
    """Ranks, and the store at which they meet."""

    def __init__(self, ranks: int, options: list[str], folder: str) -> None:
        self.options, key = options, secrets.token_bytes(32)
        self.store = comity.Store(ranks, key=key, job="elastic")
        self.key = Path(folder) / f"key-{self.store.address.rpartition(':')[2]}"
        self.key.touch(0o600)
        self.key.write_bytes(key)
        self.curve: Curve = []
        self.accuracy = 0.0
        self.moved = threading.Condition()
        self.ranks = [self.start(COMITY_RANK=str(r), COMITY_SIZE=str(ranks)) for r in range(ranks)]
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def start(self, **place: str) -> subprocess.Popen[str]:
        meeting = {
            "COMITY_STORE": self.store.address,
            "COMITY_JOB": "elastic",
            "COMITY_KEY_FILE": str(self.key),
        }
        env = {k: v for k, v in os.environ.items() if not k.startswith("COMITY_")} | meeting | place
        command = [sys.executable, str(TRAIN), *self.options]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    def read(self) -> None:
        """What rank 0 says."""
        for line in self.ranks[0].stdout or ():
            with self.moved:
                if found := STEP.match(line):
                    self.curve.append((float(found[1]), int(found[3]), float(found[4])))
                elif line.startswith("accuracy"):
                    self.accuracy = float(line.split()[1])
                else:
                    print(line, end="", flush=True)
                self.moved.notify_all()

    def wait_for(self, steps: int, ranks: int) -> None:
        """Wait until so many steps are done, the last one with so many ranks."""
        with self.moved:
            there = self.moved.wait_for(
                lambda: len(self.curve) >= steps and self.curve[-1][1] == ranks, timeout=120
            )
        if not there:
            raise SystemExit(f"the job did not come to step {steps} on {ranks} ranks")

    def end(self) -> None:
        for rank in self.ranks:
            rank.wait(120)
        self.reader.join()
        self.store.close()

    def kill_all(self) -> None:
        for rank in self.ranks:
            rank.kill()


def run(ranks: int, steps: int, pause: float, disturb: bool, folder: str) -> Job:
    # Where Python starts slowly, training waits at three quarters for the rank that comes back.
    regain = ["--regain", str(steps * 3 // 4), str(ranks)]
    job = Job(ranks, ["--steps", str(steps), "--pause", str(pause), *regain], folder)
    try:
        if disturb:
            job.wait_for(steps // 4, ranks)
            job.ranks[1].send_signal(signal.SIGKILL)
            job.ranks[1].wait()
            job.wait_for(steps // 2, ranks - 1)
            # As a launcher starts a rank again.
            job.ranks[1] = job.start(COMITY_JOIN="1")
            job.wait_for(1, ranks)
        job.end()
    except BaseException:
        job.kill_all()
        raise
    return job


def plot(job: Job, calm: Job, ranks: int, path: Path) -> None:
    """Ranks above, the loss of both jobs below, over seconds."""
    width, height, left = 720, 360, 50
    seconds = max(j.curve[-1][0] - j.curve[0][0] for j in (job, calm))
    most = max(loss for _, _, loss in job.curve)

    def at(t: float) -> float:
        return left + (width - left - 10) * t / seconds

    def line(points: list[tuple[float, float]], color: str) -> str:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        return f'<polyline points="{joined}" fill="none" stroke="{color}" stroke-width="1.5"/>'

    def losses(j: Job, color: str) -> str:
        return line([(at(t - j.curve[0][0]), 330 - 190 * loss / most) for t, _, loss in j.curve], color)

    steps: list[tuple[float, float]] = []
    for t, n, _ in job.curve:
        x, y = at(t - job.curve[0][0]), 100 - 80 * n / ranks
        if steps and steps[-1][1] != y:
            steps.append((x, steps[-1][1]))
        steps.append((x, y))
    texts = [
        (left, 14, "ranks"),
        (left - 20, 100 - 80 + 4, str(ranks)),
        (left - 20, 104, "0"),
        (left, 136, "loss: with a rank killed and taken back (red), undisturbed (grey)"),
        (left - 40, 146, f"{most:.1f}"),
        (left - 20, 334, "0"),
        (left, 352, "0 s"),
        (width - 50, 352, f"{seconds:.1f} s"),
    ]
    said = "".join(f'<text x="{x}" y="{y}">{text}</text>' for x, y, text in texts)
    axes = line([(left, 20), (left, 100), (width - 10, 100)], "#888") + line(
        [(left, 140), (left, 330), (width - 10, 330)], "#888"
    )
    body = axes + line(steps, "#06c") + losses(calm, "#999") + losses(job, "#c30") + said
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{width}" height="{height}" fill="white"/>{body}</svg>\n'
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pause", type=float, default=0.01, help="seconds to sleep in each step")
    parser.add_argument("--plot", type=Path, help="file for a drawing (SVG)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        calm = run(args.ranks, args.steps, args.pause, False, folder)
        print(f"undisturbed: accuracy {calm.accuracy:.4f} on {args.ranks} ranks", flush=True)
        job = run(args.ranks, args.steps, args.pause, True, folder)
    fewest = min(n for _, n, _ in job.curve)
    print(f"rank 1 killed and taken back: accuracy {job.accuracy:.4f}, {fewest} ranks meanwhile", flush=True)
    if args.plot:
        plot(job, calm, args.ranks, args.plot)
    return int(abs(job.accuracy - calm.accuracy) > 0.01)


if __name__ == "__main__":
    sys.exit(main())
