# SPDX-License-Identifier: Apache-2.0
"""Objects as Python files that are written. `millrace.fsspec` opens them.

An object shows when its file is closed in order. Three ends leave nothing:
- an exception leaves a `with` block that closes the file, whatever opened that block: the program, `fsspec.open`,
  pandas, pyarrow;
- nobody closes the file before it is collected;
- a write failed.
"""

from __future__ import annotations

import contextlib
import dis
import io
import sys
from types import FrameType
from typing import Any

from millrace import _core

_EXITS = ("__exit__", "__aexit__")
_WITH_EXCEPT_START = dis.opmap["WITH_EXCEPT_START"]


def _arguments(frame: FrameType) -> list[Any]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04)  # CO_VARARGS
    values: list[Any] = []
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        values.extend(value if isinstance(value, tuple) else [value])
    return values


def _failed_exits(frame: FrameType | None) -> list[FrameType]:
    """The frames from `frame` outwards in which an exception leaves a `with` block.

    Context managers of libraries close their files and do not say why, so the callers are looked at.
    `sys.exc_info()` cannot tell: a file that is closed in order inside an `except` block must be there.
    """
    found = []
    inner_is_exit = False
    while frame is not None:
        is_exit = frame.f_code.co_name in _EXITS
        if is_exit:
            fails = any(isinstance(each, BaseException) for each in _arguments(frame))
        else:
            # An exit that is written in C has no frame. The `with` statement that calls it has one.
            at = frame.f_lasti
            fails = not inner_is_exit and at >= 0 and frame.f_code.co_code[at] == _WITH_EXCEPT_START
        if fails:
            found.append(frame)
        inner_is_exit = is_exit
        frame = frame.f_back
    return found


class ObjectWriter(io.RawIOBase):
    """Appends. `commit` makes the object visible, all at once; `discard` leaves nothing.

    Args:
        exclusive: there may be no object yet.
        autocommit: False: closing keeps the content back, until `commit` (fsspec's transactions).
    Raises: FileExistsError (when opened, and by `commit`).
    """

    def __init__(self, url: str, exclusive: bool = False, autocommit: bool = True):
        super().__init__()
        self._writer = _core.ObjectWriter(url, exclusive)
        self._written = 0
        self._autocommit = autocommit
        self._failed = False
        self.name = url

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        view = memoryview(data).cast("B")
        if self._failed:
            raise OSError(f"write {self.name}: an earlier write failed, and nothing of it is kept")
        try:
            if len(view):
                self._writer.append(view)
        except BaseException:
            self._failed = True
            self._writer.discard()
            raise
        self._written += len(view)
        return len(view)

    def commit(self) -> None:
        self._writer.commit()

    def discard(self) -> None:
        self._writer.discard()
        super().close()

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._autocommit and not self._failed:
                self._writer.commit()


class BufferedObjectWriter(io.BufferedWriter):
    """What `fs.open(path, "wb")` gives. See the module for what leaves nothing."""

    raw: ObjectWriter

    def __init__(self, raw: ObjectWriter, buffer_size: int):
        super().__init__(raw, buffer_size)
        # A file that is opened while an exception leaves a block is not what that exception cuts short.
        self._exits_before = _failed_exits(sys._getframe().f_back)

    def commit(self) -> None:
        """Makes the object visible. For files of fsspec's transactions; otherwise `close` does it."""
        self.raw.commit()

    def discard(self) -> None:
        """Closes the file and leaves nothing. An object that was there stays."""
        self.raw.discard()

    def close(self) -> None:
        if self.closed:
            return
        exits = _failed_exits(sys._getframe().f_back)
        if any(each not in self._exits_before for each in exits):
            self.discard()
        else:
            super().close()
        self._exits_before = []

    def __exit__(self, kind, *rest) -> None:
        if kind is not None:
            self.discard()
        else:
            super().__exit__(kind, *rest)

    def _dealloc_warn(self, _source) -> None:
        # Python calls this before it closes a file that is collected, also that of a TextIOWrapper around it.
        self.discard()

    def __del__(self) -> None:
        self.discard()


class CompressedWriter(io.BufferedIOBase):
    """A codec around a file. Unlike the codec alone it closes the file, or discards it.

    Args:
        codec: what fsspec's `compr` gives for `file`.
    """

    def __init__(self, codec, file: BufferedObjectWriter):
        super().__init__()
        self._codec = codec
        self._file = file
        self._ending = False  # the codec may be closed already

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._codec.tell()

    def write(self, data) -> int:
        return self._codec.write(data)

    def flush(self) -> None:
        if not self.closed and not self._ending:
            self._codec.flush()

    def discard(self) -> None:
        """Closes the file and leaves nothing. An object that was there stays."""
        self._ending = True
        try:
            with contextlib.suppress(Exception):  # what it still writes is discarded, too
                self._codec.close()
        finally:
            self._file.discard()
            super().close()

    def close(self) -> None:
        if self.closed:
            return
        self._ending = True
        try:
            self._codec.close()  # writes what it holds back
        except BaseException:
            self._file.discard()
            raise
        finally:
            super().close()
        self._file.close()

    def __exit__(self, kind, *rest) -> None:
        if kind is not None:
            self.discard()
        else:
            self.close()

    def _dealloc_warn(self, _source) -> None:
        self.discard()

    def __del__(self) -> None:
        self.discard()


class TextWriter(io.TextIOWrapper):
    """What `fs.open(path, "w")` gives."""

    def discard(self) -> None:
        """Closes the file and leaves nothing. An object that was there stays."""
        self.buffer.discard()  # type: ignore[attr-defined]

    def __exit__(self, kind, *rest) -> None:
        if kind is not None:
            self.discard()
        else:
            super().__exit__(kind, *rest)
