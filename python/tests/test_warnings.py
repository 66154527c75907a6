"""Warnings of the library reach Python's logging."""

from conftest import job, succeed

HEARS = """
import io, logging, time, comity
heard = io.StringIO()
logging.basicConfig(stream=heard, format="%(name)s %(levelname)s %(message)s")
comity.init()
# Another thread tells it.
until = time.monotonic() + 30
while not heard.getvalue() and time.monotonic() < until:
    time.sleep(0.01)
print(heard.getvalue())
"""

SPEAKS = """
import os, sys
os.environ["COMITY_STATS_FD"] = "0"
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""


def test_a_warning_goes_to_the_logger_comity() -> None:
    # Standard input is no memory for counters.
    out = succeed(job(2, "-c", SPEAKS, HEARS))
    warning = "comity WARNING COMITY_STATS_FD=0: the launcher will see no counters of this process"
    assert [f"[{rank}] {warning}" in out for rank in (0, 1)] == [True, True], out
