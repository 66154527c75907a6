"""`ray.util.collective` over Comity: a Ray of its own on this machine, whose actors make every call and compare with NumPy.

    HOME=/tmp/x python python/suites/ray_suite.py --folder /tmp/x

The folder is empty and has a short name: Ray puts its sockets and logs there, and a token into HOME.

2 and 4 actors make every operation that Ray has; two groups work at once; an actor is killed in the middle; what Comity raises must reach
the driver as it is; the job's key must be in none of Ray's logs; and the example of `docs/coming-from.md` must run. `deep` starts this in
a network namespace, because Ray listens on every address.

Exit code 0: all is right. Lines that begin with `=>` say what was run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.experimental import internal_kv
from ray.util import collective
from ray_rank import BACKEND, LIMIT, Rank

import comity
import comity.ray

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/coming-from.md"
#: The promise: a lost rank is named within the detection limit. Seconds.
DETECTION = 5.0
#: Comes before the example in the page.
MARK = "<!-- run under Ray: python/suites/ray_suite.py -->"


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=LIMIT)


def actors(size: int, **options: Any) -> list[Any]:
    # A second call of an actor may look at what the first one does.
    kind = Rank.options(num_cpus=0, max_concurrency=2, **options)
    return [kind.remote(rank, size) for rank in range(size)]


def end(ranks: list[Any]) -> None:
    for rank in ranks:
        ray.kill(rank)


def raised(ref: Any, cls: type[comity.Error], rank: int | None) -> comity.Error:
    """What the driver gets for this call: of this class, about this rank."""
    e: Any = None
    try:
        get(ref)
    except cls as raised:
        e = raised
    assert e is not None, f"{cls.__name__} was expected, and the call went well"
    assert e.rank == rank, (e.rank, rank, str(e))
    # Ray's `cause` is the exception itself, where Comity's is what was seen.
    assert isinstance(e.cause, cls), repr(e.cause)
    return e.cause


def declare(ranks: list[Any], name: str) -> None:
    """The group as the driver declares it. Ray forgets one of that name a moment after it was destroyed."""
    until = time.monotonic() + LIMIT
    while True:
        try:
            collective.create_collective_group(
                ranks, len(ranks), list(range(len(ranks))), backend=BACKEND, group_name=name
            )
            return
        except RuntimeError as e:
            if "twice" not in str(e) or time.monotonic() > until:
                raise
            time.sleep(0.05)


def operations() -> str:
    sizes = (2, 4)
    calls = 0
    for size in sizes:
        ranks = actors(size)
        declare(ranks, "declared")
        made = get([r.every_operation.remote("declared") for r in ranks])
        assert len(set(made)) == 1, made
        get([r.leave.remote("declared") for r in ranks])
        calls += made[0]
        end(ranks)
    return f"every operation on {' and '.join(map(str, sizes))} actors, {calls} calls a rank"


def two_groups() -> str:
    """Two groups of the same actors, each used by a thread of its own; and two of half of them each."""
    ranks = actors(4)
    for name in ("left", "right"):
        get([r.join.remote(name) for r in ranks])
    both = [r.rounds.remote(name, 300) for name in ("left", "right") for r in ranks]
    assert get(both) == [300] * 8
    halves = [ranks[:2], ranks[2:]]
    for number, half in enumerate(halves):
        declare(half, f"half-{number}")
    made = [r.rounds.remote(f"half-{n}", 300) for n, half in enumerate(halves) for r in half]
    assert get(made) == [300] * 4
    end(ranks)
    return "two groups at once"


def killed() -> str:
    """An actor is killed in the middle: one that the others met at, too."""
    took = max(kill(4, 2), kill(2, 0))
    return f"a killed actor was named after {took * 1000:.0f} ms at most"


def kill(size: int, victim: int) -> float:
    """The others hear who it was, and go on with another under the same name. Seconds until the last has heard."""
    # Ray keeps a group's name until a member has left the group.
    ranks, name = actors(size), f"doomed-{victim}"
    declare(ranks, name)
    calls = [r.until_lost.remote(name) for r in ranks]
    until = time.monotonic() + LIMIT
    while min(get([r.calls.remote() for r in ranks])) < 100:
        assert time.monotonic() < until, "the ranks make no calls"
        time.sleep(0.05)
    at = time.monotonic()
    ray.kill(ranks[victim])
    left = [n for n in range(size) if n != victim]
    for n in left:
        raised(calls[n], comity.PeerLostError, victim)
    # The clock is that of the machine, the same in all processes.
    took = [when - at for when in get([ranks[n].lost_at.remote() for n in left])]
    assert max(took) < DETECTION, took
    get([ranks[n].leave.remote(name) for n in left])
    ranks[victim] = Rank.options(num_cpus=0, max_concurrency=2).remote(victim, size)
    declare(ranks, name)
    assert get([r.rounds.remote(name, 50) for r in ranks]) == [50] * size
    end(ranks)
    return max(took)


def errors() -> str:
    """Each class of error that a program may meet, as the driver sees it."""
    ranks = actors(2)
    declare(ranks, "errors")
    # Ranks meet at their first call.
    get([r.rounds.remote("errors", 3) for r in ranks])
    raised(ranks[0].misuse.remote("errors"), comity.MisuseError, 0)
    get([r.rounds.remote("errors", 3) for r in ranks])
    raised(ranks[0].late.remote("errors", 0.3), comity.TimeoutError, 1)
    get([r.leave.remote("errors") for r in ranks])
    declare(ranks, "errors")
    calls = [r.differ.remote("errors") for r in ranks]
    raised(calls[0], comity.MismatchError, 1)
    raised(calls[1], comity.MismatchError, 0)
    end(ranks)
    impatient = {"env_vars": {"COMITY_JOIN_TIMEOUT": "2"}}
    for present, missing in ((0, 1), (1, 0)):
        ranks = actors(2, runtime_env=impatient)
        e = raised(ranks[present].join.remote("alone"), comity.JoinError, missing)
        assert tuple(e.ranks) == (missing,), (present, e.ranks)
        end(ranks)
    return "MisuseError, TimeoutError, MismatchError and JoinError reach the driver"


def example() -> str:
    """The page's example, as a program of its own under this Ray."""
    found = re.search(re.escape(MARK) + r"\n```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert found, f"{PAGE.name} has no example after {MARK}"
    env = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "example.py")
        script.write_text(found[1])
        done = subprocess.run(
            [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[4. 4. 4.]" in done.stdout, done.stdout + done.stderr
    return f"the example of {PAGE.name}"


def secrets_kept() -> str:
    """The job's key is in no file that Ray wrote, and nothing of a meeting stays in Ray's store."""
    ranks = actors(2)
    get([r.remember_texts.remote() for r in ranks])
    declare(ranks, "secret")
    get([r.rounds.remote("secret", 3) for r in ranks])
    (text,) = get(ranks[0].texts.remote())
    keys = re.findall(r"[0-9a-f]{64}", text)
    assert len(keys) == 1, "the text that rank 0 tells has no key in it"
    stays = internal_kv._internal_kv_list("", namespace="comity")
    assert not stays, stays
    end(ranks)
    folder = Path(ray.get_runtime_context().get_temp_dir())
    files = [f for f in folder.rglob("*") if f.is_file() and not f.is_symlink() and "logs" in f.parts]
    assert len(files) > 5, files
    for file in files:
        words = file.read_bytes()
        assert keys[0].encode() not in words, f"the key is in {file}"
    return f"no key in {len(files)} logs nor left in Ray's store"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="empty, with a short name")
    parser.add_argument("--only", nargs="+", help="these parts: names of functions of this file")
    args = parser.parse_args()
    parts: list[Callable[[], str]] = [operations, two_groups, killed, errors, example, secrets_kept]
    names = [part.__name__ for part in parts]
    if unknown := set(args.only or []) - set(names):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(args.folder),
        object_store_memory=128 << 20,
    )
    comity.ray.register()
    comity.ray.register()
    try:
        for part in parts:
            if not args.only or part.__name__ in args.only:
                start = time.monotonic()
                print(f"=> {part()}")
                print(f"   {part.__name__}: {time.monotonic() - start:.1f} s", flush=True)
    finally:
        ray.shutdown()
    print(f"=> Ray {ray.__version__}")


if __name__ == "__main__":
    main()
