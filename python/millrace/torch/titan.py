# SPDX-License-Identifier: Apache-2.0
"""Millrace's loader and checkpoints as components of torchtitan (0.3). They are set in the Config of its Trainer:

config.dataloader = mr.torch.titan.Loader.Config(dataset_path="s3://bucket/shards")
config.checkpoint = mr.torch.titan.CheckpointManager.Config(enable=True, folder="s3://bucket/run", interval=500)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

try:
    from torchtitan.components.checkpointer import (
        DATALOADER,
        LR_SCHEDULER,
        MODEL,
        OPTIMIZER,
        BaseCheckpointManager,
        ModelWrapper,
    )
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.config import TORCH_DTYPE_MAP
    from torchtitan.tools import filesystem
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith("torchtitan"):
        raise
    raise ModuleNotFoundError(
        "millrace.torch.titan needs torchtitan 0.3: pip install torchtitan", name="torchtitan"
    ) from None

import torch

from .checkpointer import Checkpointer
from .loader import Loader as TensorLoader
from .state import PerRank


class Loader(BaseDataLoader):
    """Batches of millrace.torch.Loader in torchtitan's form: {"input": ids, "positions": ...} and the labels, which are
    the next tokens. At the end of a document the label is -100: no token is to be predicted.

    The state is the same on all ranks and loads on any number of ranks.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """dataset_path: a folder or URL of shards."""

        collate: Literal["pad", "pack", "best_fit"] = "pack"
        shuffle: bool = True
        seed: int = 0
        epochs: int | None = None
        """None: endless."""
        pad_id: int = 0
        num_threads: int = 0
        cache: str | None = None
        """A folder of the node for blocks of remote shards."""
        cache_bytes: int | str = 0

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> None:
        if config.dataset_path is None:
            raise ValueError("dataloader.dataset_path: a folder or URL of shards")
        self._loader = TensorLoader(
            config.dataset_path,
            seq_len=seq_len + 1,  # a row and the token after it
            batch_size=local_batch_size,
            rank=dp_rank,
            world_size=dp_world_size,
            collate=config.collate,
            shuffle=config.shuffle,
            seed=config.seed,
            epochs=config.epochs,
            pad_id=config.pad_id,
            num_threads=config.num_threads,
            cache=config.cache,
            cache_bytes=config.cache_bytes,
        )

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self._loader:
            inputs = {"input": batch["input_ids"][:, :-1]}
            if "position_ids" in batch:
                inputs["positions"] = batch["position_ids"][:, :-1]
            yield inputs, batch["labels"][:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loader.load_state_dict(state_dict)

    def close(self) -> None:
        self._loader.close()


class CheckpointManager(BaseCheckpointManager):
    """Saves torchtitan's checkpoints in Millrace's format: hashed, atomic, without pickle, and written while training
    continues. They can be on paths and s3://, and in tiers, and load with any layout and number of ranks.

    A loader other than Millrace's may have a different state on each rank. Such a state is restored only on the rank
    with the same number.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseCheckpointManager.Config):
        """The fields of torchtitan, with these differences: initial_load_path is a folder of Millrace's checkpoints
        (`millrace ckpt import` makes one from a Hugging Face folder or DCP). `millrace ckpt export` writes Hugging Face
        files."""

        keep_every: int = 0
        """Steps that it divides stay, beside the newest `keep_latest_k`."""
        tiers: list[str] = field(default_factory=list)
        """Folders nearer than `folder`, nearest first."""
        threads: int = 0

    def __init__(
        self,
        config: Config,
        *,
        dataloader: BaseDataLoader | None,
        model_parts: list[torch.nn.Module],
        optimizers: Any,
        lr_schedulers: Any,
        states: dict[str, Any],
        sd_adapter: Any = None,
        base_folder: str = "",
    ) -> None:
        self.enable = config.enable
        if not self.enable:
            return
        if config.initial_load_in_hf or config.last_save_in_hf:
            raise ValueError(
                "checkpoint: Hugging Face files come in by `millrace ckpt import` and go out by `millrace ckpt export`, "
                "not by initial_load_in_hf and last_save_in_hf"
            )
        self.save_future = None
        self.states = states
        self.states.update(
            {
                MODEL: ModelWrapper(model_parts),
                OPTIMIZER: optimizers,
                LR_SCHEDULER: lr_schedulers,
                DATALOADER: dataloader,
            }
        )
        self._config = config
        self._checkpointer = Checkpointer(
            filesystem.join(base_folder, config.folder),
            keep_last=config.keep_latest_k,
            keep_every=config.keep_every,
            tiers=config.tiers,
            threads=config.threads,
        )

    def _load(self, step: int = -1) -> bool:
        config = self._config
        wanted = None if step == -1 else step
        if wanted is None:
            wanted = self._checkpointer.latest_step()
        if wanted is not None:
            # Step 0 is a seed checkpoint, from which torchtitan takes only the model.
            self._restore(self._checkpointer, wanted, model_only=wanted == 0)
            return True
        if not config.initial_load_path:
            return False
        with Checkpointer(config.initial_load_path) as source:
            newest = source.latest_step()
            if newest is None:
                raise FileNotFoundError(
                    f"{config.initial_load_path}: no checkpoint of Millrace there; `millrace ckpt import` makes one from "
                    "Hugging Face files or DCP"
                )
            self._restore(source, newest, model_only=config.initial_load_model_only)
        return True

    def _restore(self, source: Checkpointer, step: int, model_only: bool) -> None:
        for key in self._config.exclude_from_loading:
            if key not in self.states:
                raise ValueError(f"checkpoint.exclude_from_loading: there is no '{key}'")
        state = self._state(model_only)
        only = [key for key in state if key not in self._config.exclude_from_loading]
        source.restore(state, step, only=only)
        for key in only:
            value = state[key]
            self.states[key].load_state_dict(value.value if isinstance(value, PerRank) else value)

    def _state(self, model_only: bool = False) -> dict[str, Any]:
        """Returns the data to save, as plain dicts with the live tensors, so that a restore fills these."""
        state = {}
        for key, value in self.states.items():
            if value is None or (model_only and key != MODEL):
                continue
            now = value.state_dict()
            state[key] = PerRank(now) if key == DATALOADER and not isinstance(value, Loader) else now
        return state

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        config = self._config
        due = last_step or curr_step % config.interval == 0 or (curr_step == 1 and config.enable_first_step_checkpoint)
        if config.load_only or not due:
            return False
        model_only = last_step and config.last_save_model_only
        state = self._state(model_only)
        if model_only:
            dtype = TORCH_DTYPE_MAP[config.export_dtype]
            state[MODEL] = {name: _cast(value, dtype) for name, value in state[MODEL].items()}
        save = self._checkpointer.save(curr_step, state)
        if last_step:
            save.wait()
        return True

    def _wait_for_saving(self) -> None:
        """Does nothing: save_future stays None. The errors of a save are raised by the next save and by close()."""

    def _maybe_wait_for_staging(self) -> None:
        """Does nothing: the copy is complete when save() returns, so the optimizer may step."""

    def _close(self) -> None:
        checkpointer = self.__dict__.pop("_checkpointer", None)
        if checkpointer is not None:
            checkpointer.close()


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


__all__ = ["CheckpointManager", "Loader"]
