"""Ranks that give up a permission in the middle of a job."""

import sys

import pytest
from test_faults import Ranks, ranks  # noqa: F401, a fixture


@pytest.mark.skipif(sys.platform != "linux", reason="process_vm_readv is Linux's")
@pytest.mark.parametrize("by", ["becoming another user", "giving up being read"])
def test_a_rank_that_drops_its_privileges_is_read_no_more(ranks: Ranks, by: str) -> None:  # noqa: F811, the fixture
    # As libraries do. Root becomes another user; nobody else can, and gives up being read. As root, the second is done by ranks that are
    # another user both.
    ranks.start(
        2,
        f"by = {by!r}"
        + """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
DUMPABLE = 4
is_root = os.geteuid() == 0

def become_nobody():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)

def read_one_another():
    own, copy = ctypes.create_string_buffer(b"x"), ctypes.create_string_buffer(1)
    vector = ctypes.c_void_p * 2
    pid, at = g.all_gather_object((os.getpid(), ctypes.addressof(own)))[1 - rank]
    got = libc.process_vm_readv(pid, vector(ctypes.addressof(copy), 1), 1, vector(at, 1), 1, 0)
    return all(g.all_gather_object(got == 1))

g = meet(COMITY_PULL="65536", COMITY_LINKS="shm")
x = np.random.default_rng(rank).standard_normal(1 << 20).astype(np.float32)
before = g.all_sum(x)
# Modules are imported that nobody may not read.
assert read_one_another()
if by == "giving up being read" and is_root:
    become_nobody()
    # What setuid took: these are of one user, and may read one another.
    assert libc.prctl(DUMPABLE, 1, 0, 0, 0) == 0
    assert (g.all_sum(x) == before).all()
    assert read_one_another()
if rank == 1:
    if by == "becoming another user" and is_root:
        become_nobody()
    else:
        assert libc.prctl(DUMPABLE, 0, 0, 0, 0) == 0
assert not read_one_another()
for _ in range(3):
    assert (g.all_sum(x) == before).all()
print("the same")
""",
    )
    for code_, out, err in ranks.ends():
        assert (code_, out) == (0, "the same\n"), err
