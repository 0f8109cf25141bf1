# SPDX-License-Identifier: Apache-2.0
"""A robot dataset of very many files: open files and memory stay under their caps."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("av")
pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")

from robot_sets import CAMERAS, make  # noqa: E402

EPISODES = 5000 if os.environ.get("MILLRACE_TEST_LONG") else 400  # with two cameras three times as many files

READ = """
import random, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
import numpy as np
import millrace as mr

def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

frames = mr.lerobot.Dataset(sys.argv[1], max_decoders=8, memory_bytes=1 << 20, num_threads=2)
episodes = len(frames.episodes)
rng = random.Random(1)
wanted = None
used = []
for turn in range(4):
    order = list(range(episodes))
    rng.shuffle(order)
    for begin in range(0, episodes, 20):
        some = order[begin : begin + 20]
        batch = frames.batch([frames.first_frames[episode] + 3 for episode in some])
        assert batch["episode_index"].tolist() == some
        pictures = batch[sys.argv[2]]
        wanted = pictures[0].copy() if wanted is None else wanted
        assert all(np.array_equal(picture, wanted) for picture in pictures)  # each episode has the same clip
    used.append(memory())
print(*used)
"""


def test_few_open_files_and_flat_memory(tmp_path: pathlib.Path):
    root = make(tmp_path / "set", "--version", "2.1", "--episodes", 1, "--codec", "h264")
    info = json.loads((root / "meta/info.json").read_text())
    table = pq.read_table(root / "data/chunk-000/episode_000000.parquet")
    length = len(table)
    info |= {"total_episodes": EPISODES, "total_frames": EPISODES * length, "total_videos": 2 * EPISODES}
    info |= {"total_chunks": (EPISODES + 999) // 1000, "splits": {"train": f"0:{EPISODES}"}}
    (root / "meta/info.json").write_text(json.dumps(info))
    line = json.loads((root / "meta/episodes.jsonl").read_text())
    lines = [json.dumps(line | {"episode_index": episode}) + "\n" for episode in range(EPISODES)]
    (root / "meta/episodes.jsonl").write_text("".join(lines))
    clips = {camera: root / f"videos/chunk-000/{camera}/episode_000000.mp4" for camera in CAMERAS}
    for episode in range(1, EPISODES):
        place = {"episode_chunk": episode // 1000, "episode_index": episode}
        path = root / info["data_path"].format(**place)
        path.parent.mkdir(parents=True, exist_ok=True)
        of_episode = {"episode_index": [episode] * length, "index": [episode * length + i for i in range(length)]}
        columns = {name: pa.array(of_episode.get(name, table[name].to_pylist()), table.schema.field(name).type)
                   for name in table.column_names}  # fmt: skip
        pq.write_table(pa.table(columns), path)
        for camera, clip in clips.items():
            video = root / info["video_path"].format(video_key=camera, **place)
            video.parent.mkdir(parents=True, exist_ok=True)
            os.link(clip, video)
    done = subprocess.run([sys.executable, "-c", READ, root, CAMERAS[0]], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    used = [int(number) for number in done.stdout.split()]
    assert used[-1] - used[0] < 64 << 20, used
