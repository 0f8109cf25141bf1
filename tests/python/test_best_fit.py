# SPDX-License-Identifier: Apache-2.0
"""Loader(collate="best_fit"): what docs/format/order.md says, to the token."""

import io
import itertools
import tarfile

import numpy as np
import pytest
from order_reference import Options, epoch_order

import millrace as mr

SEQ_LEN = 128


@pytest.fixture(scope="module")
def ids(dataset):
    """Of each sample of each shard, read by plain means."""
    shards = []
    for path in dataset.tars:
        with tarfile.open(path) as tar:
            names = [name for name in tar.getnames() if name.endswith(".token_ids.npy")]
            shards.append([np.load(io.BytesIO(tar.extractfile(name).read())) for name in names])
    return shards


def loader(dataset, **arguments):
    chosen = {"seq_len": SEQ_LEN, "collate": "best_fit", "seed": 3, "epochs": 1, "drop_last": False, **arguments}
    return mr.Loader(dataset.tars, **chosen)


def expected_rows(ids, options, epoch):
    wanted = Options(**{name: options[name] for name in ("seed", "shuffle", "lanes", "window_samples")})
    wanted.block_windows, wanted.pack_seq_len, wanted.best_fit = options["block_windows"], SEQ_LEN, True
    lengths = [[len(sample) for sample in shard] for shard in ids]
    for _, row in epoch_order([len(shard) for shard in ids], wanted, epoch, lengths):
        yield [ids[shard][number][begin:end].tolist() for shard, number, begin, end in row]


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_rows_are_those_of_the_reference(dataset, ids, shuffle):
    with loader(dataset, batch_size=1, shuffle=shuffle, epochs=2) as rows:
        options = rows.state_dict()["options"]
        assert options["packing"] == "best_fit"
        for epoch in range(2):
            for pieces in expected_rows(ids, options, epoch):
                batch = next(rows)
                flat = [token for piece in pieces for token in piece]
                padding = [0] * (SEQ_LEN - len(flat))
                assert batch["input_ids"][0].tolist() == flat + padding
                places = [place for piece in pieces for place in range(len(piece))]
                assert batch["position_ids"][0].tolist() == places + padding
                labels = [label for piece in pieces for label in [-100, *piece[1:]]]
                assert batch["labels"][0].tolist() == labels + [-100] * len(padding)
        with pytest.raises(StopIteration):
            next(rows)


def test_no_sample_that_fits_is_cut_and_none_is_lost(dataset, ids):
    found = []
    with loader(dataset, batch_size=4) as rows:
        for batch in rows:
            for row, places, labels in zip(*(batch[k] for k in ("input_ids", "position_ids", "labels")), strict=True):
                real = np.flatnonzero(labels != -100)
                end = real[-1] + 1 if len(real) else 1
                starts = [*np.flatnonzero(places[:end] == 0).tolist(), end]
                found += [tuple(row[a:b].tolist()) for a, b in itertools.pairwise(starts)]
    whole = [tuple(s.tolist()) for shard in ids for s in shard if 2 <= len(s) <= SEQ_LEN]
    assert len(whole) > 20
    missing = set(whole) - set(found)
    assert not missing


def test_resume_with_other_ranks_is_exact(dataset):
    def step(ranks):
        return sorted(tuple(row) for rank in ranks for row in next(rank)["input_ids"].tolist())

    with loader(dataset, global_batch_size=6) as whole:
        expected = [step([whole]) for _ in range(8)]
        with loader(dataset, global_batch_size=6) as before:
            assert [step([before]) for _ in range(3)] == expected[:3]
            state = before.state_dict()
    ranks = [loader(dataset, global_batch_size=6, rank=r, world_size=3) for r in range(3)]
    for rank in ranks:
        rank.load_state_dict(state)
    assert [step(ranks) for _ in range(5)] == expected[3:]
    for rank in ranks:
        rank.close()
    with (
        loader(dataset, global_batch_size=6, collate="pack") as other,
        pytest.raises(ValueError, match="packing by best fit is true in the state and false here"),
    ):
        other.load_state_dict(state)


def test_it_wastes_little(dataset, ids):
    tokens = sum(len(sample) for shard in ids for sample in shard)
    with loader(dataset, batch_size=1) as rows:
        filled = tokens / (rows.epoch_units * SEQ_LEN)
    assert filled > 0.9
