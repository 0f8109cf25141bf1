# SPDX-License-Identifier: Apache-2.0
"""Loaders that run for long: each step is what it was the first time, and memory stays flat. One process reads token
ids and robot datasets, another one samples, mixtures, and a bucket through the cache of the node. The monitor that runs
for long: its memory stays flat, whatever comes and goes beside it.

MILLRACE_TEST_SOAK_SECONDS says for how long (`./dev soak ROUNDS SECONDS`; an hour there), half of it each; a few seconds
otherwise.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import threading
import time

import pytest

pytest.importorskip("av")
pytest.importorskip("pyarrow")

from robot_sets import CAMERAS, make
from sample_tars import picture_tars

SECONDS = float(os.environ.get("MILLRACE_TEST_SOAK_SECONDS", "8"))

BEGIN = """
import hashlib, itertools, json, random, resource, sys, time
import numpy as np
import millrace as mr

seconds, rng = float(sys.argv[1]), random.Random(int(sys.argv[2]))
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
"""

END = """
    used.append(memory())
print(json.dumps({"turns": turns, "seconds": time.monotonic() - begun, "used": used, **told}))
"""

TOKENS_AND_FRAMES = """
tars, robot, damaged, camera = sys.argv[3:7]
told = {}

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
"""

# The cache holds a part of the set, so blocks leave it and are downloaded again.
SAMPLES_MIXTURES_AND_CACHE = """
tars, pictures, cut, remote, cache = json.loads(sys.argv[3]), json.loads(sys.argv[4]), *sys.argv[5:8]
common = dict(uneven_ranks=True, on_bad="quarantine", num_threads=2, memory_bytes=64 << 20)
told = {"bad": 0, "missed": 0, "hit": 0}

def flipped(sample, rng):
    return {**sample, "noise": int(rng.integers(1 << 30)), "image": sample["image"][:, ::-1]}

def sample_rows(batch):
    assert len(batch["image"]) == len(batch["noise"]) == len(batch["__key__"])
    return [b"%s %d %d" % (key.encode(), int(noise), 0 if image is None else int(image.astype(np.int64).sum()))
            for key, noise, image in zip(batch["__key__"], batch["noise"], batch["image"])]

def mixture(rank, world, **options):
    sources = [mr.Source(tars[0::2], weight=3), mr.Source(tars[1::2]), mr.Source(cut)]
    return mr.Loader(sources, seq_len=64, schedule={3: [1, 1, 1]}, rank=rank, world_size=world, **options)

def from_bucket(rank, world, **options):
    loader = mr.Loader(remote, seq_len=64, cache=cache, cache_bytes="8MiB", rank=rank, world_size=world, **options)
    loaders.append(loader)
    return loader

def samples(rank, world, **options):
    fields = {"image": mr.image("jpg;png;webp", size=24), "cls": mr.integer()}
    loader = mr.SampleLoader(pictures, fields=fields, map=flipped, rank=rank, world_size=world, **options)
    loaders.append(loader)
    return loader

def tell(key, make, digest, **options):
    loaders.clear()
    seed = rng.randrange(2)
    check((key, seed), steps_of(lambda rank, world: make(rank, world, seed=seed, **{**common, **options}), digest))

loaders = []
while time.monotonic() - begun < seconds or turns < 2:
    turns += 1
    for stop, fill in (("first_empty", None), ("all_empty", "repeat")):
        for collate in ("pad", "pack"):
            tell(("mixture", stop, collate), mixture, rows, stop=stop, collate=collate, global_batch_size=12,
                 fill_last=fill, uneven_ranks=fill is None)
    for shuffle in (True, "full"):
        tell(("bucket", shuffle), from_bucket, rows, shuffle=shuffle, global_batch_size=9, epochs=1)
        stats = [loader.stats() for loader in loaders]
        told["missed"] += sum(each["cache_miss_bytes"] for each in stats)
        told["hit"] += sum(each["cache_hit_bytes"] for each in stats)
    for workers in (0, 2):
        tell("samples", samples, sample_rows, workers=workers, global_batch_size=6, epochs=1, drop_last=False)
    with samples(0, 1, seed=0, **{**common, "epochs": 1}, batch_size=4) as loader:
        for batch in loader:
            pass
        told["bad"] = len(loader.quarantined())
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
    run(TOKENS_AND_FRAMES, json.dumps(tars), *robots, CAMERAS[0])


def test_samples_mixtures_and_the_cache_stay_the_same(s3, bucket, dataset, tmp_path):
    """With a tar that is cut off, without an index, and a picture that does not decode."""
    for path in dataset.shards.iterdir():
        if path.is_file():
            s3.client.put_object(Bucket=bucket, Key=f"set/{path.name}", Body=path.read_bytes())
    cut = tmp_path / "cut.tar"
    whole = pathlib.Path(dataset.tars[0]).read_bytes()
    cut.write_bytes(whole[: len(whole) // 2 // 512 * 512])
    pictures = picture_tars(tmp_path, shards=3, each=30)
    with tarfile.open(pictures[1]) as tar:
        place = next(member for member in tar if member.name.endswith(".jpg")).offset_data
    data = bytearray(pathlib.Path(pictures[1]).read_bytes())
    data[place : place + 20] = bytes(20)
    pathlib.Path(pictures[1]).write_bytes(data)
    arguments = [json.dumps(dataset.tars), json.dumps(pictures), cut, f"s3://{bucket}/set", tmp_path / "cache"]
    found = run(SAMPLES_MIXTURES_AND_CACHE, *arguments, env=s3.env)
    assert found["bad"] == 1 and found["missed"] > 0 and found["hit"] > 0, found


def run(script, *arguments, env=None):
    """What the process says at its end, in which memory must have stayed flat."""
    first = [SECONDS / 2, os.environ.get("MILLRACE_TEST_SEED", "1")]
    command = [sys.executable, "-c", BEGIN + script + END, *map(str, [*first, *arguments])]
    environment = {name: value for name, value in os.environ.items() if env is None or not name.startswith("AWS_")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS * 4 + 600, env={**environment, **(env or {})}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    used = found["used"]
    print(f"{found['turns']} turns in {found['seconds']:.0f} s; MiB: {' '.join(str(each >> 20) for each in used)}")
    quarter = max(len(used) // 4, 1)
    assert max(used[-quarter:]) - max(used[: 2 * quarter]) < 48 << 20, used
    return found


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
