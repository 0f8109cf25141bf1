# SPDX-License-Identifier: Apache-2.0
"""on_bad="quarantine": damage gives its place to other rows, and is told."""

import json
import logging
import random
import shutil

import pytest

import millrace as mr


def rows(batch):
    return batch["input_ids"].tolist()


@pytest.fixture
def damaged(dataset, tmp_path):
    """A copy of the dataset with three flipped bits and a shard that is cut off."""
    folder = tmp_path / "shards"
    shutil.copytree(dataset.shards, folder)
    for tar in dataset.tars[:2]:
        path = folder / tar.rsplit("/", 1)[1]
        data = bytearray(path.read_bytes())
        for _ in range(3):
            data[random.randrange(len(data) // 2)] ^= 16
        path.write_bytes(data)
    cut = folder / "00003.tar"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 3])
    return str(folder)


@pytest.mark.parametrize("collate", ["pad", "best_fit"])
def test_a_run_goes_on_and_a_resume_is_the_same(damaged, collate, caplog):
    arguments = dict(global_batch_size=8, seq_len=64, collate=collate, epochs=1, on_bad="quarantine", max_bad=10_000)
    with mr.Loader(damaged, **arguments) as loader:
        steps = len(loader)
        whole = []
        with caplog.at_level(logging.WARNING, "millrace"):
            for number, batch in enumerate(loader):
                if number == steps // 2:
                    state = json.loads(json.dumps(loader.state_dict()))
                whole.append(rows(batch))
        bad = loader.quarantined()
    assert len(whole) == steps
    assert bad and all("shards/" in row.reason and row.source == 0 and row.epoch == 0 for row in bad)
    assert "quarantined, another row takes its place" in caplog.text and "00003.tar" in caplog.text
    with mr.Loader(damaged, rank=1, world_size=2, **arguments) as loader:
        loader.load_state_dict(state)
        assert len(loader.quarantined()) == len(state["quarantined"]) > 0
        for mine, both in zip(loader, whole[steps // 2 + 1 :], strict=True):
            assert all(row in both for row in rows(mine))


def test_the_limit_is_kept(damaged):
    with mr.Loader(damaged, global_batch_size=8, seq_len=64, epochs=1, on_bad="quarantine", max_bad=3) as loader:
        with pytest.raises(mr.CorruptionError, match="max_bad is 3"):
            for _ in loader:
                pass
        assert len(loader.quarantined()) <= 3


def test_by_default_damage_is_raised(damaged):
    with mr.Loader(damaged, global_batch_size=8, seq_len=64, epochs=1) as loader, pytest.raises(mr.CorruptionError):
        for _ in loader:
            pass
    with pytest.raises(ValueError, match="on_bad"):
        mr.Loader(damaged, global_batch_size=8, seq_len=64, on_bad="skip")
    with pytest.raises(ValueError, match="negative"):
        mr.Loader(damaged, global_batch_size=8, seq_len=64, max_bad=-1)
