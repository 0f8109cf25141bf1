# SPDX-License-Identifier: Apache-2.0
"""`lerobot repair` and `lerobot stats --write` that are killed at each file: no file is half written, and the same
command continues."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import Killer, Millrace, visible_files

pytest.importorskip("pyarrow")

from lerobot_sets import FPS, MAKERS


def damaged(root: Path, base: str) -> None:
    """Times of two files, statistics and totals are wrong."""
    made = MAKERS[base](root)
    names = [f"data/chunk-000/{'file' if base == 'v30' else 'episode'}{'-' if base == 'v30' else '_'}"]
    numbers = ("000", "001") if base == "v30" else ("000000", "000003")
    for number in numbers:
        made.table(f"{names[0]}{number}.parquet", lambda c: c.update(timestamp=[t + 1 / FPS for t in c["timestamp"]]))
    if base == "v21":
        made.lines("meta/episodes_stats.jsonl", lambda lines: lines[1]["stats"]["action"].update(std=[0.25] * 3))
    else:
        made.json("meta/stats.json", lambda stats: stats["action"]["max"].__setitem__(1, 7.0))
    made.info(lambda info: info.update(total_frames=1000, splits={"train": "0:100"}))


def check_kills(millrace: Millrace, tmp_path: Path, when: str, command: tuple, least: int) -> None:
    """Of `old`, with a process that is gone at its first file, its second, ... until it comes through."""
    before = visible_files(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "set")
    millrace(*command)
    whole = visible_files(tmp_path / "set")
    changed = {name for name in whole if whole[name] != before.get(name)}
    assert len(changed) >= least
    killer = Killer(tmp_path)
    seen: set[str] = set()
    for number in range(1, 20):
        shutil.rmtree(tmp_path / "set")
        shutil.copytree(tmp_path / "old", tmp_path / "set")
        if not killer.run(millrace, when, number, *command):
            break
        left = visible_files(tmp_path / "set")
        assert left.keys() <= before.keys() | whole.keys()
        for name, content in left.items():
            assert content in (before.get(name), whole.get(name)), f"{name} is half written"
        seen |= {name for name in changed if left.get(name) == whole[name]}
        millrace(*command)
        assert visible_files(tmp_path / "set") == whole
    assert number > least and visible_files(tmp_path / "set") == whole
    # The last file of a run that is killed behind it is there.
    assert seen == changed if when == "after" else seen < changed


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("base", ["v21", "v30", "groot"])
def test_a_repair_that_was_killed_goes_on(millrace: Millrace, tmp_path: Path, base: str, when: str):
    damaged(tmp_path / "old", base)
    check_kills(millrace, tmp_path, when, ("lerobot", "repair", "set"), 4)
    assert millrace("lerobot", "validate", "set", "--json").objects("lint") == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("base", ["v30", "groot"])
def test_statistics_whose_writing_was_killed_are_written(millrace: Millrace, tmp_path: Path, base: str, when: str):
    made = MAKERS[base](tmp_path / "old")
    made.json("meta/stats.json", lambda stats: stats["action"]["max"].__setitem__(1, 7.0))
    more = ("--groot", "--horizon", 4) if base == "groot" else ()
    check_kills(millrace, tmp_path, when, ("lerobot", "stats", "set", "--write", *more), 2)
    assert json.loads((tmp_path / "set/meta/stats.json").read_text())["action"]["max"][1] < 7
