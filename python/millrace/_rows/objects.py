# SPDX-License-Identifier: Apache-2.0
"""Opens the files that rows come from: each file once, in one version, through the node's cache if there is one. Keeps
results about the files for all processes of the node."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from millrace import _core
from millrace.io import ObjectFile

T = TypeVar("T")
_MOST_OPEN = 64
_LONGEST_WAIT = 600.0  # seconds that a process waits for the work of another process


class Recent(OrderedDict[Any, tuple[T, int]]):
    """The values that were used last, up to a number of bytes, but at least one value. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()

    def recall(self, key: Any) -> T | None:
        with self._lock:
            if key not in self:
                return None
            self.move_to_end(key)
            return self[key][0]

    def keep(self, key: Any, value: T, size: int) -> None:
        with self._lock:
            if key in self:
                return
            self[key] = (value, size)
            self._bytes += size
            while self._bytes > self._most and len(self) > 1:
                self._bytes -= self.popitem(last=False)[1][1]


class Objects:
    """Open objects by name. Raises CorruptionError if an object has another version when it is opened again.
    Thread-safe. Belongs to one process."""

    def __init__(self, cache: str = "", cache_bytes: str = "0") -> None:
        self._cache = (cache, cache_bytes)
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _core.ObjectReader] = OrderedDict()
        self._versions: dict[str, str] = {}

    def reader(self, name: str) -> _core.ObjectReader:
        with self._lock:
            if name in self._open:
                self._open.move_to_end(name)
                return self._open[name]
        opened = _core.ObjectReader(name, *self._cache)
        version = f"{opened.size} {opened.version}"
        with self._lock:
            if self._versions.setdefault(name, version) != version:
                raise _core.CorruptionError(f"{name}: it was replaced while it was being read")
            self._open[name] = opened
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        return opened

    def version(self, name: str) -> str:
        """Returns size and version. A text that ends in a blank does not identify the content."""
        self.reader(name)
        with self._lock:
            return self._versions[name]

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Reads bytes [begin, end). Raises CorruptionError if the object ends before `end`."""
        data = self.reader(name).read(begin, end - begin)
        if len(data) != end - begin:
            raise _core.CorruptionError(f"{name}: it ends at byte {begin + len(data)}, where {end} are needed")
        return data

    def file(self, name: str) -> ObjectFile:
        """Returns a file object with its own position."""
        return ObjectFile(name, reader=self.reader(name))


def fingerprint(reader: _core.ObjectReader) -> str:
    """Returns a hash of the size, both ends and fourteen places between them. It distinguishes files that cannot be
    read whole."""
    size = reader.size
    pieces = [(0, min(size, 64 << 10)), (max(0, size - (64 << 10)), min(size, 64 << 10))]
    pieces += [(size * part // 15, min(4096, size - size * part // 15)) for part in range(1, 15)]
    digest = hashlib.sha256(str(size).encode())
    for piece in reader.read_ranges([at for at, _ in pieces], [count for _, count in pieces]):
        digest.update(piece)
    return digest.hexdigest()


def _stored(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    # A damaged result is made again.
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def once_a_node(key: str, build: Callable[[], bytes]) -> bytes:
    """Returns the result of `build`. Of this user's processes on this node that use the same key, one calls `build`.
    The others wait and read its result. The key names the versions of everything that the result depends on."""
    folder = _core.user_folder()
    if folder is None:
        return build()
    path = os.path.join(folder, hashlib.sha256(key.encode()).hexdigest()[:32] + ".rows")
    found = _stored(path)
    if found is not None:
        return found
    try:
        lock = open(path + ".lock", "ab")  # noqa: SIM115
    except OSError:
        return build()
    with lock:
        until = time.monotonic() + _LONGEST_WAIT
        while time.monotonic() < until:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.02)
        found = _stored(path)  # another process may have been first
        if found is not None:
            return found
        data = build()
        try:
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                file.write(hashlib.sha256(data).digest() + data)
            os.replace(file.name, path)
            os.unlink(path + ".lock")
        except OSError:
            pass  # if the disk is full, the next process makes it again
        return data
