# SPDX-License-Identifier: Apache-2.0
"""shuffle="full": one permutation of all samples, computed."""

import json
import pickle

import numpy as np
import pytest
from order_reference import permuted
from sample_tars import picture_tars

import millrace as mr


def keys(batch):
    return list(batch["__key__"])


def steps(tars, world, count, state=None, **arguments):
    """The keys of each step over all ranks, and the state behind them."""
    given = [[] for _ in range(count)]
    for rank in range(world):
        options = dict(fields=["cls"], global_batch_size=12, shuffle="full", seed=4, drop_last=False, uneven_ranks=True)
        with mr.SampleLoader(tars, rank=rank, world_size=world, **options, **arguments) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            for step in given:
                step += keys(next(loader))
            end = loader.state_dict()
    return given, end


def test_samples_come_in_the_order_of_the_permutation(tmp_path):
    tars = picture_tars(tmp_path, shards=3, each=25)
    with mr.SampleLoader(tars, fields=["cls"], batch_size=1, shuffle=False, epochs=1) as loader:
        files = [key for batch in loader for key in keys(batch)]
    with mr.SampleLoader(tars, fields=["cls"], batch_size=1, shuffle="full", seed=4, epochs=1) as loader:
        for epoch in range(2):
            given = [key for batch in loader for key in keys(batch)]
            assert given == [files[permuted(i, 75, 4, epoch)] for i in range(75)]
            assert sorted(given) == sorted(files)
        with pickle.loads(pickle.dumps(loader)) as again:
            assert keys(next(again)) == [files[permuted(0, 75, 4, 0)]]
    whole, end = steps(tars, 1, 13)  # over the end of an epoch
    begun, state = steps(tars, 3, 5)
    assert [sorted(step) for step in begun] == [sorted(step) for step in whole[:5]]
    rest, last = steps(tars, 2, 8, state)
    assert [sorted(step) for step in rest] == [sorted(step) for step in whole[5:]] and last == end


def test_token_ids_too(dataset):
    arguments = dict(seq_len=48, batch_size=4, epochs=1, seed=3, drop_last=False)
    with mr.Loader(dataset.tars, shuffle=False, **arguments) as loader:
        rows = [tuple(row) for batch in loader for row in batch["input_ids"].tolist()]
    expected = [rows[permuted(i, len(rows), 3, 0)] for i in range(len(rows))]
    with mr.Loader(dataset.tars, shuffle="full", **arguments) as loader:
        assert [tuple(row) for batch in loader for row in batch["input_ids"].tolist()] == expected
        state = loader.state_dict()
    with mr.Loader(dataset.tars, **arguments) as loader, pytest.raises(ValueError, match="full shuffle is true"):
        loader.load_state_dict(state)


def test_tensors_and_mixtures(dataset):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    sources = [mr.Source(dataset.tars[0::2], weight=2), mr.Source(dataset.tars[1::2])]
    arguments = dict(seq_len=48, batch_size=6, seed=3, shuffle="full", stop="first_empty")
    with mr.Loader(sources, **arguments) as plain, mr.torch.Loader(sources, **arguments) as tensors:
        count = 0
        for a, b in zip(plain, tensors, strict=True):
            assert torch.equal(torch.from_numpy(a["input_ids"]), b["input_ids"])
            count += 1
    assert count > 3


def test_what_has_no_sense_is_refused(dataset, tmp_path):
    with pytest.raises(ValueError, match="'full', not 'fully'"):
        mr.Loader(dataset.tars, seq_len=16, batch_size=2, shuffle="fully")
    with pytest.raises(ValueError, match=r"padded rows.*use shuffle=True"):
        mr.Loader(dataset.tars, seq_len=16, batch_size=2, shuffle="full", collate="pack")
    np.save(tmp_path / "rows.npy", np.arange(40).reshape(20, 2))
    loader = mr.SampleLoader(tmp_path / "rows.npy", batch_size=2, shuffle="full")
    with loader, pytest.raises(ValueError, match="read in groups; shuffle=True"):
        next(loader)
