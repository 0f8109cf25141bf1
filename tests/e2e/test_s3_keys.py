# SPDX-License-Identifier: Apache-2.0
"""Keys of every kind against a real S3 server: every byte, the longest, those that no folder can hold, and 100,000."""

from __future__ import annotations

import json
import os
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Millrace, Ran, measured
from s3_fixture import S3
from test_transfer import actions, make, read

MIB = 1 << 20
TOO_LONG, NO_UTF8 = re.compile(r"a key of \d+ bytes, and S3 takes 1024"), "a key that is not UTF-8"
CODE_POINTS = (
    "\x80\x85\x9f\xa0ÿ\u07ff\u0800\u200b\u2028\u2029\ud7ff\ue000\ufdd0\ufeff\ufffd\U00010000😀\U0010fffd\U0010ffff"
)
NAMES = [
    *("...", "..a", "a..", ".a", " ", "  a  ", "-rf", "--json", "~", "~root", "*", "[a]", "{a}", "$HOME", "a;b", "\\"),
    *("%", "%2F", "%252F", "%00", "%zz", "a%", "+", "a b+c", "a+b c", "&", "&amp;", "<x>", "]]>", "'", '"', "C:\\x"),
    *("?versionId=1", "?uploads", "a?b=c&d=e", "a#b", "#", "=", "key=value", ",", ":", "@", "!", "(a)", "|", "^", "`"),
    *("_", "__x", "_x_y", "\n", "a\n", "\r\n", "\t", "\x7f", "e\u0301", "é", "你好 мир", "🏳️\u200d🌈"),
    *("a" * 255, "é" * 127),
]


def keys(s3: S3, bucket: str) -> set[str]:
    """Those that the server has, but for our own, as botocore lists them."""
    pages = s3.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    listed = [each["Key"] for page in pages for each in page.get("Contents", [])]
    assert len(listed) == len(set(listed))
    return {key for key in listed if ".millrace" not in key.split("/")}


def said(ran: Ran, kind: str) -> list[dict]:
    """Objects of --json; a line may hold what str.splitlines takes for an end of line."""
    return [each for each in map(json.loads, ran.out.rstrip("\n").split("\n")) if each["type"] == kind]


def random_name(chance: random.Random) -> str:
    ranges = [(0x01, 0x20), (0x20, 0x7F), (0x20, 0x7F), (0x7F, 0x800), (0x800, 0xD800), (0xE000, 0xFFFE)]
    ranges.append((0x10000, 0x110000))
    name = "".join(chr(chance.randrange(*chance.choice(ranges))) for _ in range(chance.choice([1, 2, 3, 10, 60])))
    return name.replace("/", "").replace("\ufffe", "") or "empty"


def add_random_keys(files: set[str], chance: random.Random, count: int) -> None:
    """Paths that can all be in one folder: none is a folder of another."""
    folders: set[str] = set()
    most = len(files) + count
    while len(files) < most:
        parts = [random_name(chance) for _ in range(chance.choice([1, 1, 2, 4]))]
        above = {"/".join(parts[:i]) for i in range(1, len(parts))}
        path = "/".join(parts)
        if not {".", ".."} & set(parts) and path not in folders and not above & files:
            files.add(path)
            folders |= above


