"""References for the examples of comity-candle, by torch, transformers and MLX; the deep check `candle` runs it.

candle_suite.py llama FOLDER PROMPT...     write a small random Llama; print the tokens that follow each prompt (numbers with commas)
candle_suite.py near FOLDER SENTENCE...    print how near each sentence's meaning is to the first one's, by the BERT in FOLDER
candle_suite.py same PATH PATH             read two checkpoints of one model with safetensors for torch and with MLX, and compare
candle_suite.py names FILE                 look for each function that MLX has for groups in the first column of the table in FILE
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

#: New tokens for each prompt.
TOKENS = 12
#: Two ways of training, some steps long, differ by rounding.
LARGEST_DIFFERENCE = 2e-3


def llama(folder: str, *prompts: str) -> None:
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
    for prompt in prompts:
        ids = [int(token) for token in prompt.split(",")]
        begun = len(ids)
        for _ in range(TOKENS):
            with torch.no_grad():
                scores = model(torch.tensor([ids])).logits[0, -1]
            ids.append(int(scores.argmax()))
        print(",".join(str(token) for token in ids[begun:]))


def near(folder: str, *sentences: str) -> None:
    import torch
    from transformers import AutoTokenizer, BertModel

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertModel.from_pretrained(folder).eval()
    vectors = []
    for sentence in sentences:
        with torch.no_grad():
            states = model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state
        vectors.append(torch.nn.functional.normalize(states.mean(1)[0], dim=0))
    for vector in vectors:
        print(f"{float(vector @ vectors[0]):.6f}")


def same(first: str, second: str) -> None:
    import mlx.core as mx
    import numpy as np
    import torch
    from safetensors.torch import load_file

    def files(path: str) -> list[Path]:
        return sorted(Path(path).glob("*.safetensors")) if Path(path).is_dir() else [Path(path)]

    def whole(path: str) -> dict[str, torch.Tensor]:
        return {name: x for file in files(path) for name, x in load_file(file).items()}

    mine, other = whole(first), whole(second)
    assert mine.keys() == other.keys(), sorted(mine.keys() ^ other.keys())
    read = {name: x for file in files(first) for name, x in mx.load(str(file)).items()}
    assert read.keys() == mine.keys()
    far = 0.0
    for name, x in mine.items():
        assert x.shape == other[name].shape, name
        assert np.array_equal(np.array(read[name]), x.numpy()), f"{name} differs between MLX and torch"
        far = max(far, float((x - other[name]).abs().max()))
    assert far < LARGEST_DIFFERENCE, far
    size = sum(file.stat().st_size for file in files(first))
    print(f"{len(mine)} tensors, {size} bytes, differ by {far:.1e}")


def names(file: str) -> None:
    import inspect

    import mlx.core as mx
    from mlx import nn
    from mlx.nn.layers import distributed

    lines = Path(file).read_text().splitlines()
    rows = [line for line in lines if line.startswith("//! | ")]
    cells = [row.split("|")[1] for row in rows]
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
    assert not missing, f"the table in {file} lacks {', '.join(missing)}"
    print(f"{len(wanted)} functions of MLX {metadata.version('mlx')} stand in the table")


if __name__ == "__main__":
    {"llama": llama, "near": near, "same": same, "names": names}[sys.argv[1]](*sys.argv[2:])
