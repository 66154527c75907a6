"""The parts that need no ranks."""

from __future__ import annotations

import pytest
import torch

from comity.errors import Config, Misuse
from comity.torch import Int8, Options, TopK
from comity.torch import tensors as T
from comity.torch.compression import codec


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
    with pytest.raises(Misuse, match=r"rank 3: all_reduce got a tensor on meta"):
        T.check(torch.empty(1, device="meta"), "all_reduce", 3)
    with pytest.raises(Misuse, match="to_dense"):
        T.check(torch.eye(2).to_sparse_csr(), "all_gather", 0)


def test_int8_is_within_its_bound() -> None:
    t = torch.randn(1000) * torch.logspace(-3, 3, 1000)
    c = Int8()
    packed = c.pack(t, t)
    assert packed.numel() < 0.3 * 4 * t.numel()
    total = torch.zeros(1000)
    c.add(total, packed)
    blocks = torch.nn.functional.pad(t, (0, 24)).view(-1, 256).abs().amax(1).repeat_interleave(256)[:1000]
    assert ((total - t).abs() <= blocks / 254 * 1.001).all()
    t[500] = float("nan")
    total.zero_()
    c.add(total, c.pack(t, t))
    assert total[500].isnan() and not total[0].isnan()


def test_top_k_sends_the_largest_and_keeps_the_rest() -> None:
    c = TopK(ratio=0.2)
    t = torch.tensor([5.0, -4.0, 1.0, 0.5, 0.25, 0, 0, 0, 0, 0])
    total = torch.zeros(10)
    c.add(total, c.pack(t, "key"))
    assert total.tolist() == [5, -4, 0, 0, 0, 0, 0, 0, 0, 0]
    total.zero_()
    c.add(total, c.pack(torch.zeros(10), "key"))
    assert total.tolist() == [0, 0, 1, 0.5, 0, 0, 0, 0, 0, 0]
    with pytest.raises(Config, match="above 0"):
        TopK(ratio=0)


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Options().compression is None
    monkeypatch.setenv("COMITY_TORCH_COMPRESSION", "bf16")
    assert Options().compression == "bf16" and Options("int8").compression == "int8"
    with pytest.raises(Config, match="there are fp16, bf16, int8, topk"):
        codec("zip", 0.1, 0)


class Elsewhere(torch.Tensor):
    """A stand-in for a tensor of an Apple GPU: it says so, and its memory is reached through copies only."""

    @property
    def device(self) -> torch.device:
        return torch.device("mps")

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
