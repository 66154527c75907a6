"""Draw `docs/pictures/speed.svg`: all_reduce of several libraries by the size of the buffer.

    python docs/make/speed.py            draw it
    python docs/make/speed.py --check    fail if it is not as this would draw it

The numbers are read from the table "2 ranks" of `bench/record/2026-11-20-all_reduce.md`, which says how they were measured.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "bench" / "record" / "2026-11-20-all_reduce.md"
PICTURE = ROOT / "docs" / "pictures" / "speed.svg"

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
#: Column of the record, name in the picture, colour (Okabe and Ito's, told apart by colour-blind readers).
PANELS = {
    "Shared memory, 2 ranks": [
        ("Comity shm", "Comity", "#0072b2"),
        ("Open MPI shm", "Open MPI 4.1", "#d55e00"),
        ("Open MPI shm tuned", "Open MPI 4.1, tuned (see the record)", "#e69f00"),
        ("MPICH", "MPICH 4.0", "#009e73"),
    ],
    "TCP over loopback, 2 ranks": [
        ("Comity TCP", "Comity", "#0072b2"),
        ("Open MPI TCP", "Open MPI 4.1", "#d55e00"),
        ("gloo", "gloo (PyTorch 2.15)", "#cc79a7"),
        ("MLX ring", "MLX ring 0.32", "#000000"),
    ],
}
#: Marks of the horizontal axis (bytes) and of the vertical one (microseconds).
SIZES = [8, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20]
TIMES = [0.1, 1, 10, 100, 1e3, 1e4, 1e5]
WIDTH, HEIGHT, LEFT, TOP, PANEL_W, PANEL_H, GAP = 960, 420, 70, 56, 390, 270, 60


def table() -> dict[str, list[tuple[float, float]]]:
    """Of each column: bytes and microseconds."""
    section = RECORD.read_text().partition("## 2 ranks")[2].partition("\n## ")[0]
    rows = [[c.strip() for c in line.strip("| ").split("|")] for line in section.splitlines() if "|" in line]
    columns: dict[str, list[tuple[float, float]]] = {name: [] for name in rows[0][1:]}
    for row in rows[2:]:
        size = re.fullmatch(r"(\d+) (B|KiB|MiB)", row[0])
        if not size:
            continue
        for name, cell in zip(rows[0][1:], row[1:], strict=True):
            columns[name].append((int(size[1]) * UNITS[size[2]], float(cell.split()[0].replace(",", ""))))
    return columns


def x_of(left: float, size: float) -> float:
    low, high = math.log(SIZES[0]), math.log(SIZES[-1])
    return left + (math.log(size) - low) / (high - low) * PANEL_W


def y_of(time: float) -> float:
    low, high = math.log(TIMES[0]), math.log(TIMES[-1])
    return TOP + PANEL_H - (math.log(time) - low) / (high - low) * PANEL_H


def bytes_in_words(size: int) -> str:
    unit = next(u for u, n in reversed(UNITS.items()) if size >= n)
    return f"{size // UNITS[unit]} {unit}"


def time_in_words(us: float) -> str:
    return f"{us:g} us" if us < 1e3 else f"{us / 1e3:g} ms"


def picture() -> str:
    columns = table()
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        "<title>Time of an all_reduce by the size of the buffer</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="bold">'
        "all_reduce of float32, time of a call (lower is faster; both axes are logarithmic)</text>",
    ]
    for i, (title, lines) in enumerate(PANELS.items()):
        left = LEFT + i * (PANEL_W + GAP)
        out.append(f'<text x="{left}" y="{TOP - 10}" font-weight="bold">{title}</text>')
        for t in TIMES:
            y = y_of(t)
            out.append(
                f'<line x1="{left}" x2="{left + PANEL_W}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
            )
            if i == 0:
                out.append(
                    f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{time_in_words(t)}</text>'
                )
        for size in SIZES:
            x = x_of(left, size)
            bottom = TOP + PANEL_H
            out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}" stroke="#555555"/>')
            # The words of neighbours would touch.
            down = 32 if size in {1 << 20, 64 << 20} else 18
            out.append(
                f'<text x="{x:.1f}" y="{bottom + down}" text-anchor="middle">{bytes_in_words(size)}</text>'
            )
        out.append(
            f'<rect x="{left + 6}" y="{TOP + 2}" width="250" height="{17 * len(lines)}" fill="#ffffff"/>'
        )
        for k, (column, name, colour) in enumerate(lines):
            points = [(x_of(left, s), y_of(t)) for s, t in columns[column]]
            shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            width = 3 if name == "Comity" else 1.5
            out.append(f'<polyline points="{shape}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
            y = TOP + 14 + 17 * k
            out.append(f'<line x1="{left + 10}" x2="{left + 34}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}"')
            out[-1] += f' stroke-width="{width}"/>'
            out.append(f'<text x="{left + 40}" y="{y}">{name}</text>')
    out += [
        f'<text x="{LEFT}" y="{HEIGHT - 32}" fill="#444444">One virtual machine with 2 cores (AMD EPYC, Zen 5), '
        "2026-11-20; all programs took turns in one run; medians.</text>",
        f'<text x="{LEFT}" y="{HEIGHT - 14}" fill="#444444">'
        "comity launch -n 2 -- comity bench all_reduce. Method and all numbers: bench/record/2026-11-20-all_reduce.md</text>",
        "</svg>",
    ]
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="The picture of speed.")
    parser.add_argument("--check", action="store_true", help="fail if the picture is not current")
    args = parser.parse_args()
    text = picture()
    if not args.check:
        PICTURE.write_text(text)
    elif not PICTURE.exists() or PICTURE.read_text() != text:
        sys.exit(f"{PICTURE.relative_to(ROOT)} is not current: run python docs/make/speed.py")


if __name__ == "__main__":
    main()
