# SPDX-License-Identifier: Apache-2.0
"""Finds the step that a checkpoint id names, and the attempt of the step that this job writes."""

from __future__ import annotations

import os
import re
import secrets

from millrace import _core

CheckpointId = str | os.PathLike[str]

_STEP = re.compile(r"step-(\d+)")
_SCHEMES = ("", "file", "s3", "mem")


def locate(checkpoint_id: CheckpointId) -> tuple[str, int | None]:
    """Returns the folder and the step of an id. "run/step-200" is step 200 of the checkpoints in "run". Any other id is
    the folder itself, without a step."""
    text = os.fspath(checkpoint_id)
    stripped = text.rstrip("/") or text
    parent, slash, last = stripped.rpartition("/")
    step = _STEP.fullmatch(last)
    if step is None:
        return stripped, None
    return parent or (slash or "."), int(step[1])


def of_rank(root: str, rank: int) -> str:
    """Returns the folder for the checkpoints of a rank that saves without the other ranks (use_collectives=False)."""
    return f"{root.rstrip('/')}/rank-{rank:05}"


def is_checkpoint_id(checkpoint_id: object) -> bool:
    """Returns whether the object is a path or URL that can be written."""
    if not isinstance(checkpoint_id, (str, os.PathLike)):
        return False
    scheme, found, _ = os.fspath(checkpoint_id).partition("://")
    return isinstance(scheme, str) and (scheme if found else "") in _SCHEMES


_nonce_of_process: dict[int, str] = {}  # by process id: a child after fork is another job
_attempts: dict[tuple[int, str, str], str] = {}


def nonce() -> str:
    """Returns the part of the attempt's name that distinguishes this job from others. The coordinator sends its own to
    all ranks."""
    return _nonce_of_process.setdefault(os.getpid(), secrets.token_hex(4))


def attempt(places: list[str], of_job: str) -> str:
    """Returns this job's attempt in `places`, with the root last. It is the same on every rank, since attempts of the
    job itself do not count. Raises OSError."""
    key = (os.getpid(), places[-1], of_job)
    if key not in _attempts:
        names = [_core.make_attempt(root, nonce=of_job) for root in places]
        _attempts[key] = max(names, key=lambda name: int(name[1 : name.index("-")]))
    return _attempts[key]
