# SPDX-License-Identifier: Apache-2.0
"""Provides millrace.WebDataset with tensors instead of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import millrace.webdataset
from millrace.loader import StrPath
from millrace.webdataset import Handler

from .dist import resolve_rank
from .samples import as_tensors


class WebDataset(millrace.webdataset.WebDataset):
    """`millrace.WebDataset` with tensors instead of arrays; the tensors share the arrays' memory. `rank` and
    `world_size` default to those of torch.distributed, else to RANK and WORLD_SIZE."""

    def __init__(
        self,
        urls: StrPath | Sequence[StrPath],
        *,
        handler: Handler | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ) -> None:
        rank, world_size = resolve_rank(rank, world_size)
        super().__init__(urls, handler=handler, rank=rank, world_size=world_size, **options)

    def _give(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: as_tensors(item) for name, item in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(as_tensors(item) for item in value)
        return as_tensors(value)
