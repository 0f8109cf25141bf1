# SPDX-License-Identifier: Apache-2.0
"""Lightning with our loader and our checkpoints: FSDP2 with FSDP=1. Started again, it continues where the last one is.

python lightning_train.py SHARDS OUT --steps 100
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import lightning
import torch
from torch.distributed.fsdp import fully_shard

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
    is_sharded = "FSDP" in os.environ  # FSDP=1: each rank holds a part of the model

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def configure_model(self) -> None:
            if is_sharded:
                fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            loss = self.model(**batch)["loss"]
            print(self.global_step + 1, loss.item(), flush=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    # A loader with a length (epochs=1) is not fetched ahead of, so its state is that of the step.
    loader = mr.torch.Loader(args.shards, batch_size=4, seq_len=32, seed=1, epochs=1)
    strategy = mr.torch.lightning.ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=1)
    saves = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=args.out, every_n_train_steps=args.every, save_top_k=1, save_last=True, monitor=None
    )
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=1,
        strategy=strategy if is_sharded else "auto",
        plugins=[] if is_sharded else [mr.torch.lightning.CheckpointIO()],
        max_steps=args.steps,
        max_epochs=-1,
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = os.path.join(args.out, "last.ckpt")
    trainer.fit(Module(), loader, ckpt_path=last if os.path.exists(last) else None)


if __name__ == "__main__":
    main()
