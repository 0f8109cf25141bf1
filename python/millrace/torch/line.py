# SPDX-License-Identifier: Apache-2.0
"""Keeps the line of training that this process continues in each folder of checkpoints: the line that it restored
there, or saved there last. Every object that saves uses this module, whichever object has restored
(docs/format/checkpoint.md, "The line")."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Sequence

Line = list[tuple[str, int]]  # (attempt, step), the oldest first
Names = list[tuple[int, bool, list[str]]]  # the result of _core.list_step_names

_handed: dict[str, Line] = {}  # lines from hand_on(), by folder
_lines: dict[str, Line] = {}  # by folder; a forked child continues from the lines of its parent
_restores: Counter[str] = Counter()
_saved: dict[str, int] = {}  # by folder: the value of _restores before the last save
_turns: Counter[str] = Counter()


def _key(place: str) -> str:
    path = place.removeprefix("file://").rstrip("/")
    return path if "://" in path else os.path.abspath(path or "/")


def remember(places: Iterable[str], line: Line, *, restored: bool = False) -> None:
    """Makes the saves of this process in `places` continue `line` from now on. restored: True: because this process has
    read that commit."""
    for place in places:
        _lines[_key(place)] = line
        _restores[_key(place)] += restored


def begin_save(place: str) -> tuple[bool, int]:
    """Returns whether this is the first save in `place` since the start or a restore, and how often this process has
    gone back between two saves. Each time, another attempt begins, so that the process does not take the steps that it
    left behind for its own."""
    key = _key(place)
    is_first = _saved.get(key) != _restores[key]
    _turns[key] += is_first and key in _saved
    _saved[key] = _restores[key]
    return is_first, _turns[key]


def recall(places: Iterable[str]) -> Line | None:
    """Returns the line in `places`; None: this process has restored nothing and saved nothing there."""
    return next((_lines[_key(place)] for place in places if _key(place) in _lines), None)


def hand_on(places: Iterable[str], line: Line | None) -> None:
    """Sets the line for a process that saves for another process, which sends its line with each save. A line that is
    sent is used once; after that, the saves of this process continue each other."""
    for place in places:
        if line is not None and _handed.get(_key(place)) != line:
            _handed[_key(place)] = line
            remember([place], line, restored=True)


def refuse(root: str, steps: Sequence[int]) -> FileExistsError:
    """Returns the error for a process that would save in a folder with `steps` without having restored one of them."""
    return FileExistsError(
        errno.EEXIST,
        f"it has checkpoints up to step {max(steps)}, and this process has restored none of them: restore one, give "
        "new_run=True to start another run there, which leaves them behind, or save in another folder",
        root,
    )


def committed(names: Names) -> list[int]:
    """Returns the steps that have a manifest, ascending."""
    return sorted({step for step, is_committed, _ in names if is_committed})


def left_behind(names: Names, step: int, line: Line) -> str | None:
    """Returns the message about the later steps that a run leaves behind when it saves `step`; None: there are no such
    steps."""
    later = [each for each in committed(names) if each > step]
    if not later:
        return None
    shown = ", ".join(map(str, later[:3])) + (f" and {len(later) - 3} more" if len(later) > 3 else "")
    start = f"continues step {line[-1][1]}" if line else "is a new run"
    return (
        f"this process {start} and saves step {step}: the later steps there ({shown}) are left behind, and no restore "
        "chooses them. `millrace ckpt ls` shows them, `millrace ckpt prune --left-behind` removes them"
    )
