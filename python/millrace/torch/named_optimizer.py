# SPDX-License-Identifier: Apache-2.0
"""An optimizer whose state is stored by the names of its parameters instead of their numbers."""

from __future__ import annotations

from typing import Any

import torch

from .state import unwrap


class NamedOptimizer:
    """Replaces `optimizer` in a Checkpointer's state: {"optim": NamedOptimizer(optimizer, model)}.

    PyTorch numbers the parameters of an optimizer, so a state fits only an optimizer that has the same parameters in the
    same order and groups. By name ("optim.state.layers.0.weight.exp_avg"), parameters may be in another order and in
    other groups, as long as each group's options come from one stored group. Parameters without a stored state start
    with a new state.

    optimizer: an optimizer with parameters of `module` only.
    module: the module whose parameter names are used; in the wrappers of DistributedDataParallel and torch.compile, the
        module inside.

    Raises ValueError (a parameter that `module` lacks).
    """

    def __init__(self, optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> None:
        self.optimizer = optimizer
        known = {id(parameter): name for name, parameter in unwrap(module).named_parameters()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        unknown = [at for at, parameter in enumerate(parameters) if id(parameter) not in known]
        if unknown:
            raise ValueError(f"the optimizer has parameters that are not of the module: number {unknown[0]} of "
                             f"{len(parameters)}, of shape {list(parameters[unknown[0]].shape)}")  # fmt: skip
        self._names = [known[id(parameter)] for parameter in parameters]

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimizer's state_dict(), with names in place of numbers."""
        return self.with_names(self.optimizer.state_dict())

    def with_names(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns a state_dict() of the optimizer with names in place of numbers."""
        groups = [{**group, "params": [self._names[at] for at in group["params"]]} for group in state["param_groups"]]
        return {
            **state,
            "state": {self._names[at]: value for at, value in state["state"].items()},
            "param_groups": groups,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the optimizer. Raises ValueError for a stored parameter that the optimizer lacks, for a parameter of
        the optimizer that was not stored, and for a group whose parameters were stored in groups with different
        options."""
        stored = {name: at for at, group in enumerate(state["param_groups"]) for name in group["params"]}
        _refuse(stored.keys() - self._names, "the optimizer lacks")
        _refuse(set(self._names) - stored.keys(), "not stored were")
        numbers = {name: at for at, name in enumerate(self._names)}
        groups = []
        for group in self.optimizer.state_dict()["param_groups"]:
            options = [
                _options(state["param_groups"][at]) for at in {stored[self._names[at]] for at in group["params"]}
            ]
            if any(each != options[0] for each in options):
                names = ", ".join(self._names[at] for at in group["params"][:5])
                raise ValueError(f"one group here, of {names}, ..., was stored as groups with other options")
            groups.append({**group, **(options[0] if options else {})})
        values = {numbers[name]: value for name, value in state["state"].items()}
        self.optimizer.load_state_dict({**state, "state": values, "param_groups": groups})


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries that belong to the group and to none of its parameters."""
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def _refuse(names: set[str], reason: str) -> None:
    if names:
        raise ValueError(f"{reason} {len(names)} parameters, the first {', '.join(sorted(names)[:5])}")
