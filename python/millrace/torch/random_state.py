# SPDX-License-Identifier: Apache-2.0
"""Saves and restores the random state of a process, which dropout, shuffles and augmentation use."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


class RandomState:
    """The random state of Python, NumPy, torch's CPU generator and the generators of all CUDA devices. Each rank has
    its own: PerRank(RandomState())."""

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
        }
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the random state. Ignores the states of missing devices. Devices without a saved state keep their
        current state."""
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.is_available():
            for device, each in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(each, device)
