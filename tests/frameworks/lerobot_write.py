# SPDX-License-Identifier: Apache-2.0
"""Records a small dataset with LeRobot's own class. Run by test_lerobot_reads.py, in an environment of its own.

python lerobot_write.py ROOT
"""

import inspect
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import numpy as np
import torchvision_operators

torchvision_operators.define()

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402

JOINTS = [f"joint_{i}" for i in range(6)]
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (6,), "names": JOINTS},
    "action": {"dtype": "float32", "shape": (6,), "names": JOINTS},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "observation.images.top": {"dtype": "video", "shape": (96, 128, 3), "names": ["height", "width", "channels"]},
}
LENGTHS = (41, 37, 5)


def picture(rng: np.random.Generator, episode: int, frame: int) -> np.ndarray:
    """A gradient that moves, with some noise: pictures that differ, and that a codec can take."""
    y, x = np.mgrid[:96, :128]
    base = np.stack([(x + 3 * frame) % 256, (2 * y + 40 * episode) % 256, (x + y + frame) % 256], axis=2)
    return np.clip(base + rng.integers(0, 6, base.shape), 0, 255).astype(np.uint8)


def main() -> None:
    rng = np.random.default_rng(5)
    dataset = LeRobotDataset.create("local/recorded", fps=30, features=FEATURES, root=sys.argv[1], use_videos=True)
    takes_task = "task" in inspect.signature(dataset.add_frame).parameters  # 0.3.3, beside the frame
    for episode, length in enumerate(LENGTHS):
        for frame in range(length):
            action = np.sin(np.arange(6) + 0.1 * frame + episode).astype(np.float32)
            values = {
                "observation.state": (0.9 * action).astype(np.float32),
                "action": action,
                "next.done": np.array([frame == length - 1]),
                "observation.images.top": picture(rng, episode, frame),
            }
            task = f"task {episode % 2}"
            if takes_task:
                dataset.add_frame(values, task=task)
            else:
                dataset.add_frame(values | {"task": task})
        dataset.save_episode()
    if hasattr(dataset, "finalize"):
        dataset.finalize()


main()
