# SPDX-License-Identifier: Apache-2.0
"""Episodes of robots as arrays: converts CSV files, and maps packed files or NPZ files.

    millrace.episodes.convert("data/episodes", to="packed")
    episodes = millrace.episodes.open("data/episodes")
    episodes.window(7, 120, 16)        # float32 [16, columns]: rows 120 to 135 of episode 7
    episodes[7]["task"]                # a column by its name

    frames = millrace.episodes.Dataset("data/episodes", columns={"action": ["a*"]}, windows={"action": range(16)})
    frames.batch([7, 300])["action"]   # float32 [2, 16, actions]

The arrays of `episodes` are the memory of the mapped file. They are read-only: copy an array to change it.
"""

from __future__ import annotations

from millrace._arguments import plain as _plain
from millrace._arguments import plain_methods as _plain_methods
from millrace._core import Episode, Episodes
from millrace._core import convert_episodes as _convert
from millrace._core import read_csv_episode as _read_csv
from millrace._robot_episodes import Dataset
from millrace._robot_loader import Loader, Source

_plain_methods(Episodes, ("window",))

convert = _plain(_convert, "convert")
open = Episodes
read_csv = _plain(_read_csv, "read_csv")

__all__ = ["Dataset", "Episode", "Episodes", "Loader", "Source", "convert", "open", "read_csv"]
