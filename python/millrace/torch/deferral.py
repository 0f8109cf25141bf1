# SPDX-License-Identifier: Apache-2.0
"""Defers the copies of a save, so that they run during the next forward and backward.

save() may return before its copies from a device are done if nothing changes the copied memory until then. Parameters
and the state of optimizers change only in the optimizers' step(), so the step waits on the device for the copies. This
module checks that nothing else changes them (an average of weights, clipping by hand): torch counts the in-place
changes of each tensor (`_version`).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .device_image import Ticket
from .state import unwrap
from .tensors import is_dtensor

_QUIET_STEPS = 2  # steps that are checked before the first save that returns early


class Members:
    """The tensors of the modules and optimizers in a state and in `owners`, by the address of their memory."""

    def __init__(self, state: Mapping[str, Any], owners: Iterable[Any] = ()) -> None:
        # The tensors that only the optimizers' steps change, with the path that is shown to the user.
        self.steady: dict[int, tuple[str, torch.Tensor]] = {}
        # The tensors that a forward may change too.
        self.buffers: set[int] = set()
        for name, value in state.items():
            self._add_object(name, value)
        for owner in owners:
            self._add_object(type(_owner(owner)).__name__, owner)

    def _add_object(self, name: str, value: Any) -> None:
        value = _owner(value)
        if isinstance(value, torch.nn.Module):
            self._add(name, value.named_parameters())
            self.buffers |= {_address(buffer) for buffer in value.buffers()}
        elif isinstance(value, torch.optim.Optimizer):
            for number, (parameter, values) in enumerate(value.state.items()):
                self._add(name, ((f"state.{number}.{key}", v) for key, v in values.items()))
                self._add(name, [(f"params.{number}", parameter)])

    def _add(self, path: str, named: Iterable[tuple[str, Any]]) -> None:
        for name, value in named:
            if isinstance(value, torch.Tensor):
                self.steady.setdefault(_address(value), (f"{path}.{name}", _local(value)))


def check_owners(owners: Iterable[Any]) -> None:
    """Raises TypeError for an owner that is neither a module nor an optimizer."""
    for owner in owners:
        if not isinstance(_owner(owner), (torch.nn.Module, torch.optim.Optimizer)):
            raise TypeError(f"owners are modules and optimizers, not {type(owner).__name__}")


def _owner(value: Any) -> Any:
    return unwrap(getattr(value, "optimizer", value))  # a NamedOptimizer has its optimizer in this attribute


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this process's part of the tensor, with the count of changes that belongs to it."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor  # type: ignore[attr-defined, no-any-return]


def _address(tensor: torch.Tensor) -> int:
    return int(_local(tensor).untyped_storage().data_ptr())


class Pending:
    """A save whose copies are in progress."""

    def __init__(self, ticket: Ticket, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self.ticket = ticket
        self._tensors = tensors
        self._versions = versions_of(tensors)
        self._lock = threading.Lock()
        self._checked = False
        self.changed: str | None = None  # the tensor that was changed before the copies were safe

    def check(self) -> None:
        """Checks for changes. Call it before anything that may change the tensors is queued after the copies, and when
        they are done."""
        with self._lock:
            if not self._checked:
                self._checked = True
                self.changed = moved(self._tensors, self._versions)


def versions_of(tensors: list[tuple[str, torch.Tensor]]) -> list[int]:
    return [tensor._version for _, tensor in tensors]


def moved(tensors: list[tuple[str, torch.Tensor]], versions: list[int]) -> str | None:
    """Returns the name of a tensor that was changed in place since `versions` were read; None: no tensor was."""
    return next((name for (name, tensor), then in zip(tensors, versions, strict=True) if tensor._version != then), None)


class Deferral:
    """Decides whether a save may return before its copies are done, and makes the optimizers' steps wait for the
    copies.

    One thread trains and saves. close() removes the hooks, which apply to all optimizers of the process.
    """

    def __init__(self) -> None:
        self.refused: str | None = None  # the reason why saves never return early in this process
        self._tensors: list[tuple[str, torch.Tensor]] = []  # the checked tensors
        self._behind_step: list[int] | None = None  # their versions after the last step
        self._before_step: list[int] = []
        self._quiet_steps = 0
        self._inside = 0
        self._pending: list[tuple[Pending, threading.Thread]] = []
        self._hooks: list[Any] = []

    def may_defer(self, members: Members, addresses: Iterable[int]) -> bool:
        """Returns whether the copies of the memory at `addresses` may still run when save() returns."""
        if self.refused is not None:
            return False
        if not all(address in members.steady or address in members.buffers for address in addresses):
            return False
        tensors = list(members.steady.values())
        if [tensor.data_ptr() for _, tensor in tensors] != [tensor.data_ptr() for _, tensor in self._tensors]:
            self._watch(tensors)
        return self._quiet_steps >= _QUIET_STEPS

    def begin(self, ticket: Ticket, members: Members, ended: Callable[[str | None], None]) -> None:
        """Lets the copies run. `ended` is called on another thread, with None or the reason why the save must not be
        committed."""
        pending = Pending(ticket, list(members.steady.values()))

        def wait() -> None:
            failure: str | None = None
            try:
                ticket.wait()
                pending.check()
                if pending.changed is not None:
                    failure = f"'{pending.changed}' was changed outside of an optimizer's step while it was copied"
                    self.refused = failure
            except BaseException as error:
                failure = f"the copy from the device failed: {error}"
            if failure is not None:
                message = f"checkpoint: a save is not committed: {failure}. Later saves wait for their copies"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
            ended(failure)

        thread = threading.Thread(target=wait, name="mr-ckpt-copy", daemon=True)
        self._pending = [(each, running) for each, running in self._pending if running.is_alive()]
        self._pending.append((pending, thread))
        thread.start()

    def finish(self) -> None:
        """Waits until no copies are in progress. Call it before the tensors are changed in any way other than by a
        step."""
        for pending, thread in self._pending:
            pending.check()
            thread.join()
        self._pending.clear()

    def close(self) -> None:
        self.finish()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._tensors.clear()

    def _watch(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        if not self._hooks:
            # The hooks are called in a step that torch.compile compiles too, but are not compiled into it.
            self._hooks = [
                register_optimizer_step_pre_hook(torch.compiler.disable(self._before)),
                register_optimizer_step_post_hook(torch.compiler.disable(self._behind)),
            ]
        self._tensors, self._behind_step, self._quiet_steps = tensors, None, 0

    def _before(self, optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            # A replayed graph runs no hooks and counts no versions.
            self.refused = self.refused or "an optimizer's step is captured in a CUDA graph"
            return
        for pending, _ in self._pending:
            pending.check()
            pending.ticket.hold()
        self._inside += 1
        if self._inside > 1 or self.refused is not None or self._quiet_steps >= _QUIET_STEPS or not self._tensors:
            return
        if self._behind_step is not None and (name := moved(self._tensors, self._behind_step)) is not None:
            self.refused = f"'{name}' is changed outside of the optimizers' steps"
        self._before_step = versions_of(self._tensors)

    def _behind(self, optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
        self._inside = max(0, self._inside - 1)
        if self._inside > 0 or self.refused is not None or self._quiet_steps >= _QUIET_STEPS or not self._tensors:
            return
        if moved(self._tensors, self._before_step) is not None:  # else the step was another optimizer's
            self._quiet_steps += self._behind_step is not None
            self._behind_step = versions_of(self._tensors)
