"""accelerate, transformers' Trainer and Lightning on the backend, with tiny random models. Run by hand: they are not in the requirements.

comity launch -n 2 -- python python/tests/pytorch/stacks_by_hand.py [accelerate|trainer|lightning]
"""

from __future__ import annotations

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn

import comity

assert comity


def data(n: int = 64) -> torch.utils.data.TensorDataset:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 8, generator=g)
    return torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())


def agree(model: nn.Module) -> None:
    for p in model.parameters():
        everyone = [torch.empty_like(p) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, p.detach())
        assert all(torch.equal(e, p) for e in everyone)


def with_accelerate() -> None:
    from accelerate import Accelerator

    # accelerate names backends it knows only; a group that is there already is taken as it is.
    dist.init_process_group("comity")
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == dist.get_world_size() and dist.get_backend() == "comity"
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, torch.utils.data.DataLoader(data(), batch_size=8)
    )
    losses = []
    for _ in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    agree(model)
    assert losses[-1] < losses[0]


def with_trainer() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    dist.init_process_group("comity")
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    rows = [
        {"input_ids": torch.arange(i, i + 8) % 32, "labels": torch.arange(i, i + 8) % 32} for i in range(32)
    ]
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            max_steps=6,
            per_device_train_batch_size=4,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = Trainer(model=model, args=args, train_dataset=rows)
        assert dist.get_backend() == "comity"
        trainer.train()
        losses = [h["loss"] for h in trainer.state.log_history if "loss" in h]
        agree(model)
        assert losses[-1] < losses[0], losses


def with_lightning() -> None:
    import lightning as L
    from lightning.pytorch.strategies import DDPStrategy

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 2)
            self.losses: list[float] = []

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    L.seed_everything(0, verbose=False)
    module = Module()
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy=DDPStrategy(process_group_backend="comity"),
        max_epochs=4, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data(), batch_size=8))
    assert dist.get_backend() == "comity"
    agree(module)
    assert module.losses[-1] < module.losses[0]


if __name__ == "__main__":
    os.environ.setdefault("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1"))
    name = sys.argv[1]
    {"accelerate": with_accelerate, "trainer": with_trainer, "lightning": with_lightning}[name]()
    print(f"{name}: rank {dist.get_rank()} of {dist.get_world_size()} went well")
    dist.destroy_process_group()
