# SPDX-License-Identifier: Apache-2.0
"""Loader(fill_last=): each sample once on any number of ranks, in equally many batches of equally many rows."""

import collections
import contextlib

import numpy as np
import pytest

import millrace as mr


def key(row):
    return tuple(row.tolist())


def all_rows(dataset, **arguments):
    with mr.Loader(dataset.tars, batch_size=1, epochs=1, drop_last=False, **arguments) as loader:
        return [key(batch["input_ids"][0]) for batch in loader]


@pytest.mark.parametrize("collate", ["pad", "pack", "best_fit"])
@pytest.mark.parametrize("fill", ["pad", "repeat"])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 64])
def test_each_row_counts_once_and_ranks_are_equal(dataset, collate, fill, world):
    arguments = dict(seq_len=48, collate=collate, seed=2, pad_id=7)
    expected = all_rows(dataset, **arguments)
    given, filled = [], []
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                mr.Loader(
                    dataset.tars,
                    batch_size=3,
                    rank=rank,
                    world_size=world,
                    epochs=1,
                    fill_last=fill,
                    num_threads=1,
                    memory_bytes=16 << 20,
                    **arguments,
                )
            )
            for rank in range(world)
        ]
        steps = -(-len(expected) // (3 * world))
        assert [len(rank) for rank in ranks] == [steps] * world
        for _ in range(steps):
            for rank in ranks:
                batch = next(rank)
                mask, rows = batch["row_mask"], batch["input_ids"]
                assert mask.dtype == np.bool_ and mask.shape == (3,) and rows.shape == (3, 48)
                given += map(key, rows[mask])
                filled += map(key, rows[~mask])
                if fill == "pad":
                    assert (batch["labels"][~mask] == -100).all() and (rows[~mask] == 7).all()
        for rank in ranks:
            with pytest.raises(StopIteration):
                next(rank)
    assert collections.Counter(given) == collections.Counter(expected)
    assert len(given) + len(filled) == steps * 3 * world
    if fill == "repeat":
        once_more = [expected[i % len(expected)] for i in range(len(filled))]
        assert collections.Counter(filled) == collections.Counter(once_more)


def test_a_resume_in_the_last_batches_is_exact_and_passes_follow(dataset):
    arguments = dict(seq_len=48, epochs=2, fill_last="repeat")
    with mr.Loader(dataset.tars, batch_size=8, **arguments) as loader:
        whole, states = [], []
        for batch in loader:
            whole.append(list(map(key, batch["input_ids"])))
            states.append(loader.state_dict())
        first_of_next = key(next(iter(loader))["input_ids"][0])
    for at in (0, len(whole) // 2 - 1, len(whole) // 2, len(whole) - 3):
        ranks = [mr.Loader(dataset.tars, batch_size=4, rank=r, world_size=2, **arguments) for r in range(2)]
        for rank in ranks:
            rank.load_state_dict(states[at])
        for expected in whole[at + 1 :]:
            both = [key(row) for rank in ranks for row in next(rank)["input_ids"]]
            assert sorted(both) == sorted(expected)
        for rank in ranks:
            rank.close()
    assert first_of_next != whole[0][0]


def mixture(dataset, **arguments):
    sources = [mr.Source(dataset.tars[:1], weight=2), mr.Source(dataset.tars[1:3], weight=3)]
    return mr.Loader(sources, seq_len=48, seed=2, pad_id=7, carry_source=True, **arguments)


def mixed_rows(batch, mask=slice(None)):
    return [
        (*key(row), source)
        for row, source in zip(batch["input_ids"][mask], batch["source"][mask].tolist(), strict=True)
    ]


@pytest.mark.parametrize("collate", ["pad", "pack"])
@pytest.mark.parametrize("stop", ["first_empty", "all_empty"])
@pytest.mark.parametrize("world", [1, 3, 64])
def test_the_last_batch_of_a_mixture(dataset, collate, stop, world):
    """Dropped, smaller, padded or repeated: the rows up to it are those that batches of one row give."""
    small = dict(num_threads=1, memory_bytes=16 << 20)
    arguments = dict(collate=collate, stop=stop, **small)
    with mixture(dataset, batch_size=1, drop_last=False, **arguments) as loader:
        expected = [row for batch in loader for row in mixed_rows(batch)]
    batch_size = 5
    steps, rest = divmod(len(expected), batch_size * world)
    for fill in (None, "pad", "repeat"):
        options = dict(batch_size=batch_size, world_size=world, drop_last=False, fill_last=fill, **arguments)
        given, filled = [], []
        with contextlib.ExitStack() as stack:
            ranks = [stack.enter_context(mixture(dataset, rank=rank, **options)) for rank in range(world)]
            assert {len(rank) for rank in ranks} == {steps + (rest > 0)}
            for step in range(steps + (rest > 0)):
                of_step = []
                for rank in ranks:
                    batch = next(rank)
                    mask = batch.get("row_mask", np.ones(len(batch["input_ids"]), bool))
                    of_step += mixed_rows(batch, mask)
                    filled += mixed_rows(batch, ~mask)
                    if fill:
                        assert len(batch["input_ids"]) == batch_size
                    if fill == "pad":
                        assert (batch["source"][~mask] == -1).all() and (batch["labels"][~mask] == -100).all()
                now = expected[step * batch_size * world : (step + 1) * batch_size * world]
                assert collections.Counter(of_step) == collections.Counter(now)
                given += of_step
            for rank in ranks:
                with pytest.raises(StopIteration):
                    next(rank)
        assert len(given) == len(expected)
        missing = (steps + (rest > 0)) * batch_size * world - len(expected)
        assert len(filled) == (missing if fill else 0)
        if fill == "repeat":
            first = [expected[i % len(expected)] for i in range(missing)]
            assert collections.Counter(filled) == collections.Counter(first)
    with mixture(dataset, global_batch_size=batch_size * world, **arguments) as loader:
        whole = len(list(loader))
    assert whole == steps + (rest > 0 and stop == "all_empty")


def test_a_resume_in_the_last_batches_of_a_mixture_is_exact(dataset):
    arguments = dict(stop="first_empty", fill_last="repeat")
    with mixture(dataset, batch_size=8, **arguments) as loader:
        whole, states = [], []
        for batch in loader:
            whole.append(mixed_rows(batch))
            states.append(loader.state_dict())
        following = [mixed_rows(batch) for batch in loader]
    for at in (0, len(whole) - 3, len(whole) - 2, len(whole) - 1):
        ranks = [mixture(dataset, batch_size=4, rank=r, world_size=2, **arguments) for r in range(2)]
        for rank in ranks:
            rank.load_state_dict(states[at])
        for expected in whole[at + 1 :]:
            assert sorted(row for rank in ranks for row in mixed_rows(next(rank))) == sorted(expected)
        if at == len(whole) - 1:  # the state of a pass that is over means the next one
            both = [[mixed_rows(batch) for batch in rank] for rank in ranks]
            assert [sorted(a + b) for a, b in zip(*both, strict=True)] == [sorted(step) for step in following]
        for rank in ranks:
            rank.close()
    assert following[0] != whole[0]


def test_provenance_of_the_last_batch_of_a_mixture(dataset):
    for fill in ("pad", "repeat"):
        with mixture(dataset, batch_size=64, stop="first_empty", fill_last=fill) as loader:
            *_, last = loader
            rows = loader.provenance(len(loader) - 1)[0]
        sources = [row[0].source if row else -1 for row in rows]
        assert sources == last["source"].tolist() and 0 < sum(last["row_mask"]) < 64


def test_provenance_of_a_filled_step(dataset):
    with mr.Loader(dataset.tars, batch_size=64, seq_len=16, epochs=1, fill_last="pad") as loader:
        *_, last = loader
        rows = loader.provenance(len(loader) - 1)[0]
    assert [bool(row) for row in rows] == last["row_mask"].tolist()
    assert 0 < sum(last["row_mask"]) < 64


def test_what_cannot_be_filled_is_refused(dataset):
    for arguments, message in [
        (dict(fill_last="zeros", batch_size=2), "'pad', 'repeat' or None"),
        (dict(fill_last="pad", global_batch_size=3, rank=0, world_size=2, uneven_ranks=True), "equally many rows"),
    ]:
        with pytest.raises(ValueError, match=message):
            mr.Loader(dataset.tars, seq_len=16, **arguments)
    for arguments in (dict(fill_last="pad"), dict(drop_last=False)):
        with pytest.raises(ValueError, match=r"endless mixture has no last batch; give stop='first_empty'"):
            mr.Loader([mr.Source(dataset.tars[0])], seq_len=16, batch_size=2, **arguments)
    with mr.Loader(dataset.tars, seq_len=16, batch_size=2) as loader:
        assert "row_mask" not in next(loader)
