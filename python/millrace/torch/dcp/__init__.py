# SPDX-License-Identifier: Apache-2.0
"""Runs `torch.distributed.checkpoint` on Millrace's storage. The checkpoints have the format of
docs/format/checkpoint.md, with its hashes and its commit, on paths and s3:// URLs.

    writer = mr.torch.dcp.StorageWriter("s3://bucket/run", keep_last=3)
    dcp.save(state, checkpoint_id=f"s3://bucket/run/step-{step}", storage_writer=writer)
    dcp.load(state, storage_reader=mr.torch.dcp.StorageReader("s3://bucket/run"))

The writer is also the stager of `dcp.async_save`.
"""

from .reader import StorageReader
from .stager import Stager
from .writer import StorageWriter

__all__ = ["Stager", "StorageReader", "StorageWriter"]
