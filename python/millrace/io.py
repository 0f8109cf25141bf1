# SPDX-License-Identifier: Apache-2.0
"""Opens objects as Python files. `millrace.open` is the name to use."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Literal, overload

from millrace import _core

#: Bytes that a BufferedReader reads at once. Readers of remote objects fetch ahead while reads are sequential.
BUFFER_BYTES = 256 << 10


class ObjectFile(io.RawIOBase):
    """An object of any storage as a read-only, seekable file. It is pinned to the version that was opened: if the
    object changes, a read raises `millrace.CorruptionError` instead of mixing two contents. A pickle has the URL and
    the position, not the content."""

    def __init__(self, url: str, *, reader: _core.ObjectReader | None = None):
        """Opens the object. reader: a reader of this object that is already open. The file has its own position."""
        super().__init__()
        self._reader = _core.ObjectReader(url) if reader is None else reader
        self._position = 0
        self.name = url

    @property
    def size(self) -> int:
        return self._reader.size

    @property
    def version(self) -> str:
        """The storage's version of this content. Equal versions of one name mean equal bytes."""
        return self._reader.version

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def readable(self) -> bool:
        self._check()
        return True

    def seekable(self) -> bool:
        self._check()
        return True

    def tell(self) -> int:
        self._check()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check()
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"invalid whence: {whence}")
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._reader.size}[whence]
        if start + offset < 0:
            raise ValueError(f"negative seek position {start + offset}")
        self._position = start + offset
        return self._position

    def readinto(self, buffer) -> int:
        self._check()
        view = memoryview(buffer).cast("B")
        count = self._reader.read_into(self._position, view) if len(view) else 0
        self._position += count
        return count

    def read(self, size: int | None = -1) -> bytes:
        self._check()
        content = self._reader.read(self._position, self._reader.size if size is None or size < 0 else size)
        self._position += len(content)
        return content

    def readall(self) -> bytes:
        return self.read()

    def read_ranges(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Reads many ranges at once and returns after the last one. For random reads, this takes a fraction of the time
        of a `seek` and a `read` per range. The position does not change. Threads may share the file.

        Args:
            offsets, sizes: in bytes; each range must be inside the object.
        Returns: the content of each range, in the order of the ranges.
        Raises: ValueError (a range outside the object), millrace.CorruptionError (the object changed), ConnectionError.
        """
        self._check()
        return self._reader.read_ranges(offsets, sizes)

    def __reduce__(self):
        return (_reopened, (self.name, None if self.closed else self._position))


def _reopened(url: str, position: int | None) -> ObjectFile:
    file = ObjectFile(url)
    if position is None:
        file.close()
    else:
        file.seek(position)
    return file


@overload
def open(url: str | os.PathLike[str], mode: Literal["rb"] = ..., *, buffering: Literal[0]) -> ObjectFile: ...  # type: ignore[overload-overlap]
@overload
def open(url: str | os.PathLike[str], mode: Literal["rb"] = ..., *, buffering: int = ...) -> io.BufferedReader: ...
@overload
def open(
    url: str | os.PathLike[str], mode: Literal["r", "rt"], *, buffering: int = ..., encoding: str = ...
) -> io.TextIOWrapper: ...
def open(url: str | os.PathLike[str], mode: str = "rb", *, buffering: int = BUFFER_BYTES, encoding: str = "utf-8"):
    """Opens an object for reading: a seekable file object with read-ahead.

    Args:
        url: a path or URL.
        mode: "rb", or "r" for text.
        buffering: bytes of the buffer; 0: none ("rb" only; returns an ObjectFile).
        encoding: the encoding of text.
    Raises: FileNotFoundError, PermissionError, ValueError (a folder, another mode).
    """
    if mode not in ("rb", "r", "rt"):
        raise ValueError(f"mode {mode!r}: objects are opened for reading, with 'rb' or 'r'")
    raw = ObjectFile(os.fspath(url))
    if buffering == 0 and mode == "rb":
        return raw
    buffered = io.BufferedReader(raw, max(buffering, 1))
    return buffered if mode == "rb" else io.TextIOWrapper(buffered, encoding=encoding)
