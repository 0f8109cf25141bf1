# SPDX-License-Identifier: Apache-2.0
"""The base of all sources that read rows of files."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from millrace._rows.objects import Objects, once_a_node
from millrace.sources import SampleSource

T = TypeVar("T")
_OPENED_AT_ONCE = 16


@dataclass(frozen=True)
class Settings:
    """The loader's settings for the files."""

    cache: str = ""  # the directory of the node's cache; empty: none
    cache_bytes: str = "0"
    kept_bytes: int = 256 << 20  # bytes of decoded data that are kept, because they may be requested again
    typed: frozenset[str] = frozenset()  # the columns whose values are converted to a dtype that the user named


class Files(SampleSource):
    """Rows of files. Opened files belong to this process."""

    def __init__(self, files: Sequence[str], columns: Sequence[str] | None = None) -> None:
        self._start(list(files), None if columns is None else list(columns), Settings())

    def _start(self, files: list[str], columns: list[str] | None, settings: Settings) -> None:
        self.files, self.columns, self.settings = files, columns, settings
        self.name = files[0] if len(files) == 1 else f"{files[0]} and others"
        self._forget()

    def __getstate__(self) -> tuple[list[str], list[str] | None, Settings]:
        return self.files, self.columns, self.settings

    def __setstate__(self, state: tuple[list[str], list[str] | None, Settings]) -> None:
        self._start(*state)

    def use(self, settings: Settings) -> None:
        """Sets the settings. REQUIRES: nothing was read yet."""
        self.settings = settings
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._shards: list[tuple[str, int]] | None = None
        self._content = ""
        self._types: dict[
            str, tuple[str, str]
        ] = {}  # the type of each column of numbers, and the first file that has it
        self.objects = Objects(self.settings.cache, self.settings.cache_bytes)
        self._reset()

    def _reset(self) -> None:
        """Forgets the opened files."""

    @abstractmethod
    def _open(self) -> tuple[list[tuple[str, int]], list[str]]:
        """Returns the shards, and texts that distinguish the content of the files from other content."""

    def shards(self) -> list[tuple[str, int]]:
        if self._process != os.getpid():
            self._forget()
        with self._lock:
            if self._shards is None:
                shards, content = self._open()
                names = [(name.rpartition("/")[2], samples) for name, samples in shards]
                text = json.dumps([type(self).__qualname__, names, content])
                self._content = hashlib.sha256(text.encode()).hexdigest()[:32]
                self._shards = shards
            return self._shards

    def identity(self) -> str:
        self.shards()
        return self._content

    def _each(self, look: Callable[[str], T]) -> list[T]:
        """Returns the result of `look` for each file, several at a time."""
        if len(self.files) == 1:
            return [look(self.files[0])]
        with ThreadPoolExecutor(min(_OPENED_AT_ONCE, len(self.files))) as pool:
            return list(pool.map(look, self.files))

    def _kept(self, kind: str, build: Callable[[], bytes]) -> bytes:
        """Returns the result of `build`, which describes the files. One process of the node builds it."""
        versions = self._each(self.objects.version)
        # Results for files without a version, and for files that only this process knows, are useless to other
        # processes.
        if any(version.endswith(" ") for version in versions) or any(name.startswith("mem:") for name in self.files):
            return build()
        names = [name if "://" in name else os.path.abspath(name) for name in self.files]
        return once_a_node(json.dumps([kind, names, versions]), build)

    def _check_columns(self, name: str, there: Iterable[str]) -> None:
        missing = set(self.columns or ()) - set(there)
        if missing:
            raise ValueError(
                f"{name}: there is no column {sorted(missing)[0]!r}; there are {', '.join(map(str, there))}"
            )

    def _check_types(self, name: str, types: Mapping[str, str]) -> None:
        """Refuses a column of numbers that has another type than in the files before: the type of a batch would depend
        on the rows in it."""
        with self._lock:
            for column in set(types if self.columns is None else self.columns) & types.keys() - self.settings.typed:
                known, first = self._types.setdefault(column, (types[column], name))
                if known != types[column]:
                    raise ValueError(
                        f"{name}: column {column!r} is {types[column]}, and {known} in {first}: name its type with "
                        "mr.number(dtype) or mr.array(dtype=...)"
                    )
