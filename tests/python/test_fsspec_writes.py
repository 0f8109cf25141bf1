# SPDX-License-Identifier: Apache-2.0
"""Files that are written through fsspec appear whole or not at all, whatever closes them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import gzip
import io
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("millrace.fsspec")  # registers the protocol

OLD = b"what was there"
ROWS = ["one\n", "two\n"]
WHOLE = "".join(ROWS).encode()


class CutShortError(Exception):
    pass


@pytest.fixture
def fs():
    return fsspec.filesystem("millrace")


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fs) -> str:
    """The name of an object that is there."""
    if request.param == "local":
        path = f"{tmp_path}/there"
    else:
        s3, bucket = request.getfixturevalue("s3"), request.getfixturevalue("bucket")
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in s3.env.items():
            monkeypatch.setenv(name, value)
        path = f"s3://{bucket}/there"
    fs.pipe_file(path, OLD)
    return path


def content(fs, place: str) -> bytes:
    """Of the object; nothing else may lie beside it."""
    names = fs.ls(place.rpartition("/")[0], detail=False)
    assert [name for name in names if not name.endswith("/.millrace")] == [place]
    return fs.cat_file(place)


def write_all(file, ends_early: bool) -> None:
    binary = isinstance(file, (io.BufferedIOBase, io.RawIOBase, pyarrow.NativeFile)) or not hasattr(file, "encoding")
    for row in ROWS:
        file.write(row.encode() if binary else row)
        if ends_early:
            raise CutShortError


def by_fs_text(fs, place: str, ends_early: bool) -> None:
    with fs.open(place, "w", newline="") as file:
        write_all(file, ends_early)


def by_fs_binary(fs, place: str, ends_early: bool) -> None:
    with fs.open(place, "wb") as file:
        write_all(file, ends_early)


def by_fsspec_open_text(_fs, place: str, ends_early: bool) -> None:
    with fsspec.open(f"millrace://{place}", "w", newline="") as file:
        write_all(file, ends_early)


def by_fsspec_open_binary(_fs, place: str, ends_early: bool) -> None:
    with fsspec.open(f"millrace://{place}", "wb") as file:
        write_all(file, ends_early)


def by_exit_stack(fs, place: str, ends_early: bool) -> None:
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(fsspec.open(f"millrace://{place}", "wb"))
        write_all(file, ends_early)


def by_closing(fs, place: str, ends_early: bool) -> None:
    with contextlib.closing(fs.open(place, "wb")) as file:
        write_all(file, ends_early)


def by_generator(fs, place: str, ends_early: bool) -> None:
    @contextlib.contextmanager
    def opened():
        file = fs.open(place, "wb")
        try:
            yield file
        finally:
            file.close()

    with opened() as file:
        write_all(file, ends_early)


def by_pyarrow_stream(fs, place: str, ends_early: bool) -> None:
    """Its `__exit__` is written in C."""
    with pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs)).open_output_stream(place) as file:
        write_all(file, ends_early)


WAYS = [
    by_fs_text,
    by_fs_binary,
    by_fsspec_open_text,
    by_fsspec_open_binary,
    by_exit_stack,
    by_closing,
    by_generator,
    by_pyarrow_stream,
]
Way = Callable[..., None]


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_inside_leaves_what_was_there(fs, place: str, way: Way) -> None:
    with pytest.raises(CutShortError):
        way(fs, place, True)
    assert content(fs, place) == OLD
    way(fs, place, False)
    assert content(fs, place) == WHOLE


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_written_while_another_exception_is_handled_is_there(fs, place: str, way: Way) -> None:
    try:
        raise KeyError("another")
    except KeyError:
        way(fs, place, False)
    assert content(fs, place) == WHOLE
    # An exception inside, inside a handler, still leaves nothing.
    fs.pipe_file(place, OLD)
    with pytest.raises(CutShortError):
        try:
            raise KeyError("another")
        except KeyError:
            way(fs, place, True)
    assert content(fs, place) == OLD


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_written_while_a_block_ends_by_an_exception_is_there(fs, place: str, way: Way) -> None:
    class Reports:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            way(fs, place, False)

    with pytest.raises(CutShortError), Reports():
        raise CutShortError
    assert content(fs, place) == WHOLE


def test_a_file_that_an_except_block_closes_by_hand_is_there(fs, place: str) -> None:
    file = fs.open(place, "w", newline="")
    try:
        raise KeyError("another")
    except KeyError:
        write_all(file, False)
        file.close()
    assert content(fs, place) == WHOLE


def test_files_that_nobody_closes_leave_what_was_there(fs, place: str, capfd: pytest.CaptureFixture) -> None:
    for opened in (
        lambda: fs.open(place, "w"),
        lambda: fs.open(place, "wb"),
        lambda: fsspec.open(f"millrace://{place}", "w").open(),
        lambda: fs.open(place, "w", compression="gzip"),
        lambda: io.TextIOWrapper(fs.open(place, "wb")),
    ):
        file = opened()
        write_all(file, False)
        del file
        gc.collect()
        assert content(fs, place) == OLD
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("mode", ["w", "wb"])
@pytest.mark.parametrize("opened", ["fs", "fsspec"])
def test_compressed_files(fs, place: str, mode: str, opened: str) -> None:
    def write(ends_early: bool) -> None:
        if opened == "fs":
            context = fs.open(place, mode, compression="gzip")
        else:
            context = fsspec.open(f"millrace://{place}", mode, compression="gzip")
        with context as file:
            for row in ROWS:
                file.write(row if mode == "w" else row.encode())
                if ends_early:
                    raise CutShortError

    with pytest.raises(CutShortError):
        write(True)
    assert content(fs, place) == OLD
    write(False)
    assert gzip.decompress(content(fs, place)) == WHOLE
    with fs.open(place, "rt", compression="gzip") as file:
        assert file.read() == WHOLE.decode()


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_pandas(fs, place: str, compression: str | None) -> None:
    pandas = pytest.importorskip("pandas")

    class Breaks:
        def __str__(self):
            raise CutShortError

    frame = pandas.DataFrame({"a": range(10)})
    half = pandas.DataFrame({"a": [1, Breaks()]})
    url = f"millrace://{place}"
    for write in (
        lambda each: each.to_csv(url, index=False, compression=compression, chunksize=1),
        lambda each: each.to_pickle(url, compression=compression),
    ):
        fs.pipe_file(place, OLD)
        with pytest.raises((CutShortError, AttributeError, TypeError)):
            write(half)  # a local class cannot be pickled
        assert content(fs, place) == OLD
        try:
            raise KeyError("another")
        except KeyError:
            write(frame)
        assert content(fs, place) != OLD
    frame.to_csv(url, index=False, compression=compression)
    pandas.testing.assert_frame_equal(pandas.read_csv(url, compression=compression), frame)


def test_parquet_writer(fs, place: str) -> None:
    table = pyarrow.table({"a": list(range(10))})
    with (
        pytest.raises(CutShortError),
        pyarrow.parquet.ParquetWriter(place, table.schema, filesystem=fs) as writer,
    ):
        writer.write_table(table)
        raise CutShortError
    assert content(fs, place) == OLD
    try:
        raise KeyError("another")
    except KeyError:
        with pyarrow.parquet.ParquetWriter(place, table.schema, filesystem=fs) as writer:
            writer.write_table(table)
    assert pyarrow.parquet.read_table(place, filesystem=fs).equals(table)


def test_a_write_that_failed_is_not_committed_by_close(fs, place: str) -> None:
    file = fs.open(place, "wb")

    class Fails:
        def append(self, _):
            raise OSError("the disk is full")

        def __getattr__(self, name):
            return getattr(real, name)

    real, file.raw._writer = file.raw._writer, Fails()
    file.write(b"half")
    with pytest.raises(OSError, match="disk is full"):
        file.flush()
    with pytest.raises(OSError, match="earlier write failed"):
        file.close()
    assert content(fs, place) == OLD


def test_transactions(fs, place: str) -> None:
    with fs.transaction:
        by_fs_text(fs, place, False)
        assert content(fs, place) == OLD
    assert content(fs, place) == WHOLE
    with pytest.raises(CutShortError), fs.transaction:
        fs.pipe_file(place, b"other")
        raise CutShortError
    assert content(fs, place) == WHOLE


def test_exclusive(fs, place: str) -> None:
    for mode in ("x", "xb", "xt"):
        with pytest.raises(FileExistsError):
            fs.open(place, mode)
    with pytest.raises(FileExistsError):
        fs.pipe_file(place, b"new", mode="create")
    assert content(fs, place) == OLD
    fs.rm(place)
    with fs.open(place, "x", newline="") as file, fs.open(place, "xb") as second:
        write_all(file, False)
        second.write(b"second")
        with pytest.raises(FileExistsError):  # the later one to be closed
            file.close()
            second.close()
        second.discard()
    assert content(fs, place) == WHOLE
    with pytest.raises(NotImplementedError, match="'ab'"):
        fs.open(place, "ab")


def test_a_thread_of_c_that_closes_a_file(fs, place: str) -> None:
    """It calls with no frame of Python below."""
    file = fs.open(place, "wb")
    write_all(file, False)
    close = ctypes.CFUNCTYPE(None)(file.close)
    # pthread_create runs the C function that ctypes made.
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, close, None) == 0
    assert libc.pthread_join(thread, None) == 0
    assert content(fs, place) == WHOLE
