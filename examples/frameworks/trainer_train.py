# SPDX-License-Identifier: Apache-2.0
"""The Trainer of transformers with our loader and our checkpoints. Started again, it continues where the last one is.

torchrun trainer_train.py SHARDS OUT --steps 100
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

import millrace as mr


class Model(torch.nn.Module):
    """Stands for yours: a forward that returns the loss."""

    def __init__(self, vocabulary: int = 512, width: int = 32) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        logits = self.head(self.embed(input_ids))[:, :-1]
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = mr.torch.Loader(args.shards, batch_size=4, seq_len=32, seed=1)

    class LoaderTrainer(Trainer):
        def get_train_dataloader(self) -> Any:
            return loader

        def training_step(self, *inputs: Any, **more: Any) -> torch.Tensor:
            loss = super().training_step(*inputs, **more)
            if self.state.is_world_process_zero:
                print(self.state.global_step + 1, loss.item(), flush=True)
            return loss

    arguments = TrainingArguments(
        output_dir=args.out,
        save_strategy="no",  # the Checkpointer saves
        ignore_data_skip=True,  # the loader knows where it is
        max_steps=args.steps,
        save_steps=args.every,
        logging_steps=10,
        use_cpu=not torch.cuda.is_available(),
        learning_rate=0.01,
        lr_scheduler_type="constant",
        report_to=[],
        disable_tqdm=True,
    )
    checkpointer = mr.torch.Checkpointer(args.out, keep_last=2)
    callbacks = [mr.torch.trainer.CheckpointCallback(checkpointer, loader)]
    LoaderTrainer(model=Model(), args=arguments, callbacks=callbacks).train()
    checkpointer.close()


if __name__ == "__main__":
    main()
