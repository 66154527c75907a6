"""Ranks for tests: processes that run one test body after the other. Torch and what the bodies need of it are imported once, by a process
without threads and groups that the ranks are forked from, where a system can do that; elsewhere by each.

A body is a function of a module in this folder; it is called as `body(rank, size)` with `torch.distributed` initialised with the backend
comity. What it returns comes back by rank.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: Longest a body may take.
LIMIT = 60.0
#: Longest that a process may take to import torch.
START = 180.0
#: What is imported for all ranks. Comity is not: each imports it, as users do.
PRELOADED = [
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.distributed.checkpoint",
]
FRAMEWORKS = ["accelerate", "transformers.trainer", "transformers.models.gpt2", "lightning"]


class Failed(AssertionError):
    """A body failed: what each rank said."""


def _serve(pipe: Any) -> None:
    sys.path.insert(0, str(HERE))
    import torch

    torch.set_num_threads(1)
    pipe.send("ready")
    while (job := pipe.recv()) is not None:
        module, name, rank, size, address, test, args, init, env = job
        before = {k: os.environ.get(k) for k in env}
        os.environ.update(env)
        # Says where it hangs, before the test gives up.
        faulthandler.dump_traceback_later(0.8 * LIMIT)
        try:
            pipe.send(("ok", _run(module, name, rank, size, address, test, args, init)))
        except BaseException:
            pipe.send(("failed", traceback.format_exc()))
        faulthandler.cancel_dump_traceback_later()
        for k, v in before.items():
            os.environ.pop(k) if v is None else os.environ.__setitem__(k, v)


def _run(
    module: str,
    name: str,
    rank: int,
    size: int,
    address: tuple,
    test: str,
    args: tuple,
    init: dict | str | None,
) -> Any:
    import torch.distributed as dist

    import comity

    assert comity
    body = getattr(importlib.import_module(module), name)
    store = dist.PrefixStore(test, dist.TCPStore(*address, is_master=False, timeout=timedelta(seconds=60)))
    if init is None:
        return body(rank, size, store, *args)
    settings = {"timeout": timedelta(seconds=20)} | ({"backend": init} if isinstance(init, str) else init)
    dist.init_process_group(store=store, rank=rank, world_size=size, **settings)
    try:
        return body(rank, size, *args)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class Ranks:
    """The processes, and the store at which they meet."""

    def __init__(self, preload: Sequence[str] = PRELOADED) -> None:
        self._spawn = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        self._spawn.set_forkserver_preload([*preload])
        self._workers: list[tuple[Any, Any]] = []
        self._ready: set[int] = set()
        self._store: Any = None
        self._tests = 0

    def start(self, n: int) -> None:
        while len(self._workers) < n:
            self._workers.append(self._start_one())

    def _wait_for(self, rank: int) -> None:
        if rank in self._ready:
            return
        _, pipe = self._workers[rank]
        if not pipe.poll(START) or pipe.recv() != "ready":
            raise Failed(f"process {rank} did not start within {START} s")
        self._ready.add(rank)

    def _start_one(self) -> tuple[Any, Any]:
        ours, theirs = self._spawn.Pipe()
        process = self._spawn.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def run(
        self,
        n: int,
        body: Any,
        *args: Any,
        init: dict | str | None = "comity",
        env: dict[str, str] | None = None,
        may_die: tuple[int, ...] = (),
        limit: float = LIMIT,
    ) -> list[Any]:
        """What `body` returns on each of `n` ranks; of ranks that `may_die`, their exit code. `init`: what to say to
        `init_process_group`; None: the body calls it."""
        import torch.distributed as dist

        if self._store is None:
            self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.start(n)
        for rank in range(n):
            self._wait_for(rank)
        self._tests += 1
        address = ("127.0.0.1", self._store.port)
        for rank in range(n):
            job = (
                body.__module__,
                body.__name__,
                rank,
                n,
                address,
                f"test{self._tests}",
                args,
                init,
                env or {},
            )
            self._workers[rank][1].send(job)
        until, out = time.monotonic() + limit, []
        for rank in range(n):
            process, pipe = self._workers[rank]
            try:
                answered = pipe.poll(max(until - time.monotonic(), 0))
                out.append(pipe.recv() if answered else ("failed", f"nothing within {limit} s"))
            except EOFError:
                process.join(10)
                died = "ok" if rank in may_die else "failed"
                out.append((died, f"the process ended with {process.exitcode}"))
                pipe.close()
                self._workers[rank] = self._start_one()
                self._ready.discard(rank)
        if any(kind == "failed" for kind, _ in out):
            # Nobody knows what these processes are in the middle of.
            self.stop()
            said = "\n".join(f"--- rank {r}: {kind}\n{what}" for r, (kind, what) in enumerate(out))
            raise Failed(f"{body.__name__} on {n} ranks\n{said}")
        return [what for _, what in out]

    def stop(self) -> None:
        for process, pipe in self._workers:
            process.kill()
            process.join()
            pipe.close()
        self._workers, self._ready = [], set()
