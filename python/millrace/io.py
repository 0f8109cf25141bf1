# SPDX-License-Identifier: Apache-2.0
"""Objects as Python files. `millrace.open` is the name to use."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Literal, overload

from millrace import _core

#: Bytes that a BufferedReader reads at once. Readers of remote objects fetch ahead while reads are sequential.
BUFFER_BYTES = 256 << 10


class ObjectFile(io.RawIOBase):
    """An object of any storage, read-only and seekable. It is pinned to the version that was opened: when the object
    changes, a read raises `millrace.CorruptionError` instead of mixing two contents. A pickle holds its URL and
    position, not its content."""

    def __init__(self, url: str, *, reader: _core.ObjectReader | None = None):
        """reader: of this object, open already; the position is the file's own."""
        super().__init__()
        self._reader = _core.ObjectReader(url) if reader is None else reader
        self._position = 0
        self.name = url

    @property
    def size(self) -> int:
        return self._reader.size

    @property
    def version(self) -> str:
        """The storage's version of this content: equal versions of one name are equal bytes."""
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
        """Reads many ranges at once and returns after the last. For random reads this costs a fraction of a `seek`
        and a `read` each. The position stays; threads may share the file.

        Args:
            offsets, sizes: in bytes; each range is inside the object.
        Returns: the content of each range, in their order.
        Raises: ValueError (a range that is not inside), millrace.CorruptionError (the object changed), ConnectionError.
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
        encoding: of text.
    Raises: FileNotFoundError, PermissionError, ValueError (a folder, another mode).
    """
    if mode not in ("rb", "r", "rt"):
        raise ValueError(f"mode {mode!r}: objects are opened for reading, with 'rb' or 'r'")
    raw = ObjectFile(os.fspath(url))
    if buffering == 0 and mode == "rb":
        return raw
    buffered = io.BufferedReader(raw, max(buffering, 1))
    return buffered if mode == "rb" else io.TextIOWrapper(buffered, encoding=encoding)
