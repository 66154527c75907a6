"""A first result, with nothing installed but this package: ``comity launch -n 4 -- python -m comity.demo``.

Each rank draws points of its own around one plane and adds up gradients with the others until the plane is found.
"""

import random
import statistics
import sys
import time
from array import array

import comity

PLANE = (3.0, -2.0, 0.5)
NOISE = 0.1
POINTS = 1000
STEPS = 60
RATE = 0.5
LARGE = 4 << 20
REPEATS = 9

Points = list[tuple[float, float, float]]


def draw(rank: int) -> Points:
    """Points of this rank: two coordinates, and the height of the plane there, with noise."""
    chance = random.Random(rank)
    a, b, c = PLANE
    points = []
    for _ in range(POINTS):
        x, y = chance.uniform(-1, 1), chance.uniform(-1, 1)
        points.append((x, y, a * x + b * y + c + chance.gauss(0, NOISE)))
    return points


def gradient(plane: "array[float]", points: Points) -> "array[float]":
    """Gradient of half the mean squared distance."""
    a, b, c = plane
    sums = [0.0, 0.0, 0.0]
    for x, y, z in points:
        off = a * x + b * y + c - z
        sums[0] += off * x
        sums[1] += off * y
        sums[2] += off
    return array("d", [s / len(points) for s in sums])


def fit(group: comity.Group) -> "array[float]":
    """The plane that fits the points of all ranks."""
    points = draw(group.rank)
    plane = array("d", [0.0, 0.0, 0.0])
    for _ in range(STEPS):
        mean = group.all_reduce(gradient(plane, points), "avg")
        plane = array("d", [p - RATE * g for p, g in zip(plane, mean, strict=True)])
    return plane


def milliseconds(group: comity.Group) -> float:
    """Median time of an all_reduce of `LARGE` bytes."""
    large = array("f", bytes(LARGE))
    times = []
    for _ in range(REPEATS):
        group.barrier()
        start = time.perf_counter()
        group.all_reduce(large, out=large)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def main() -> int:
    """Run the demonstration as one rank; 1 if the ranks have found different planes, or a wrong one."""
    group = comity.init()
    plane = fit(group)
    everyone = group.all_gather(plane)
    same = everyone.tobytes() == plane.tobytes() * group.size
    near = all(abs(p - t) < NOISE for p, t in zip(plane, PLANE, strict=True))
    took = milliseconds(group)
    if group.rank == 0:
        links = sorted({link for link in group.links if link})
        hosts = len({member.host for member in group.members})
        over = f", over {' and '.join(links)}" if links else ""
        print(f"ranks {group.size} on {hosts} {'host' if hosts == 1 else 'hosts'}{over}")
        a, b, c = plane
        print(f"found z = {a:.3f} x {b:+.3f} y {c:+.3f}, drawn from z = 3 x -2 y +0.5 with noise")
        print("every rank has the same plane, to the last bit" if same else "THE RANKS HAVE DIFFERENT PLANES")
        print(f"all_reduce of 4 MiB: {took:.2f} ms")
    group.close()
    return 0 if same and near else 1


if __name__ == "__main__":
    sys.exit(main())
