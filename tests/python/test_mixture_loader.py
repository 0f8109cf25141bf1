# SPDX-License-Identifier: Apache-2.0
"""mr.Loader over several datasets."""

import json
import pickle

import numpy as np
import pytest
from order_reference import mixture_draws

import millrace as mr


@pytest.fixture
def mixed(dataset):
    """Makes loaders of two datasets, three rows of the first for each of the second."""
    sources = [mr.Source(dataset.tars[0::2], weight=3), mr.Source(dataset.tars[1::2], weight=1)]

    def make(cls=mr.Loader, **arguments):
        chosen = {"seq_len": 32, "batch_size": 6, "seed": 5, "carry_source": True, **arguments}
        return cls(chosen.pop("sources", sources), **chosen)

    return make


def rows(batch):
    return [tuple(row) for row in np.asarray(batch["input_ids"]).tolist()]


def sequence(loader, steps):
    return [rows(next(loader)) for _ in range(steps)]


def test_each_batch_has_the_mixture_and_says_where_its_rows_are_from(dataset, mixed):
    of_source = []
    for tars in (dataset.tars[0::2], dataset.tars[1::2]):
        with mr.Loader(tars, seq_len=32, batch_size=1, epochs=1) as loader:
            of_source.append({rows(batch)[0] for batch in loader})
    with mixed() as loader:
        draws = mixture_draws(lambda step: [3, 1], 6, 40)
        for drawn in draws:
            batch = next(loader)
            assert sorted(batch["source"].tolist()) == sorted(drawn)
            for row, source in zip(rows(batch), batch["source"], strict=True):
                assert row in of_source[source]


def test_a_state_continues_with_weights_that_were_set(mixed):
    with mixed(schedule={4: [1, 1]}) as loader, mixed(schedule={4: [1, 1]}) as other:
        sequence(loader, 6)
        loader.set_weights([0, 1])
        state = json.loads(json.dumps(loader.state_dict()))
        expected = [next(loader) for _ in range(3)]
        assert all((batch["source"] == 1).all() for batch in expected)
        other.load_state_dict(state)
        assert [rows(batch) for batch in expected] == sequence(other, 3)


def test_ranks_share_each_batch(mixed):
    with mixed(batch_size=None, global_batch_size=12) as whole:
        expected = [sorted(step) for step in sequence(whole, 10)]
    ranks = [mixed(batch_size=None, global_batch_size=12, rank=r, world_size=3) for r in range(3)]
    for step in expected:
        batches = [next(rank) for rank in ranks]
        assert sorted(row for batch in batches for row in rows(batch)) == step
        assert all(set(batch["source"].tolist()) == {0, 1} for batch in batches)
    for rank in ranks:
        rank.close()


def test_passes_end_by_the_rule_and_differ(mixed):
    with mixed(stop="first_empty") as loader:
        passes = [[rows(batch) for batch in loader] for _ in range(2)]
        assert len(passes[0]) == len(passes[1]) == len(loader) > 1
        assert passes[0] != passes[1]
    with mixed(stop="first_empty") as again:
        again.set_epoch(1)
        assert [rows(batch) for batch in again] == passes[1]
    with mixed() as endless, pytest.raises(TypeError, match="a stop rule"):
        len(endless)


def test_pickling_carries_the_sources(mixed):
    with mixed() as loader, pickle.loads(pickle.dumps(loader)) as other:
        assert sequence(other, 5) == sequence(loader, 5)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_dataloader_gives_the_same_and_knows_the_state(mixed, workers):
    torch = pytest.importorskip("torch")
    with mixed() as loader:
        expected = sequence(loader, 12)
    loader = mixed(mr.torch.Loader, stop="all_empty", carry_state=True)
    given = []
    for batch in torch.utils.data.DataLoader(mr.torch.as_iterable(loader), batch_size=None, num_workers=workers):
        given.append(rows(batch))
        if len(given) == 7:
            break
    state = loader.state_dict(batch)
    loader.close()
    assert given == expected[:7]
    with mixed(stop="all_empty") as rest:
        rest.load_state_dict(state)
        assert sequence(rest, 5) == expected[7:]


def test_wrong_arguments_are_named(dataset, mixed):
    with pytest.raises(TypeError, match="either every dataset is"):
        mixed(sources=[dataset.tars[0], mr.Source(dataset.tars[1])])
    with pytest.raises(ValueError, match="schedule is of a mixture"):
        mixed(sources=dataset.tars, schedule={3: [1]})
    with pytest.raises(ValueError, match="1 weights for 2 datasets"):
        mixed(schedule={3: [1]})
    with pytest.raises(ValueError, match="not by epochs"):
        mixed(epochs=1)
    with pytest.raises(ValueError, match="add up to more than 0"):
        mixed(sources=[mr.Source(dataset.tars[0], weight=0)])
    with mixed() as loader:
        with pytest.raises(ValueError, match="3 weights for 2 datasets"):
            loader.set_weights([1, 2, 3])
        with pytest.raises(ValueError, match="each dataset has its own"):
            loader.epoch_units  # noqa: B018
    with mixed(sources=dataset.tars, carry_source=False) as single, pytest.raises(ValueError, match="only a mixture"):
        single.set_weights([1])
