"""torchrun on two hosts, which are network namespaces joined by a cable, without a default route."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ADDRESSES = ("10.77.0.1", "10.77.0.2")
LACKS_RIGHTS = os.geteuid() != 0 or shutil.which("ip") is None
LIMIT = 120

RANK = """
import comity.torch, torch, torch.distributed as dist
dist.init_process_group("comity")
x = torch.full((1 << 20,), float(dist.get_rank()))
dist.all_reduce(x)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {x.min().item()} {x.max().item()}", flush=True)
dist.destroy_process_group()
"""


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30).stdout


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    names = [f"comity-torchrun-{os.getpid()}-{end}" for end in "ab"]
    made = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        ip(
            "link",
            "add",
            "cable",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            names[1],
        )
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/30", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            assert "default" not in ip("-n", name, "route")
        yield names
    finally:
        for name in made:
            ip("netns", "del", name)


# In CI it must run.
@pytest.mark.skipif(
    LACKS_RIGHTS and not os.environ.get("CI"), reason="needs root and iproute2 for namespaces"
)
def test_torchrun_over_a_cable_without_a_default_route(hosts: list[str], tmp_path: Path) -> None:
    key, script = tmp_path / "key", tmp_path / "rank.py"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(32))
    script.write_text(RANK)
    run = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    run += ["--master-addr", ADDRESSES[0], "--master-port", "29400"]
    nodes = []
    try:
        for node, name in enumerate(hosts):
            env = os.environ | {"COMITY_HOST": name, "COMITY_KEY_FILE": str(key)}
            words = ["ip", "netns", "exec", name, *run, "--node-rank", str(node), str(script)]
            node_of = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
            )
            nodes.append(node_of)
        until = time.monotonic() + LIMIT
        done = [node.communicate(timeout=max(until - time.monotonic(), 1)) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    assert [node.returncode for node in nodes] == [0, 0], done
    # Lines of two processes in one pipe may come without an end between.
    ranks = sorted(re.findall(r"rank (\d) of 4: 6\.0 6\.0", "".join(out for out, _ in done)))
    assert ranks == ["0", "1", "2", "3"], done
    sent = subprocess.run(
        ["ip", "netns", "exec", hosts[0], "cat", "/sys/class/net/cable/statistics/tx_bytes"],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    # Half of the buffer at the least goes to the other host.
    assert int(sent.stdout) > 2 << 20, sent.stdout
