# SPDX-License-Identifier: Apache-2.0
"""loader.provenance() and skip(): what a step was made of, and steps that training leaves out."""

import json
import os
import pathlib
import shutil

import pytest

import millrace as mr


def rows(batch):
    return batch["input_ids"].tolist()


def named(parts, samples, seq_len):
    """A row by plain means, out of the samples that provenance names."""
    ids = [i for part in parts for i in samples[part.shard].ids(part.sample)[part.begin : part.end].tolist()]
    return ids + [0] * (seq_len - len(ids))


@pytest.mark.parametrize("collate", ["pad", "pack", "best_fit"])
def test_provenance_leads_to_the_samples(dataset, collate):
    samples = {tar: mr.Dataset(tar) for tar in dataset.tars}
    arguments = dict(global_batch_size=6, seq_len=64, collate=collate, seed=4, epochs=1)
    ranks = [mr.Loader(dataset.tars, rank=rank, world_size=3, **arguments) for rank in range(3)]
    for step in range(5):
        assert ranks[0].step == step
        for rank, parts in enumerate(ranks[2].provenance(step)):
            assert [named(row, samples, 64) for row in parts] == rows(next(ranks[rank]))
    with pytest.raises(ValueError, match=r"has no step|has no batch"):
        ranks[0].provenance(10**6)
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("kind", ["dataset", "mixture"])
def test_a_spike_is_left_out_after_a_resume(dataset, kind):
    shards = dataset.tars if kind == "dataset" else [mr.Source(dataset.tars[0], weight=3), mr.Source(dataset.tars[1])]
    pass_of = dict(epochs=1) if kind == "dataset" else dict(stop="first_empty")
    arguments = dict(global_batch_size=4, seq_len=64, collate="pack", seed=4, **pass_of)
    with mr.Loader(shards, **arguments) as loader:
        steps, whole = len(loader), []
        for number, batch in enumerate(loader):
            if number == 2:
                state = loader.state_dict()
            whole.append(rows(batch))
    assert len(whole) == steps > 12
    with mr.Loader(shards, **arguments) as loader:
        loader.load_state_dict(state)
        loader.skip(5, 9)
        assert len(loader) == steps - 4
        state = json.loads(json.dumps(loader.state_dict()))
        assert [rows(batch) for batch in loader] == whole[3:5] + whole[9:]
    with mr.Loader(shards, rank=1, world_size=2, **arguments) as loader:
        loader.load_state_dict(state)
        rest = [rows(batch) for batch in loader]
        assert len(rest) == steps - 7
        assert all(row in expected for mine, expected in zip(rest, whole[3:5] + whole[9:], strict=True) for row in mine)


def test_skip_within_an_iteration(dataset):
    with mr.Loader(dataset.tars, batch_size=2, seq_len=16, epochs=1) as loader:
        whole = [rows(batch) for batch in loader]
    with mr.Loader(dataset.tars, batch_size=2, seq_len=16, epochs=1) as loader:
        given = []
        for batch in loader:
            given.append(rows(batch))
            if len(given) == 3:
                loader.skip(3, len(whole) - 1)
        assert given == whole[:3] + whole[-1:]
        with pytest.raises(ValueError, match="no steps from 4 to 4"):
            loader.skip(4, 4)


def test_provenance_names_what_took_the_place_of_damage(dataset, tmp_path):
    tars = [tmp_path / os.path.basename(tar) for tar in dataset.tars]
    for tar, copy in zip(dataset.tars, tars, strict=True):
        shutil.copy(tar, copy)
        if os.path.exists(f"{tar}.index"):
            shutil.copy(f"{tar}.index", f"{copy}.index")
    tars = [str(tar) for tar in tars]
    samples = {tar: mr.Dataset(tar) for tar in tars}
    arguments = dict(global_batch_size=6, seq_len=64, collate="pack", seed=4, epochs=1)
    with mr.Loader(tars, **arguments) as sound:
        sound.provenance(0)  # builds the indexes that there are not
    data = bytearray(pathlib.Path(tars[0]).read_bytes())
    for place in range(len(data) // 7, len(data), len(data) // 7):
        data[place] ^= 4
    pathlib.Path(tars[0]).write_bytes(data)
    arguments |= dict(on_bad="quarantine", world_size=2)
    ranks = [mr.Loader(tars, rank=rank, **arguments) for rank in range(2)]
    steps = [[rows(batch) for batch in rank] for rank in ranks]
    states = [rank.state_dict() for rank in ranks]
    replaced = 0
    for step in range(len(steps[0])):
        for rank, parts in enumerate(ranks[0].provenance(step, states)):
            assert [named(row, samples, 64) for row in parts] == steps[rank][step]
            replaced += sum(bool(row[0].replaces) for row in parts)
    assert replaced == sum(len(rank.quarantined()) for rank in ranks) > 0
    with pytest.raises(ValueError, match="another dataset"):
        ranks[0].provenance(0, [states[0] | {"source": "0" * 32}])
    for rank in ranks:
        rank.close()
