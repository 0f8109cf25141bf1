# SPDX-License-Identifier: Apache-2.0
"""One rank of a training run in a framework: prints the rows of every step as JSON. Run by test_frameworks.py.

python exact.py FRAMEWORK SHARDS OUT --steps N [--resume] [--save-at K] [--endless]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from typing import Any

import torch
import torch.distributed as dist

import millrace as mr

SEQ_LEN, GLOBAL_BATCH = 16, 32
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def make_loader(shards: str, endless: bool, **more: Any) -> mr.torch.Loader:
    return mr.torch.Loader(
        shards,
        global_batch_size=GLOBAL_BATCH,
        seq_len=SEQ_LEN,
        seed=3,
        rank=RANK,
        world_size=WORLD,
        epochs=None if endless else 1,
        **more,
    )


class Model(torch.nn.Module):
    """Remembers what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[list[int]]] = []

    def forward(self, input_ids: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen.append(input_ids.tolist())
        return {"loss": (self.weight * input_ids.float().mean() * 1e-6).sum()}


def with_accelerate(arguments: argparse.Namespace) -> Model:
    from accelerate import Accelerator
    from accelerate.utils import send_to_device

    loader = make_loader(arguments.shards, arguments.endless)
    accelerator = Accelerator(cpu=True)
    plain = Model()
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    accelerator.register_for_checkpointing(loader)
    if arguments.resume:
        accelerator.load_state(arguments.out)
    step = arguments.save_at if arguments.resume else 0
    while step < arguments.steps:
        for batch in loader:
            batch = send_to_device(batch, accelerator.device)
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == arguments.save_at:
                accelerator.save_state(arguments.out)
            if step == arguments.steps:
                break
    return plain


def with_accelerate_dataloader(arguments: argparse.Namespace) -> Model:
    """What as_iterable() refuses: every rank must end with its error."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    loader = make_loader(arguments.shards, arguments.endless)
    accelerator = Accelerator(cpu=True)
    data = accelerator.prepare(DataLoader(mr.torch.as_iterable(loader), batch_size=None))
    for _ in data:
        break
    return Model()


def with_lightning(arguments: argparse.Namespace) -> Model:
    import lightning

    plain = Model()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = plain

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.model(batch["input_ids"])["loss"]

        def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
            self.checked = getattr(self, "checked", 0) + len(batch["input_ids"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class MarkUsed(lightning.Callback):
        """Lightning fetches ahead of an endless loader: the state is that of the batch in use."""

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            loader.mark_used(batch)

    loader = make_loader(arguments.shards, arguments.endless, carry_state=arguments.endless)
    every = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=arguments.out, every_n_train_steps=arguments.save_at, save_top_k=-1, filename="{step}"
    )
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, num_nodes=WORLD, strategy="ddp" if WORLD > 1 else "auto", max_steps=arguments.steps,
        max_epochs=-1, callbacks=[every, MarkUsed()] if arguments.endless else [every], logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    path = f"{arguments.out}/step={arguments.save_at}.ckpt" if arguments.resume else None
    module = Module()
    if arguments.endless:
        trainer.fit(module, loader, ckpt_path=path)
    else:
        validation = make_loader(arguments.shards, False, shuffle=False)
        trainer.fit(module, loader, validation, ckpt_path=path)
    return plain


def with_trainer(arguments: argparse.Namespace) -> Model:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    loader = make_loader(arguments.shards, arguments.endless)

    class LoaderState(TrainerCallback):
        def path(self, args: Any, state: Any) -> pathlib.Path:
            return pathlib.Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step:  # a missing file is an error: training would start over
                loader.load_state_dict(json.loads(self.path(args, state).read_text()))

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                self.path(args, state).write_text(json.dumps(loader.state_dict()))

    class LoaderTrainer(Trainer):
        def get_train_dataloader(self) -> Any:
            return loader

    plain = Model()
    trainer = LoaderTrainer(
        model=plain,
        args=TrainingArguments(
            output_dir=arguments.out, use_cpu=True, ignore_data_skip=True, max_steps=arguments.steps,
            save_steps=arguments.save_at, save_strategy="steps", report_to=[], disable_tqdm=True, learning_rate=0.1,
        ),
        callbacks=[LoaderState()],
    )  # fmt: skip
    trainer.train(
        resume_from_checkpoint=f"{arguments.out}/checkpoint-{arguments.save_at}" if arguments.resume else None
    )
    return plain


def with_stateful_dataloader(arguments: argparse.Namespace) -> Model:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = make_loader(arguments.shards, arguments.endless)
    data = StatefulDataLoader(mr.torch.as_iterable(loader), batch_size=None, num_workers=arguments.workers)
    model = Model()
    path = pathlib.Path(arguments.out, f"data-{RANK}.pt")
    if arguments.resume:
        data.load_state_dict(torch.load(path, weights_only=False))
    step = arguments.save_at if arguments.resume else 0
    while step < arguments.steps:
        for batch in data:
            model(**batch)
            step += 1
            if step == arguments.save_at:
                torch.save(data.state_dict(), path)
            if step == arguments.steps:
                break
    return model


FRAMEWORKS = {
    "accelerate": with_accelerate,
    "accelerate-dataloader": with_accelerate_dataloader,
    "lightning": with_lightning,
    "trainer": with_trainer,
    "stateful-dataloader": with_stateful_dataloader,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("shards")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--save-at", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--endless", action="store_true")
    arguments = parser.parse_args()
    model = FRAMEWORKS[arguments.framework](arguments)
    json.dump(model.seen, sys.stdout)
    sys.stdout.flush()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
