# SPDX-License-Identifier: Apache-2.0
"""Robot datasets of LeRobot and GR00T: reads them for training, downloads, converts, splits, merges and compares them,
and deletes episodes.

    frames = millrace.lerobot.Dataset("so101", delta_timestamps={"action": [0, 1 / 30, 2 / 30]})
    frames[7]["action"]                                     # float32 [3, 6]

    millrace.lerobot.download("pusht")                      # from the Hugging Face Hub
    millrace.lerobot.convert("so101", "so101-v3", to="3.0")
    millrace.lerobot.split("so101", "parts", parts={"train": range(80), "val": "80-99"})
    millrace.lerobot.merge(["monday", "tuesday"], "week")
    millrace.lerobot.delete("so101", "so101-clean", [3, 7, 8])
    millrace.lerobot.diff("so101", "so101-v3", frames=True)["differences"]

These functions never change their sources. Frames stay equal bit by bit wherever packets can be copied.
"""

from __future__ import annotations

import typing as _typing

from millrace._arguments import plain as _plain
from millrace._core import lerobot_convert as convert
from millrace._core import lerobot_delete as delete
from millrace._core import lerobot_diff as diff
from millrace._core import lerobot_download as download
from millrace._core import lerobot_merge as merge
from millrace._core import lerobot_split as split
from millrace._robot import Dataset
from millrace._robot_groot import GrootDataset
from millrace._robot_loader import Loader, QuarantinedFrame, Source

if not _typing.TYPE_CHECKING:  # type checkers get these signatures from _core.pyi
    convert = _plain(convert, "convert")
    delete = _plain(delete, "delete")
    diff = _plain(diff, "diff")
    download = _plain(download, "download")
    merge = _plain(merge, "merge")
    split = _plain(split, "split")

__all__ = [
    "Dataset",
    "GrootDataset",
    "Loader",
    "QuarantinedFrame",
    "Source",
    "convert",
    "delete",
    "diff",
    "download",
    "merge",
    "split",
]
