# SPDX-License-Identifier: Apache-2.0
"""Uses a Checkpointer with the Trainer of transformers:

    trainer = Trainer(..., callbacks=[mr.torch.trainer.CheckpointCallback(checkpointer, loader)])
    trainer.train()

Use it with TrainingArguments(save_strategy="no", ignore_data_skip=True, max_steps=...).
"""

from __future__ import annotations

from typing import Any

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "millrace.torch.trainer needs transformers: pip install transformers", name="transformers"
    ) from None

import torch

from .checkpointer import Checkpointer
from .random_state import RandomState
from .state import PerRank


class CheckpointCallback(TrainerCallback):
    """Restores the newest checkpoint when training begins. Saves at the end of every `every`-th step and of the last
    step.

    The checkpoint has the model, the optimizer, the schedule, the gradient scaler of fp16, `loader`, and for each rank
    the random states of Python, NumPy, torch and all CUDA devices. A resume is therefore exact even with dropout.

    checkpointer: a Checkpointer over all ranks. The caller closes it.
    loader: the loader that `get_train_dataloader` returns, or any object with state_dict() and load_state_dict().
    every: the number of steps between saves; default: the Trainer's save_steps.

    Raises ValueError for a run whose last step is already saved. The Trainer's own saves are not changed:
    save_strategy="no" turns them off.
    """

    def __init__(self, checkpointer: Checkpointer, loader: Any = None, *, every: int = 0) -> None:
        self._checkpointer = checkpointer
        self._loader = loader
        self._every = every

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **have: Any
    ) -> None:
        step = self._restore(self._state(**have))
        if step is not None:
            state.global_step = step
            if 0 < args.max_steps <= step:  # the Trainer checks max_steps only after one more step
                raise ValueError(
                    f"step {step} of {args.max_steps} is saved: this run has ended. Before train(), look at "
                    "checkpointer.latest_step()"
                )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **have: Any) -> None:
        every = self._every or int(args.save_steps)
        if state.global_step % every == 0 or state.global_step == state.max_steps:
            self._checkpointer.save(state.global_step, self._state(**have))

    def _restore(self, stored: dict[str, Any]) -> int | None:
        try:
            return self._checkpointer.restore(stored)
        except ValueError:
            # Earlier builds stored only torch's random state, and no scaler.
            earlier = stored | {"rng": PerRank(torch.get_rng_state())}
            earlier.pop("scaler", None)
            try:
                step = self._checkpointer.restore(earlier)
            except ValueError:
                step = None
            if step is None:
                raise
            torch.set_rng_state(earlier["rng"].value)
            return step

    def _state(self, model: Any, optimizer: Any, lr_scheduler: Any, **_: Any) -> dict[str, Any]:
        scaler = getattr(optimizer, "scaler", None)  # Accelerate's optimizer has the scaler of fp16
        if scaler is not None and not scaler.is_enabled():
            scaler = None
        parts = {
            "model": model,
            "optim": optimizer,
            "schedule": lr_scheduler,
            "scaler": scaler,
            "loader": self._loader,
        }
        return {name: part for name, part in parts.items() if part is not None} | {"rng": PerRank(RandomState())}


__all__ = ["CheckpointCallback"]
