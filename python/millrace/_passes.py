# SPDX-License-Identifier: Apache-2.0
"""Which pass of a loader comes next. Pure: reads no data, knows no thread and no process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class PassPosition(NamedTuple):
    """Where a reader is."""

    number: int  #: its pass, counted from 0
    over: bool  #: whether all batches of that pass were given


Where = Callable[[], PassPosition]
"""Asks the reader. Not called where the answer does not matter: it may wait until the dataset is open."""


class NextStart(NamedTuple):
    """What the next `for` does, told to a worker process."""

    number: int | None  #: the pass to begin; None: continue
    moves: int  #: how often the loader was repositioned


class PassMachine:
    """Decides which pass a `for` begins. Methods that return `int | None` give the pass to begin, or None: continue.

    The first `for` continues from the loader's position: its start, behind a loaded state, or behind batches that
    next(loader) gave. Each further `for` begins the next pass, even when the one before it was left early. An endless
    loader continues always.
    """

    def __init__(self, endless: bool) -> None:
        self.endless = endless
        self.moves = 0  # how often the reader was repositioned
        self.touched = False  # the position is not the reader's start
        self._continues = True  # the next `for` continues from here
        self._loaded = False  # a state was loaded, and no batch given since
        self._ended = False  # next() has said that the pass is over
        self._asked: int | None = None  # by ask()

    # ---- what happens to the loader

    def ask(self, number: int, where: Where) -> bool:
        """set_epoch(number). False: it changes nothing, because a loaded state names another pass."""
        if self.endless:
            return True
        if not self._loaded:
            self._asked = number
            return True
        now = where()
        return number in (now.number, now.number + now.over)

    def loaded(self) -> None:
        """A state was loaded into the reader."""
        self._continues = self._loaded = True
        self._asked = None
        self.moved()

    def moved(self) -> None:
        """The reader has another position in its pass."""
        self.moves += 1
        self.touched = True

    def began(self) -> None:
        """The reader has begun the pass that a method returned."""
        self._ended = False
        self.moved()

    def gave(self) -> None:
        """next() has returned a batch."""
        self.touched = True
        self._loaded = self._ended = False

    def ended(self) -> None:
        """next() has raised StopIteration."""
        self._ended = True

    # ---- what follows

    def for_begins(self, where: Where) -> int | None:
        continues, self._continues = self._continues, False
        if self._asked is not None or self.endless:
            return self.next_begins()
        now = where()
        # A state from the end of a pass means the next pass: all batches of this one had been given.
        return now.number + 1 if now.over or not continues else None

    def for_goes_on(self) -> None:
        """A `for` that has begun takes a further batch, perhaps behind a state that was loaded inside of it."""
        self._continues = False

    def next_begins(self) -> int | None:
        """next(loader), outside of a `for`."""
        number, self._asked = self._asked, None
        return number

    def following(self, where: Where) -> int:
        """The pass of the next batch."""
        if self._asked is not None:
            return self._asked
        now = where()
        return now.number + now.over

    def pass_of_length(self, where: Where) -> int:
        """The pass that len() is of: the one under way, or between passes the next one."""
        if self._asked is not None:
            return self._asked
        now = where()
        return now.number + (now.over and self._ended)

    def pass_of_state(self, where: Where) -> int | None:
        """The pass at whose beginning a state is; None: the state is the reader's position."""
        if self.endless or not self._ended:
            return None
        now = where()
        return now.number + 1 if now.over else None

    def next_start(self, where: Where) -> NextStart:
        number = self._asked
        if number is None and not self._continues and not self.endless:
            number = where().number + 1
        return NextStart(number, self.moves)


def pass_of_worker(start: NextStart, last: NextStart, endless: bool, where: Where) -> int | None:
    """The pass that a worker of a DataLoader begins; None: it continues. `last`: the pass after the one that this worker
    began last, if the loader has not moved since. Raises RuntimeError (an endless loader that workers began before)."""
    if last.number is not None and last.moves == start.moves:
        if not endless:
            return last.number
        raise RuntimeError(
            "the workers have begun with this endless loader before, and only they know how far it came: call "
            "loader.load_state_dict(loader.state_dict(batch)), with the last batch that was used, or use no workers"
        )
    if start.number is not None or endless:
        return start.number
    now = where()
    return now.number + 1 if now.over else None
