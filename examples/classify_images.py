# SPDX-License-Identifier: Apache-2.0
"""Trains a small picture classifier on WebDataset tars, and survives being killed at any moment.

    python examples/classify_images.py --train "train/{000..099}.tar" --valid "valid/*.tar" --classes 10 --out run
    torchrun --nproc-per-node 2 examples/classify_images.py ...    # the same on several ranks

A sample is a picture (jpg, jpeg, png or webp) and its class (cls). Pictures are decoded, cropped and resized by C++
threads; `flip` runs in Python. Run the same command again to continue from the newest checkpoint: on other numbers of
ranks, too. A picture that does not decode gives its place to another one, and the log says so.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import millrace as mr


def flip(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Mirrors every other picture. The generator depends on the sample and the epoch, so a resume gives the same."""
    if rng.random() < 0.5:
        sample["image"] = sample["image"][:, :, ::-1]
    return sample


def loader(tars: str, args: argparse.Namespace, training: bool) -> mr.torch.SampleLoader:
    fields = {
        "image": mr.image("jpg;jpeg;png;webp", size=args.size, layout="chw", dtype="float32", reduced=True),
        "label": mr.integer("cls"),
    }
    if training:
        return mr.torch.SampleLoader(
            tars, fields=fields, global_batch_size=args.batch_size, map=flip, workers=2, seed=1, on_bad="quarantine"
        )
    return mr.torch.SampleLoader(
        tars, fields=fields, batch_size=args.batch_size, shuffle=False, epochs=1, fill_last="pad"
    )


def model(classes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 32, 64):
        layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def accuracy(net: nn.Module, args: argparse.Namespace) -> float:
    """Of each validation picture once, on any number of ranks."""
    net.eval()
    counts = torch.zeros(2, dtype=torch.float64)
    with loader(args.valid, args, training=False) as batches, torch.no_grad():
        for batch in batches:
            right = (net(batch["image"]).argmax(1) == batch["label"]) & batch["row_mask"]
            counts += torch.tensor([right.sum(), batch["row_mask"].sum()])
    if dist.is_initialized():
        dist.all_reduce(counts)
    net.train()
    return float(counts[0] / counts[1].clamp(min=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="tars to train on: a folder, or a pattern")
    parser.add_argument("--valid", required=True, help="tars to measure the accuracy with")
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="checkpoints")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    args = parser.parse_args()

    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    net: nn.Module = model(args.classes)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    with loader(args.train, args, training=True) as batches, mr.torch.Checkpointer(args.out) as checkpoints:
        state = {"model": net, "optimizer": optimizer, "loader": batches}
        done = checkpoints.restore(state) or 0
        trained = nn.parallel.DistributedDataParallel(net) if dist.is_initialized() else net
        is_first = not dist.is_initialized() or dist.get_rank() == 0
        for step in range(done + 1, args.steps + 1):
            batch = next(batches)
            loss = F.cross_entropy(trained(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % args.save_every == 0 or step == args.steps:
                checkpoints.save(step, state)
                right = accuracy(net, args)
                if is_first:
                    print(f"step {step} loss {loss.item():.4f} accuracy {right:.4f}", flush=True)
        if is_first:
            print(batches.report())
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
