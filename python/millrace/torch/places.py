# SPDX-License-Identifier: Apache-2.0
"""The folders that a Checkpointer saves to and restores from, and the steps in them."""

from __future__ import annotations

import errno
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

import millrace
from millrace import _core
from millrace.results import StepInfo

from . import line as lines

T = TypeVar("T")

Commit = tuple[int, str | None]  # a step and the attempt that committed it

# The errors that file systems and block devices return for lost bytes.
_LOST_BYTES = (errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA, errno.EREMOTEIO, errno.ENXIO)


def restart_of(attempt: str) -> int:
    return int(attempt[1 : attempt.index("-")])


def is_damage(error: Exception) -> bool:
    """Returns whether the error means that the step cannot be used, so that the step before it may be tried. A server
    that does not answer is not damage, and neither is a newer version: an older step would lose work."""
    if isinstance(error, (millrace.CorruptionError, FileNotFoundError, PermissionError)):
        return True
    return isinstance(error, OSError) and error.errno in _LOST_BYTES


def steps_of_line(found: Sequence[StepInfo]) -> list[int]:
    """Returns the steps of the newest line among the steps of several folders, ascending, without those whose manifest
    is damaged."""
    infos = {(info["step"], info["attempt"]): info for info in found if info["damage"] is None}
    line: list[int] = []
    walk = _core.LineWalk([(info["step"], True, [info["attempt"]]) for info in found])
    while (step := walk.next()) is not None:
        newest = max((name for at, name in infos if at == step), key=restart_of, default=None)
        if newest is None:
            walk.damaged()
        elif walk.read(newest, infos[step, newest]["line"]):
            line.append(step)
    return line[::-1]


class Places:
    """The tiers, nearest first, and the root last. If there are several places, a place that does not answer for
    `timeout` seconds causes a TimeoutError."""

    def __init__(self, urls: list[str], timeout: float) -> None:
        self.urls = urls
        self._timeout = timeout if len(urls) > 1 else 0.0

    def ask_names(self) -> lines.Names:
        """Returns the contents of all places, by the names of folders. Raises OSError."""
        return [entry for place in self.urls for entry in self._ask(place, _core.list_step_names, place)]

    def list_names(self) -> lines.Names:
        """Returns the same as ask_names(), without places that cannot be read."""
        return [entry for place in self.urls for entry in self._list(_core.list_step_names, place)]

    def list_steps(self) -> list[tuple[str, StepInfo]]:
        """Returns the committed steps of each place."""
        return [(place, info) for place in self.urls for info in self._list(_core.list_steps, place)]

    def open_step(self, step: int) -> _core.Checkpoint:
        return self._ask(", ".join(self.urls), _core.Checkpoint, self.urls, step, self._timeout)

    def newest_good(self, failures: dict[Commit, str]) -> tuple[_core.Checkpoint | None, dict[Commit, str]]:
        """Returns the newest commit of the newest line that is not damaged according to the manifest and `failures`,
        and the damage of newer commits. Raises NotImplementedError for a step of a newer version, which must not be
        skipped."""
        damaged: dict[Commit, str] = {}
        walk = _core.LineWalk(self.list_names())
        while (step := walk.next()) is not None:
            try:
                opened = self.open_step(step)
            except FileNotFoundError:  # it has been removed meanwhile
                walk.gone()
                continue
            except NotImplementedError as error:
                raise NotImplementedError(f"step {step}: {error}; restore(step=...) takes an older step") from None
            except OSError as error:
                if not is_damage(error):
                    raise
                damaged[step, None] = f"step {step}: {error}"
                walk.damaged()
                continue
            if not walk.read(opened.attempt, opened.line):
                continue
            commit = (step, opened.attempt)
            if commit not in failures:
                return opened, damaged
            damaged[commit] = failures[commit]
        return None, damaged

    def _ask(self, place: str, call: Callable[..., T], *arguments: Any) -> T:
        """Returns `call(*arguments)`, which reads in `place`."""
        if len(self.urls) == 1:
            return call(*arguments)
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(call(*arguments))
            except BaseException as error:  # passed on to the caller
                answer.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        try:
            return answer.result(self._timeout)
        except FutureTimeoutError:
            if answer.done():  # the TimeoutError of the call itself, or the call has just ended
                return answer.result()
            raise TimeoutError(
                errno.ETIMEDOUT,
                f"has not answered for {self._timeout:g} s; leave it out of the tiers to go on without it",
                place,
            ) from None

    def _list(self, list_steps: Callable[[str], list[Any]], place: str) -> list[Any]:
        """Returns the result of `list_steps` for a place. A place that cannot be read is left out with a warning,
        unless it is the only one. A place that does not answer may have newer steps: OSError."""
        try:
            return self._ask(place, list_steps, place)
        except OSError as error:
            if len(self.urls) == 1 or not is_damage(error):
                raise
            warnings.warn(f"checkpoint {place}: left out: {error}", RuntimeWarning, stacklevel=2)
            return []
