# SPDX-License-Identifier: Apache-2.0
"""Loaders that run for long: each step is what it was the first time, and memory stays flat. The monitor that runs for
long: its memory stays flat, whatever comes and goes beside it.

MILLRACE_TEST_SOAK_SECONDS says for how long (`./dev soak ROUNDS SECONDS`; an hour there); a few seconds otherwise.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

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


# What a monitor sees come and go: a loader that shows its numbers, until it is killed.
SHOWN = """
import itertools, sys, time, millrace as mr
with mr.Loader(sys.argv[1:], batch_size=2, seq_len=64, num_threads=1) as loader:
    for step in itertools.count():
        next(loader)
        print(step, flush=True)
        time.sleep(0.01)
"""


class Monitor:
    """`millrace monitor` at a hundred samples a second, so that an hour has the samples of four days."""

    def __init__(self, runtime: pathlib.Path):
        binary = os.environ.get("MILLRACE_BIN") or shutil.which("millrace") or "millrace"
        self.env = os.environ | {"MILLRACE_RUNTIME_DIR": str(runtime)}
        command = [binary, "monitor", "--every", "10ms", "--json"]  # without a file they come here
        self.process = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE)
        self.samples, self.programs = 0, set()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.samples += 1
            if self.samples % 20 == 0:
                self.programs.add(json.loads(line)["values"]["millrace_training_processes"])

    def memory(self) -> int:
        """Resident bytes."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def end(self) -> int:
        self.process.terminate()
        self.reader.join(60)
        return self.process.wait(60)

    def watch_loaders(self, shards: list[str]) -> tuple[list[int], int]:
        """While loaders come and are killed: its memory, and how many there were. However slow the machine is, there are
        enough samples."""
        used, shown, killed, since, begun = [], None, 0, 0, time.monotonic()
        try:
            while time.monotonic() - begun < SECONDS or self.samples < 100 or killed < 1:
                assert self.process.poll() is None and time.monotonic() - begun < SECONDS + 90
                if shown is None:
                    command = [sys.executable, "-c", SHOWN, *shards]
                    shown = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, text=True)
                    assert shown.stdout is not None and shown.stdout.readline()  # it is seen by now, or soon
                    since = self.samples
                elif self.samples - since > 60 and 1 in self.programs:
                    shown.kill()
                    shown.wait()
                    shown, killed = None, killed + 1
                used.append(self.memory())
                time.sleep(0.02)
        finally:
            if shown is not None:
                shown.kill()
                shown.wait()
        return used, killed


def test_the_monitor_stays_flat(dataset, tmp_path):
    monitor = Monitor(tmp_path / "run")
    try:
        used, killed = monitor.watch_loaders(dataset.tars)
    finally:
        ended = monitor.end()
    assert ended == 0
    quarter = len(used) // 4
    print(f"{monitor.samples} samples, {killed} loaders, {used[quarter] >> 10} to {used[-1] >> 10} KiB")
    assert max(used[-quarter:]) - max(used[: 2 * quarter]) < 2 << 20, used[:: max(len(used) // 100, 1)]
