# SPDX-License-Identifier: Apache-2.0
"""Makes Millrace's storages available to users of fsspec: pandas, pyarrow, datasets, dask.

Importing this module registers the protocol "millrace". An installed package registers it by an entry point. Paths are
Millrace's own URLs, with or without the protocol in front: `fsspec.filesystem("millrace").open("s3://bucket/key")` or
`pandas.read_parquet("millrace://s3://bucket/table.parquet")`.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import io
import itertools
import os
from glob import has_magic
from typing import Any

import fsspec
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.compression import compr
from fsspec.core import get_compression
from fsspec.spec import AbstractFileSystem

from millrace import _core
from millrace._object_writer import BufferedObjectWriter, CompressedWriter, ObjectWriter, TextWriter
from millrace.io import BUFFER_BYTES, ObjectFile
from millrace.results import ListEntry


def _directory(path: str) -> str | None:
    """Returns the file system path of a name without Millrace's protocol; None: the name is on a service."""
    if path.startswith("file://"):
        return path.removeprefix("file://")
    return None if "://" in path else path


def _place(path: str) -> str:
    """Returns where the name itself lies, with no link on the way to it. Two names of one file or folder are equal."""
    directory = _directory(path)
    if directory is None:
        return path
    parent, name = os.path.split(os.path.abspath(directory) if directory in ("", ".") else directory)
    return os.path.realpath(directory) if name in ("", ".", "..") else os.path.join(os.path.realpath(parent), name)


def _check_moves(moves: list[tuple[str, str]], folders: set[str]) -> None:
    """Checks that no move replaces or removes what another one moves.

    Args:
        folders: those sources that are folders.
    Raises: ValueError.
    """
    sources = {_place(source): source for source, _ in moves}
    targets: dict[str, str] = {}
    for source, target in moves:
        place = _place(target)
        if place in targets:
            raise ValueError(f"{source} and {targets[place]} would both move to {target}")
        targets[place] = source
        for other_place, other in sources.items():
            if other != source and place == other_place:
                raise ValueError(f"{source} would replace {other}, which moves too: move them one after the other")
            if other in folders and place.startswith(other_place.rstrip("/") + "/"):
                raise ValueError(f"{source} cannot move to {target}: that is inside {other}, which moves itself")


