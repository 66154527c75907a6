"""The parts that need no ranks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch

from comity import _core
from comity.errors import ConfigError, MismatchError, MisuseError
from comity.errors import TimeoutError as LimitPassed
from comity.torch import Int8, Options, TopK, callbacks, deadlines
from comity.torch import tensors as T
from comity.torch.compression import codec
from comity.torch.pending import Pending
from comity.torch.work import Done, Failed, Several, Work


def test_plain_tensors_are_used_where_they_lie() -> None:
    t = torch.arange(6.0)
    after: list = []
    assert T.place(t, after).data_ptr() == T.contents(t).data_ptr() == t.data_ptr() and not after


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.view(2, 3).t(),
        lambda t: t[::2],
        lambda t: t.view(torch.complex64).conj(),
        lambda t: t.view(torch.complex64).conj().imag,
        lambda t: t.view(2, 3)[:, 1:].expand(2, 2),
    ],
)
def test_others_are_copied_and_written_back(view: object) -> None:
    t = torch.arange(6.0)
    v = view(t)
    after: list = []
    c = T.place(v, after)
    assert T.plain(c) and torch.equal(c, v) and c.data_ptr() != v.data_ptr()
    c.mul_(2)
    want = v.clone() * 2
    for f in after:
        f()
    assert torch.equal(v, want)


def test_chunks_of_one_tensor_are_joined_without_a_copy() -> None:
    t = torch.arange(12.0)
    parts = list(t.chunk(3))
    after: list = []
    assert T.joined(parts).data_ptr() == T.spread(parts, after).data_ptr() == t.data_ptr() and not after
    swapped = [parts[1], parts[0]]
    assert torch.equal(T.joined(swapped), torch.cat(swapped))
    flat = T.spread(swapped, after)
    flat.copy_(torch.arange(8.0) + 100)
    after[0]()
    assert parts[1][0] == 100 and parts[0][0] == 104


def test_tensors_elsewhere_are_refused_by_name() -> None:
    with pytest.raises(MisuseError, match=r"rank 3: all_reduce got a tensor on meta"):
        T.check(torch.empty(1, device="meta"), "all_reduce", 3)
    with pytest.raises(MisuseError, match="to_dense"):
        T.check(torch.eye(2).to_sparse_csr(), "all_gather", 0)


def test_int8_is_within_its_bound() -> None:
    t = torch.randn(1000) * torch.logspace(-3, 3, 1000)
    c = Int8()
    packed = c.pack(t, t)
    assert packed.numel() < 0.3 * 4 * t.numel()
    total = torch.zeros(1000)
    c.add(total, packed)
    blocks = torch.nn.functional.pad(t, (0, 24)).view(-1, 256).abs().amax(1).repeat_interleave(256)[:1000]
    assert ((total - t).abs() <= blocks / 251).all()
    # What is no finite number stays what it is, alone, as on the core's wire.
    finite = t.isfinite()
    for at, special in ((3, torch.inf), (4, -torch.inf), (500, torch.nan)):
        t[at], finite[at] = special, False
    total.zero_()
    c.add(total, c.pack(t, t))
    assert total[3] == torch.inf and total[4] == -torch.inf and total[500].isnan()
    assert ((total - t).abs() <= blocks / 251)[finite].all()


def test_top_k_sends_the_largest_and_keeps_the_rest() -> None:
    c = TopK(ratio=0.2)
    t = torch.tensor([5.0, -4.0, 1.0, 0.5, 0.25, 0, 0, 0, 0, 0])
    total = torch.zeros(10)
    c.add(total, c.pack(t, "key"))
    assert total.tolist() == [5, -4, 0, 0, 0, 0, 0, 0, 0, 0]
    total.zero_()
    c.add(total, c.pack(torch.zeros(10), "key"))
    assert total.tolist() == [0, 0, 1, 0.5, 0, 0, 0, 0, 0, 0]
    with pytest.raises(ConfigError, match="above 0"):
        TopK(ratio=0)


def test_what_top_k_keeps_goes_with_the_memory_it_came_from() -> None:
    c = TopK(ratio=0.5)
    memory = bytearray(16)

    def sent(t: torch.Tensor) -> list[float]:
        total = torch.zeros(4)
        c.add(total, c.pack(t, t))
        return total.tolist()

    t = torch.frombuffer(memory, dtype=torch.float32)
    t.copy_(torch.tensor([4.0, 3, 2, 1]))
    assert sent(t) == [4, 3, 0, 0]
    t.zero_()
    # Another view of the same memory, which lives.
    assert sent(t.view(2, 2).view(-1)) == [0, 0, 2, 1]
    t.copy_(torch.tensor([4.0, 3, 2, 1]))
    assert sent(t) == [4, 3, 0, 0] and len(c._rest) == 1
    del t
    assert not c._rest
    # Another tensor at the same address has nothing to make up for.
    t = torch.frombuffer(memory, dtype=torch.float32)
    t.zero_()
    assert sent(t) == [0, 0, 0, 0]


class Later:
    """A request that ends when it is told to, or while its wait gives up."""

    def __init__(self, ends_in_wait: bool = False, error: Exception | None = None) -> None:
        self.ended = False
        self.ends_in_wait = ends_in_wait
        self.error = error
        self.limits: list[float | None] = []
        self.callbacks: list = []

    def wait(self, timeout: float | None = None) -> None:
        self.limits.append(timeout)
        if not self.ended:
            time.sleep(timeout)
            self.ended = self.ends_in_wait
            raise LimitPassed("too late", 1, "recv")
        if self.error is not None:
            raise self.error

    def done(self) -> bool:
        return self.ended

    def exception(self) -> Exception | None:
        return self.error if self.ended else None

    def add_done_callback(self, callback: Callable) -> None:
        self.callbacks.append(callback)

    def end(self) -> None:
        self.ended = True
        for c in self.callbacks:
            c(self.error)


def test_outputs_are_written_of_a_request_that_ends_as_its_wait_gives_up() -> None:
    written: list = []
    w = Work(Later(ends_in_wait=True), [], lambda: written.append("once"))
    with pytest.raises(LimitPassed):
        w.wait(0.01)
    assert written == ["once"]
    assert w.wait() is True and w.is_success() and written == ["once"]


def test_several_have_one_limit_together() -> None:
    first, second = Later(), Later()
    both = Work(Several([Work(first, []), Work(second, [])]), [])
    with pytest.raises(LimitPassed, match=r"after 0\.05 s") as e:
        both.wait(timedelta(seconds=0.05))
    assert e.value.rank == 1 and e.value.call == "recv" and not both.is_completed()
    assert len(first.limits) == 1 and not second.limits
    # One that ends while its wait gives up leaves the next what is left.
    first.ends_in_wait = True
    with pytest.raises(LimitPassed, match=r"after 0\.05 s"):
        both.wait(timedelta(seconds=0.05))
    assert second.limits[0] < 0.01
    second.end()
    assert both.wait() is True and both.is_success()


def test_several_end_when_all_have_and_with_the_error_of_one() -> None:
    before = callbacks.running()
    outputs: list = []
    parts = [Later(), Later(error=MismatchError("no", 1, "recv"))]
    works = [Work(p, [], lambda: outputs.append("written")) for p in parts]
    both = Work(Several([*works, Done([])]), "result")
    future = both.get_future()
    parts[0].end()
    assert not both.is_completed() and not future.done() and outputs == ["written"]
    assert both.exception() is None
    parts[1].end()
    assert both.is_completed() and not both.is_success() and isinstance(both.exception(), MismatchError)
    with pytest.raises(MismatchError):
        both.wait()
    with pytest.raises(Exception, match="no"):
        future.wait()
    assert outputs == ["written"] and callbacks.running() == before
    failed = Work(Several([Work(Failed(MisuseError("bad")), [])]), [])
    assert failed.is_completed()
    with pytest.raises(MisuseError):
        failed.wait(1.0)


def test_a_job_that_waits_for_a_later_one_does_not_stop_it() -> None:
    came, done = threading.Event(), threading.Event()
    _core.post(lambda: came.wait() and done.set())
    _core.post(came.set)
    done.wait()


def test_what_a_job_raises_goes_to_the_hook_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, done = [], threading.Event()

    def hook(raised: object) -> None:
        seen.append(raised.exc_type)
        done.set()

    monkeypatch.setattr(sys, "unraisablehook", hook)
    _core.post(lambda: 1 // 0)
    assert done.wait(30) and seen == [ZeroDivisionError]
    done.clear()
    _core.post(done.set)
    assert done.wait(30)


def test_limits_pass_on_one_thread() -> None:
    out: list[BaseException | None] = []
    pending = [Pending(f"recv {limit}", limit, 1) for limit in (30.0, 0.2, 0.05)]
    for p in pending:
        p.add_done_callback(out.append)
    threads = [t for t in threading.enumerate() if t.name == "comity-limits"]
    assert len(threads) == 1
    until = time.monotonic() + 30
    while len(out) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert sorted(e.call for e in out) == ["recv 0.05", "recv 0.2"] and isinstance(out[0], LimitPassed)
    assert not pending[0].done()
    pending[0].end()
    while len(out) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert out[2] is None and pending[0] not in deadlines._deadlines._until


def test_a_graph_may_look_at_the_name_of_a_group_and_at_no_call() -> None:
    from comity.torch.process_group import ProcessGroup

    assert ProcessGroup.allreduce._torchdynamo_disable
    assert not hasattr(ProcessGroup.group_name.fget, "_torchdynamo_disable")


def test_the_thread_that_compares_calls_leaves_captures_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from comity.torch import nccl

    modes = []

    class Driver:
        def __init__(self, name: str) -> None:
            assert name == "libcuda.so.1"

        def cuThreadExchangeStreamCaptureMode(self, mode: object) -> None:
            modes.append(mode._obj.value)

    monkeypatch.setattr(nccl.ctypes, "CDLL", Driver)
    nccl.beside_captures()
    assert modes == [1]


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Options().compression is None
    monkeypatch.setenv("COMITY_TORCH_COMPRESSION", "bf16")
    assert Options().compression == "bf16" and Options("int8").compression == "int8"
    with pytest.raises(ConfigError, match="there are fp16, bf16, int8, topk"):
        codec("zip", 0.1, 0)


class Elsewhere(torch.Tensor):
    """A stand-in for a tensor of an Apple GPU: it says so, and its memory is reached through copies only."""

    @property
    def device(self) -> torch.device:
        return torch.device("mps")

    @property
    def is_cpu(self) -> bool:
        return False

    def cpu(self, *_: object, **__: object) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()


def test_memory_of_an_apple_gpu_that_torch_cannot_show_goes_through_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.mps, "_host_alias_storage", None, raising=False)
    t = torch.arange(4.0).as_subclass(Elsewhere)
    T.check(t, "all_reduce", 0)
    after: list = []
    c = T.place(t, after)
    assert type(c) is torch.Tensor and c.data_ptr() != t.data_ptr()
    c.add_(1)
    after[0]()
    assert t.as_subclass(torch.Tensor).tolist() == [1, 2, 3, 4]
