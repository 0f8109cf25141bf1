# SPDX-License-Identifier: Apache-2.0
"""The random state of a process: what dropout, shuffles and augmentation draw from."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


class RandomState:
    """Of Python, NumPy, torch's CPU generator and those of all CUDA devices. Each rank has its own: PerRank(RandomState())."""

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
        """The states of devices that are not there are left out, and devices without one keep theirs."""
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.is_available():
            for device, each in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(each, device)
