"""Ports for tests that close them before another process listens there."""

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(n: int) -> list[int]:
    """`n` ports that nobody listens at, outside the range that the system picks from: until they are bound, often many seconds later, no
    connection of the test itself takes one of them. Drawn, so that tests that run at once have different ones."""
    low, high = (int(x) for x in _RANGE.read_text().split()) if _RANGE.exists() else (32768, 60999)
    others = [p for p in range(10_000, 65_536) if not low <= p <= high]
    found: list[int] = []
    for port in random.SystemRandom().sample(others or range(10_000, 65_536), 1000):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == n:
            return found
    raise AssertionError(f"no {n} ports are free: {found}")
