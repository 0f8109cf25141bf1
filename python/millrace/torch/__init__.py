# SPDX-License-Identifier: Apache-2.0
"""What of Millrace needs PyTorch: batches as tensors, and checkpoints of modules and optimizers.

    loader = mr.torch.Loader("shards/", batch_size=8, seq_len=2048, collate="pack")
    ckpt = mr.torch.Checkpointer("run1", keep_last=3)
    step = ckpt.restore({"model": model, "optim": optim, "loader": loader})
    save = ckpt.save(step, {"model": model, "optim": optim, "loader": loader})

`import millrace` alone never imports torch; this package does, on first use (docs/design/python_torch.md).
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("millrace.torch needs PyTorch: pip install torch", name="torch") from error

from .checkpointer import Checkpointer, Save
from .iterable import as_iterable
from .loader import Loader
from .state import PerRank

__all__ = ["Checkpointer", "Loader", "PerRank", "Save", "as_iterable"]
