# SPDX-License-Identifier: Apache-2.0
"""CheckpointCallback without the Trainer, which needs Accelerate (tests/frameworks runs the real one): its events in
their order, over a model whose steps draw from every generator."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from millrace.torch.random_state import RandomState  # noqa: E402

import millrace as mr  # noqa: E402


class Run:
    """A training: dropout, noise of NumPy, and Python's choice of a row."""

    def __init__(self, folder: Path, *, seed: int, scaler: Any = None) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        if scaler is not None:
            self.optimizer.scaler = scaler  # as AcceleratedOptimizer has it
        for seeded in (random.seed, np.random.seed, torch.manual_seed):
            seeded(seed)
        self.checkpointer = mr.torch.Checkpointer(folder)
        self.callback = mr.torch.trainer.CheckpointCallback(self.checkpointer, every=4)
        self.state = SimpleNamespace(global_step=0, max_steps=100)
        self.have = {"model": self.model, "optimizer": self.optimizer, "lr_scheduler": None}
        self.args = SimpleNamespace(max_steps=100, save_steps=100)

    def train(self, until: int) -> list[Any]:
        self.callback.on_train_begin(self.args, self.state, None, **self.have)
        rows = torch.arange(64.0).reshape(8, 8) / 64
        while self.state.global_step < until:
            noise = torch.from_numpy(np.random.normal(size=8)).float()
            loss = self.model(rows[random.randrange(8)] + noise).square().sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.state.global_step += 1
            self.callback.on_step_end(self.args, self.state, None, **self.have)
        self.checkpointer.close()
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def test_a_resume_with_dropout_is_exact(tmp_path: Path):
    whole = Run(tmp_path / "whole", seed=1).train(8)
    Run(tmp_path / "cut", seed=1).train(6)  # saved at 4
    resumed = Run(tmp_path / "cut", seed=99).train(8)
    for one, other in zip(whole, resumed, strict=True):
        assert torch.equal(one, other)


def test_the_scaler_of_fp16_goes_on(tmp_path: Path):
    saved = torch.amp.GradScaler("cpu", init_scale=1024.0)
    saved.scale(torch.ones(()))
    saved.update(2.0**13)
    Run(tmp_path, seed=1, scaler=saved).train(4)
    fresh = torch.amp.GradScaler("cpu")
    Run(tmp_path, seed=1, scaler=fresh).train(5)
    assert fresh.state_dict() == saved.state_dict() and fresh.get_scale() == 2.0**13


def test_a_scaler_that_is_off_is_not_stored(tmp_path: Path):
    Run(tmp_path, seed=1, scaler=torch.amp.GradScaler("cpu", enabled=False)).train(4)
    Run(tmp_path, seed=1).train(5)


class FakeCuda:
    """Generators of so many devices, in place of torch.cuda's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, devices: int) -> None:
        self.states = [torch.full((16,), device + 1, dtype=torch.uint8) for device in range(devices)]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.states))
        monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [state.clone() for state in self.states])
        monkeypatch.setattr(torch.cuda, "set_rng_state", self.set)

    def set(self, state: Any, device: int) -> None:
        self.states[device] = state


@pytest.mark.parametrize("devices", [0, 1, 2, 3])
def test_the_generators_of_all_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: int):
    """Saved with two devices; with fewer or more those that both have are set."""
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        with monkeypatch.context() as patch:
            FakeCuda(patch, 2)
            checkpointer.save(1, {"rng": mr.torch.PerRank(RandomState())}).wait()
        cuda = FakeCuda(monkeypatch, devices)
        cuda.states = [torch.zeros(16, dtype=torch.uint8) for _ in range(devices)]
        assert checkpointer.restore({"rng": mr.torch.PerRank(RandomState())}) == 1
    assert [int(each[0]) for each in cuda.states] == [1, 2, 0][:devices]


def test_a_checkpoint_of_an_earlier_build(tmp_path: Path):
    """It has torch's random state alone, and no scaler."""
    run = Run(tmp_path, seed=1)
    torch.manual_seed(5)
    run.checkpointer.save(
        4, {"model": run.model, "optim": run.optimizer, "rng": mr.torch.PerRank(torch.get_rng_state())}
    )
    run.checkpointer.close()
    drawn = torch.rand(3)
    run = Run(tmp_path, seed=2, scaler=torch.amp.GradScaler("cpu"))
    run.callback.on_train_begin(run.args, run.state, None, **run.have)
    run.checkpointer.close()
    assert run.state.global_step == 4 and torch.equal(torch.rand(3), drawn)


def test_a_state_that_does_not_fit_is_said(tmp_path: Path):
    Run(tmp_path, seed=1).train(4)
    run = Run(tmp_path, seed=1)
    run.have["model"] = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"model\.weight"):
        run.callback.on_train_begin(run.args, run.state, None, **run.have)
    run.checkpointer.close()
