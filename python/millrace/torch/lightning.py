# SPDX-License-Identifier: Apache-2.0
"""Saves the checkpoints of Lightning's Trainer and Fabric in Millrace's format: hashed, atomic, without pickle, in the
background.

    trainer = lightning.Trainer(plugins=[mr.torch.lightning.CheckpointIO()], ...)            # one device, DDP
    trainer = lightning.Trainer(strategy=mr.torch.lightning.ModelParallelStrategy(), ...)   # FSDP2, tensor parallel

CheckpointIO works with strategies that write whole checkpoints from rank 0. With ModelParallelStrategy, each rank
writes its own shards. There is no strategy for FSDP1: FSDPStrategy below says what to use.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

try:
    from lightning.fabric.plugins import CheckpointIO as _Base
    from lightning.pytorch.strategies import ModelParallelStrategy as _ModelParallel
except ModuleNotFoundError:
    try:
        from lightning_fabric.plugins import CheckpointIO as _Base  # type: ignore[no-redef]
        from pytorch_lightning.strategies import ModelParallelStrategy as _ModelParallel  # type: ignore[no-redef]
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "millrace.torch.lightning needs Lightning: pip install lightning", name="lightning"
        ) from None

from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import millrace
from millrace import _core

from .checkpointer import Checkpointer, Save

_ENTRY = "checkpoint"


class CheckpointIO(_Base):
    """A plug-in for `Trainer(plugins=[...])` and `Fabric(plugins=[...])`. Each path that Lightning names becomes a folder
    with one checkpoint, which `millrace ckpt show PATH` reads.

    options: arguments of Checkpointer, such as threads and memory_bytes.

    save_checkpoint() copies the state and returns. The next call of any method, and teardown(), wait for the writing
    and raise its error. An older checkpoint is therefore removed only when the new one is durable. Values that are not
    plain data (an object among the hyper-parameters) raise TypeError naming their path.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self._running: tuple[Checkpointer, Save] | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        if storage_options is not None:
            raise TypeError("storage_options: millrace.torch.lightning.CheckpointIO takes its options when it is made")
        self._finish()
        place = os.fspath(path)
        # The number is larger than that of all existing steps: Lightning overwrites last.ckpt, perhaps with an earlier
        # step.
        step = max(int(checkpoint.get("global_step", 0)), max(_core.list_step_numbers(place), default=-1) + 1)
        checkpointer = Checkpointer(place, rank=0, world_size=1, keep_last=1, new_run=True, **self._options)
        self._running = (checkpointer, checkpointer.save(step, {_ENTRY: checkpoint}))

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Returns the saved dict, with its tensors on the CPU. Lightning moves them. No pickle is read, whatever
        `weights_only` is."""
        self._finish()
        place = os.fspath(path)
        if "://" not in place and Path(place).is_file():
            raise ValueError(f"{place} is a file, not a checkpoint of Millrace: load it without this plug-in once")
        loaded: dict[str, Any] = {}
        with Checkpointer(place, rank=0, world_size=1) as checkpointer:
            if checkpointer.restore({_ENTRY: loaded}) is None:
                raise FileNotFoundError(errno.ENOENT, "no checkpoint there", place)
        return loaded

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        self._finish()
        _remove(os.fspath(path))

    def teardown(self) -> None:
        self._finish()

    def _finish(self) -> None:
        """Waits for the save in progress."""
        running, self._running = self._running, None
        if running is not None:
            running[0].close()


def _remove(place: str) -> None:
    if "://" in place:
        millrace.rm(place, recursive=True)
    elif Path(place).exists():
        shutil.rmtree(place)


class ModelParallelStrategy(_ModelParallel):
    """Lightning's strategy for FSDP2 and tensor parallelism, with Millrace's checkpoints: each rank writes its shards
    in the background, and any number of ranks can load them. The path becomes a folder that `millrace ckpt show PATH`
    reads.

    checkpoint_options: arguments of Checkpointer, such as threads, memory_bytes and commit_timeout.

    Everything else is as in Lightning.
    """

    _entries = ("state_dict", "optimizer_states")  # the sharded entries; rank 0 writes the rest

    def __init__(self, *arguments: Any, checkpoint_options: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._checkpoint_options = checkpoint_options or {}
        self._running: tuple[Checkpointer, Save] | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        if storage_options is not None:
            raise TypeError("storage_options: a strategy of Millrace takes checkpoint_options when it is made")
        self._finish()
        place = self._agree(filepath)
        newest = self.broadcast(max(_core.list_step_numbers(place), default=-1) if self._is_first() else None)
        step = max(int(checkpoint.get("global_step", 0)), newest + 1)
        checkpointer = Checkpointer(place, keep_last=1, new_run=True, **self._checkpoint_options)
        state = {name: checkpoint.pop(name) for name in self._entries if name in checkpoint}
        self._running = (checkpointer, checkpointer.save(step, {**state, "rest": checkpoint}))

    def load_checkpoint(
        self, checkpoint_path: str | os.PathLike[str], weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads the model in place and, when fitting, also the optimizers, and returns the rest. No pickle is read."""
        self._finish()
        place = self._agree(checkpoint_path)
        model, optimizers = self.model, list(self.optimizers)
        state: dict[str, Any] = {"state_dict": get_model_state_dict(model), "rest": {}}
        if optimizers and self.lightning_module.trainer.state.fn == "fit":
            state["optimizer_states"] = [get_optimizer_state_dict(model, each) for each in optimizers]
        strict = bool(self.lightning_module.strict_loading)
        with Checkpointer(place) as checkpointer:
            if checkpointer.restore(state, only=tuple(state), strict=strict) is None:
                raise FileNotFoundError(errno.ENOENT, "no checkpoint of Millrace there", place)
        set_model_state_dict(model, state["state_dict"], options=StateDictOptions(strict=strict))
        for optimizer, values in zip(optimizers, state.get("optimizer_states", []), strict=False):
            set_optimizer_state_dict(model, optimizer, values)
        rest: dict[str, Any] = state["rest"]
        return rest

    def remove_checkpoint(self, filepath: str | os.PathLike[str]) -> None:
        self._finish()
        if self._is_first():
            _remove(os.fspath(filepath))

    def teardown(self) -> None:
        self._finish()
        super().teardown()

    def _is_first(self) -> bool:
        return int(self.global_rank) == 0

    def _agree(self, path: str | os.PathLike[str]) -> str:
        return os.fspath(self.broadcast(path))

    def _finish(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running[0].close()


class FSDPStrategy:
    """Raises NotImplementedError: Millrace has no strategy for FSDP1 (FullyShardedDataParallel). CheckpointIO does not
    help: Lightning's own FSDPStrategy bypasses the plug-in when it loads checkpoints, so a run would save checkpoints
    that it cannot resume from."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError(
            "Millrace has no Lightning strategy for FSDP1 (FullyShardedDataParallel): use "
            "mr.torch.lightning.ModelParallelStrategy, which is FSDP2, and shard in configure_model() with "
            "torch.distributed.fsdp.fully_shard(module, mesh=self.device_mesh['data_parallel']); or keep Lightning's "
            "FSDPStrategy(state_dict_type='sharded') with its own checkpoints and read them with `millrace ckpt import "
            "--from dcp`"
        )


__all__ = ["CheckpointIO", "FSDPStrategy", "ModelParallelStrategy"]
