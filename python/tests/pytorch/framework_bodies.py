"""What ranks do in `test_frameworks.py`: Hugging Face's and Lightning's trainers with tiny random models, once with comity and once with
gloo; losses, gradients and weights are compared, bit for bit on 2 ranks.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

#: Numbers that must be the same with either backend.
Numbers = list[torch.Tensor]
LIMIT = timedelta(seconds=60)


def data(n: int = 64) -> torch.utils.data.TensorDataset:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 8, generator=g)
    return torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())


@contextlib.contextmanager
def launched(rank: int, size: int, port: int) -> Iterator[None]:
    """The variables that a launcher sets, for as long as this lasts."""
    ours = {
        "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port, "HF_HUB_OFFLINE": 1, "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    before = dict(os.environ)
    os.environ.update({k: str(v) for k, v in ours.items()})
    try:
        yield
    finally:
        # Whatever the trainers have set as well.
        os.environ.clear()
        os.environ.update(before)


def both(rank: int, size: int, store: dist.Store, train: Callable[[], Numbers]) -> None:
    """The same training in a group of each backend."""
    seen = {}
    for backend in ("comity", "gloo"):
        dist.init_process_group(
            backend, store=dist.PrefixStore(backend, store), rank=rank, world_size=size, timeout=LIMIT
        )
        assert dist.get_backend() == backend
        seen[backend] = train()
        dist.destroy_process_group()
    equal(seen, size)


def equal(seen: dict[str, Numbers], size: int) -> None:
    assert len(seen["comity"]) == len(seen["gloo"]) > 2
    for a, b in zip(seen["comity"], seen["gloo"], strict=True):
        if size <= 2:
            assert torch.equal(a, b), (a, b)
        else:
            # The order of additions differs.
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def end(model: nn.Module) -> Numbers:
    """Weights, which must be the same on all ranks."""
    weights = [p.detach().clone() for p in model.parameters()]
    for w in weights:
        everyone = [torch.empty_like(w) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, w)
        assert all(torch.equal(e, w) for e in everyone)
    return weights


def accelerate(rank: int, size: int, store: dist.Store, port: int) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import set_seed

    def train() -> Numbers:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        # It takes a group that is there; of backends it knows only its own by name.
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        assert accelerator.num_processes == size and accelerator.process_index == rank
        set_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        loader = torch.utils.data.DataLoader(data(), batch_size=4)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        losses, grads = [], []
        for _ in range(3):
            for x, y in loader:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                        grads = [p.grad.clone() for p in model.parameters()]
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(accelerator.gather_for_metrics(loss.detach().reshape(1)))
        assert losses[-1].mean() < losses[0].mean() and losses[0].numel() == size
        everyone = accelerator.gather_for_metrics([{"rank": rank}], use_gather_object=True)
        assert [e["rank"] for e in everyone] == list(range(size))
        total = accelerator.reduce(torch.tensor([rank + 1.0]), "sum")
        assert total.item() == sum(range(1, size + 1))
        accelerator.wait_for_everyone()
        return [*losses, *grads, *end(accelerator.unwrap_model(model))]

    with launched(rank, size, port):
        both(rank, size, store, train)


def trainer(rank: int, size: int, store: dist.Store, port: int) -> None:
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    rows = [
        {"input_ids": torch.arange(i, i + 8) % 32, "labels": torch.arange(i, i + 8) % 32} for i in range(64)
    ]

    def train() -> Numbers:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        set_seed(0)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
            )
        )
        with tempfile.TemporaryDirectory() as folder:
            settings = TrainingArguments(
                folder, max_steps=6, per_device_train_batch_size=4, per_device_eval_batch_size=4, use_cpu=True, report_to=[],
                save_strategy="no", logging_steps=1, optim="sgd", learning_rate=0.2, disable_tqdm=True,
            )  # fmt: skip
            t = Trainer(model=model, args=settings, train_dataset=rows, eval_dataset=rows[:16])
            assert t.args.world_size == size and t.args.process_index == rank
            t.train()
            losses = [h["loss"] for h in t.state.log_history if "loss" in h]
            losses.append(t.evaluate()["eval_loss"])
        assert len(losses) == 7 and losses[-1] < losses[0], losses
        return [
            torch.tensor(losses),
            *(p.grad.clone() for p in model.parameters() if p.grad is not None),
            *end(model),
        ]

    with launched(rank, size, port):
        both(rank, size, store, train)


def lightning(rank: int, size: int, store: dist.Store, ports: tuple[int, int]) -> None:
    """Lightning makes the group itself."""
    import lightning as L
    from lightning.pytorch.strategies import DDPStrategy

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
            self.losses: Numbers = []
            self.grads: Numbers = []

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
            self.losses.append(loss.detach().clone())
            self.log("loss", loss, on_epoch=True, sync_dist=True)
            return loss

        def on_before_optimizer_step(self, _: Any) -> None:
            self.grads = [p.grad.clone() for p in self.parameters()]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    seen = {}
    for backend, port in zip(("comity", "gloo"), ports, strict=True):
        with launched(rank, size, port):
            L.seed_everything(0, verbose=False)
            module = Module()
            run = L.Trainer(
                accelerator="cpu", devices=size, strategy=DDPStrategy(process_group_backend=backend, timeout=LIMIT), max_epochs=3,
                logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip
            run.fit(module, torch.utils.data.DataLoader(data(), batch_size=8))
            assert dist.get_backend() == backend and dist.get_world_size() == size
            assert module.losses[-1] < module.losses[0]
            mean = run.callback_metrics["loss_epoch"].reshape(1)
            seen[backend] = [*module.losses, mean, *module.grads, *end(module)]
            dist.destroy_process_group()
    equal(seen, size)
