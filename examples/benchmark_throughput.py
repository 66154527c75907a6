"""Compare what `examples/ddp_train.py --save-stats` kept: throughput, step times, and the loss over time.

python examples/benchmark_throughput.py baseline.json ddp.json                       (prints)
python examples/benchmark_throughput.py baseline.json ddp.json -o throughput.png     (draws as well; needs matplotlib)
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stats", nargs="+", help="files of --save-stats")
    parser.add_argument("-o", "--out", metavar="FILE", help="the picture to draw")
    args = parser.parse_args()
    runs = [json.loads(Path(f).read_text()) for f in args.stats]
    names = [r["name"] for r in runs]
    # The first steps are slower: memory and links are new.
    steps = [statistics.median(r["times"][5:]) for r in runs]
    rates = [r["batch"] / step for r, step in zip(runs, steps, strict=True)]
    for name, rate, step, r in zip(names, rates, steps, runs, strict=True):
        print(f"{name}: {rate:.0f} samples/s, {step * 1e3:.2f} ms a step, loss {r['losses'][-1]:.3f}")
    if args.out:
        draw(runs, names, rates, args.out)
        print(f"wrote {args.out}")


def draw(runs: list[dict], names: list[str], rates: list[float], out: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (rate, steps, loss) = plt.subplots(1, 3, figsize=(15, 4.5))
    rate.bar(names, rates)
    rate.set(title="throughput", ylabel="samples/s")
    rate.tick_params(axis="x", rotation=20)
    for r, name in zip(runs, names, strict=True):
        steps.plot([t * 1e3 for t in r["times"][5:]], label=name, linewidth=0.8)
        loss.plot(list(itertools.accumulate(r["times"])), r["losses"], label=name)
    steps.set(title="step time", xlabel="step", ylabel="ms", yscale="log")
    loss.set(title="loss", xlabel="s", yscale="log")
    steps.legend()
    loss.legend()
    figure.tight_layout()
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main()
