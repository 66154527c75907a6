"""Draw what `examples/ddp_train.py --save-stats` kept: throughput, step times, and the loss over time.

python examples/benchmark_throughput.py baseline.json ddp.json -o throughput.png     (needs matplotlib)
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
    parser.add_argument("-o", "--out", default="throughput.png")
    args = parser.parse_args()
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    runs = [json.loads(Path(f).read_text()) for f in args.stats]
    figure, (rate, steps, loss) = plt.subplots(1, 3, figsize=(15, 4.5))
    names = [r["name"] for r in runs]
    rates = [r["batch"] / statistics.median(r["times"][5:]) for r in runs]
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
    figure.savefig(args.out, dpi=120)
    for name, r in zip(names, rates, strict=True):
        print(f"{name}: {r:.0f} samples/s")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
