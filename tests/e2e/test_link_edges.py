# SPDX-License-Identifier: Apache-2.0
"""Links at their edges: a side that somebody emptied, files that never come to the bucket, names that are no paths."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Millrace
from links import Linked
from s3_fixture import S3

BOTH = ("--import=new,changed,deleted", "--export=new,changed,deleted", "--delete=propagate")


@pytest.fixture
def linked(millrace: Millrace, s3: S3, tmp_path: Path) -> Callable[..., Linked]:
    return lambda *options: Linked(millrace, s3, tmp_path, *options)


def test_an_emptied_bucket_removes_nothing_though_new_files_come(linked: Callable[..., Linked]):
    link = linked(*BOTH)
    for number in range(50):
        link.write(f"f{number}", str(number).encode())
    link.once()
    link.millrace("rm", link.url, "-r")
    link.once()
    assert "the bucket has no files at all" in link.status()["not_deleted"]
    link.write("new", b"z")
    for _ in range(3):
        link.once()
    assert len(link.files()) == 51 and set(link.objects()) == {"new"}
    assert "remove them from the directory yourself" in link.status()["not_deleted"]
    # One comes back as it was.
    link.put("f7", b"7")
    link.once()
    assert set(link.files()) == set(link.objects()) == {"new", "f7"}


def test_an_emptied_directory_removes_nothing_though_new_objects_come(linked: Callable[..., Linked]):
    link = linked(*BOTH)
    for number in range(9):
        link.write(f"f{number}", str(number).encode())
    link.once()
    for number in range(9):
        (link.directory / f"f{number}").unlink()
    link.put("new", b"z")
    for _ in range(3):
        link.once()
    assert len(link.objects()) == 10 and set(link.files()) == {"new"}
    # Whoever meant it removes the objects, too.
    for number in range(9):
        link.s3.client.delete_object(Bucket=link.bucket, Key=f"data/f{number}")
    link.once()
    assert link.status()["not_deleted"] == "" and set(link.objects()) == {"new"}


def test_wait_tells_what_it_does_not_ask_about(linked: Callable[..., Linked]):
    link = linked("--exclude=*.tmp")
    for name in ("ck/a.tmp", "ck/b"):
        link.write(name, b"x")
    (link.directory / "ck/latest").symlink_to("b")
    link.once()
    waited = link.millrace("link", "wait", link.directory / "ck", "--json")
    report = waited.object("link_wait")
    assert (report["files"], report["filtered"], report["passed"]) == (1, 1, 1)
    assert "does not ask about 1 file that the filter leaves out and 1 links or devices" in waited.err
    assert "--exclude" in link.millrace.fails("link", "wait", link.directory / "ck/a.tmp")


def test_wait_for_what_is_never_exported_is_an_error_at_once(linked: Callable[..., Linked]):
    link = linked("--export=none")
    link.put("there", b"x")
    link.once()
    link.write("a", b"x")
    process = link.millrace.start("link", "run", "one")
    try:
        for path in ("a", "."):
            began = time.monotonic()
            assert "--export none" in link.millrace.fails("link", "wait", link.directory / path)
            assert time.monotonic() - began < 60
        link.millrace("link", "wait", link.directory / "there")
    finally:
        process.terminate()
        process.wait()


def test_a_key_that_is_no_path_is_a_problem_until_it_is_gone(linked: Callable[..., Linked]):
    link = linked()
    keys = ["data/a//b", "data/./x", "data/../y"]
    for key in keys:
        link.s3.client.put_object(Bucket=link.bucket, Key=key, Body=b"x")
    link.put("good", b"x")
    link.once(status=3)
    status = link.status(status=3)
    assert {each["path"] for each in status["latest_problems"]} == {"a//b", "./x", "../y"}
    assert all("no path that a file can have" in each["error"] for each in status["latest_problems"])
    assert status["passed"] == 0 and set(link.files()) == {"good"}
    for key in keys:
        link.s3.client.delete_object(Bucket=link.bucket, Key=key)
    link.once()
    assert link.status()["problems"] == 0


def test_a_folder_that_became_empty_gives_way_to_an_object_of_its_name(linked: Callable[..., Linked]):
    link = linked(*BOTH)
    link.put("x/in/deep", b"old")
    link.put("other", b"x")
    link.once()
    link.s3.client.delete_object(Bucket=link.bucket, Key="data/x/in/deep")
    link.once()
    assert (link.directory / "x/in").is_dir()
    link.put("x", b"new")
    link.once()
    assert link.files() == {"x": b"new", "other": b"x"} and link.status()["problems"] == 0
    # One with files stays, and the object is a problem.
    link.write("folder/file", b"mine")
    link.once()
    link.put("folder", b"object")
    link.once(status=3)
    assert link.files()["folder/file"] == b"mine"
