"""Lets torch start where CUDA's libraries were not installed.

    target/python/bin/python python/tests/without_cuda.py

torch's wheel for Linux on x86_64 links with CUDA's libraries, 4 GB of them, also where there is no GPU. Tests here never call them: they
use torch on processors. So `requirements.txt` leaves out all but two small ones, which torch calls when it is loaded, and this puts
libraries without content where torch looks for the others. Each has the names that torch asks for. Who calls one of them is told so, and
ends. Then torch is imported, to see that nothing is missing.

For other versions of torch: `ABSENT` is what `readelf -d torch/lib/*.so` names as NEEDED and no package brings.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

#: The libraries, and what their symbols look like in torch's tables: those of most have the library's name as their version.
ABSENT = {
    "libcublas.so.13": r".*@libcublas\.so\.13",
    "libcublasLt.so.13": r".*@libcublasLt\.so\.13",
    "libcudnn.so.9": r".*@libcudnn\.so\.9",
    "libcufft.so.12": r".*@libcufft\.so\.12",
    "libcufile.so.0": r"cuFile\w+",
    "libcusparse.so.12": r".*@libcusparse\.so\.12",
    "libcusparseLt.so.0": r"cusparseLt\w+",
    "libnccl.so.2": r"p?nccl\w+",
    "libnvrtc.so.13": r".*@libnvrtc\.so\.13",
    "libnvshmem_host.so.3": r".*@NVSHMEM",
}
#: The parts of torch that are loaded with it, or when they are needed and there is a GPU.
LOADED_LATER = {"libtorch_cuda_linalg.so", "libcaffe2_nvrtc.so"}

SOURCE = """
#include <stdlib.h>
#include <unistd.h>
static const char words[] = "{library} was called, and it is absent: see python/tests/without_cuda.py\\n";
void comity_absent(void) {{
    if (write(2, words, sizeof words - 1)) {{}}
    abort();
}}
"""
ALIAS = 'void {}(void) __attribute__((alias("comity_absent")));\n'


def run(*command: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"`{' '.join(str(c) for c in command)}` failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def wanted(torch: Path) -> dict[str, set[str]]:
    """For each absent library the symbols that torch's libraries want, as in `name` or `name@version`."""
    found = defaultdict(set)
    for library in torch.glob("lib/*.so"):
        if library.name in LOADED_LATER:
            continue
        for line in run("nm", "-D", "--undefined-only", library).splitlines():
            symbol = line.split()[-1]
            for absent, pattern in ABSENT.items():
                if re.fullmatch(pattern, symbol):
                    found[absent].add(symbol)
    return found


def make(library: str, symbols: set[str], to: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, versions = Path(folder, "absent.c"), Path(folder, "versions")
        names = sorted(s.partition("@")[0] for s in symbols)
        source.write_text(SOURCE.format(library=library) + "".join(ALIAS.format(n) for n in names))
        # All have one version or none.
        (version,) = {s.partition("@")[2] for s in symbols}
        versions.write_text(f"{version} {{ *; }};\n")
        linker = f"-Wl,-soname,{library},--version-script,{versions}"
        run("cc", "-shared", "-fPIC", "-w", linker, "-o", to, source)


def main() -> None:
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None, "torch is not installed"
    torch = Path(found.origin).parent
    symbols = wanted(torch)
    for library in ABSENT:
        # Where torch's libraries look last: a real one is taken before it.
        make(library, symbols[library], torch / "lib" / library)
    done = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(
            f"torch cannot be imported without CUDA's libraries:\n{done.stderr}\n"
            "Did its version change? ABSENT in python/tests/without_cuda.py must list the libraries that it names now, and "
            "requirements.txt the versions of the two that it calls."
        )
    print(f"{len(ABSENT)} libraries of CUDA are absent")


if __name__ == "__main__":
    main()
