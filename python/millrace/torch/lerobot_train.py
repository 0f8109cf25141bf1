# SPDX-License-Identifier: Apache-2.0
"""Runs LeRobot's own training with Millrace as the reader. Takes the flags of lerobot-train.

    python -m millrace.torch.lerobot_train --dataset.repo_id=me/so101 --dataset.root=so101 --policy.type=act ...

LeRobot makes its datasets as always. Each dataset then reads its frames through millrace.torch.lerobot.Dataset.
Sampling, processors, checkpoints and logs are LeRobot's. LeRobot has no option for this, so this module replaces the
function that makes datasets, and refuses versions other than those in VERSIONS. At the start, the first and the last
frame are read in both ways. A difference ends the run.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch

from .lerobot import Dataset

#: Versions of LeRobot, and the function of lerobot.scripts.lerobot_train that makes their datasets.
VERSIONS = {"0.4.4": "make_dataset", "0.6.1": "make_train_eval_datasets"}


class FedDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """A LeRobotDataset whose frames Millrace reads. Everything else is that of the LeRobotDataset."""

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs
        first = theirs[0]
        cameras = theirs.meta.video_keys
        self.ours = Dataset(
            theirs.root,
            delta_timestamps=theirs.delta_timestamps,
            episodes=theirs.episodes,
            return_uint8=any(first[camera].dtype == torch.uint8 for camera in cameras),
            tolerance_s=theirs.tolerance_s,
        )
        if len(self.ours) != len(theirs):
            raise RuntimeError(f"{theirs.root}: LeRobot reads {len(theirs)} frames, and Millrace {len(self.ours)}")
        if theirs.image_transforms is None:
            for number, wanted in ((0, first), (len(theirs) - 1, theirs[len(theirs) - 1])):
                _check_equal(self.ours[number], wanted, f"{theirs.root}: frame {number}")
        self.ours.image_transforms = theirs.image_transforms

    def __len__(self) -> int:
        return len(self.ours)

    def __getitem__(self, number: SupportsIndex) -> dict[str, Any]:
        return self.ours.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        return self.ours.__getitems__(numbers)

    def __getattr__(self, name: str) -> Any:
        if name in ("theirs", "ours"):  # missing: a copy is being unpickled
            raise AttributeError(name)
        return getattr(self.theirs, name)


def _check_equal(given: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    if set(given) != set(wanted):
        names = ", ".join(sorted(set(given) ^ set(wanted)))
        raise RuntimeError(f"{where}: LeRobot and Millrace differ in what there is: {names}")
    for name, value in wanted.items():
        same = torch.equal(given[name], value) if isinstance(value, torch.Tensor) else given[name] == value
        if not same:
            raise RuntimeError(f"{where}: {name} of Millrace is not LeRobot's; `millrace lerobot validate` may say why")


def feed(made: Any) -> Any:
    """Returns the result of the replaced function, with datasets that Millrace reads."""
    if isinstance(made, tuple):
        return tuple(feed(each) for each in made)
    if made is None:
        return None
    if not hasattr(made, "delta_timestamps") or not hasattr(made, "hf_dataset"):
        raise SystemExit("--dataset.streaming is not fed by Millrace: leave it out")
    return FedDataset(made)


def main() -> None:
    try:
        version = importlib.metadata.version("lerobot")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("lerobot is not installed in this environment") from None
    if version not in VERSIONS:
        known = " and ".join(VERSIONS)
        raise SystemExit(f"lerobot {version}: only {known} are known to work; lerobot-train works without Millrace")
    script = importlib.import_module("lerobot.scripts.lerobot_train")
    name = VERSIONS[version]
    make = getattr(script, name)
    setattr(script, name, lambda cfg: feed(make(cfg)))
    script.main()


if __name__ == "__main__":
    main()
