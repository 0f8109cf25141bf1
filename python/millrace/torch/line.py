# SPDX-License-Identifier: Apache-2.0
"""Which line of training this process continues in a folder of checkpoints: what it restored there, or saved there
last. Every object that saves asks here, whichever object has restored (docs/format/checkpoint.md, "The line")."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Sequence

Line = list[tuple[str, int]]  # (attempt, step), the oldest first
Names = list[tuple[int, bool, list[str]]]  # of _core.list_step_names

_handed: dict[str, Line] = {}  # of hand_on, by folder
_lines: dict[str, Line] = {}  # by folder; a child after fork goes on from its parent's
_restores: Counter[str] = Counter()
_saved: dict[str, int] = {}  # by folder: _restores before the last save
_turns: Counter[str] = Counter()


def _key(place: str) -> str:
    path = place.removeprefix("file://").rstrip("/")
    return path if "://" in path else os.path.abspath(path or "/")


def remember(places: Iterable[str], line: Line, *, restored: bool = False) -> None:
    """A save of this process in `places` continues `line` from now on. restored: since it has read that commit."""
    for place in places:
        _lines[_key(place)] = line
        _restores[_key(place)] += restored


def begin_save(place: str) -> tuple[bool, int]:
    """Whether this is the first save in `place` since the start or a restore; and how often this process has gone back
    between two saves: each time another attempt begins, so that what it left behind is not taken for its own."""
    key = _key(place)
    is_first = _saved.get(key) != _restores[key]
    _turns[key] += is_first and key in _saved
    _saved[key] = _restores[key]
    return is_first, _turns[key]


def recall(places: Iterable[str]) -> Line | None:
    """None: this process has restored nothing there, and saved nothing."""
    return next((_lines[_key(place)] for place in places if _key(place) in _lines), None)


def hand_on(places: Iterable[str], line: Line | None) -> None:
    """For a process that saves for another one, which sends its line with each save: what it has restored counts once,
    then the saves of this process go on from it."""
    for place in places:
        if line is not None and _handed.get(_key(place)) != line:
            _handed[_key(place)] = line
            remember([place], line, restored=True)


def refuse(root: str, steps: Sequence[int]) -> FileExistsError:
    """For a process that would save in a folder that has `steps` without having restored one."""
    return FileExistsError(
        errno.EEXIST,
        f"it has checkpoints up to step {max(steps)}, and this process has restored none of them: restore one, give "
        "new_run=True to start another run there, which leaves them behind, or save in another folder",
        root,
    )


def committed(names: Names) -> list[int]:
    """The steps that have a manifest, ascending."""
    return sorted({step for step, is_committed, _ in names if is_committed})


def left_behind(names: Names, step: int, line: Line) -> str | None:
    """What to say of the later steps that a run which saves `step` leaves behind; None: there are none."""
    later = [each for each in committed(names) if each > step]
    if not later:
        return None
    shown = ", ".join(map(str, later[:3])) + (f" and {len(later) - 3} more" if len(later) > 3 else "")
    start = f"continues step {line[-1][1]}" if line else "is a new run"
    return (
        f"this process {start} and saves step {step}: the later steps there ({shown}) are left behind, and no restore "
        "chooses them. `millrace ckpt ls` shows them, `millrace ckpt prune --left-behind` removes them"
    )
