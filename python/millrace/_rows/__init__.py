# SPDX-License-Identifier: Apache-2.0
"""Reads rows of files that are not tars: JSON lines, Parquet, Arrow, .npy and .npz, MDS. This module chooses the reader
for the user's paths."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from millrace import _core
from millrace._rows.arrays import Arrays
from millrace._rows.base import Files, Settings
from millrace._rows.jsonl import JsonLines
from millrace._rows.mds import Mds
from millrace._rows.tables import Arrow, Parquet
from millrace.io import open as open_file
from millrace.sources import SampleSource

__all__ = ["Files", "Settings", "resolve_source"]

_ENDINGS: dict[str, type[Files]] = {
    ".jsonl": JsonLines, ".ndjson": JsonLines, ".parquet": Parquet, ".arrow": Arrow, ".feather": Arrow,
    ".npy": Arrays, ".npz": Arrays,
}  # fmt: skip


def _dataset_files(folder: str) -> list[str] | None:
    """Returns the Arrow files of a folder that the package datasets wrote; None: it is not such a folder. Raises
    ValueError."""
    if os.path.exists(os.path.join(folder, "dataset_dict.json")):
        with open(os.path.join(folder, "dataset_dict.json")) as file:
            splits = json.load(file).get("splits", [])
        raise ValueError(
            f"{folder}: holds the splits {', '.join(splits)}; name one: {folder}/{(splits or ['train'])[0]}"
        )
    state = os.path.join(folder, "state.json")
    if os.path.exists(state):
        with open(state) as file:
            facts = json.load(file)
        if facts.get("_indices_data_files") or facts.get("_indices_files"):
            raise ValueError(f"{folder}: its rows are in another order than its files; save it after flatten_indices()")
        return [os.path.join(folder, entry["filename"]) for entry in facts["_data_files"]]
    if os.path.exists(os.path.join(folder, "dataset_info.json")):  # a folder of the cache of the package datasets
        found = sorted(name for name in os.listdir(folder) if name.endswith(".arrow") and not name.startswith("cache-"))
        return [os.path.join(folder, name) for name in found] or None
    return None


def _is_mds(folder: str) -> bool:
    """Returns whether MosaicML Streaming wrote the folder."""
    if folder.endswith((".tar", ".bin")) or any(mark in folder for mark in "*?[{"):
        return False
    if "://" not in folder and not os.path.isdir(folder):
        return False
    try:
        with open_file(f"{folder.rstrip('/')}/index.json", "rb") as file:
            return isinstance(json.loads(file.read()).get("shards"), list)
    except (OSError, ValueError, AttributeError):
        return False


def row_source(paths: Sequence[str], columns: Sequence[str] | None) -> SampleSource | None:
    """Returns the source that reads these paths if they are rows; None: they are tars. Raises ValueError (several
    kinds)."""
    kinds: dict[type[Files] | None, list[str]] = {}
    for path in paths:
        kind = next((kind for ending, kind in _ENDINGS.items() if path.lower().endswith(ending)), None)
        files = None if kind or "://" in path or not os.path.isdir(path) else _dataset_files(path)
        if files is not None:
            kinds.setdefault(Arrow, []).extend(files)
        elif kind is None and _is_mds(path):
            kinds.setdefault(Mds, []).append(path)
        elif kind is not None:
            kinds.setdefault(kind, []).extend(_core.find_files([path]))
        else:
            kinds.setdefault(None, []).append(path)
    if len(kinds) > 1:
        raise ValueError("files of several kinds: give each kind an mr.Source of its own")
    ((kind, files),) = kinds.items() or ((None, []),)
    return None if kind is None else kind(files or [], columns)


def resolve_source(shards: Any, columns: Sequence[str] | None) -> SampleSource | None:
    """Returns the source for the user's argument: a path, several paths, or a SampleSource; None: tars."""
    if isinstance(shards, SampleSource):
        return shards
    listed = [shards] if isinstance(shards, (str, os.PathLike)) else list(shards)
    if not all(isinstance(path, (str, os.PathLike)) for path in listed):
        raise TypeError("SampleLoader: shards are paths, or one SampleSource")
    return row_source([os.fspath(path) for path in listed], columns)
