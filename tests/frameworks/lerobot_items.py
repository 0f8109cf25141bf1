# SPDX-License-Identifier: Apache-2.0
"""Saves what LeRobot's own class gives for each frame of a dataset. Run by test_lerobot_dataset.py, in an environment of its
own.

    python lerobot_items.py ROOT OUT WINDOWS EPISODES
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import torchvision_operators

torchvision_operators.define()

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402


def main() -> None:
    root, out, windows, episodes = sys.argv[1:]
    dataset = LeRobotDataset(
        "local/demo",
        root=root,
        video_backend="torchcodec",
        delta_timestamps=json.loads(windows),
        episodes=json.loads(episodes),
    )
    torch.save([dataset[index] for index in range(len(dataset))], out)


main()