def test_every_name_that_a_file_may_have(
    cloud: Millrace, s3: S3, bucket: str, tmp_path: Path, seeded: random.Random
) -> None:
    """Up, listed, down, and removed one by one, at the top of a bucket and below folders of such names."""
    around = [f"{c}m{c}" for c in [*map(chr, range(1, 128)), *CODE_POINTS] if c != "/"]
    paths = {*NAMES, *around, *(f"folder {name}/{name}" for name in NAMES[:-2])}
    add_random_keys(paths, seeded, 100)
    files = {path: path.encode() for path in paths}  # no two are equal
    make(tmp_path / "src", files)
    assert read(tmp_path / "src") == files
    url = f"s3://{bucket}"
    up = cloud("sync", "src", url, "--json")
    assert {(each["action"], each["path"]) for each in said(up, "transfer")} == {("copy", path) for path in paths}
    assert keys(s3, bucket) == paths
    client = s3.client
    for path in seeded.sample(sorted(paths), 20):
        assert client.get_object(Bucket=bucket, Key=path)["Body"].read() == files[path]
    listed = said(cloud("ls", url, "--recursive", "--json"), "object")
    assert [each["path"] for each in listed] == sorted(paths, key=str.encode)
    assert {each["path"]: each["bytes"] for each in listed} == {path: len(content) for path, content in files.items()}
    cloud("sync", url, "back")
    assert read(tmp_path / "back") == files
    for source, target in (("src", url), (url, "back")):
        (again,) = said(cloud("sync", source, target, "--json"), "transfer_summary")
        assert (again["copied_files"], again["moved_bytes"], again["skipped_files"]) == (0, 0, len(files))
    cloud("verify", "back", url)
    gone = {"%2F", "a b+c", "?uploads", " ", "a\n", "...", *seeded.sample(sorted(paths), 10)}
    for path in gone:
        cloud("rm", f"{url}/{path}")
    assert keys(s3, bucket) == paths - gone
    cloud("rm", url, "--recursive", "--force-root")
    assert keys(s3, bucket) == set()


def test_names_that_are_not_utf8(cloud: Millrace, s3: S3, bucket: str, tmp_path: Path) -> None:
    good = {"a": b"1", "d/é": b"22", "z": b"333"}
    make(tmp_path / "src", good)
    bad = [b"b\xff", b"d/\xc3", b"\xed\xa0\x80", b"\xc0\xafx", b"y\x80y"]
    for name in bad:
        Path(os.fsdecode(bytes(tmp_path / "src") + b"/" + name)).write_bytes(b"x")
    for _ in range(2):
        ran = cloud("sync", "src", f"s3://{bucket}/p", "--json", status=1)
        failed = [each for each in ran.objects("transfer") if each["action"] in ("fail", "refuse")]
        assert sorted(each["path"] for each in failed) == sorted(name.decode(errors="replace") for name in bad)
        assert all(NO_UTF8 in each["reason"] for each in failed)
        assert keys(s3, bucket) == {f"p/{path}" for path in good}
    cloud("sync", f"s3://{bucket}/p", "back")
    assert read(tmp_path / "back") == good


def path_of(length: int, first: str) -> str:
    """A path of so many bytes whose parts a file system takes."""
    parts = [first + "é" * 120, "b" * 255, "c" * 255, "d" * 200]
    return "/".join([*parts, "e" * (length - len("/".join(parts).encode()) - 1)])


def test_the_longest_key(cloud: Millrace, s3: S3, bucket: str, tmp_path: Path) -> None:
    most = 1024 - len("p/")
    fits, long, longer = path_of(most, "fits"), path_of(most + 1, "long"), path_of(most + 40, "more")
    large = path_of(most, "large")
    files = {"a": b"1", fits: b"fits", large: os.urandom(20 * MIB), "z": b"2"}
    make(tmp_path / "src", files | {long: b"too long", longer: bytes(20 * MIB)})
    assert len(f"p/{fits}".encode()) == 1024 == len(f"p/{long}".encode()) - 1
    for _ in range(2):
        ran = cloud("sync", "src", f"s3://{bucket}/p", "--json", status=1)
        wrong = [each for each in ran.objects("transfer") if each["action"] in ("fail", "refuse")]
        assert sorted(each["path"] for each in wrong) == sorted([long, longer])
        assert all(f"s3://{bucket}/p/{each['path']}" in each["reason"] for each in wrong)
        assert all(TOO_LONG.search(each["reason"]) for each in wrong)
        assert keys(s3, bucket) == {f"p/{path}" for path in files}
    assert ran.objects("transfer") == wrong, "what fitted goes once"
    cloud("sync", f"s3://{bucket}/p", "back")
    assert read(tmp_path / "back") == files
    again = cloud("sync", f"s3://{bucket}/p", "back", "--json").object("transfer_summary")
    assert (again["copied_files"], again["moved_bytes"]) == (0, 0)


