# SPDX-License-Identifier: Apache-2.0
"""torchdata's StatefulDataLoader around our loader, for work of your own in Python on each batch. Started again, it
continues where the last checkpoint is.

    python stateful_dataloader_train.py SHARDS OUT --steps 100
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

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
    data = StatefulDataLoader(mr.torch.as_iterable(loader), batch_size=None, num_workers=2)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    checkpointer = mr.torch.Checkpointer(args.out, keep_last=2)
    state = {"model": model, "optim": optimizer, "data": data}
    step = checkpointer.restore(state) or 0
    for batch in data:
        if step >= args.steps:
            break
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(step, loss.item(), flush=True)
        if step % args.every == 0:
            checkpointer.save(step, state)
    checkpointer.close()


if __name__ == "__main__":
    main()
