# SPDX-License-Identifier: Apache-2.0
"""A plain FSDP2 loop: torch.distributed.checkpoint with our reader and writer. Started again, it continues where the last
checkpoint is, with any number of ranks.

    torchrun --nproc-per-node 2 fsdp2_train.py SHARDS OUT --steps 100
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
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
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    model = Model()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = mr.torch.Loader(args.shards, global_batch_size=4, seq_len=32, seed=1)
    writer = mr.torch.dcp.StorageWriter(args.out, keep_last=2)  # one for the whole run
    step = 0
    if os.path.exists(os.path.join(args.out, "latest")):
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optim": moments, "loader": loader, "step": 0}
        dcp.load(state, storage_reader=mr.torch.dcp.StorageReader(args.out))
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        step = state["step"]
    for batch in loader:
        if step >= args.steps:
            break
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if dist.get_rank() == 0:
            print(step, loss.item(), flush=True)
        if step % args.every == 0:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optim": moments, "loader": loader, "step": step}
            dcp.save(state, checkpoint_id=f"{args.out}/step-{step}", storage_writer=writer)
    writer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
