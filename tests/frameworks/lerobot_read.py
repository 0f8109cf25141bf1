# SPDX-License-Identifier: Apache-2.0
"""Prints what LeRobot's own class reads of a dataset: an object of JSON for each frame. Run by test_lerobot_reads.py, in an
environment of its own.

    python lerobot_read.py ROOT FPS
"""

import hashlib
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import torchvision_operators

torchvision_operators.define()

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402


def frame(item: dict) -> dict:
    shown = {}
    for name, value in item.items():
        if name.startswith("observation.images."):
            pixels = (value * 255).round().to(torch.uint8).contiguous()
            shown[name] = hashlib.sha256(pixels.numpy().tobytes()).hexdigest()
        else:
            shown[name] = value if isinstance(value, str) else value.tolist()
    return shown


def main() -> None:
    root, fps = sys.argv[1], float(sys.argv[2])
    later = {"action": [0, 1 / fps, 2 / fps]}
    dataset = LeRobotDataset("local/demo", root=root, video_backend="torchcodec", delta_timestamps=later)
    for index in range(len(dataset)):
        print(json.dumps(frame(dataset[index])))


main()
