"""What other libraries do when a rank fails: `python bench/faults/peers.py gloo|mlx [CASE ...]`.

Five ranks on this machine all-reduce over and over; one is killed or stopped, makes another call, a stranger connects
while they meet, or the launcher is killed. Prints what each rank was told and when. gloo needs the package torch, mlx
the package mlx[cpu]; Linux only. `rank` is the part that the ranks run.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

N = 5
LIMIT = 20  # seconds that an operation may take; MLX has no such limit
START = 300  # seconds to start: importing torch takes long on a busy machine
WATCH = 30  # seconds after which a rank that says nothing is said to hang


def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)


# ---- the ranks


class Gloo:
    def __init__(self, limit):
        import datetime

        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.torch, self.dist = torch, dist
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=limit))
        self.rank = dist.get_rank()

    def all_reduce(self, count, dtype="float32"):
        x = self.torch.ones(count, dtype=getattr(self.torch, dtype))
        self.dist.all_reduce(x)
        return [float(x.min()), float(x.max())]

    def all_gather(self, count):
        x = self.torch.ones(count)
        out = self.torch.zeros(count * N)
        self.dist.all_gather_into_tensor(out, x)
        return [float(out.min()), float(out.max())]


class Mlx:
    def __init__(self, _limit):
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        self.mx = mx
        self.group = mx.distributed.init(strict=True, backend="ring")
        self.rank = self.group.rank()

    def all_reduce(self, count, dtype="float32"):
        x = self.mx.distributed.all_sum(self.mx.ones((count,), dtype=getattr(self.mx, dtype)))
        self.mx.eval(x)
        return [x.min().item(), x.max().item()]

    def all_gather(self, count):
        x = self.mx.distributed.all_gather(self.mx.ones((count,)))
        self.mx.eval(x)
        return [x.min().item(), x.max().item()]


def rank_main(peer, case):
    def say(event, **more):
        print(json.dumps({"event": event, "at": now(), **more}), flush=True)

    if case.startswith("quiet"):
        # Under a launcher: nothing is printed, nobody is waited for.
        time.sleep(600)
        return
    try:
        lib = {"gloo": Gloo, "mlx": Mlx}[peer](START if case == "stranger" else LIMIT)
    except Exception as e:  # what a user's program would see
        say("error", text=str(e)[:300])
        return
    say("ready")
    try:
        if case in ("size", "dtype", "op"):
            odd = lib.rank == 1
            lib.all_reduce(1000)
            if case == "size":
                got = lib.all_reduce(900 if odd else 1000)
            elif case == "dtype":
                got = lib.all_reduce(1000, "int32" if odd else "float32")
            else:
                got = lib.all_gather(1000) if odd else lib.all_reduce(1000)
            say("got", value=got)
            say("next", value=lib.all_reduce(1000))
            return
        calls = 0
        begun = now()
        while case != "stranger" or calls < 50:
            got = lib.all_reduce(100_000)
            if got != [N, N]:
                say("wrong", value=got)
            calls += 1
        say("got", value=[calls, now() - begun])
    except Exception as e:
        say("error", text=str(e)[:300])
        begun = now()
        try:
            lib.all_reduce(100_000)
            say("again", text="success")
        except Exception as e:
            say("again", text=str(e)[:100], after=now() - begun)
        # As a program that handles the error: its connections stay open.
        time.sleep(600)


# ---- what breaks them


def free_ports(count):
    socks = [socket.socket() for _ in range(count)]
    for s in socks:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in socks]
    for s in socks:
        s.close()
    return ports


class Job:
    def __init__(self, peer, case, absent=()):
        self.heard = [[] for _ in range(N)]
        ports = free_ports(N + 1)
        self.ports = ports
        self.file = tempfile.NamedTemporaryFile("w", suffix=".json")  # noqa: SIM115, as long as the job
        json.dump([[f"127.0.0.1:{p}"] for p in ports[:N]], self.file)
        self.file.flush()
        self.args = [sys.executable, __file__, "rank", peer, case]
        self.ranks = {}
        for r in range(N):
            if r not in absent:
                self.start(r)

    def start(self, r):
        env = dict(
            os.environ,
            RANK=str(r),
            WORLD_SIZE=str(N),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self.ports[N]),
        )
        env |= {
            "MLX_RANK": str(r),
            "MLX_HOSTFILE": self.file.name,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        p = subprocess.Popen(self.args, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ranks[r] = p
        threading.Thread(target=self.follow, args=(r, p.stdout), daemon=True).start()
        threading.Thread(target=self.swallow, args=(r, p.stderr), daemon=True).start()

    def follow(self, r, pipe):
        for line in pipe:
            if line.startswith("{"):
                self.heard[r].append(json.loads(line))

    def swallow(self, r, pipe):
        for line in pipe:
            if "terminate called" in line or "what():" in line:
                self.heard[r].append({"event": "abort", "at": now(), "text": line.strip()[:200]})

    def said(self, r, *events):
        return next((h for h in self.heard[r] if h["event"] in events), None)

    def wait(self, ranks, events, seconds):
        until = now() + seconds
        while now() < until and not all(
            self.said(r, *events) or self.ranks[r].poll() is not None for r in ranks
        ):
            time.sleep(0.005)

    def begin(self):
        self.wait(range(N), ["ready", "error"], START)
        if not all(self.said(r, "ready") for r in range(N)):
            raise SystemExit(f"the ranks do not come together: {self.heard}")

    def end(self):
        for p in self.ranks.values():
            p.kill()
        for p in self.ranks.values():
            p.wait()

    def tell(self, r, since):
        if since is not None and (h := self.said(r, "error", "abort")):
            named = "names it" if f"rank {self.victim}" in h["text"].lower() else "names no rank"
            again = self.said(r, "again")
            then = f"; next call: {again['text'][:50]!r}" if again else ""
            return f"told after {h['at'] - since:.2f} s, {named}: {h['text'][:110]!r}{then}"
        if since is None and (h := self.said(r, "got")):
            after = self.said(r, "next", "error")
            return f"SUCCESS with {h['value']}, then {after['value'] if after and 'value' in after else 'no result'}"
        if h := self.said(r, "error", "abort"):
            return f"{h['event']}: {h['text'][:110]!r}"
        code = self.ranks[r].poll()
        return f"ended with {code}" if code is not None else f"still waits after {WATCH} s"


def fault(peer, case, sign):
    job = Job(peer, case)
    job.victim = 4
    try:
        job.begin()
        time.sleep(1)
        since = now()
        job.ranks[4].send_signal(sign)
        job.wait(range(N - 1), ["error", "abort"], WATCH)
        time.sleep(1.5)
        for r in range(N - 1):
            near = "neighbour" if r in (0, 3) else "no neighbour"
            print(f"  rank {r} ({near} of 4): {job.tell(r, since)}")
    finally:
        job.end()


def mismatch(peer, case):
    job = Job(peer, case)
    job.victim = 1
    try:
        job.begin()
        job.wait(range(N), ["next", "error", "abort"], WATCH)
        for r in range(N):
            who = " (makes the other call)" if r == 1 else ""
            print(f"  rank {r}{who}: {job.tell(r, None)}")
    finally:
        job.end()


def listening(ports):
    """Those of the ports at which somebody listens."""
    lines = []
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as table:
            lines += [line.split() for line in table][1:]
    found = {int(f[1].split(":")[1], 16) for f in lines if f[3] == "0A"}
    return [p for p in ports if p in found]


def stranger(peer, visit=True):
    job = Job(peer, "stranger", absent=(N - 1,))
    job.victim = -1
    try:
        # Those that are there wait for the last one.
        ports = job.ports[:N] if peer == "mlx" else [job.ports[N]]
        until = now() + START
        while not listening(ports) and now() < until:
            time.sleep(0.1)
        time.sleep(2)
        visits = []
        for port in listening(ports) if visit else []:
            try:
                s = socket.create_connection(("127.0.0.1", port), 1)
                s.sendall(b"GET / HTTP/1.1\r\n\r\n")
                visits.append(s)
            except OSError:
                pass
        print(f"  {len(visits)} connections that do not belong to the job, then the last rank")
        job.start(N - 1)
        job.wait([N - 1], ["ready", "error"], START if visit is False else 2 * WATCH)
        job.wait(range(N), ["got", "error"], 2 * WATCH)
        for r in range(N):
            print(f"  rank {r}: {'works' if job.said(r, 'got') else job.tell(r, None)}")
    finally:
        job.end()


def alive(mark):
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            args = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        # Ranks only, not a shell or launcher that has the words in its own arguments.
        launcher = any(name in args[1] for name in (b"torchrun", b"mlx.launch")) if len(args) > 1 else True
        if args[-2:-1] == [mark.encode()] and b"rank" in args and b"python" in args[0] and not launcher:
            count += 1
    return count


def launcher(peer, sign):
    mark = f"quiet-{os.getpid()}-{sign.name}"
    bin_dir = os.path.dirname(sys.executable)
    program = [os.path.abspath(__file__), "rank", peer, mark]
    if peer == "gloo":
        command = [
            f"{bin_dir}/torchrun",
            "--nproc-per-node",
            "3",
            "--master-port",
            str(free_ports(1)[0]),
            *program,
        ]
    else:
        command = [f"{bin_dir}/mlx.launch", "--backend", "ring", "-n", "3", "--", sys.executable, *program]
    p = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    try:
        until = now() + START
        while alive(mark) < 3 and now() < until and p.poll() is None:
            time.sleep(0.1)
        started = alive(mark)
        if started < 3:
            raise SystemExit(f"{started} of 3 ranks started: nothing was tried")
        time.sleep(2)
        p.send_signal(sign)
        time.sleep(5)
        print(
            f"  {sign.name}: {started} ranks started, {alive(mark)} still run 5 s later; exit code {p.poll()}"
        )
    finally:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() and int(pid) != os.getpid():
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass
        p.wait()


def main():
    if sys.argv[1] == "rank":
        return rank_main(sys.argv[2], sys.argv[3])
    every = ["kill", "stop", "size", "dtype", "op", "late", "stranger", "launcher"]
    peer, *cases = sys.argv[1:]
    if unknown := {peer} - {"gloo", "mlx"} | set(cases) - set(every):
        raise SystemExit(f"neither a library nor a case: {', '.join(sorted(unknown))}")
    if peer == "gloo":
        import torch

        print("torch", torch.__version__, "gloo, timeout", LIMIT, "s")
    else:
        from importlib.metadata import version

        print("mlx", version("mlx"), "ring on the CPU")
    for case in cases or every:
        print(f"{case}:", flush=True)
        if case == "kill":
            fault(peer, case, signal.SIGKILL)
        elif case == "stop":
            fault(peer, case, signal.SIGSTOP)
        elif case in ("size", "dtype", "op"):
            mismatch(peer, case)
        elif case in ("late", "stranger"):
            stranger(peer, case == "stranger")
        else:
            for sign in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
                launcher(peer, sign)


main()
