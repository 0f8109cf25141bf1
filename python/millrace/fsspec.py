# SPDX-License-Identifier: Apache-2.0
"""Millrace's storages for fsspec's users: pandas, pyarrow, datasets, dask.

Importing this module registers the protocol "millrace". An installed package registers it by an entry
point. Paths are
Millrace's own URLs, with or without the protocol in front: `fsspec.filesystem("millrace").open("s3://bucket/key")`,
`pandas.read_parquet("millrace://s3://bucket/table.parquet")`.
"""

from __future__ import annotations

import datetime
import io
import itertools
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

from millrace import _core
from millrace.io import BUFFER_BYTES, ObjectFile
from millrace.results import ListEntry


class _ObjectWriter(io.RawIOBase):
    """Appends. The object becomes visible when the file is closed without an exception."""

    def __init__(self, url: str):
        super().__init__()
        self._writer = _core.ObjectWriter(url)
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data) -> int:
        view = memoryview(data).cast("B")
        if len(view):
            self._writer.append(view)
        self._written += len(view)
        return len(view)

    def discard(self) -> None:
        if not self.closed:
            self._writer.discard()
            super().close()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._writer.commit()


class _BufferedWriter(io.BufferedWriter):
    """A `with` block that ends with an exception leaves no object."""

    def __exit__(self, kind, *rest) -> None:
        if kind is not None:
            self.raw.discard()  # type: ignore[attr-defined]
            return
        super().__exit__(kind, *rest)

    def __del__(self) -> None:
        # A file that was not closed is not known to be whole.
        self.raw.discard()  # type: ignore[attr-defined]


class MillraceFileSystem(AbstractFileSystem):
    """See the module. A write is whole or invisible. Deletions and copies are those of the verbs."""

    protocol = "millrace"
    cachable = True

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = str(path)
        path = path.removeprefix("millrace://")
        scheme, mark, rest = path.partition("://")
        stripped = rest.rstrip("/") if mark else path.rstrip("/")
        return scheme + mark + stripped if mark else stripped or ("/" if path.startswith("/") else "")

    @classmethod
    def _parent(cls, path):
        path = cls._strip_protocol(path)
        scheme, mark, rest = path.partition("://")
        parent = (rest if mark else path).rpartition("/")[0]
        return scheme + mark + parent if mark else parent or "/"

    def _info(self, entry: ListEntry, folder: str) -> dict[str, Any]:
        name = folder.rstrip("/") + "/" + entry["path"].rstrip("/") if entry["path"] else folder
        if entry["type"] == "folder":
            return {"name": name, "size": 0, "type": "directory"}
        return {
            "name": name,
            "size": entry["size"],
            "type": "file" if entry["type"] == "object" else "other",
            "mtime": entry["modified"],
            "version": entry["version"],
        }

    def ls(self, path, detail: bool = True, **_):
        path = self._strip_protocol(path)
        infos = self._list(path)
        return infos if detail else [info["name"] for info in infos]

    def _list(self, path: str) -> list[dict[str, Any]]:
        entries = list(_core.ls(path))
        if self._is_object(path, entries):
            return [self._info({**entries[0], "path": ""}, path)]
        return [self._info(entry, path) for entry in entries]

    @staticmethod
    def _is_object(path: str, entries: list[ListEntry]) -> bool:
        # An object is listed as itself.
        if len(entries) != 1 or entries[0]["type"] == "folder" or path.rpartition("/")[2] != entries[0]["path"]:
            return False
        try:
            _core.ls(path + "/")
        except (FileNotFoundError, ValueError):
            return True
        return False

    def info(self, path, **_):
        path = self._strip_protocol(path)
        entries = list(itertools.islice(_core.ls(path), 2))
        if self._is_object(path, entries):
            return self._info({**entries[0], "path": ""}, path)
        return {"name": path, "size": 0, "type": "directory"}

    def modified(self, path):
        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.UTC)

    def _open(self, path, mode="rb", block_size=None, **_):
        if mode == "rb":
            return io.BufferedReader(ObjectFile(path), BUFFER_BYTES)
        if mode == "wb":
            return _BufferedWriter(_ObjectWriter(path), 1 << 20)
        raise NotImplementedError(f"mode {mode!r}: objects are read whole or in parts, and written from the beginning")

    def cat_file(self, path, start=None, end=None, **_):
        file = ObjectFile(self._strip_protocol(path))
        first, last, _ = slice(start, end).indices(file.size)
        file.seek(first)
        return file.read(max(last - first, 0))

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **_):
        """Reads the ranges of one object together; `max_gap` has no effect."""
        starts, ends = ([each] * len(paths) if not isinstance(each, list) else each for each in (starts, ends))
        content = [None] * len(paths)
        of_path = {}
        for i, path in enumerate(paths):
            of_path.setdefault(path, []).append(i)
        for path, wanted in of_path.items():
            try:
                file = ObjectFile(self._strip_protocol(path))
                spans = [slice(starts[i], ends[i]).indices(file.size)[:2] for i in wanted]
                pieces = file.read_ranges(
                    [first for first, _ in spans], [max(last - first, 0) for first, last in spans]
                )
            except Exception as error:
                if on_error != "return":
                    raise
                pieces = [error] * len(wanted)
            for i, piece in zip(wanted, pieces, strict=True):
                content[i] = piece
        return content

    def cp_file(self, path1, path2, **_):
        _core.cp(self._strip_protocol(path1), self._strip_protocol(path2), records=False)

    def rm_file(self, path):
        _core.rm(self._strip_protocol(path))

    def rm(self, path, recursive=False, maxdepth=None):
        for each in path if isinstance(path, list) else [path]:
            _core.rm(self._strip_protocol(each), recursive=recursive)

    def created(self, path):
        raise NotImplementedError("storages keep no time of creation")

    def mkdir(self, path, create_parents=True, **_):
        """No effect: folders appear with their content."""

    def makedirs(self, path, exist_ok=False):
        """No effect: folders appear with their content."""


def use_for_s3() -> None:
    """Makes Millrace serve all `s3://` paths of this process that go through fsspec.

    `datasets` needs it: it takes the names that a file system lists for URLs of the protocol in front of them.
    """
    fsspec.register_implementation("s3", MillraceFileSystem, clobber=True)


fsspec.register_implementation("millrace", MillraceFileSystem, clobber=True)
