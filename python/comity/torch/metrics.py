"""What the backend has done in this process: counts, bytes and times per operation, over all its groups."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

#: Latest times kept per operation, for the percentiles.
KEPT = 1024

_log = logging.getLogger("comity.torch")
_lock = threading.Lock()
_ops: dict[str, Operation] = {}
#: Groups that count: bytes sent and seconds asleep at the last reset.
_groups: dict[Any, tuple[float, float]] = {}
#: The same of groups that have closed.
_gone: list[float] = [0, 0.0]


class Operation:
    """One operation's figures."""

    __slots__ = ("bytes", "calls", "errors", "nanos", "times")

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.bytes = 0
        self.nanos = 0
        self.times: deque[int] = deque(maxlen=KEPT)


class Metrics:
    """What one group notes. Calls that return when they have ended are timed from begin to end; others from their start to the
    moment that `wait` or the future's completion saw their end."""

    def ended(self, op: str, size: int, begun: int) -> None:
        took = perf_counter_ns() - begun
        o = _ops.get(op) or _ops.setdefault(op, Operation())
        o.calls += 1
        o.bytes += size
        o.nanos += took
        o.times.append(took)

    def counted(self, op: str, size: int) -> None:
        """A call that nobody times."""
        o = _ops.get(op) or _ops.setdefault(op, Operation())
        o.calls += 1
        o.bytes += size

    def failed(self, op: str) -> None:
        (_ops.get(op) or _ops.setdefault(op, Operation())).errors += 1

    def noting(self, op: str, size: int, begun: int) -> Callable[[BaseException | None], None]:
        def note(error: BaseException | None) -> None:
            if error is None:
                self.ended(op, size, begun)
            else:
                self.failed(op)

        return note


def watch(group: Any) -> None:
    """Count what this group of the core sends, and how long it sleeps."""
    with _lock:
        _groups[group] = (0, 0.0)


def forget(group: Any) -> None:
    """The group closes; what it did stays counted."""
    with _lock:
        if group in _groups:
            _add(_gone, group, _groups.pop(group))


def _add(total: list[float], group: Any, base: tuple[float, float]) -> None:
    s = group.stats()
    total[0] += s["bytes_sent"] - base[0]
    total[1] += s["parked"] - base[1]


def get_metrics() -> dict[str, Any]:
    """Figures since the start of the process or the last `reset_metrics`.

    `total_ops`, `errors`, `bytes` (of tensors), `bytes_sent` (on the links), `asleep_s` (waiting for other ranks), `avg_ms`,
    `p50_ms`, `p99_ms` (percentiles of the latest 1,024 calls of each operation), `gbps` (bits of tensors per second of call), and
    `ops` with the same per operation. A call that nobody waits for counts once its end was seen.
    """
    ops = {
        name: _figures(o.calls, o.errors, o.bytes, o.nanos, list(o.times)) for name, o in list(_ops.items())
    }
    times = [t for o in list(_ops.values()) for t in list(o.times)]
    links = list(_gone)
    with _lock:
        for group, base in _groups.items():
            _add(links, group, base)
    total = _figures(
        sum(o["total_ops"] for o in ops.values()),
        sum(o["errors"] for o in ops.values()),
        sum(o["bytes"] for o in ops.values()),
        sum(o.nanos for o in list(_ops.values())),
        times,
    )
    return total | {"bytes_sent": int(links[0]), "asleep_s": links[1], "ops": ops}


def _figures(calls: int, errors: int, size: int, nanos: int, times: list[int]) -> dict[str, Any]:
    times.sort()

    def at(share: float) -> float:
        return times[min(int(len(times) * share), len(times) - 1)] / 1e6 if times else 0.0

    return {
        "total_ops": calls,
        "errors": errors,
        "bytes": size,
        "avg_ms": nanos / calls / 1e6 if calls else 0.0,
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "gbps": size * 8 / nanos if nanos else 0.0,
    }


def log_metrics(level: int = logging.INFO) -> None:
    """Write the figures to the logger `comity.torch`, a line per operation."""
    m = get_metrics()
    for name, o in [*m["ops"].items(), ("total", m)]:
        _log.log(
            level,
            "%s: %d calls, %d errors, %.1f MB, avg %.3f ms, p50 %.3f ms, p99 %.3f ms, %.2f Gb/s",
            name,
            o["total_ops"],
            o["errors"],
            o["bytes"] / 1e6,
            o["avg_ms"],
            o["p50_ms"],
            o["p99_ms"],
            o["gbps"],
        )


def reset_metrics() -> None:
    """Begin to count anew."""
    with _lock:
        _ops.clear()
        _gone[:] = [0, 0.0]
        for group in _groups:
            s = group.stats()
            _groups[group] = (s["bytes_sent"], s["parked"])
