# SPDX-License-Identifier: Apache-2.0
"""Robot datasets read from S3 and from the Hub: the same frames as from a disk, in this process and in others."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import random

import numpy as np
import pytest

import millrace as mr

pytest.importorskip("av")
pytest.importorskip("pyarrow")

from robot_sets import CAMERAS, make

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

FPS = 30
WINDOWS = {"action": [i / FPS for i in range(8)], CAMERAS[0]: [-1 / FPS, 0]}


@pytest.fixture
def cloud(s3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> pathlib.Path:
    return make(tmp_path_factory.mktemp("robot") / "set", "--episodes", 3, "--codec", "h264")


def check_equal(url: str, local: pathlib.Path) -> None:
    here, there = (mr.lerobot.Dataset(place, delta_timestamps=WINDOWS) for place in (local, url))
    assert len(here) == len(there)
    rows = random.Random(1).sample(range(len(here)), 48)
    for begin in range(0, 48, 16):
        wanted, given = (dataset.batch(rows[begin : begin + 16]) for dataset in (here, there))
        assert set(wanted) == set(given)
        for name, value in wanted.items():
            assert given[name] == value if isinstance(value, list) else np.array_equal(given[name], value), name


def child(frames, rows, queue) -> None:
    queue.put(int(frames.batch(rows)[CAMERAS[0]].astype(np.int64).sum()))


def test_from_s3(s3, bucket: str, local: pathlib.Path, cloud):
    url = f"s3://{bucket}/arm"
    mr.sync(local, url)
    check_equal(url, local)
    frames = mr.lerobot.Dataset(url)
    rows = [3, 60, 100]
    wanted = int(frames.batch(rows)[CAMERAS[0]].astype(np.int64).sum())
    queue = multiprocessing.get_context("fork").Queue()
    process = multiprocessing.get_context("fork").Process(target=child, args=(frames, rows, queue))
    process.start()
    assert queue.get(timeout=60) == wanted
    process.join(60)
    with mr.lerobot.Loader(frames, batch_size=16, seed=1, epochs=1) as loader:
        assert len(list(loader)) == len(frames) // 16


def disk_bytes(folder: pathlib.Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


def in_another_process(url, cache, rows, queue) -> None:
    frames = mr.lerobot.Dataset(url, cache=cache)
    before = mr.metrics()["received_bytes"]
    total = int(frames.batch(rows)[CAMERAS[0]].astype(np.int64).sum())
    queue.put((total, mr.metrics()["received_bytes"] - before))


def test_through_the_cache_of_the_node(s3, bucket: str, local: pathlib.Path, tmp_path, cloud):
    """The same frames; whoever comes second, in this process or another one, downloads nothing."""
    url, cache = f"s3://{bucket}/arm", tmp_path / "cache"
    mr.sync(local, url)
    rows = [3, 60, 100]
    wanted = mr.lerobot.Dataset(local).batch(rows)
    through = mr.lerobot.Dataset(url, cache=cache, cache_bytes="1GB").batch(rows)
    for camera in CAMERAS:
        assert np.array_equal(through[camera], wanted[camera])
    again = mr.lerobot.Dataset(url, cache=cache)
    before = mr.metrics()["received_bytes"]
    assert np.array_equal(again.batch(rows)[CAMERAS[0]], wanted[CAMERAS[0]])
    assert mr.metrics()["received_bytes"] == before
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=in_another_process, args=(url, cache, rows, queue))
    process.start()
    assert queue.get(timeout=120) == (int(wanted[CAMERAS[0]].astype(np.int64).sum()), 0)
    process.join(60)


def test_only_the_groups_of_pictures_that_are_needed_are_cached(s3, bucket: str, tmp_path, cloud):
    """Of a long video, the tables and the blocks (256 KiB) that hold the frame; the file of its numbers is read whole."""
    root = make(tmp_path / "long", "--episodes", 240, "--cameras", 1, "--version", "3.0", "--codec", "h264")
    video = root / f"videos/{CAMERAS[0]}/chunk-000/file-000.mp4"
    url, cache = f"s3://{bucket}/long", tmp_path / "cache"
    mr.sync(root, url)
    frames = mr.lerobot.Dataset(url, cameras=[CAMERAS[0]], cache=cache)
    before = disk_bytes(cache)
    wanted = mr.lerobot.Dataset(root, cameras=[CAMERAS[0]])
    row = len(frames) // 2
    assert np.array_equal(frames[row][CAMERAS[0]], wanted[row][CAMERAS[0]])
    numbers = root / "data/chunk-000/file-000.parquet"
    fetched = disk_bytes(cache) - before - numbers.stat().st_size
    assert fetched < 4 << 18 < video.stat().st_size // 2


def test_a_video_that_goes_away_is_named(s3, bucket: str, local: pathlib.Path, cloud):
    url = f"s3://{bucket}/arm"
    mr.sync(local, url)
    frames = mr.lerobot.Dataset(url)
    gone = f"videos/{CAMERAS[1]}/chunk-000/file-000.mp4"
    s3.client.delete_object(Bucket=bucket, Key=f"arm/{gone}")
    with pytest.raises((FileNotFoundError, mr.CorruptionError), match=gone):
        frames.batch(range(len(frames)))


def test_from_the_hub(hub, monkeypatch, local: pathlib.Path):
    for name, value in hub.env.items():
        monkeypatch.setenv(name, value)
    files = {str(path.relative_to(local)): path.read_bytes() for path in local.rglob("*") if path.is_file()}
    check_equal(hub.add("org/arm", files).url, local)
