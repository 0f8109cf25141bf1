# SPDX-License-Identifier: Apache-2.0
"""What the tests of millrace.torch.Checkpointer share. Imports torch."""

import json
import math
import struct

import numpy as np
import torch

import millrace as mr


class TinyModel(torch.nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(11, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.norm(self.embed(ids)))


def train(model, optim, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids = torch.randint(11, (8,), generator=generator)
        torch.nn.functional.cross_entropy(model(ids), ids).backward()
        optim.step()
        optim.zero_grad()


def bits(value):
    """Something that is equal only for equal types and equal bits."""
    if isinstance(value, torch.Tensor):
        return (
            "tensor",
            value.dtype,
            tuple(value.shape),
            value.detach().contiguous().view(-1).view(torch.uint8).tolist(),
        )
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value).__name__, value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return type(value), [(bits(key), bits(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [bits(item) for item in value]
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else struct.pack("<d", value)
    return type(value), value


def saved(root, step, state, **options):
    with mr.torch.Checkpointer(root, **options) as checkpointer:
        checkpointer.save(step, state).wait(60)


def restored(root, state, **options):
    with mr.torch.Checkpointer(root) as checkpointer:
        step = checkpointer.restore(state, **options)
    return step


def data_files(root, step):
    return sorted(path for path in root.glob(f"step-*{step}/*/*.safetensors") if path.parts[-3].endswith(f"{step:04d}"))


def header_of(path):
    """The table of a safetensors file, and where its data starts."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), 8 + size


def flip_byte_of(path, name):
    header, start = header_of(path)
    content = bytearray(path.read_bytes())
    content[start + header[name]["data_offsets"][0]] ^= 1
    path.write_bytes(content)


def flip_last_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
