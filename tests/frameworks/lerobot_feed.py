# SPDX-License-Identifier: Apache-2.0
"""lerobot-train, fed by Millrace. Run by test_lerobot_train.py, in LeRobot's environment.

python lerobot_feed.py COUNTS FLAGS...

Writes to COUNTS how often frames were asked for, of ours and of LeRobot's own class.
"""

import importlib.util
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torchvision_operators

torchvision_operators.define()

# The environment of torch has a transformers that wants another huggingface_hub; ACT needs none.
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "transformers" else find_spec(name, *more)

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402
from millrace.torch import lerobot_train  # noqa: E402

counts = {"ours": 0, "theirs": 0}
read_ours, read_theirs = lerobot_train.FedDataset.__getitems__, LeRobotDataset.__getitem__


def ours(self, numbers):
    counts["ours"] += len(numbers)
    return read_ours(self, numbers)


def theirs(self, number):
    counts["theirs"] += 1
    return read_theirs(self, number)


lerobot_train.FedDataset.__getitems__ = ours
LeRobotDataset.__getitem__ = theirs
path = sys.argv.pop(1)
lerobot_train.main()
with open(path, "w") as file:
    json.dump(counts, file)
