# SPDX-License-Identifier: Apache-2.0
"""Robot datasets read from S3 and from the Hub: the same frames as from a disk, in this process and in others."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pathlib
import random
import time

import numpy as np
import pytest

import millrace as mr

pytest.importorskip("av")
pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq
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
    """The same frames; a second reader, in this process or another, downloads nothing."""
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


def opened(url: str, cache: pathlib.Path) -> tuple[mr.lerobot.Dataset, int]:
    """And how many requests that took."""

    def sent() -> int:
        metrics = mr.metrics()
        return metrics["requests"] - metrics["retries"]

    before = sent()
    frames = mr.lerobot.Dataset(url, cache=cache)
    return frames, sent() - before


def kept_list(cache: pathlib.Path) -> pathlib.Path:
    (path,) = cache.glob("robot-*.files")
    return path


def make_old(path: pathlib.Path) -> None:
    """For a minute a list is taken to be true."""
    os.utime(path, (time.time() - 120,) * 2)


def test_a_second_start_asks_for_the_list_of_meta_only(s3, bucket: str, local: pathlib.Path, tmp_path, cloud):
    """A service lists 1000 files a request. The list is kept, and taken while meta/ is what it was."""
    url, cache = f"s3://{bucket}/arm", tmp_path / "cache"
    mr.sync(local, url)
    client = s3.client
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        keys = [f"arm/more/{i:05}" for i in range(1100)]
        assert len(list(pool.map(lambda key: client.put_object(Bucket=bucket, Key=key, Body=b"x"), keys))) == 1100
    _, first = opened(url, cache)
    frames, second = opened(url, cache)
    assert second == 1 < 2 < first
    rows = [3, 60, 100]
    wanted = mr.lerobot.Dataset(local).batch(rows)
    given = frames.batch(rows)
    assert all(np.array_equal(given[name], wanted[name]) for name in (*CAMERAS, "action", "index"))
    # A list that is damaged anywhere is no list.
    kept = kept_list(cache).read_bytes()
    for place in [0, 30, *random.Random(1).sample(range(len(kept)), 3), len(kept) - 1]:
        kept_list(cache).write_bytes(kept[:place] + bytes([kept[place] ^ 1]) + kept[place + 1 :])
        again, requests = opened(url, cache)
        assert len(again) == len(frames) and requests == 2 and kept_list(cache).read_bytes() == kept, place
    kept_list(cache).write_bytes(kept[: len(kept) // 2])
    assert opened(url, cache)[1] == 2
    # Any change of meta/ makes a new list: a file that is another, one that came, one that went. That takes a request
    # for meta/ and two for all files.
    info = (local / "meta/info.json").read_text()
    client.put_object(Bucket=bucket, Key="arm/meta/info.json", Body=info.replace('"robot_type"', ' "robot_type"'))
    assert opened(url, cache)[1] > 3 and opened(url, cache)[1] == 1
    client.put_object(Bucket=bucket, Key="arm/meta/notes.txt", Body=b"new")
    assert opened(url, cache)[1] == 3 and opened(url, cache)[1] == 1
    client.delete_object(Bucket=bucket, Key="arm/meta/notes.txt")
    assert opened(url, cache)[1] == 3 and opened(url, cache)[1] == 1


@pytest.mark.parametrize("how", ["replaced", "gone"])
def test_a_file_that_is_another_than_the_kept_list_says_is_named(
    s3, bucket: str, local: pathlib.Path, tmp_path, cloud, how: str
):
    """Its blocks may lie in the cache: what was read from them would be old without a word."""
    url, cache = f"s3://{bucket}/arm", tmp_path / "cache"
    mr.sync(local, url)
    opened(url, cache)[0].batch(range(8))
    make_old(kept_list(cache))
    frames, requests = opened(url, cache)
    frames.batch(range(8))
    assert requests == 1
    deadline = time.monotonic() + 60
    while os.stat(kept_list(cache)).st_mtime < time.time() - 90:  # found true
        assert time.monotonic() < deadline
        time.sleep(0.01)
    name = "data/chunk-000/file-000.parquet"
    if how == "gone":
        s3.client.delete_object(Bucket=bucket, Key=f"arm/{name}")
    else:
        table = pq.read_table(local / name)
        action = [[0.5] * 3] * len(table)
        column = table.column_names.index("action")
        pq.write_table(table.set_column(column, "action", pa.array(action, table["action"].type)), tmp_path / "new")
        s3.client.put_object(Bucket=bucket, Key=f"arm/{name}", Body=(tmp_path / "new").read_bytes())
    make_old(kept_list(cache))
    frames, requests = opened(url, cache)
    assert requests == 1
    with pytest.raises(ConnectionError, match=f"arm: {name} {'is gone' if how == 'gone' else 'was replaced'}.*again"):
        while time.monotonic() < deadline + 60:
            frames.batch(range(8))
    assert not list(cache.glob("robot-*.files"))
    if how == "gone":
        with pytest.raises(FileNotFoundError, match=name):
            opened(url, cache)[0].batch(range(8))
    else:
        assert (opened(url, cache)[0].batch(range(8))["action"] == 0.5).all()


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
