# SPDX-License-Identifier: Apache-2.0
"""Robot datasets for tests, and what is in them by pyarrow and PyAV alone."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import av
import numpy as np
import pyarrow.parquet as pq

BINARY = os.environ.get("MILLRACE_BIN") or str(pathlib.Path(sys.executable).with_name("millrace"))
CAMERAS = ["observation.images.front", "observation.images.wrist"]


def make(root: pathlib.Path, *flags: object) -> pathlib.Path:
    """A demo set."""
    subprocess.run([BINARY, "lerobot", "demo", root, *map(str, flags)], check=True, capture_output=True)
    return root


def decoded(path: pathlib.Path) -> list[np.ndarray]:
    """All frames [3, height, width], by an FFmpeg that is not ours."""
    with av.open(str(path)) as file:
        return [frame.to_ndarray(format="rgb24").transpose(2, 0, 1) for frame in file.decode(video=0)]


class Truth:
    """Every row of a dataset, one by one: columns by their names, `pictures[camera][row]`, and each row's episode."""

    def __init__(self, root: pathlib.Path):
        self.info = json.loads((root / "meta/info.json").read_text())
        files = sorted(root.glob("data/*/*.parquet"))
        self.rows = [row for path in files for row in pq.read_table(path).to_pylist()]
        v3 = self.info["codebase_version"] == "v3.0"
        self.pictures = {}
        for camera, feature in self.info["features"].items():
            if feature["dtype"] == "video":
                where = f"videos/{camera}/*/*.mp4" if v3 else f"videos/*/{camera}/*.mp4"
                self.pictures[camera] = [frame for path in sorted(root.glob(where)) for frame in decoded(path)]
                assert len(self.pictures[camera]) == len(self.rows)
        if v3:
            tasks = pq.read_table(root / "meta/tasks.parquet").to_pylist()
            self.tasks = [task.get("task", task.get("__index_level_0__")) for task in tasks]
        else:
            lines = (root / "meta/tasks.jsonl").read_text().splitlines()
            self.tasks = [json.loads(line)["task"] for line in lines]
        episodes = [row["episode_index"] for row in self.rows]
        self.begins = [episodes.index(number) for number in range(max(episodes) + 1)] + [len(episodes)]

    def item(self, row: int, windows: dict[str, list[int]]) -> dict:
        """What LeRobot's class gives, its pictures as uint8."""
        episode = self.rows[row]["episode_index"]
        begin, end = self.begins[episode], self.begins[episode + 1]
        item: dict = {}
        for camera, pictures in self.pictures.items():
            places = [min(max(row + delta, begin), end - 1) for delta in windows.get(camera, [0])]
            shown = [pictures[place] for place in places]
            item[camera] = shown[0] if len(shown) == 1 else np.stack(shown)
        for name, value in self.rows[row].items():
            kind = np.float32 if isinstance(np.ravel(value)[0], float) else None
            if name in windows:
                places = [min(max(row + delta, begin), end - 1) for delta in windows[name]]
                value = [self.rows[place][name] for place in places]
            item[name] = np.asarray(value, kind)
        for name, deltas in windows.items():
            item[f"{name}_is_pad"] = np.array([not begin <= row + delta < end for delta in deltas])
        item["task"] = self.tasks[self.rows[row]["task_index"]]
        return item


def check_equal(given: dict, wanted: dict, where: object = "") -> None:
    assert set(given) == set(wanted), where
    for name, value in wanted.items():
        if isinstance(value, str):
            assert given[name] == value, (where, name)
            continue
        got = np.asarray(given[name])
        assert (got.dtype, got.shape) == (value.dtype, value.shape), (where, name)
        assert np.array_equal(got, value), (where, name)
