# SPDX-License-Identifier: Apache-2.0
"""A training that saves every few steps ends with the bits of one that never saves, and each step holds the bits of its
moment, though training goes on while it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from checkpoint_helpers import bits  # noqa: E402

import millrace as mr  # noqa: E402

STEPS = 12


class Training:
    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(16, 8),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(8, 24),
            torch.nn.BatchNorm1d(24),
            torch.nn.Linear(24, 16),
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, amsgrad=True)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)  # changed in place, outside of the optimizer

    def step(self) -> None:
        ids = torch.randint(16, (8,))
        torch.nn.functional.cross_entropy(self.model(ids), ids).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        self.average.update_parameters(self.model)

    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optim": self.optimizer, "schedule": self.schedule, "average": self.average}

    def bits(self) -> Any:
        return bits({name: part.state_dict() for name, part in self.state().items()})


@pytest.mark.parametrize("how", ["plain", "tiers", "through little memory", "reserved"])
def test_a_training_with_saves_ends_with_the_same_bits(tmp_path: Path, how: str):
    without = Training()
    for _ in range(STEPS):
        without.step()

    training = Training()
    options: dict[str, Any] = {
        "plain": {},
        "tiers": {"tiers": [tmp_path / "near", tmp_path / "middle"]},
        "through little memory": {"memory_bytes": 1 << 14},
        "reserved": {"reserve": 1 << 20},
    }[how]
    moments = {}
    with mr.torch.Checkpointer(tmp_path / "far", **options) as checkpointer:
        for step in range(1, STEPS + 1):
            training.step()
            if step % 2 == 0:
                moments[step] = training.bits()
                checkpointer.save(step, training.state())  # not waited for
    assert training.bits() == without.bits()

    with mr.torch.Checkpointer(tmp_path / "far") as checkpointer:
        assert checkpointer.steps() == list(moments)
        for step, moment in moments.items():
            torch.manual_seed(99)
            into = Training()
            assert checkpointer.restore(into.state(), step=step) == step
            assert into.bits() == moment, f"step {step} is not what it was"
