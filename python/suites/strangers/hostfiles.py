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
    "a mark of Windows before the text": (b"\xef\xbb\xbflocalhost slots=2\r\n# end\r\n", 2),
    "an address": (b"127.0.0.1 slots=2\n", 2),
    "an address of IPv6": (b"::1 slots=2\n", 2),
    "an address of IPv6 in brackets": (b"[::1] slots=2\n", 2),
    "more of Open MPI": (b"localhost slots=2 max_slots=4\n", 2),
    "the same host twice": (b"localhost slots=1\nlocalhost slots=2\n", 3),
    "mlx.launch, by an editor of Windows": (
        b'\xef\xbb\xbf[\r\n {"ssh": "localhost"},\r\n {"ssh": "localhost"}\r\n]\r\n',
        2,
    ),
    "a port of ssh": (json.dumps([{"ssh": "localhost", "port": 2222, "slots": 2}]).encode(), 2),
    "mlx.launch": (json.dumps([{"ssh": "localhost", "ips": ["127.0.0.1"]}] * 2).encode(), 2),
}
#: Those that are refused, each with words that say why.
REFUSED = {
    "UTF-16, as PowerShell writes it": ("localhost slots=2\r\n".encode("utf-16"), "is not UTF-8 text"),
    "nothing but comments": (b"# my cluster\n\n", "names no host"),
    "a word that means nothing": (b"localhost slots=two\n", "line 1"),
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
    for name, (text, words) in REFUSED.items():
        file = Path(folder, "hosts")
        file.write_bytes(text)
        found, said = started(file)
        if found >= 0 or words not in said:
            bad.append(f"{name} is not refused with {words!r}:\n{said}")
    assert not bad, "\n".join(bad)
