# SPDX-License-Identifier: Apache-2.0
"""Passes, lengths and states of a loader, as frameworks use them: look-ahead, iter() as a check, set_epoch."""

import gc
import itertools
import logging
import pickle
import weakref
from concurrent import futures

import numpy as np
import pytest

import millrace as mr


def options(**more):
    return dict(global_batch_size=32, seq_len=16, seed=4, **more)


def ids(batch) -> list:
    return batch["input_ids"].tolist()


@pytest.fixture(scope="module")
def epochs(dataset):
    """The batches of epochs 0 to 3, as one long pass gives them."""
    with mr.Loader(dataset.tars, **options(epochs=4)) as loader:
        batches = [ids(batch) for batch in loader]
        size = len(loader) // 4
    assert len(batches) == 4 * size
    return [batches[i * size : (i + 1) * size] for i in range(4)]


def test_a_for_gives_the_next_pass(dataset, epochs):
    with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
        assert len(loader) == len(epochs[0])
        for epoch in range(3):
            assert loader.next_pass == epoch
            assert [ids(batch) for batch in loader] == epochs[epoch]
    with mr.Loader(dataset.tars, **options(epochs=2)) as loader:
        assert len(loader) == 2 * len(epochs[0])
        assert [ids(batch) for batch in loader] == epochs[0] + epochs[1]
        assert [ids(batch) for batch in loader] == epochs[2] + epochs[3]


def test_an_unshuffled_pass_is_the_same_each_time(dataset):
    with mr.Loader(dataset.tars, **options(epochs=1, shuffle=False, drop_last=False)) as loader:
        first = [ids(batch) for batch in loader]
        assert len(first) == len(loader) > 3
        assert [ids(batch) for batch in loader] == first


def test_a_pass_that_was_left_early_is_over(dataset, epochs):
    """Lightning's sanity check takes two batches of the validation set, and then wants all of them."""
    with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
        assert [ids(batch) for batch in itertools.islice(loader, 2)] == epochs[0][:2]
        assert [ids(batch) for batch in loader] == epochs[1]


def test_next_before_a_for_loses_nothing(dataset, epochs):
    with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
        peeked = ids(next(loader))
        assert [peeked, *(ids(batch) for batch in loader)] == epochs[0]
        with pytest.raises(StopIteration):
            next(loader)


def test_iter_alone_does_nothing(dataset, epochs):
    with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
        iter(loader)
        iterator = iter(loader)
        iter(loader)
        assert loader.stats()["read_bytes"] == 0
        assert ids(next(iterator)) == epochs[0][0]
        iter(loader)
        assert ids(next(iterator)) == epochs[0][1]
        other = iter(loader)
        assert ids(next(other)) == epochs[1][0]
        with pytest.raises(RuntimeError, match="another iteration"):
            next(iterator)


def test_an_endless_loader_goes_on_and_has_no_length(dataset, epochs):
    with mr.Loader(dataset.tars, **options()) as loader:
        assert loader  # not by its length
        with pytest.raises(TypeError, match="as_iterable"):
            len(loader)
        taken = [ids(batch) for batch in itertools.islice(loader, 3)]
        loader.set_epoch(0)
        taken += [ids(batch) for batch in itertools.islice(loader, len(epochs[0]))]
        assert taken == (epochs[0] + epochs[1])[: len(taken)]


def test_a_state_is_for_the_next_pass_only(dataset, epochs):
    with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
        list(loader)
        list(itertools.islice(loader, 3))
        state = loader.state_dict()
    for checks in (0, 2):  # iter() as Lightning calls it
        with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
            for _ in range(checks):
                iter(loader)
            loader.load_state_dict(state)
            for _ in range(checks):
                iter(loader)
            assert len(loader) == len(epochs[1])  # of the whole pass, not of what is left
            assert [ids(batch) for batch in loader] == epochs[1][3:]
            assert [ids(batch) for batch in loader] == epochs[2]


@pytest.mark.parametrize("seen", [False, True])
def test_a_state_from_the_end_of_a_pass_is_the_next_one(dataset, epochs, seen):
    """A loop that counts batches stops before StopIteration, an iteration sees it: both continue with the next
    epoch."""
    with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
        list(loader) if seen else list(itertools.islice(loader, len(loader)))
        state = loader.state_dict()
    with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
        loader.load_state_dict(state)
        assert loader.next_pass == 1
        assert [ids(batch) for batch in loader] == epochs[1]


def test_training_a_number_of_passes_ends_after_a_resume(dataset, epochs):
    total = 2 * len(epochs[0])
    for cut in (1, len(epochs[0]), len(epochs[0]) + 1, total):
        with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
            taken = [ids(b) for b in itertools.islice(itertools.chain(loader, loader), cut)]
            state = loader.state_dict()
        with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
            loader.load_state_dict(state)
            taken += [ids(batch) for _ in range(loader.next_pass, 2) for batch in loader]
        assert taken == epochs[0] + epochs[1], cut


