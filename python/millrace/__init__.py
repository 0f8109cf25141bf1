# SPDX-License-Identifier: Apache-2.0
"""Millrace: the I/O engine for training. It turns raw text into shards and shards into batches, and saves and restores
checkpoints.

`millrace.torch` (tensors, checkpoints of torch state) loads on first use. No other module here needs torch.
`millrace.chat` (conversations as ids and masks) also loads on first use, and imports jinja2 when a template is first
rendered. `millrace.lerobot`, `millrace.link` and `millrace.fsspec` load on first use too. The last one needs the
package fsspec.
"""

import atexit as _atexit
import importlib as _importlib
import logging as _logging
import sys as _sys
import typing as _typing

from millrace import _core, results
from millrace._arguments import plain as _plain
from millrace._arguments import plain_methods as _plain_methods
from millrace._core import (
    Cancelled,
    CorruptionError,
    Tokenizer,
    __version__,
    cp,
    finish,
    ls,
    metric_table,
    metrics,
    mv,
    prepare,
    rm,
    split,
    stage,
    sync,
    verify,
)
from millrace.io import open
from millrace.run import Run

if _typing.TYPE_CHECKING:
    from millrace import chat, episodes, fsspec, lerobot, link, safetensors, slurm, torch, video
    from millrace.dataset import Dataset
    from millrace.fields import Field, array, blob, image, integer, json, msgpack, npz, raw, text, tokens
    from millrace.loader import Batch, Loader, Source
    from millrace.samples import SampleLoader
    from millrace.sources import SampleSource
    from millrace.webdataset import WebDataset
else:  # type checkers get these signatures from _core.pyi
    cp, finish, ls, mv, prepare, rm, split, stage, sync, verify = map(
        _plain, (cp, finish, ls, mv, prepare, rm, split, stage, sync, verify)
    )
    _plain_methods(Tokenizer, ("from_file", "encode_batch", "encode_with_offsets", "decode"))

__all__ = [
    "EXIT_REQUEUE",
    "Batch",
    "Cancelled",
    "CorruptionError",
    "Dataset",
    "Field",
    "Loader",
    "Run",
    "SampleLoader",
    "SampleSource",
    "Source",
    "Tokenizer",
    "WebDataset",
    "__version__",
    "array",
    "blob",
    "chat",
    "cp",
    "episodes",
    "finish",
    "fsspec",
    "image",
    "integer",
    "json",
    "lerobot",
    "link",
    "ls",
    "metric_table",
    "metrics",
    "msgpack",
    "mv",
    "npz",
    "number",
    "open",
    "prepare",
    "raw",
    "results",
    "rm",
    "safetensors",
    "slurm",
    "split",
    "stage",
    "sync",
    "text",
    "tokens",
    "torch",
    "verify",
    "video",
]

#: The exit status of a job that has saved its state and requests to be run again.
EXIT_REQUEUE = 75

_logger = _logging.getLogger("millrace")
_core.set_log(lambda level, text: _logger.log(getattr(_logging, level.upper()), text))


@_atexit.register
def _close_loaders() -> None:
    # Joins threads while the interpreter is intact. Silently ends a daemon thread that still iterates: the traceback of
    # an exception that is written while Python ends may abort the process.
    _core.python_ends()
    loader = _sys.modules.get("millrace.loader")
    for each in list(loader.open_loaders) if loader else ():
        each.close()
    _core.set_log(None)


# Names that need NumPy or other packages load on first use. A process that copies files or prepares text then starts in
# half the time.
_MODULE_OF = {
    "Dataset": "dataset",
    **dict.fromkeys(
        ("Field", "array", "blob", "image", "integer", "json", "msgpack", "npz", "number", "raw", "text", "tokens"),
        "fields",
    ),
    **dict.fromkeys(("Batch", "Loader", "Source"), "loader"),
    "SampleLoader": "samples",
    "SampleSource": "sources",
    "WebDataset": "webdataset",
}
_MODULES = {"chat", "episodes", "fsspec", "lerobot", "link", "safetensors", "slurm", "torch", "video"}


def __getattr__(name: str):
    if name in _MODULE_OF:
        value = getattr(_importlib.import_module(f"millrace.{_MODULE_OF[name]}"), name)
        return globals().setdefault(name, value)
    if name in _MODULES or name in _MODULE_OF.values():
        return _importlib.import_module(f"millrace.{name}")
    raise AttributeError(f"module 'millrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
