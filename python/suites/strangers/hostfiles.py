"""Hostfiles as people write them: for Open MPI, MPICH and mlx.launch, by editors of other systems, with comments and gaps.

Started without a launcher: it starts jobs on this machine itself, each with such a file, and counts the ranks.
"""
# gloo: no

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FILES = {
    "Open MPI": (b"localhost slots=2\n", 2),
    "MPICH": (b"localhost:3\n", 3),
    "a host for each line": (b"localhost\nlocalhost\n", 2),
    "comments and gaps": (b"# my cluster\n\n   localhost   slots=2   # the desk\n\n", 2),
    "lines of Windows": (b"localhost slots=2\r\n", 2),
    "no end of line": (b"localhost slots=2", 2),
    "tabs": (b"localhost\tslots=2\n", 2),
    "mlx.launch": (json.dumps([{"ssh": "localhost", "ips": ["127.0.0.1"]}] * 2).encode(), 2),
}
RANK = "import os; print('rank', os.environ['COMITY_RANK'], 'of', os.environ['COMITY_SIZE'])"


def started(file: Path) -> tuple[int, str]:
    """How many ranks such a file starts, and all that was printed."""
    launch = [sys.executable, "-m", "comity", "launch", "--timeout", "60", "--hostfile", str(file)]
    env = {n: v for n, v in os.environ.items() if not n.startswith("COMITY_")}
    done = subprocess.run(
        [*launch, "--", sys.executable, "-c", RANK],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        env=env,
        check=False,
    )
    ranks = [line for line in done.stdout.splitlines() if "rank " in line and " of " in line]
    return (len(ranks) if done.returncode == 0 else -1), done.stdout


with tempfile.TemporaryDirectory() as folder:
    bad = []
    for name, (text, ranks) in FILES.items():
        file = Path(folder, "hosts")
        file.write_bytes(text)
        found, said = started(file)
        if found != ranks:
            bad.append(f"{name}: {found} ranks for {ranks}:\n{said}")
    assert not bad, "\n".join(bad)