def test_set_epoch(dataset, epochs, caplog):
    with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
        loader.set_epoch(2)
        assert loader.next_pass == 2
        assert [ids(batch) for batch in itertools.islice(loader, 2)] == epochs[2][:2]
        state = loader.state_dict()
        loader.set_epoch(0)
        assert [ids(batch) for batch in loader] == epochs[0]
    with pytest.raises(ValueError, match="-1"):
        loader.set_epoch(-1)
    for epoch in (2, 0):  # behind a state no row is repeated, and another number is not ignored silently
        caplog.clear()
        with mr.Loader(dataset.tars, **options(epochs=1)) as loader, caplog.at_level(logging.WARNING):
            loader.load_state_dict(state)
            loader.set_epoch(epoch)
            assert [ids(batch) for batch in loader] == epochs[2][2:]
            assert ("set_epoch(0) changes nothing" in caplog.text) == (epoch == 0)
            loader.set_epoch(3)
            assert [ids(batch) for batch in loader] == epochs[3]


def test_a_batch_carries_the_state_behind_it(dataset, epochs):
    with mr.Loader(dataset.tars, **options(epochs=1, carry_state=True)) as loader:
        ahead = itertools.islice(loader, 5)
        batches = list(ahead)
        for at, batch in enumerate(batches):
            with mr.Loader(dataset.tars, **options(epochs=1)) as other:
                other.load_state_dict(loader.state_dict(batch))
                assert ids(next(other)) == epochs[0][at + 1]
        loader.mark_used(batches[1])
        assert loader.state_dict() == loader.state_dict(batches[1]) != loader.state_dict(batches[4])
        saved = loader.state_dict()
        loader.load_state_dict(saved)
        next(loader)
        assert loader.state_dict() == saved, "what is fetched ahead is not used"
        joined = {"loader_state": np.concatenate([batch["loader_state"] for batch in batches])}
        with pytest.raises(ValueError, match="joined"):
            loader.state_dict(joined)
    with mr.Loader(dataset.tars, **options()) as loader, pytest.raises(ValueError, match="carry_state=True"):
        loader.state_dict(next(loader))


def test_first_calls_of_two_threads(dataset):
    """epoch_units() beside next() crashed or hung within a few tries."""
    for _ in range(5):
        with mr.Loader(dataset.tars, **options(epochs=1)) as loader, futures.ThreadPoolExecutor(3) as threads:
            units = [threads.submit(getattr, loader, "epoch_units") for _ in range(3)]
            next(loader)
            assert len({answer.result(20) for answer in units}) == 1


def test_pickle_carries_every_argument(dataset):
    loader = mr.Loader(dataset.tars, **options(epochs=3, carry_state=True, tokenizer=dataset.tokenizer))
    with loader, pickle.loads(pickle.dumps(loader)) as copy:
        assert len(copy) == len(loader) and "loader_state" in next(copy)


def test_a_loader_goes_with_its_last_name(dataset):
    """Not when garbage is collected: it holds a gigabyte of the process's budget."""
    gc.disable()
    try:
        loader = mr.Loader(dataset.tars, **options())
        for _ in loader:
            break
        gone = weakref.ref(loader)
        del loader
        assert gone() is None
    finally:
        gc.enable()


def test_the_tokenizer_and_the_vocabulary_are_held_against_the_shards(dataset, tmp_path):
    tokenizer = mr.Tokenizer.from_file(dataset.tokenizer)
    for given in (tokenizer, dataset.tokenizer, str(dataset.tokenizer)):
        with mr.Loader(dataset.shards, **options(tokenizer=given, vocab_size=tokenizer.id_limit)) as loader:
            next(loader)
    with pytest.raises(ValueError, match=f"ids up to {tokenizer.id_limit - 1}, vocab_size is 100"):
        mr.Loader(dataset.shards, **options(tokenizer=tokenizer, vocab_size=100))
    with (
        mr.Loader(dataset.shards, **options(vocab_size=100)) as loader,
        pytest.raises(ValueError, match="vocab_size is 100"),
    ):
        next(loader)
    other = tmp_path / "other.json"
    other.write_text(dataset.tokenizer.read_text() + "\n")
    with mr.Loader(dataset.shards, **options(tokenizer=other)) as loader, pytest.raises(ValueError, match="tokenizer"):
        next(loader)
    mr.prepare(next(dataset.raw.iterdir()), tokenizer=other, out=tmp_path / "out")
    both = [dataset.shards, tmp_path / "out"]
    with mr.Loader(both, **options()) as loader, pytest.raises(ValueError, match="their ids do not mean the same"):
        next(loader)


def test_a_global_batch_is_a_multiple_of_the_ranks(dataset):
    with pytest.raises(ValueError, match="choose 30 or 33, or ask for it with uneven_ranks"):
        mr.Loader(dataset.tars, **options(rank=0, world_size=3))
    mr.Loader(dataset.tars, **options(rank=0, world_size=3, uneven_ranks=True))
