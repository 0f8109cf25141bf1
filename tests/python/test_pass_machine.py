# SPDX-License-Identifier: Apache-2.0
"""Which pass a `for` begins, as a table: what happened to a loader, and what follows. No data is read."""

import itertools

import pytest
from millrace._passes import NextStart, PassMachine, PassPosition, pass_of_worker


class Reader:
    """Where a reader of passes of three batches would be, driven as PassIterator drives one."""

    def __init__(self, endless=False):
        self.machine = PassMachine(endless)
        self.number, self.given = 0, 0

    def where(self):
        assert not self.machine.endless, "the position of an endless loader was asked for"
        return PassPosition(self.number, self.given == 3)

    def take(self):
        """A batch as (pass, number in it); None: the pass is over."""
        if self.given == 3 and not self.machine.endless:
            self.machine.ended()
            return None
        self.machine.gave()
        self.given += 1
        if self.given > 3:
            self.number, self.given = self.number + 1, 1
        return self.number, self.given - 1

    def begin(self, number):
        if number is not None:
            self.number, self.given = number, 0
            self.machine.began()

    def next(self):
        self.begin(self.machine.next_begins())
        return self.take()

    def loop(self, batches=None):
        """A `for` that is left after so many batches, or goes on to the end."""
        self.begin(self.machine.for_begins(self.where))
        got = [self.take()]
        while got[-1] is not None and len(got) != batches:
            self.machine.for_goes_on()
            got.append(self.take())
        return [batch for batch in got if batch is not None]

    def go_on(self):
        """A further batch of the `for` that began last."""
        self.machine.for_goes_on()
        return self.take()

    def load(self, number, given):
        self.number, self.given = number, given
        self.machine.loaded()

    def set_epoch(self, number):
        return self.machine.ask(number, self.where)


def whole(number):
    return [(number, i) for i in range(3)]


