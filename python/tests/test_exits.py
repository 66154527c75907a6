"""A process ends as its program says, whatever Comity's threads still have to say to Python."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import run

ENDS = ["return", "sys.exit(1)", "raise ValueError('enough')", "os._exit(3)", "SIGTERM"]
CODES = {"return": 0, "sys.exit(1)": 1, "os._exit(3)": 3, "SIGTERM": -signal.SIGTERM}

# A warning is on its way to a handler that is slow, and so are callbacks: they come back to the interpreter as it ends.
PROGRAM = """
import logging, os, signal, sys, time, threading
import comity
from comity import _core

def slow():
    for _ in range(200):
        time.sleep(0.0005)

class Slow(logging.Handler):
    def emit(self, record):
        slow()

class Last:
    # Its end takes long, and comes when the interpreter lets no thread in any more.
    def __del__(self, sleep=time.sleep):
        sleep(0.05)

last = Last()
logging.getLogger("comity").addHandler(Slow())
comity.init()
until = time.monotonic() + float(sys.argv[2])
for _ in range(4):
    _core.post(slow)
# It never ends: nothing waits for it, and it harms nobody.
_core.post(lambda: [time.sleep(0.0005) for _ in iter(int, 1)] if sys.argv[3] == "stuck" else None)
_core.post(lambda: logging.getLogger("comity").warning("last words"))
while time.monotonic() < until:
    pass
if sys.argv[1] == "SIGTERM":
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
if sys.argv[1] != "return":
    exec(sys.argv[1])
"""


def end(how: str, wait: float, stuck: bool = False) -> tuple[int, str]:
    args = [how, str(wait), "stuck" if stuck else "free"]
    done = run([sys.executable, "-c", PROGRAM, *args])
    return done.returncode, done.stderr


@pytest.mark.parametrize("how", ENDS)
def test_each_way_to_end_gives_its_own_code(how: str) -> None:
    # Threads of ours are somewhere else in their work each time.
    trials = 100 if os.environ.get("COMITY_TEST_DEEP") else 2
    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(lambda i: end(how, (10 + i % 50) / 1000), range(trials)))
    wrong = [(code, err) for code, err in ends if code != CODES.get(how, 1)]
    assert not wrong, f"{len(wrong)} of {trials}: {wrong[0]}"


def test_a_callback_that_never_ends_keeps_nobody() -> None:
    begun = time.monotonic()
    assert end("sys.exit(1)", 0.01, stuck=True)[0] == 1
    assert time.monotonic() - begun < 30
