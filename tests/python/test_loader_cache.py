# SPDX-License-Identifier: Apache-2.0
"""The loader through the cache of the node, on a real S3 server: several processes, kills, damage, stale objects."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import time

import pytest

import millrace as mr

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

# Reads one epoch and says what it saw and asked for.
READER = """
import hashlib, json, sys
import millrace as mr
arguments = json.loads(sys.argv[1])
digest = hashlib.sha256()
with mr.Loader(batch_size=8, seq_len=64, seed=5, epochs=1, **arguments) as loader:
    for batch in loader:
        digest.update(batch["input_ids"].tobytes())
    stats = loader.stats()
print(json.dumps({"digest": digest.hexdigest(), "requests": mr.metrics()["requests"], **stats}))
"""
MIB = 1 << 20


@pytest.fixture
def remote(s3, bucket: str, dataset, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of shards in a bucket."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    for path in dataset.shards.iterdir():
        if path.is_file():
            s3.client.put_object(Bucket=bucket, Key=f"set/{path.name}", Body=path.read_bytes())
    return f"s3://{bucket}/set"


def start(shards, **arguments) -> subprocess.Popen[str]:
    text = json.dumps({"shards": shards, **arguments})
    return subprocess.Popen([sys.executable, "-c", READER, text], stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(out)


def stored_bytes(dataset) -> int:
    return sum(path.stat().st_size for path in dataset.shards.iterdir() if path.suffix in (".tar", ".index", ".json"))


def test_four_processes_download_each_byte_once(remote, dataset, tmp_path) -> None:
    cache = str(tmp_path / "cache")
    plain = result(start(remote))
    ranks = [result(process) for process in [start(remote, cache=cache, cache_bytes="64MiB") for _ in range(4)]]
    assert {rank["digest"] for rank in ranks} == {plain["digest"]}
    assert 0 < sum(rank["cache_miss_bytes"] for rank in ranks) <= stored_bytes(dataset)
    # All four ask less than two without a cache do.
    assert sum(rank["requests"] for rank in ranks) < 2 * plain["requests"]
    again = result(start(remote, cache=cache, cache_bytes="64MiB"))
    assert again["digest"] == plain["digest"] and again["cache_miss_bytes"] == 0 and again["cache_hit_bytes"] > 0


def test_a_cache_that_is_too_small_stays_small_and_right(remote, tmp_path) -> None:
    cache = tmp_path / "cache"
    plain = result(start(remote))
    for _ in range(2):
        small = result(start(remote, cache=str(cache), cache_bytes="6MiB"))
        assert small["digest"] == plain["digest"]
        assert sum(path.stat().st_blocks * 512 for path in cache.iterdir()) <= 6 * MIB


def test_flipped_bits_in_the_cache_are_downloaded_again(remote, tmp_path) -> None:
    cache = tmp_path / "cache"
    first = result(start(remote, cache=str(cache), cache_bytes="64MiB"))
    data = bytearray((cache / "cache.data").read_bytes())
    for at in range(0, len(data), 4096):
        data[at] ^= 0x10
    (cache / "cache.data").write_bytes(data)
    second = result(start(remote, cache=str(cache), cache_bytes="64MiB"))
    assert second["digest"] == first["digest"]
    assert second["cache_damaged"] > 0 and second["cache_miss_bytes"] > 0


def test_a_killed_process_leaves_a_cache_that_works(remote, tmp_path) -> None:
    cache = str(tmp_path / "cache")
    plain = result(start(remote))
    for delay in (0.1, 0.2, 0.3, 0.4):
        process = start(remote, cache=cache, cache_bytes="64MiB")
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert result(start(remote, cache=cache, cache_bytes="64MiB"))["digest"] == plain["digest"]


def test_a_replaced_shard_is_not_served_from_the_cache(remote, s3, bucket, dataset, tmp_path) -> None:
    """The index says what the shard holds, so another shard under its name is an error that names it."""
    cache = str(tmp_path / "cache")
    result(start(remote, cache=cache, cache_bytes="64MiB"))
    shard = sorted(dataset.shards.glob("*.tar"))[0]
    s3.client.put_object(Bucket=bucket, Key=f"set/{shard.name}", Body=bytes(shard.stat().st_size))
    code = f"""
import millrace as mr, time
for _ in range(2):
    try:
        with mr.Loader({remote!r}, batch_size=8, seq_len=64, epochs=1, cache={cache!r}, cache_bytes="64MiB") as loader:
            for batch in loader: pass
        print("fine")
    except mr.CorruptionError as error:
        print(error)
"""
    # What the node saw a minute ago still counts: the old shard, whole, from the cache.
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert out.splitlines() == ["fine", "fine"]
    shutil.rmtree(cache)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert all(shard.name in line for line in out.splitlines())


def test_samples_by_number_come_through_the_cache(remote, dataset, tmp_path) -> None:
    wanted = list(mr.Dataset(dataset.shards))

    def requests(samples: mr.Dataset) -> int:
        before = mr.metrics()["requests"]
        assert samples[:] == wanted
        return mr.metrics()["requests"] - before

    plain = requests(mr.Dataset(remote))
    cached = mr.Dataset(remote, cache=tmp_path / "cache", cache_bytes="64MiB")
    first = requests(cached)
    assert first < plain / 4, "blocks of many samples are asked for"
    again = pickle.loads(pickle.dumps(cached))
    assert len(again) == len(wanted)
    assert requests(again) < plain / 20 and again.ids(3).tolist() == mr.Dataset(dataset.shards).ids(3).tolist()
    with pytest.raises(ValueError, match="cache_bytes is of a cache"):
        mr.Dataset(dataset.shards, cache_bytes=1)
    with pytest.raises(ValueError, match="cache_bytes"):
        mr.Dataset(dataset.shards, cache=tmp_path, cache_bytes="many")


def test_local_shards_are_read_where_they_are(dataset, tmp_path) -> None:
    read = result(start(str(dataset.shards), cache=str(tmp_path / "cache"), cache_bytes="64MiB"))
    assert read["cache_hit_bytes"] == read["cache_miss_bytes"] == 0


def test_arguments(dataset, tmp_path) -> None:
    with pytest.raises(ValueError, match="cache_bytes is of a cache"):
        mr.Loader(dataset.shards, batch_size=1, seq_len=8, cache_bytes=1)
    with pytest.raises(ValueError, match="cache_bytes"):
        mr.Loader(dataset.shards, batch_size=1, seq_len=8, cache=tmp_path, cache_bytes="many")
    loader = mr.Loader(dataset.shards, batch_size=1, seq_len=8, cache=tmp_path / "c", cache_bytes=1000)
    with pytest.raises(ValueError, match=r"cache_bytes is 1\.00 kB, and at least"):
        next(loader)
    cached = mr.Loader(dataset.shards, batch_size=1, seq_len=8, cache=pathlib.Path(tmp_path), cache_bytes="64MB")
    with cached as one, pickle.loads(pickle.dumps(one)) as two:
        assert (next(one)["input_ids"] == next(two)["input_ids"]).all()
