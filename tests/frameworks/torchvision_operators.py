# SPDX-License-Identifier: Apache-2.0
"""torchvision beside a torch without CUDA: its wheel is built for CUDA, and its library does not load there."""

import torch

_kept: list[torch.library.Library] = []


def define() -> None:
    """Declares the operators that torchvision describes as it is imported. Call it before that."""
    if torch.version.cuda is not None:
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)
