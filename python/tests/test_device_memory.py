"""Memory of CUDA devices: what is refused where there is none, and calls with a library that stands in for NCCL and the driver.

With devices: `pytorch/on_devices.py`, by hand.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import job, succeed

import comity

ROOT = Path(__file__).resolve().parents[2]
#: Built by `cargo build -p softnccl`; `cargo xtask test` does it, and says where.
STAND_IN = Path(os.environ.get("COMITY_TEST_SOFTNCCL", ROOT / "target/debug/libsoftnccl.so"))


class Claims:
    """Says that it is on a CUDA device; nobody may follow the address."""

    def __init__(self, typestr: str = "<f4", readonly: bool = False, **more: object) -> None:
        self.face = {"shape": (3,), "typestr": typestr, "data": (4096, readonly), "version": 3, **more}

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return self.face


def test_a_group_for_host_memory_refuses_a_device_s() -> None:
    group = comity.init()
    assert group.device is None
    calls = [
        lambda: group.all_reduce(Claims(), out=Claims()),
        lambda: group.broadcast(Claims(), out=Claims()),
        lambda: group.all_reduce(Claims(), out=Claims(), async_=True),
        lambda: group.reduce(Claims(), out=Claims()),
    ]
    for call in calls:
        with pytest.raises(comity.MisuseError, match=r'on a CUDA device.*backend="nccl"') as e:
            call()
        assert e.value.call in ("all_reduce", "broadcast", "reduce")
    # The group is unharmed.
    assert group.all_sum(2) == 2


def test_both_arrays_of_a_call_are_in_one_place() -> None:
    group = comity.init()
    for x, out in ((Claims(), np.zeros(3, np.float32)), (np.zeros(3, np.float32), Claims())):
        with pytest.raises(comity.MisuseError, match="host memory and the other on a CUDA device"):
            group.all_reduce(x, out=out)


def test_the_cuda_array_interface_is_checked() -> None:
    group = comity.init()
    for x, words in (
        (Claims("|V8"), "cannot be passed"),
        (Claims(">f4"), "cannot be passed"),
        (Claims(strides=(8,)), "contiguous"),
        (Claims(mask=object()), "cannot be passed"),
    ):
        with pytest.raises(comity.MisuseError, match=words):
            group.all_reduce(x, out=Claims())
    with pytest.raises(comity.MisuseError, match="cannot be written"):
        group.all_reduce(Claims(), out=Claims(readonly=True))
    with pytest.raises(comity.MisuseError, match="give `out`"):
        group.all_reduce(Claims())


def test_nccl_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    # Also on a machine that has it.
    monkeypatch.setenv("COMITY_CUDA", "/no/such/libcuda.so")
    if comity.is_available("nccl"):
        pytest.fail("the driver was loaded before this test")
    with pytest.raises(comity.UnavailableError, match=r"cuda is not available.*install NVIDIA's driver"):
        comity.init("nccl")
    for device in ("cuda:0", 1024):
        with pytest.raises(comity.ConfigError, match="COMITY_DEVICE"):
            comity.init("nccl", device=device)


def test_what_protects_the_data_is_a_word_or_a_yes() -> None:
    for secure in (True, False, "data", "handshake"):
        with comity.init(secure=secure) as group:
            assert group.all_sum(1) == 1
    with pytest.raises(comity.ConfigError, match="COMITY_SECURE"):
        comity.init(secure="all")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_calls_with_the_stand_in(n: int) -> None:
    library = str(STAND_IN)
    assert STAND_IN.is_file(), f"{library} is missing; cargo build -p softnccl"
    said = succeed(job(n, "-m", "ranks", "device_memory", COMITY_CUDA=library, COMITY_NCCL=library))
    done = re.search(r"(\d+) checks", said)
    assert done is not None and int(done[1]) > 0
