# SPDX-License-Identifier: Apache-2.0
"""Writes objects as Python files. `millrace.fsspec` opens them.

An object appears when its file is closed normally. In three cases, no object appears:
- an exception leaves a `with` block that closes the file, whether the program, `fsspec.open`, pandas or pyarrow opened
  that block;
- the file is garbage-collected before it is closed;
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
    """Returns the frames from `frame` outwards in which an exception leaves a `with` block.

    Context managers of libraries close their files without a reason, so this function inspects the callers.
    `sys.exc_info()` is not enough: a file that is closed normally inside an `except` block must appear.
    """
    found = []
    inner_is_exit = False
    while frame is not None:
        is_exit = frame.f_code.co_name in _EXITS
        if is_exit:
            fails = any(isinstance(each, BaseException) for each in _arguments(frame))
        else:
            # An exit function in C has no frame. The `with` statement that calls it has one.
            at = frame.f_lasti
            fails = not inner_is_exit and at >= 0 and frame.f_code.co_code[at] == _WITH_EXCEPT_START
        if fails:
            found.append(frame)
        inner_is_exit = is_exit
        frame = frame.f_back
    return found


class ObjectWriter(io.RawIOBase):
    """Writes an object by appending. `commit` makes the whole object visible at once. `discard` removes the content.

    Args:
        exclusive: True: the object must not exist yet.
        autocommit: False: closing does not make the object visible; `commit` does (fsspec's transactions).
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
    """The result of `fs.open(path, "wb")`. The docstring of the module lists the cases in which no object appears."""

    raw: ObjectWriter

    def __init__(self, raw: ObjectWriter, buffer_size: int):
        super().__init__(raw, buffer_size)
        # An exception that was leaving a block before this file was opened does not affect this file.
        self._exits_before = _failed_exits(sys._getframe().f_back)

    def commit(self) -> None:
        """Makes the object visible. It is for files of fsspec's transactions; otherwise `close` does this."""
        self.raw.commit()

    def discard(self) -> None:
        """Closes the file without making an object. An existing object stays."""
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
        # Python calls this before it closes a garbage-collected file, also for the file inside a TextIOWrapper.
        self.discard()

    def __del__(self) -> None:
        self.discard()


class CompressedWriter(io.BufferedIOBase):
    """Wraps a file in a codec. Unlike the codec alone, it closes the file or discards it.

    Args:
        codec: the result of fsspec's `compr` for `file`.
    """

    def __init__(self, codec, file: BufferedObjectWriter):
        super().__init__()
        self._codec = codec
        self._file = file
        self._ending = False  # whether the end has begun: the codec may be closed already

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
        """Closes the file without making an object. An existing object stays."""
        self._ending = True
        try:
            with contextlib.suppress(Exception):  # the codec's last data is discarded too
                self._codec.close()
        finally:
            self._file.discard()
            super().close()

    def close(self) -> None:
        if self.closed:
            return
        self._ending = True
        try:
            self._codec.close()  # writes the codec's remaining data
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
    """The result of `fs.open(path, "w")`."""

    def discard(self) -> None:
        """Closes the file without making an object. An existing object stays."""
        self.buffer.discard()  # type: ignore[attr-defined]

    def __exit__(self, kind, *rest) -> None:
        if kind is not None:
            self.discard()
        else:
            super().__exit__(kind, *rest)
