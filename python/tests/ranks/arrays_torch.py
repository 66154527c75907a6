"""torch tensors: torch's come back, of the same type."""

import pytest
import torch

import comity

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


def check_every_type(g: comity.Group) -> None:
    for dtype in DTYPES:
        for shape in [(), (0,), (2, 3), (1031,)]:
            count = torch.Size(shape).numel()
            parts = [((torch.arange(count) + r) % 2).reshape(shape).to(dtype) for r in range(g.size)]
            got = g.all_sum(parts[g.rank])
            assert isinstance(got, torch.Tensor)
            expected = torch.stack(parts)
            expected = expected.any(0) if dtype == torch.bool else expected.sum(0).to(dtype)
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
            gathered = torch.stack(parts) if shape == () else torch.cat(parts)
            torch.testing.assert_close(g.all_gather(parts[g.rank]), gathered, rtol=0, atol=0)


def check_layouts(g: comity.Group) -> None:
    x = torch.arange(24.0).reshape(4, 6) + g.rank
    expected = torch.arange(24.0).reshape(4, 6) * g.size + sum(range(g.size))
    torch.testing.assert_close(g.all_sum(x.t()), expected.t())
    torch.testing.assert_close(g.all_sum(x.expand(2, 4, 6)), expected.expand(2, 4, 6))
    out = torch.zeros(6, 8)[:, ::2]
    assert g.all_sum(x.t(), out=out) is out
    torch.testing.assert_close(out, expected.t())
    conjugated = torch.tensor([1 + 2j], dtype=torch.complex64).conj()
    assert g.all_sum(conjugated)[0].item() == g.size * (1 - 2j)
    parameter = torch.nn.Parameter(torch.ones(3))
    got = g.all_sum(parameter)
    assert not got.requires_grad
    g.all_sum(parameter, out=parameter)
    torch.testing.assert_close(parameter.detach(), got)


def check_async_and_sends(g: comity.Group) -> None:
    x = torch.full((1000,), float(g.rank))
    requests = [g.all_reduce(x + i, "max", async_=True) for i in range(5)]
    for i, request in enumerate(requests):
        torch.testing.assert_close(request.wait(), torch.full((1000,), g.size - 1.0 + i))
    if g.size > 1:
        if g.rank == 0:
            g.send(x, 1)
        if g.rank == 1:
            torch.testing.assert_close(g.recv((1000,), torch.float32, 0), torch.zeros(1000))


def check_refusals(g: comity.Group) -> None:
    with pytest.raises(comity.MisuseError, match="on meta"):
        g.all_sum(torch.ones(2, device="meta"))
    with pytest.raises(comity.MisuseError, match="layout"):
        g.all_sum(torch.ones(2, 2).to_sparse())
    with pytest.raises(comity.MisuseError, match="complex128"):
        g.all_sum(torch.ones(2, dtype=torch.complex128))
    assert g.all_sum(torch.ones(1)).item() == g.size
