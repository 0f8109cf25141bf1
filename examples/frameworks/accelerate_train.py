# SPDX-License-Identifier: Apache-2.0
"""Accelerate with our loader, and our checkpoints beside it. Started again, it continues where the last checkpoint is.

accelerate launch accelerate_train.py SHARDS OUT --steps 100
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device

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
    accelerator = Accelerator()
    plain = Model()
    # The loader is not prepared: it has dealt the rows to the ranks already.
    loader = mr.torch.Loader(
        args.shards,
        batch_size=4,
        seq_len=32,
        seed=1,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
    )
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=0.01))
    checkpointer = mr.torch.Checkpointer(args.out, keep_last=2)
    state = {"model": model, "optim": optimizer, "loader": loader}
    step = checkpointer.restore(state) or 0
    for batch in loader:
        if step >= args.steps:
            break
        loss = model(**send_to_device(batch, accelerator.device))["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        accelerator.print(step, loss.item())
        if step % args.every == 0:
            checkpointer.save(step, state)
    checkpointer.close()


if __name__ == "__main__":
    main()
