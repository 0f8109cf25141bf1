# SPDX-License-Identifier: Apache-2.0
"""`millrace episodes convert` as a whole: what it prints, files that fail, a full disk, Ctrl-C."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from conftest import Killer, Millrace, full_disk, visible_files


def make_set(folder: Path, episodes: int = 5, rows: int = 20) -> None:
    folder.mkdir(parents=True)
    for i in range(episodes):
        lines = ["t,x,task"] + [f"{row / 50},{row * 0.1 + i},pick" for row in range(rows)]
        (folder / f"episode_{i}.csv").write_text("\n".join(lines) + "\n")


def test_what_it_says(millrace: Millrace, tmp_path: Path):
    make_set(tmp_path / "set")
    said = millrace("episodes", "convert", "set", "--json").object("episodes_convert")
    assert said["output"] == "set" and said["to"] == "npz" and said["dtype"] == "float32"
    assert (said["files"], said["converted"], said["kept"], said["failed"], said["rows"]) == (5, 5, 0, 0, 100)
    assert said["output_bytes"] == sum(path.stat().st_size for path in (tmp_path / "set").glob("*.npz"))
    assert said["kinds"] == [
        {"columns": ["t", "x"], "text_columns": ["task"], "files": 5, "first": "set/episode_0.csv"}
    ]
    text = millrace("episodes", "convert", "set").out
    assert "0 episodes" in text and "5 episodes kept from an earlier run" in text
    packed = millrace("episodes", "convert", "set", "--to", "packed", "--out", "a.mrpack", "--json")
    assert packed.object("episodes_convert")["output"] == "a.mrpack" and (tmp_path / "a.mrpack").exists()
    dry = millrace("episodes", "convert", "set/episode_[12].csv", "--compress", "--out", "out", "--dry-run").out
    assert "would convert 2 episodes, 40 rows" in dry and not (tmp_path / "out").exists()


def test_files_that_fail_are_named(millrace: Millrace, tmp_path: Path):
    make_set(tmp_path / "set")
    (tmp_path / "set" / "episode_2.csv").write_text("t,x,task\n1,2\n")
    for to in ("npz", "packed"):
        ran = millrace("episodes", "convert", "set", "--to", to, "--json", status=3)
        (found,) = ran.objects("finding")
        assert found["url"] == "set/episode_2.csv" and found["code"] == "corruption"
        assert found["message"].startswith("set/episode_2.csv:2:3: this row has 2 cells, and the header 3 names")
        assert ran.object("episodes_convert")["converted"] == 4
    assert len(list((tmp_path / "set").glob("*.npz"))) == 4


def test_wrong_usage(millrace: Millrace, tmp_path: Path):
    make_set(tmp_path / "set", 1)
    assert "--compress" in millrace.fails("episodes", "convert", "set", "--to", "packed", "--compress", status=2)
    assert "--delimiter" in millrace.fails("episodes", "convert", "set", "--delimiter", "::", status=2)
    assert "no .csv file is there" in millrace.fails("episodes", "convert", "none")


def test_times_that_float32_rounds_are_a_note(millrace: Millrace, tmp_path: Path):
    (tmp_path / "a.csv").write_text("t,x\n1700000000.25,1\n")
    assert "column t: float32 rounds" in millrace("episodes", "convert", "a.csv").err
    assert "rounds" not in millrace("episodes", "convert", "a.csv", "--dtype", "float64").err


@pytest.mark.parametrize("to", ["npz", "packed"])
def test_a_full_disk_leaves_no_half_file(millrace: Millrace, tmp_path: Path, to: str):
    make_set(tmp_path / "set", 30, 300)
    before = {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()}
    env = full_disk(9000, tmp_path)
    said = millrace.fails("episodes", "convert", "set", "--to", to, "--threads", "1", env=env)
    assert "No space left" in said or "no space" in said.lower()
    after = {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()}
    assert {name: data for name, data in after.items() if name in before} == before
    finished = set(after) - set(before)
    assert all(name.endswith(".npz") for name in finished)
    done = millrace("episodes", "convert", "set", "--to", to, "--json").object("episodes_convert")
    assert done["kept"] == len(finished) and done["kept"] + done["converted"] == 30


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("to", ["npz", "packed"])
def test_a_conversion_that_was_killed_goes_on(millrace: Millrace, tmp_path: Path, to: str, when: str):
    """No half file is left at an output's name, what was finished is kept, and the same command makes the rest."""
    command = ("episodes", "convert", "set", "--to", to, "--threads", 1)
    make_set(tmp_path / "set", 6, 20)
    before = visible_files(tmp_path / "set")
    millrace(*command)
    whole = visible_files(tmp_path / "set")
    made = whole.keys() - before.keys()
    assert len(made) == (6 if to == "npz" else 1)
    killer = Killer(tmp_path)
    for number in range(1, 20):
        for name in visible_files(tmp_path / "set").keys() - before.keys():
            (tmp_path / "set" / name).unlink()
        if not killer.run(millrace, when, number, *command):
            break
        left = visible_files(tmp_path / "set")
        finished = left.keys() - before.keys()
        assert all(left[name] == whole[name] for name in left)
        ended = number if when == "after" else number - 1
        assert ended <= len(finished) <= ended + 1  # the other thread may have had one under way
        done = millrace(*command, "--json").object("episodes_convert")
        assert done["kept"] == (len(finished) if to == "npz" else 6 * len(finished))
        assert done["kept"] + done["converted"] == 6 and visible_files(tmp_path / "set") == whole
    assert number == len(made) + 1 and visible_files(tmp_path / "set") == whole


def test_ctrl_c_keeps_what_is_finished(millrace: Millrace, tmp_path: Path):
    make_set(tmp_path / "set", 400, 400)
    process = millrace.start("episodes", "convert", "set", "--threads", "1")
    while not list((tmp_path / "set").glob("*.npz")) and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and "run the same command again to continue" in err
    assert not [path for path in (tmp_path / "set").iterdir() if path.suffix not in (".csv", ".npz")]
    done = millrace("episodes", "convert", "set", "--json").object("episodes_convert")
    assert done["kept"] >= 1 and done["kept"] + done["converted"] == 400
