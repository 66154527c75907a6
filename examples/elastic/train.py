"""Train a small network on 1,797 handwritten digits, and go on when ranks die or come. A rank of `run.py`, or of a launcher.

Each step takes a batch that only the step's number decides, and each rank a share of it. So the weights do not depend on how many ranks
there are, but for the last bits.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

import comity

DIGITS = Path(__file__).parents[2] / "data" / "digits.csv"
BATCH, HIDDEN, RATE = 96, 32, 0.5

Array = np.ndarray


def digits() -> tuple[Array, Array]:
    rows = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    return rows[:, :-1] / 16, rows[:, -1].astype(np.int64)


def forward(weights: list[Array], x: Array) -> tuple[Array, Array]:
    """The hidden layer, and the probability of each digit."""
    hidden = np.maximum(x @ weights[0] + weights[1], 0)
    scores = hidden @ weights[2] + weights[3]
    odds = np.exp(scores - scores.max(1, keepdims=True))
    return hidden, odds / odds.sum(1, keepdims=True)


def backward(weights: list[Array], x: Array, y: Array) -> Array:
    """The gradients and the loss, summed over the rows, in one array."""
    hidden, odds = forward(weights, x)
    loss = -np.log(odds[np.arange(len(y)), y] + 1e-9).sum()
    odds[np.arange(len(y)), y] -= 1
    back = (odds @ weights[2].T) * (hidden > 0)
    parts = [x.T @ back, back.sum(0), hidden.T @ odds, odds.sum(0), np.array([loss])]
    return np.concatenate([p.ravel() for p in parts]).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds to sleep in each step, so that one can watch"
    )
    parser.add_argument(
        "--regain",
        type=int,
        nargs=2,
        default=(0, 0),
        metavar=("STEP", "RANKS"),
        help="wait at this step for so many ranks",
    )
    args = parser.parse_args()
    x, y = digits()
    rng = np.random.default_rng(1)
    weights = [rng.normal(0, 0.2, s).astype(np.float32) for s in ((64, HIDDEN), HIDDEN, (HIDDEN, 10), 10)]

    # A launcher that starts this program again in place of a rank that died sets COMITY_JOIN=1. Then `init` waits until it is taken in.
    group = comity.init()
    step = -1 if os.environ.get("COMITY_JOIN") == "1" else 0
    ranks = 0
    while step < args.steps:
        try:
            if group.size != ranks:
                # Ranks may differ by a step, and one that joined has nothing: all go on from the furthest.
                furthest = group.all_max(step)
                *weights, step = group.sync([*weights, step], holds=step == furthest)
                ranks = group.size
            # Ranks learn of a joiner at different moments: they agree by the way.
            mine = np.random.default_rng(step).integers(300, len(x), BATCH)[group.rank :: group.size]
            total = np.append(backward(weights, x[mine], y[mine]), np.float32(group.joiners()))
            group.all_reduce(total, out=total)
            if total[-1] > 0:
                group, ranks = group.reform().group, 0
                continue
        except comity.PeerLostError as e:
            if group.rank == 0:
                print(e, flush=True)
            group, ranks = group.reform().group, 0
            continue
        if step == args.regain[0] and group.size < args.regain[1]:
            time.sleep(0.02)
            continue
        cuts = np.cumsum([w.size for w in weights])
        for w, gradient in zip(weights, np.split(total, cuts)[:-1], strict=True):
            np.subtract(w, RATE / BATCH * gradient.reshape(w.shape), out=w)
        step += 1
        if group.rank == 0:
            print(
                f"{time.time():.4f} step {step} ranks {group.size} loss {total[-2] / BATCH:.4f}", flush=True
            )
        time.sleep(args.pause)
    if group.rank == 0:
        right = (forward(weights, x[:300])[1].argmax(1) == y[:300]).mean()
        print(f"accuracy {right:.4f}", flush=True)


if __name__ == "__main__":
    main()