def test_a_key_that_is_a_file_and_a_folder(cloud: Millrace, s3: S3, bucket: str, tmp_path: Path) -> None:
    """Between "a" and "a/b" come other keys, which all arrive."""
    content = {key: key.encode() for key in ("a", "a b", "a-b", "a.txt", "a/b", "a/c/d", "a0", "d/a", "d/a/b", "d/z")}
    client = s3.client
    for key, body in content.items():
        client.put_object(Bucket=bucket, Key=key, Body=body)
    refused = ["a/b", "a/c/d", "d/a/b"]
    here = {key: body for key, body in content.items() if key not in refused}
    ran = cloud("sync", f"s3://{bucket}", "back", "--json", status=1)
    assert sorted(actions(ran)) == [*(("copy", key) for key in sorted(here)), *(("refuse", key) for key in refused)]
    assert all(each["reason"] for each in ran.objects("transfer"))
    assert read(tmp_path / "back") == here
    assert actions(cloud("sync", f"s3://{bucket}", "back", "--json", status=1)) == [("refuse", key) for key in refused]
    # A folder that was there first stays if the source has its files too; otherwise it makes room.
    make(tmp_path / "other", {"a/b": b"of another time", "d/a/mine": b"only here"})
    ran = cloud("sync", f"s3://{bucket}", "other", "--json", "--delete", status=1)
    wrong = sorted(path for action, path in actions(ran) if action in ("fail", "refuse"))
    assert wrong == sorted([*refused, "a"])
    kept = {"a/b": b"of another time"}
    assert read(tmp_path / "other") == {key: body for key, body in here.items() if key != "a"} | kept
    assert keys(s3, bucket) == set(content)


def told(cloud: Millrace, *words: object) -> tuple[list[dict], int]:
    """The output of --json, and the peak memory in KiB."""
    out, peak = measured([cloud.binary, *words, "--json", "--quiet"], cloud.cwd, cloud.env)
    return [json.loads(line) for line in out.splitlines()], peak


@pytest.fixture
def quick(cloud: Millrace) -> Iterator[S3]:
    """A separate server, in memory where possible, which halves the time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        server = S3.start(Path(folder) / "server")
        cloud.env |= server.env
        yield server
        server.destroy()


@pytest.mark.long
def test_a_hundred_thousand_keys(cloud: Millrace, quick: S3, tmp_path: Path) -> None:
    """Each arrives once, and ten times as many files take about the same memory: at most some hundred bytes a
    file."""
    bucket = quick.bucket()
    url, peaks = f"s3://{bucket}/p", {}
    done = 0
    for folders in (10, 100):
        for i in range(done, folders):
            (tmp_path / "src" / f"{i:03}").mkdir(parents=True)
            for j in range(1000):
                (tmp_path / "src" / f"{i:03}" / f"{j:03}").write_bytes(b"%d" % j if j % 2 else b"")
        events, peaks[folders] = told(cloud, "sync", "src", url)
        copied = [each["path"] for each in events if each["type"] == "transfer" and each["action"] == "copy"]
        assert copied == [f"{i:03}/{j:03}" for i in range(done, folders) for j in range(1000)]
        assert events[-1]["skipped_files"] == done * 1000
        done = folders
    again, peaks["again"] = told(cloud, "sync", "src", url)
    assert again[-1]["moved_bytes"] == 0 and again[-1]["skipped_files"] == 100_000 and len(again) == 1
    listed, peaks["ls"] = told(cloud, "ls", url, "--recursive")
    paths = [f"{i:03}/{j:03}" for i in range(100) for j in range(1000)]
    assert [each["path"] for each in listed] == paths
    assert keys(quick, bucket) == {f"p/{path}" for path in paths}
    _, peaks["down"] = told(cloud, "sync", url, "back")
    assert {f"p/{path}" for path in read(tmp_path / "back")} == keys(quick, bucket)
    assert max(peaks.values()) < peaks[10] + 80 * 1024, peaks
