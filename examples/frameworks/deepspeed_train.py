# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's checkpoints with the state of our loader in them. Started again, it continues where the last one is.

deepspeed deepspeed_train.py SHARDS OUT --steps 100
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import deepspeed
import torch

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
    deepspeed.init_distributed()
    loader = mr.torch.Loader(args.shards, batch_size=4, seq_len=32, seed=1)
    model = Model()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        },
    )
    if os.path.exists(os.path.join(args.out, "latest")):
        _, client = engine.load_checkpoint(args.out)
        loader.load_state_dict(client["loader"])
    for batch in loader:
        if engine.global_steps >= args.steps:
            break
        loss = engine(**batch)["loss"]
        engine.backward(loss)
        engine.step()
        if engine.global_rank == 0:
            print(engine.global_steps, loss.item(), flush=True)
        if engine.global_steps % args.every == 0:
            engine.save_checkpoint(args.out, client_state={"loader": loader.state_dict()})


if __name__ == "__main__":
    main()
