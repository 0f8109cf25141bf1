# SPDX-License-Identifier: Apache-2.0
"""Loaders that run for long: each step is what it was the first time, and memory stays flat.

MILLRACE_TEST_SOAK_SECONDS says for how long (`./dev soak ROUNDS SECONDS`; an hour there); a few seconds otherwise.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("av")
pytest.importorskip("pyarrow")

from robot_sets import CAMERAS, make

SECONDS = float(os.environ.get("MILLRACE_TEST_SOAK_SECONDS", "8"))

RUN = """
import hashlib, itertools, json, random, resource, sys, time
import numpy as np
import millrace as mr

tars, robot, damaged, camera, seconds = *sys.argv[1:5], float(sys.argv[5])
rng = random.Random(int(sys.argv[6]))
expected, used, begun, turns = {}, [], time.monotonic(), 0

def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def steps_of(make, digest):
    # Every step over all ranks; each rank is left and resumed in the middle, perhaps by another number of ranks.
    worlds = [rng.choice([1, 2, 3]) for _ in range(2)]
    steps, state, cut = [], None, rng.randrange(1, 4)
    for part, world in enumerate(worlds):
        ranks = [make(rank, world) for rank in range(world)]
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(state)
        for number in itertools.count():
            if part == 0 and number == cut:
                break
            batches = [next(rank, None) for rank in ranks]
            if batches[0] is None:
                break
            steps.append(hashlib.md5(b"".join(sorted(itertools.chain(*map(digest, batches))))).hexdigest())
        state = json.loads(json.dumps(ranks[0].state_dict()))
        for rank in ranks:
            rank.close()
    return steps

def check(key, steps):
    assert expected.setdefault(key, steps) == steps, key

def rows(batch):
    return [row.tobytes() for row in batch["input_ids"]]

def frames_of(batch):
    return [b"%d %d" % (int(batch["index"][i]), int(batch[camera][i].astype(np.int64).sum()))
            for i in range(len(batch["index"]))]

frames = {name: mr.lerobot.Dataset(name, num_threads=2, max_decoders=4) for name in (robot, damaged)}
while time.monotonic() - begun < seconds or turns < 2:
    turns += 1
    for collate in ("pad", "pack", "best_fit"):
        seed = rng.randrange(2)
        options = dict(global_batch_size=6, seq_len=64, collate=collate, seed=seed, epochs=1, uneven_ranks=True,
                       on_bad="quarantine", num_threads=2)
        check((collate, seed), steps_of(
            lambda rank, world: mr.Loader(json.loads(tars), rank=rank, world_size=world, **options), rows))
    for name, bad in ((robot, "raise"), (damaged, "quarantine")):
        seed = rng.randrange(2)
        options = dict(global_batch_size=12, seed=seed, epochs=1, uneven_ranks=True, on_bad=bad)
        check((name, seed), steps_of(
            lambda rank, world: mr.lerobot.Loader(frames[name], rank=rank, world_size=world, **options), frames_of))
    used.append(memory())
print(json.dumps({"turns": turns, "seconds": time.monotonic() - begun, "used": used}))
"""


@pytest.fixture(scope="module")
def robots(tmp_path_factory) -> tuple[pathlib.Path, pathlib.Path]:
    """A small set, and one with a damaged video."""
    folder = tmp_path_factory.mktemp("robots")
    sound = make(folder / "sound", "--episodes", 3, "--codec", "h264", "--version", "2.1")
    bad = folder / "bad"
    shutil.copytree(sound, bad)
    video = bad / f"videos/chunk-000/{CAMERAS[0]}/episode_000001.mp4"
    data = bytearray(video.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 400] = bytes(400)
    video.write_bytes(data)
    return sound, bad


def test_steps_stay_the_same_and_memory_flat(dataset, robots, tmp_path):
    tars = []
    for i, tar in enumerate(dataset.tars):
        tars.append(str(tmp_path / f"{i:05d}.tar"))
        shutil.copy(tar, tars[-1])
        if os.path.exists(f"{tar}.index"):
            shutil.copy(f"{tar}.index", f"{tars[-1]}.index")
    damaged = bytearray(pathlib.Path(tars[1]).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    pathlib.Path(tars[1]).write_bytes(damaged)
    arguments = [json.dumps(tars), *robots, CAMERAS[0], SECONDS, os.environ.get("MILLRACE_TEST_SEED", "1")]
    command = [sys.executable, "-c", RUN, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS * 4 + 600)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    used = found["used"]
    print(f"{found['turns']} turns in {found['seconds']:.0f} s, {used[0] >> 20} to {used[-1] >> 20} MiB")
    quarter = max(len(used) // 4, 1)
    assert max(used[-quarter:]) - max(used[: 2 * quarter]) < 48 << 20, used