class MillraceFileSystem(AbstractFileSystem):
    """A file system of fsspec for Millrace's storages. A write is complete or invisible. Deletions and copies are those
    of the command line."""

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

    def open(self, path, mode="rb", block_size=None, cache_options=None, compression=None, **options):
        """Opens an object as a file.

        Args:
            mode: "rb", "wb", "xb" (only if there is no object yet), or the same modes for text.
        Raises: FileNotFoundError, FileExistsError ("xb"), NotImplementedError (another mode).
        """
        if "w" not in mode and "x" not in mode:
            return super().open(path, mode, block_size, cache_options, compression, **options)
        binary = "".join(letter for letter in mode if letter not in "bt") + "b"
        text = {name: options.pop(name) for name in ("encoding", "errors", "newline") if name in options}
        file = super().open(path, binary, block_size, cache_options, **options)
        codec = get_compression(path, compression)
        if codec is not None:
            file = CompressedWriter(compr[codec](file, mode="w"), file)
        return file if "b" in mode else TextWriter(file, **text)

    def _open(self, path, mode="rb", block_size=None, autocommit=True, **_):
        if mode == "rb":
            return io.BufferedReader(ObjectFile(path), BUFFER_BYTES)
        if mode in ("wb", "xb"):
            return BufferedObjectWriter(ObjectWriter(path, mode == "xb", autocommit), 1 << 20)
        raise NotImplementedError(f"mode {mode!r}: objects are read whole or in parts, and written from the beginning")

    def pipe_file(self, path, value, mode="overwrite", **options):
        with self.open(path, "xb" if mode == "create" else "wb", **options) as file:
            file.write(value)

    def put_file(self, lpath, rpath, callback=DEFAULT_CALLBACK, mode="overwrite", **options):
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        with open(lpath, "rb") as source, self.open(rpath, "xb" if mode == "create" else "wb", **options) as target:
            callback.set_size(os.fstat(source.fileno()).st_size)
            while data := source.read(self.blocksize):
                target.write(data)
                callback.relative_update(len(data))

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
        """Copies one object to exactly that name. For a folder, makes only the folder (fsspec's `copy` names the
        objects in it)."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        folder = _directory(path2)
        if folder is not None and os.path.isdir(folder) and not self.isdir(path1):
            raise IsADirectoryError(path2)
        try:
            _core.cp(path1, path2, records=False)
        except (ValueError, FileNotFoundError):
            if _place(path1) == _place(path2) or not self.isdir(path1):
                raise
            self.makedirs(path2, exist_ok=True)

    def mv(self, path1, path2, recursive=False, maxdepth=None, **_):
        """Moves objects, and with `recursive` folders, as the command line does: each object is removed when its copy
        is at the target, and only if it did not change meanwhile. A move of something onto itself changes nothing.

        Args:
            path1, path2: as of `copy`.
        Raises: ValueError: a folder without `recursive`, a folder that would move into itself, two objects that would
            move to one name; NotImplementedError: `maxdepth` with `recursive`; OSError: something in a folder is no
            file and no link, and stays.
        """
        if recursive and maxdepth is not None:
            raise NotImplementedError("mv with maxdepth: a folder is moved as a whole (copy takes maxdepth)")
        moves = [move for move in self._moves(path1, path2, recursive, maxdepth) if _place(move[0]) != _place(move[1])]
        folders = {source for source, _ in moves if self.isdir(source)}
        if folders and not recursive:
            raise ValueError(f"{min(folders)} is a folder: recursive=True moves what is in it")
        _check_moves(moves, folders)
        for source, target in moves:
            if source in folders:
                self._move_folder(source, target)
            elif self.isdir(target):
                raise IsADirectoryError(target)
            else:
                _core.mv(source, target, records=False)

    def _moves(self, path1, path2, recursive: bool, maxdepth: int | None) -> list[tuple[str, str]]:
        """Returns each object and folder to be moved with its new name, without what is in these folders."""
        if isinstance(path1, str) and isinstance(path2, str):
            source, target = self._strip_protocol(path1), self._strip_protocol(path2)
            if self.isdir(source):
                into = not path1.endswith("/") and (path2.endswith("/") or self.isdir(target))
                return [(source, target.rstrip("/") + "/" + source.rpartition("/")[2] if into else target)]
        names = _CopiedNames()
        names.copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise")
        moves: list[tuple[str, str]] = []
        above: list[tuple[str, str]] = []  # the folders in `moves`
        for source, target in names.copied:
            folder = next((each for each in above if source.startswith(each[0] + "/")), None)
            if folder is None:
                moves.append((source, target))
                if recursive and self.isdir(source):
                    above.append((source, target))
            elif target != folder[1] + source.removeprefix(folder[0]):
                raise ValueError(f"{source} would not stay in its folder: move {folder[0]} alone")
        return moves

    def _move_folder(self, source: str, target: str) -> None:
        directory, to = _directory(source), _directory(target)
        if directory is not None and os.path.islink(directory):
            self._move_link(directory, to)
            return
        if self.isfile(target):
            raise FileExistsError(target)
        if directory is not None:
            self.makedirs(target, exist_ok=True)
        _core.mv(source, target, recursive=True, records=False)
        if directory is None:
            self._remove_markers(source)
            return
        for inner, names, files in os.walk(directory, topdown=False):
            for name in (*names, *files):
                link = os.path.join(inner, name)
                if os.path.islink(link) and to is not None:
                    self._move_link(link, os.path.join(to, os.path.relpath(link, directory)))
            if os.path.basename(inner) == ".millrace":
                continue
            if os.listdir(inner) == [".millrace"]:  # hashes of what was moved
                self.rm(os.path.join(inner, ".millrace"), recursive=True)
            with contextlib.suppress(OSError):
                os.rmdir(inner)
        if os.path.isdir(directory):
            left = next(os.path.join(inner, files[0]) for inner, _, files in os.walk(directory) if files)
            raise OSError(errno.ENOTEMPTY, "everything else was moved, but this stays (new, or no plain file)", left)

    @staticmethod
    def _remove_markers(folder: str) -> None:
        """Removes the empty objects that show a folder of a service, when nothing else is in it."""
        try:
            left = [entry["path"] for entry in _core.ls(folder, recursive=True)]
        except FileNotFoundError:
            return
        for path in left:
            if not path.endswith("/"):
                raise OSError(errno.ENOTEMPTY, "everything else was moved, but this stays (new)", f"{folder}/{path}")
        for marker in [*(f"{folder}/{path}" for path in left), folder + "/"]:
            with contextlib.suppress(FileNotFoundError, ValueError):  # ValueError: a folder without a marker
                _core.rm(marker)

    @staticmethod
    def _move_link(link: str, to: str | None) -> None:
        if to is None:
            raise ValueError(f"{link} is a symbolic link, which only a file system keeps: copy what it leads to")
        os.makedirs(os.path.dirname(to) or ".", exist_ok=True)
        os.symlink(os.readlink(link), to)
        os.unlink(link)

    def rm_file(self, path):
        _core.rm(self._strip_protocol(path))

    def rm(self, path, recursive=False, maxdepth=None):
        """Removes objects. With `recursive`, also removes folders with all their content, including directories of a
        file system."""
        for each in path if isinstance(path, list) else [path]:
            name = self._strip_protocol(each)
            if has_magic(name) and not self.exists(name):
                self.rm(self.expand_path(name), recursive)
                continue
            folder = _directory(name)
            is_directory = folder is not None and os.path.isdir(folder) and not os.path.islink(folder)
            if not recursive or not is_directory:
                _core.rm(name, recursive=recursive)
                continue
            with contextlib.suppress(FileNotFoundError):  # the folder has only directories
                _core.rm(name, recursive=True)
            for inner, _, _ in os.walk(folder, topdown=False):
                os.rmdir(inner)

    def created(self, path):
        raise NotImplementedError("storages keep no time of creation")

    def mkdir(self, path, create_parents=True, **_):
        """Makes a directory of a file system. On other storages it has no effect: folders appear with their content."""
        folder = _directory(self._strip_protocol(path))
        if folder is not None:
            (os.makedirs if create_parents else os.mkdir)(folder)

    def makedirs(self, path, exist_ok=False):
        """Makes a directory as `mkdir` does, with its parent directories."""
        folder = _directory(self._strip_protocol(path))
        if folder is not None:
            os.makedirs(folder, exist_ok=exist_ok)

    def rmdir(self, path):
        """Removes an empty directory of a file system. On other storages it has no effect."""
        folder = _directory(self._strip_protocol(path))
        if folder is not None:
            os.rmdir(folder)


class _CopiedNames(MillraceFileSystem):
    """Notes the names that fsspec's `copy` would copy, and copies nothing."""

    protocol = "millrace"
    cachable = False

    def __init__(self, **options):
        super().__init__(**options)
        self.copied: list[tuple[str, str]] = []

    def cp_file(self, path1, path2, **_):
        self.copied.append((self._strip_protocol(path1), self._strip_protocol(path2)))


def use_for_s3() -> None:
    """Makes Millrace serve all `s3://` paths of this process that go through fsspec.

    `datasets` needs this: it puts the protocol in front of the names that a file system lists, and uses the result as
    URLs.
    """
    fsspec.register_implementation("s3", MillraceFileSystem, clobber=True)


fsspec.register_implementation("millrace", MillraceFileSystem, clobber=True)
