"""A store of names in a folder, with the functions that `comity._core.init_with_store` asks for."""

import time
from collections.abc import Callable
from pathlib import Path


def set_in(folder: str) -> Callable[[str, str], None]:
    """What sets a name."""

    def set(name: str, text: str) -> None:
        path = Path(folder) / name.replace("/", "_")
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(path)

    return set


def get_in(folder: str) -> Callable[[str, float], bytes]:
    """What waits for a name."""

    def get(name: str, seconds: float) -> bytes:
        path = Path(folder) / name.replace("/", "_")
        end = time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"{name} was not set in time")
            time.sleep(0.005)
        return path.read_bytes()

    return get