# What happens, one call after the other, and what the last one gives.
TABLE = {
    "the first for begins at the start": ([("loop",)], whole(0)),
    "the next for begins the next pass": ([("loop",), ("loop",)], whole(1)),
    "also when the one before was left early": ([("loop", 2), ("loop",)], whole(1)),
    "also when it was left at its last batch": ([("loop", 3), ("loop",)], whole(1)),
    "a for goes on behind next()": ([("next",), ("loop",)], whole(0)[1:]),
    "next() goes on behind a for": ([("loop", 1), ("next",)], (0, 1)),
    "next() at the end of a pass stays there": ([("loop",), ("next",), ("next",)], None),
    "and a for behind it begins the next": ([("loop",), ("next",), ("loop",)], whole(1)),
    "a for goes on behind a state": ([("load", 2, 1), ("loop",)], whole(2)[1:]),
    "a state from the end of a pass means the next one": ([("load", 2, 3), ("loop",)], whole(3)),
    "a state beats what a for before it left": ([("loop", 1), ("load", 4, 1), ("loop",)], whole(4)[1:]),
    "the second for behind a state begins a pass": ([("load", 2, 1), ("loop",), ("loop",)], whole(3)),
    "a state inside of a for, too": ([("loop", 1), ("load", 2, 1), ("go_on",), ("loop",)], whole(3)),
    "set_epoch names the pass": ([("set_epoch", 5), ("loop",)], whole(5)),
    "of next(), too": ([("set_epoch", 5), ("next",)], (5, 0)),
    "the last set_epoch counts": ([("set_epoch", 5), ("set_epoch", 3), ("loop",)], whole(3)),
    "it holds once": ([("set_epoch", 5), ("loop",), ("loop",)], whole(6)),
    "it goes back, too": ([("loop",), ("set_epoch", 0), ("loop",)], whole(0)),
    "a state takes it back": ([("set_epoch", 5), ("load", 2, 1), ("loop",)], whole(2)[1:]),
    "behind a state it changes nothing": ([("load", 2, 1), ("set_epoch", 0), ("loop",)], whole(2)[1:]),
    "until a batch was given": ([("load", 2, 1), ("next",), ("set_epoch", 0), ("loop",)], whole(0)),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_follows(name):
    calls, expected = TABLE[name]
    reader = Reader()
    got = [getattr(reader, call)(*arguments) for call, *arguments in calls]
    assert got[-1] == expected


@pytest.mark.parametrize("left", [1, 2, 3])
def test_an_endless_loader_goes_on(left):
    reader = Reader(endless=True)
    expected = [batch for number in range(5) for batch in whole(number)]
    got = list(itertools.chain.from_iterable(reader.loop(left) for _ in range(4)))
    assert got == expected[: 4 * left]
    assert reader.set_epoch(7)
    assert reader.next() == expected[4 * left]
    assert reader.machine.next_start(reader.where) == NextStart(None, 0)


@pytest.mark.parametrize(("epoch", "given", "agrees"), [(2, 1, True), (3, 1, False), (3, 3, True), (1, 1, False)])
def test_a_state_that_names_another_pass_is_said(epoch, given, agrees):
    reader = Reader()
    reader.load(2, given)
    assert reader.set_epoch(epoch) is agrees


def test_lengths_and_states_between_passes():
    reader = Reader()
    machine = reader.machine
    assert (machine.following(reader.where), machine.pass_of_length(reader.where)) == (0, 0)
    reader.loop(3)  # the last batch was given, but nobody was told that it was the last
    assert (machine.following(reader.where), machine.pass_of_length(reader.where)) == (1, 0)
    assert machine.pass_of_state(reader.where) is None
    assert reader.next() is None
    assert (machine.following(reader.where), machine.pass_of_length(reader.where)) == (1, 1)
    assert machine.pass_of_state(reader.where) == 1
    reader.set_epoch(6)
    assert (machine.following(reader.where), machine.pass_of_length(reader.where)) == (6, 6)


def test_a_pass_that_has_begun_is_not_over():
    reader = Reader()
    reader.loop()
    reader.load(2, 1)
    assert [reader.next(), reader.next()] == whole(2)[1:]
    assert reader.machine.pass_of_length(reader.where) == 2
    assert reader.machine.pass_of_state(reader.where) is None
    assert reader.next() is None
    reader.machine.began()
    assert reader.machine.pass_of_length(lambda: PassPosition(3, True)) == 3  # a pass without a batch


def test_each_new_position_is_counted():
    reader = Reader()
    counts = [reader.machine.next_start(reader.where).moves]
    for call, *arguments in [("next",), ("load", 1, 0), ("set_epoch", 1), ("loop",), ("loop",)]:
        getattr(reader, call)(*arguments)
        counts.append(reader.machine.next_start(reader.where).moves)
    assert counts == [0, 0, 1, 1, 1, 2]
    assert reader.machine.touched


def test_what_is_told_is_what_a_for_would_do(seeded):
    """Random histories: a worker that goes where next_start() says is where the loader itself would be."""
    for _ in range(2000):
        reader = Reader()
        for _ in range(seeded.randrange(6)):
            match seeded.randrange(4):
                case 0:
                    reader.loop(seeded.choice([1, 2, 3, None]))
                case 1:
                    reader.next()
                case 2:
                    reader.load(seeded.randrange(4), seeded.randrange(4))
                case 3:
                    reader.set_epoch(seeded.randrange(4))
        start = reader.machine.next_start(reader.where)
        begun = pass_of_worker(start, NextStart(None, -1), False, reader.where)
        first = (reader.number, reader.given) if begun is None else (begun, 0)
        assert reader.loop(1) == [first]


def test_a_worker_goes_on_with_the_pass_after_its_last():
    where = pytest.fail  # the reader need not be asked
    assert pass_of_worker(NextStart(0, 4), NextStart(3, 4), False, where) == 3
    assert pass_of_worker(NextStart(0, 5), NextStart(3, 4), False, where) == 0  # the loader has moved since
    assert pass_of_worker(NextStart(None, 5), NextStart(3, 4), True, where) is None
    with pytest.raises(RuntimeError, match="only they know how far it came"):
        pass_of_worker(NextStart(None, 4), NextStart(1, 4), True, where)
