"""A host whose own name nobody can resolve, as a laptop in another network, a container or a fresh virtual machine has it; and names that
mean nothing where one writes them.

Elsewhere a job on one machine ended with "unable to resolve hostname", or waited for half an hour. Here a job of the host itself needs no
name, and a name that means nothing is told within seconds.
"""

import os
import shutil
import subprocess
import sys
import time

#: By RFC 2606 nobody ever has such a name.
NOBODY = "no-such-host.invalid"
#: Seconds until a name that means nothing is told, on a crowded machine. A resolver that does not answer takes ten or more.
SOON = 90


def rank_main(backend: str) -> None:
    import socket

    import torch
    import torch.distributed as dist

    import comity  # noqa: F401, an older torch finds the backend by it

    assert socket.gethostname() == NOBODY
    dist.init_process_group(backend)
    x = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((1000,), 3.0)), x[0]
    dist.destroy_process_group()


def run(command: list[str], **more: str) -> tuple[int, str, float]:
    """End, output and seconds of a command."""
    env = {n: v for n, v in os.environ.items() if not n.startswith(("COMITY_", "MASTER_"))} | more
    begun = time.monotonic()
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        env=env,
        check=False,
    )
    return done.returncode, done.stdout, time.monotonic() - begun


def main(backend: str) -> None:
    launch = [sys.executable, "-m", "comity", "launch"]
    # A namespace with another name: for root, or where users may make one.
    named = ["unshare", *(["-u"] if os.geteuid() == 0 else ["-ur"]), "sh", "-c", 'hostname "$0" && exec "$@"']
    assert shutil.which("unshare") and shutil.which("hostname"), "this needs unshare and hostname"
    code, said, _ = run([*named, NOBODY, *launch, "-n", "2", "--", sys.executable, __file__, backend, "rank"])
    assert code == 0, said
    if backend != "comity":
        return
    # It is named in errors all the same.
    fails = "import os, comity; g = comity.init(); os._exit(3) if g.rank == 1 else g.barrier()"
    code, said, _ = run([*named, NOBODY, *launch, "-n", "2", "--", sys.executable, "-c", fails])
    assert code == 3 and f"host {NOBODY}" in said, (code, said)
    # Of several hosts.
    code, said, took = run([*launch, "--hosts", f"localhost,{NOBODY}", "--", "true"])
    assert code != 0 and NOBODY in said and "no host has this name" in said and took < SOON, (
        code,
        took,
        said,
    )
    # Where the ranks meet.
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": NOBODY, "MASTER_PORT": "29500"}
    init = [sys.executable, "-c", "import comity; comity.init()"]
    code, said, took = run(init, COMITY_INSECURE="1", COMITY_JOIN_TIMEOUT="5", **place)
    assert code != 0 and NOBODY in said and took < SOON, (code, took, said)


if __name__ == "__main__":
    rank_main(sys.argv[1]) if sys.argv[2:] == ["rank"] else main(sys.argv[1])
