# SPDX-License-Identifier: Apache-2.0
"""Verbs that write to a dataset, or make one of it, with the dataset in S3: the same as on a disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import Millrace, visible_files

pytest.importorskip("av")
pytest.importorskip("pyarrow")

from lerobot_sets import MAKERS
from test_lerobot_kill import damaged


class InBucket:
    """A folder as the prefix `set` of a bucket."""

    def __init__(self, s3, folder: Path):
        self.client, self.bucket = s3.client, s3.bucket()
        self.url = f"s3://{self.bucket}/set"
        for name, content in visible_files(folder).items():
            self.client.put_object(Bucket=self.bucket, Key=f"set/{name}", Body=content)

    def files(self) -> dict[str, bytes]:
        found = {}
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket):
            for each in page.get("Contents", []):
                body = self.client.get_object(Bucket=self.bucket, Key=each["Key"])["Body"].read()
                found[each["Key"].removeprefix("set/")] = body
        return found


@pytest.mark.parametrize("base", ["v21", "v30"])
def test_repair(cloud: Millrace, s3, tmp_path: Path, base: str):
    damaged(tmp_path / "set", base)
    there = InBucket(s3, tmp_path / "set")
    before = there.files()
    planned = cloud("lerobot", "repair", there.url, "--dry-run", "--json").object("lerobot_repair")
    assert there.files() == before
    here = cloud("lerobot", "repair", "set", "--json").object("lerobot_repair")
    done = cloud("lerobot", "repair", there.url, "--json").object("lerobot_repair")
    assert done["fixes"] == planned["fixes"] == here["fixes"] and len(done["fixes"]) >= 5
    assert there.files() == visible_files(tmp_path / "set") != before
    assert cloud("lerobot", "repair", there.url, "--json").object("lerobot_repair")["fixes"] == []


@pytest.mark.parametrize("base", ["v30", "groot"])
def test_statistics(cloud: Millrace, s3, tmp_path: Path, base: str):
    made = MAKERS[base](tmp_path / "set")
    made.json("meta/stats.json", lambda stats: stats["action"]["max"].__setitem__(1, 7.0))
    there = InBucket(s3, tmp_path / "set")
    before = there.files()
    more = ("--groot", "--horizon", 4) if base == "groot" else ()
    here = cloud("lerobot", "stats", "set", "--write", *more, "--json").object("lerobot_stats")
    done = cloud("lerobot", "stats", there.url, "--write", *more, "--json").object("lerobot_stats")
    assert done["features"] == here["features"] and done["rows"] == here["rows"]
    assert sorted(done["written"]) == sorted(here["written"]) and len(done["written"]) >= 2
    assert there.files() == visible_files(tmp_path / "set") != before


@pytest.mark.parametrize("version", ["2.1", "3.0"])
def test_split_delete_and_merge(cloud: Millrace, s3, tmp_path: Path, version: str):
    """What is made of episodes in a bucket has the bytes of what is made of the same on a disk; the bucket stays."""
    cloud("lerobot", "demo", "set", "--version", version, "--episodes", 4, "--codec", "h264")
    there = InBucket(s3, tmp_path / "set")
    before = there.files()
    for command in (("delete", "{}", "out", "--episodes", "1"), ("split", "{}", "out", "--episodes", "0,2-3")):
        made = []
        for url in ("set", there.url):
            cloud("lerobot", *(each.format(url) for each in command))
            made.append(visible_files(tmp_path / "out"))
            shutil.rmtree(tmp_path / "out")
        assert made[0] == made[1] and made[0]
    cloud("lerobot", "merge", there.url, "set", "out")
    merged = visible_files(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    cloud("lerobot", "merge", "set", "set", "out")
    assert merged == visible_files(tmp_path / "out")
    assert there.files() == before
