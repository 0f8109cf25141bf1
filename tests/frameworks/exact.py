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


def with_accelerate_checkpointer(arguments: argparse.Namespace) -> Model:
    from accelerate import Accelerator

    loader = make_loader(arguments.shards, arguments.endless)
    plain = Model()
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    checkpointer = mr.torch.Checkpointer(arguments.out, keep_last=3)
    state = {"model": model, "optim": optimizer, "loader": loader}
    step = checkpointer.restore(state) or 0
    while step < arguments.steps:
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == arguments.save_at:
                checkpointer.save(step, state)
            if step == arguments.steps:
                break
    checkpointer.close()
    return plain


def with_accelerate_dataloader(arguments: argparse.Namespace) -> Model:
    """as_iterable() refuses this: every rank must end with its error."""
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
    plugins = [mr.torch.lightning.CheckpointIO()]
    every = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=arguments.out, every_n_train_steps=arguments.save_at, save_top_k=-1, filename="{step}"
    )
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, num_nodes=WORLD, strategy="ddp" if WORLD > 1 else "auto", max_steps=arguments.steps,
        max_epochs=-1, callbacks=[every, MarkUsed()] if arguments.endless else [every], logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        plugins=plugins if arguments.framework == "lightning-io" else None,
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


def with_trainer_checkpointer(parsed: argparse.Namespace) -> Model:
    from transformers import Trainer, TrainingArguments

    loader = make_loader(parsed.shards, parsed.endless)
    arguments = TrainingArguments(
        output_dir=parsed.out, use_cpu=True, ignore_data_skip=True, max_steps=parsed.steps, save_steps=parsed.save_at,
        save_strategy="no", report_to=[], disable_tqdm=True, learning_rate=0.1,
    )  # fmt: skip

    class LoaderTrainer(Trainer):
        def get_train_dataloader(self) -> Any:
            return loader

    plain = Model()
    checkpointer = mr.torch.Checkpointer(str(arguments.output_dir), keep_last=3)
    callback = mr.torch.trainer.CheckpointCallback(checkpointer, loader)
    trainer = LoaderTrainer(model=plain, args=arguments, callbacks=[callback])
    trainer.train()
    checkpointer.close()
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


def with_lightning_fsdp(arguments: argparse.Namespace) -> Model:
    """FSDP2 by Lightning's ModelParallelStrategy, on the CPU."""
    import lightning
    from torch.distributed.fsdp import fully_shard

    plain = Model()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = plain

        def configure_model(self) -> None:
            fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.model(batch["input_ids"])["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.1)

    class MarkUsed(lightning.Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            loader.mark_used(batch)

    loader = make_loader(arguments.shards, arguments.endless, carry_state=arguments.endless)
    every = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=arguments.out, every_n_train_steps=arguments.save_at, save_top_k=-1, filename="{step}"
    )
    strategy = mr.torch.lightning.ModelParallelStrategy(data_parallel_size=WORLD, tensor_parallel_size=1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, num_nodes=WORLD, strategy=strategy, max_steps=arguments.steps, max_epochs=-1,
        callbacks=[every, MarkUsed()] if arguments.endless else [every], logger=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    path = f"{arguments.out}/step={arguments.save_at}.ckpt" if arguments.resume else None
    trainer.fit(Module(), loader, ckpt_path=path)
    return plain


class TrainState:
    """What torchtitan's Trainer says of itself."""

    step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def with_titan(arguments: argparse.Namespace) -> Model:
    """torchtitan's loop: its optimizers and schedules, FSDP2 on two ranks, our loader and our checkpoints."""
    from torch.distributed.fsdp import fully_shard
    from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
    from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer

    dist.init_process_group("gloo") if WORLD > 1 else None
    data = mr.torch.titan.Loader.Config(
        dataset_path=arguments.shards, collate="pad", seed=3, epochs=None if arguments.endless else 100
    )
    checkpoint = mr.torch.titan.CheckpointManager.Config(
        enable=True, folder=arguments.out, interval=arguments.save_at, keep_latest_k=2, last_save_model_only=False
    )
    plain = Model()
    model = fully_shard(plain) if WORLD > 1 else plain
    group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.1})
    optimizers = OptimizersContainer.Config(param_groups=[group], implementation="foreach").build(model_parts=[model])
    schedules = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=optimizers, training_steps=20)
    loader = data.build(
        dp_world_size=WORLD,
        dp_rank=RANK,
        tokenizer=None,
        seq_len=SEQ_LEN - 1,
        local_batch_size=GLOBAL_BATCH // WORLD,
        snapshot_every_n_steps=arguments.save_at,
    )
    run = TrainState()
    checkpointer = checkpoint.build(
        dataloader=loader,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedules,
        states={"train_state": run},
        sd_adapter=None,
        base_folder="",
    )
    assert checkpointer.load(step=-1) == arguments.resume and run.step == arguments.save_at * arguments.resume
    batches = iter(loader)
    while run.step < arguments.steps:
        run.step += 1
        inputs, _ = next(batches)
        optimizers.zero_grad()
        model(inputs["input"])["loss"].backward()
        checkpointer.maybe_wait_for_staging()
        optimizers.step()
        schedules.step()
        checkpointer.save(run.step, last_step=run.step == arguments.steps)
    checkpointer.close()
    loader.close()
    return plain


def with_deepspeed(arguments: argparse.Namespace) -> Model:
    """DeepSpeed's own checkpoint carries the loader's state; its ZeRO-1 splits the optimizer over the ranks."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        os.environ.setdefault(name, value)
    if WORLD == 1:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    else:
        dist.init_process_group("gloo")
    import deepspeed

    loader = make_loader(arguments.shards, arguments.endless)
    plain = Model()
    config = {
        "train_micro_batch_size_per_gpu": GLOBAL_BATCH // WORLD,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=plain, optimizer=optimizer, config=config)
    if arguments.resume:
        _, client = engine.load_checkpoint(arguments.out)
        loader.load_state_dict(client["loader"])
    while engine.global_steps < arguments.steps:
        for batch in loader:
            engine.backward(engine(**batch)["loss"])
            engine.step()
            if engine.global_steps == arguments.save_at:
                engine.save_checkpoint(arguments.out, client_state={"loader": loader.state_dict()})
            if engine.global_steps == arguments.steps:
                break
    return plain


FRAMEWORKS = {
    "accelerate": with_accelerate,
    "accelerate-checkpointer": with_accelerate_checkpointer,
    "accelerate-dataloader": with_accelerate_dataloader,
    "lightning": with_lightning,
    "lightning-io": with_lightning,
    "trainer": with_trainer,
    "trainer-checkpointer": with_trainer_checkpointer,
    "stateful-dataloader": with_stateful_dataloader,
    "titan": with_titan,
    "deepspeed": with_deepspeed,
    "lightning-fsdp": with_lightning_fsdp,
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
