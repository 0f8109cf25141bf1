# SPDX-License-Identifier: Apache-2.0
"""The part of Millrace that needs PyTorch: batches as tensors, checkpoints of modules and optimizers.

    loader = mr.torch.Loader("shards/", batch_size=8, seq_len=2048, collate="pack")
    ckpt = mr.torch.Checkpointer("run1", keep_last=3)
    step = ckpt.restore({"model": model, "optim": optim, "loader": loader})
    save = ckpt.save(step, {"model": model, "optim": optim, "loader": loader})

`import millrace` alone never imports torch. This package imports it on first use (docs/design/python_torch.md). These
modules also load on first use: `dcp` (plug-ins for torch.distributed.checkpoint), `lerobot` (frames of robot datasets),
and `lightning`, `titan` and `trainer` (plug-ins for Lightning, torchtitan and the Trainer of transformers).
"""

import importlib as _importlib
import typing as _typing

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("millrace.torch needs PyTorch: pip install torch", name="torch") from error

from . import safetensors
from .checkpointer import Checkpointer, Save, Tier
from .iterable import as_iterable
from .loader import Loader
from .named_optimizer import NamedOptimizer
from .samples import SampleLoader
from .state import PerRank
from .stop import StopSignals
from .webdataset import WebDataset

if _typing.TYPE_CHECKING:
    from . import dcp, lerobot, lightning, titan, trainer

__all__ = [
    "Checkpointer",
    "Loader",
    "NamedOptimizer",
    "PerRank",
    "SampleLoader",
    "Save",
    "StopSignals",
    "Tier",
    "WebDataset",
    "as_iterable",
    "dcp",
    "lerobot",
    "lightning",
    "safetensors",
    "titan",
    "trainer",
]


def __getattr__(name: str):
    if name in ("dcp", "lerobot", "lightning", "titan", "trainer"):
        return _importlib.import_module(f"millrace.torch.{name}")
    raise AttributeError(f"module 'millrace.torch' has no attribute {name!r}")
