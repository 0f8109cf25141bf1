# SPDX-License-Identifier: Apache-2.0
"""Tars damaged in the ways in which other readers lose samples in silence: an error that names the file, or quarantine."""

import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest

import millrace as mr

SAMPLES = 100  # of two members each
HURT = 50  # the sample at which a tar is damaged


def ids_of(shard, number):
    """Of a sample: they say where they come from."""
    return np.arange(6, dtype=np.uint32) + 10_000 * shard + 100 * number


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def write(path: pathlib.Path, shard: int) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(SAMPLES):
            for extension, data in (("token_ids.npy", npy(ids_of(shard, number))), ("txt", b"sample %d" % number)):
                info = tarfile.TarInfo(f"{number:04d}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


# A member is a header of 512 bytes and its data up to the next multiple of 512; a sample has two.
SAMPLE = 4 * 512
AT = HURT * SAMPLE


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


DAMAGES = {
    "cut at the border of a sample": lambda tar: tar[:AT],
    "cut between the members of a sample": lambda tar: tar[: AT + 1024],
    "cut inside a header": lambda tar: tar[: AT + 100],
    "cut inside a payload": lambda tar: tar[: AT + 512 + 60],
    "cut inside the padding of a payload": lambda tar: tar[: AT + 512 + 400],
    "a byte of a header flipped": lambda tar: flipped(tar, AT + 3),
    "the first header flipped": lambda tar: flipped(tar, 3),
    "a byte of a payload flipped": lambda tar: flipped(tar, AT + 512 + 130),
    "10 KiB of zeros": lambda tar: tar[:AT] + bytes(10_240) + tar[AT + 10_240 :],
    "a tar behind a tar": lambda tar: tar + tar,
    "an empty file": lambda tar: b"",
    "no end": lambda tar: tar[: SAMPLES * SAMPLE],
}
# What the index of the whole tar shows to be lost: the samples that the damage hits where the file has its size, else
# the shard, which is another file than the index describes.
HIT = {
    "a byte of a header flipped": 1,
    "the first header flipped": 1,
    "a byte of a payload flipped": 1,
    "10 KiB of zeros": 5,
}
# Samples that count without an index: those before the damage, but for the one that ends there, since members of it may
# have followed.
LEFT = {
    "cut between the members of a sample": HURT,
    "the first header flipped": 0,
    "a tar behind a tar": SAMPLES - 1,
    "an empty file": 0,
    "no end": SAMPLES - 1,
}
# Without an index there is nothing to hold a payload against.
SEEN_BY_AN_INDEX_ONLY = {"a byte of a payload flipped"}


@pytest.fixture(params=DAMAGES)
def damaged(request, tmp_path):
    """Two tars, the second damaged; the name of the damage."""
    for shard in range(2):
        write(tmp_path / f"{shard}.tar", shard)
    return request.param, tmp_path


def index(folder):
    program = os.environ.get("MILLRACE_BIN") or pathlib.Path(sys.executable).with_name("millrace")
    subprocess.run([program, "shards", "index", folder], check=True, capture_output=True)


def hurt(folder, name):
    path = folder / "1.tar"
    path.write_bytes(DAMAGES[name](path.read_bytes()))


def loader_of(kind, folder, **arguments):
    shards = str(folder / "{0,1}.tar")
    arguments = {"batch_size": 4, "epochs": 1, "seed": 1, **arguments}
    if kind == "ids":
        return mr.Loader(shards, seq_len=6, **arguments)
    return mr.SampleLoader(shards, fields=["token_ids.npy", "txt"], **arguments)


def rows_of(kind, batch):
    """(shard, number) of each row, whose ids and text must be those of the sample."""
    ids = batch["input_ids"] if kind == "ids" else batch["token_ids.npy"]
    places = [divmod(int(row[0]), 10_000) for row in ids]
    rows = [(shard, number // 100) for shard, number in places]
    for at, (shard, number) in enumerate(rows):
        assert (ids[at] == ids_of(shard, number)).all()
        if kind == "samples":
            assert batch["txt"][at] == f"sample {number}"
    return rows


@pytest.mark.parametrize("kind", ["ids", "samples"])
def test_with_an_index(damaged, kind):
    name, folder = damaged
    index(folder)
    hurt(folder, name)
    begun = time.monotonic()
    with loader_of(kind, folder) as loader, pytest.raises(mr.CorruptionError, match=r"1\.tar"):
        for batch in loader:
            rows_of(kind, batch)
    with loader_of(kind, folder, on_bad="quarantine") as loader:
        rows = [row for batch in loader for row in rows_of(kind, batch)]
        bad = loader.quarantined()
    assert len(rows) == 2 * SAMPLES
    assert len(bad) == HIT.get(name, SAMPLES)
    assert all("1.tar" in row.reason for row in bad)
    lost = {(shard, n) for shard in range(2) for n in range(SAMPLES)} - set(rows)
    assert len(lost) == len(bad) and all(shard == 1 for shard, _ in lost)
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("kind", ["ids", "samples"])
def test_without_an_index(damaged, kind):
    name, folder = damaged
    hurt(folder, name)
    if name in SEEN_BY_AN_INDEX_ONLY:
        for on_bad in ("raise", "quarantine"):
            with loader_of(kind, folder, on_bad=on_bad) as loader:
                ids = "input_ids" if kind == "ids" else "token_ids.npy"
                assert len({int(row[0]) for batch in loader for row in batch[ids]}) == 2 * SAMPLES
                assert loader.quarantined_shards() == []
        return
    with loader_of(kind, folder) as loader, pytest.raises(mr.CorruptionError, match=r"1\.tar"):
        next(loader)
    left = LEFT.get(name, HURT - 1)
    for _ in range(2):  # the second time the sound tar's index comes from the user's folder
        with loader_of(kind, folder, on_bad="quarantine", drop_last=False) as loader:
            rows = [row for batch in loader for row in rows_of(kind, batch)]
            (bad,) = loader.quarantined_shards()
            assert loader.quarantined() == []
        assert sorted(rows) == [(0, n) for n in range(SAMPLES)] + [(1, n) for n in range(left)]
        assert bad.source == 0 and bad.shard.endswith("1.tar") and bad.samples == left and "1.tar" in bad.reason


@pytest.mark.parametrize("kind", ["ids", "samples"])
@pytest.mark.parametrize("name", ["cut inside a payload", "a byte of a header flipped", "an empty file"])
def test_ranks_and_a_resume_go_on_without_an_index(tmp_path, name, kind):
    for shard in range(2):
        write(tmp_path / f"{shard}.tar", shard)
    hurt(tmp_path, name)

    def steps(world, count, state=None):
        """The rows of each step over all ranks, and the state behind them."""
        given = [[] for _ in range(count)]
        for rank in range(world):
            options = dict(on_bad="quarantine", drop_last=False, uneven_ranks=True, rank=rank, world_size=world)
            with loader_of(kind, tmp_path, batch_size=None, global_batch_size=12, **options) as loader:
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
                for step in given:
                    step += rows_of(kind, next(loader))
                end = loader.state_dict()
        assert [shard["samples"] for shard in end["damaged_shards"]] == [LEFT.get(name, HURT - 1)]
        return [sorted(step) for step in given], end

    whole, end = steps(1, 8)
    begun, state = steps(3, 5)
    assert begun == whole[:5]
    assert steps(2, 3, state) == (whole[5:], end)


def test_the_limit_counts_damaged_shards(tmp_path):
    for shard in range(2):
        write(tmp_path / f"{shard}.tar", shard)
    hurt(tmp_path, "no end")
    loader = loader_of("ids", tmp_path, on_bad="quarantine", max_bad=0)
    with loader, pytest.raises(mr.CorruptionError, match=r"1 damaged shards, max_bad is 0.*1\.tar"):
        next(loader)


def test_the_limit_counts_damaged_shards_and_rows_together(tmp_path):
    """A tar with an index, of which a sample is damaged, and one without, which is cut."""
    write(tmp_path / "0.tar", 0)
    index(tmp_path)
    flip = (tmp_path / "0.tar").read_bytes()
    (tmp_path / "0.tar").write_bytes(flipped(flip, AT + 512 + 130))
    write(tmp_path / "1.tar", 1)
    hurt(tmp_path, "no end")
    with loader_of("ids", tmp_path, on_bad="quarantine", max_bad=2) as loader:
        assert sum(len(batch["input_ids"]) for batch in loader) == (2 * SAMPLES - 1) // 4 * 4
        assert len(loader.quarantined()) == len(loader.quarantined_shards()) == 1
    loader = loader_of("ids", tmp_path, on_bad="quarantine", max_bad=1)
    with loader, pytest.raises(mr.CorruptionError, match="1 damaged rows and 1 shards were quarantined, max_bad is 1"):
        list(loader)
