# SPDX-License-Identifier: Apache-2.0
"""torchtitan's parts with our loader and our checkpoints: its optimizers, schedules and Config, in the order of its
Trainer, which itself needs a GPU. Started again, it continues where the last checkpoint is, with any number of ranks.

    torchrun --nproc-per-node 2 torchtitan_train.py SHARDS OUT --steps 100

In a recipe of torchtitan the two Configs below are all that changes: `dataloader=` and `checkpoint=` of Trainer.Config.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer

import millrace as mr

SEQ_LEN, GLOBAL_BATCH = 31, 4


class Model(torch.nn.Module):
    """Stands for yours: logits of the next token."""

    def __init__(self, vocabulary: int = 512, width: int = 32) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, input: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.head(self.embed(input))


class TrainState:
    """What torchtitan's Trainer says of itself."""

    step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    args = parser.parse_args()
    torch.manual_seed(0)
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dataloader = mr.torch.titan.Loader.Config(dataset_path=args.shards, collate="pad", seed=1)
    checkpoint = mr.torch.titan.CheckpointManager.Config(
        enable=True, folder=args.out, interval=args.every, keep_latest_k=2, last_save_model_only=False
    )

    # What torchtitan's Trainer does with its Config.
    model = Model()
    fully_shard(model)
    groups = [ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.01})]
    optimizers = OptimizersContainer.Config(param_groups=groups, implementation="foreach").build(model_parts=[model])
    # The rate must not depend on when this run is asked to stop.
    schedules = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=optimizers, training_steps=1000)
    loader = dataloader.build(
        dp_world_size=world,
        dp_rank=rank,
        tokenizer=None,
        seq_len=SEQ_LEN,
        local_batch_size=GLOBAL_BATCH // world,
        snapshot_every_n_steps=args.every,
    )
    state = TrainState()
    checkpointer = checkpoint.build(
        dataloader=loader,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedules,
        states={"train_state": state},
        sd_adapter=None,
        base_folder="",
    )
    checkpointer.load(step=-1)  # the newest, where there is one
    batches = iter(loader)
    while state.step < args.steps:
        state.step += 1
        inputs, labels = next(batches)
        optimizers.zero_grad()
        logits = model(**inputs)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        loss.backward()
        checkpointer.maybe_wait_for_staging()
        optimizers.step()
        schedules.step()
        if rank == 0:
            print(state.step, loss.item(), flush=True)
        checkpointer.save(state.step, last_step=state.step == args.steps)
    checkpointer.close()
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
