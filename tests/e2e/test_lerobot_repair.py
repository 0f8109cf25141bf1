# SPDX-License-Identifier: Apache-2.0
"""`millrace lerobot repair`: what it mends, what it leaves, and that it writes no more than it lists."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Millrace, visible_files

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from lerobot_sets import FPS, LENGTHS, MAKERS, Set, make_v2, make_v30  # noqa: E402

PLAN = ("lerobot", "repair", "set", "--dry-run", "--json")
REPAIR = ("lerobot", "repair", "set", "--json")


def repair(millrace: Millrace, *flags: str) -> dict:
    """The plan, and that the repair does just that: the files that it lists, and a second one finds nothing."""
    root = millrace.cwd / "set"
    before = visible_files(root)
    planned = millrace(*PLAN, *flags).object("lerobot_repair")
    assert visible_files(root) == before
    done = millrace(*REPAIR, *flags).object("lerobot_repair")
    assert done["fixes"] == planned["fixes"] and done["left"] == planned["left"]
    after = visible_files(root)
    changed = {name for name in after.keys() | before.keys() if before.get(name) != after.get(name)}
    listed = {fix["file"] for fix in done["fixes"]}
    assert changed == {name for name in changed if any(name.startswith(file) for file in listed)}
    assert len(changed) >= len(listed)
    assert millrace(*REPAIR, *flags).object("lerobot_repair")["fixes"] == []
    return done


def silent(millrace: Millrace) -> bool:
    return millrace("lerobot", "validate", "set", "--json").objects("lint") == []


@pytest.mark.parametrize("base", ["v21", "v30"])
def test_totals_splits_and_templates(millrace: Millrace, tmp_path: Path, base: str):
    made = MAKERS[base](tmp_path / "set")
    good = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert millrace(*REPAIR).object("lerobot_repair")["fixes"] == []

    def damage(info: dict):
        info.update(total_frames=1000, total_tasks=9, splits={"train": "0:100"})
        del info["total_episodes"]
        if base == "v21":
            info["data_path"] = info["data_path"].replace("{episode_chunk", "{episode_index")
            info["total_videos"] = 2

    made.info(damage)
    assert len(repair(millrace)["fixes"]) == (6 if base == "v21" else 4)
    assert json.loads((tmp_path / "set/meta/info.json").read_text()) == good
    assert silent(millrace)


@pytest.mark.parametrize("base", ["v21", "v30", "groot"])
def test_keys_that_every_dataset_of_the_version_has(millrace: Millrace, tmp_path: Path, base: str):
    made = MAKERS[base](tmp_path / "set")
    good = json.loads((tmp_path / "set/meta/info.json").read_text())
    keys = ["codebase_version", "robot_type", "chunks_size", "splits", "data_path", "video_path"]
    keys += ["data_files_size_in_mb", "video_files_size_in_mb"] if base == "v30" else ["total_videos", "total_chunks"]
    made.info(lambda info: [info.pop(key) for key in keys])
    done = repair(millrace)
    assert {fix["key"] for fix in done["fixes"]} == set(keys) and done["left"] == []
    mended = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert mended.pop("robot_type") is None and mended == {k: v for k, v in good.items() if k != "robot_type"}


def test_a_version_that_the_files_do_not_tell_is_left(millrace: Millrace, tmp_path: Path):
    made = make_v30(tmp_path / "set")
    made.info(lambda info: info.pop("codebase_version"))
    made.write("meta/episodes.jsonl", json.dumps({"episode_index": 0, "tasks": [], "length": 24}) + "\n")
    done = millrace(*REPAIR, "--metadata-only").object("lerobot_repair")
    assert "codebase_version" not in {fix["key"] for fix in done["fixes"]}
    assert any("the files do not tell the version" in each for each in done["left"])


@pytest.mark.parametrize(
    "splits, mended, left",
    [
        ({"train": "0:3", "test": "3:9"}, {"train": "0:3", "test": "3:4"}, None),
        ({"train": "0:3", "test": "3:4"}, None, None),
        ({"train": "0:2", "test": "2:3"}, None, "episode 3 is in no split"),
        ({"train": "0:80", "test": "80:100"}, None, 'split "test" is "80:100"'),
        ({"train": "0:2", "test": "half"}, None, 'split "test" is "half"'),
        ({"all": "0:9"}, {"all": "0:4"}, None),
    ],
)
def test_splits(millrace: Millrace, tmp_path: Path, splits: dict, mended: dict | None, left: str | None):
    """Episodes that do not exist belong to no split; which split an episode belongs to is not guessed."""
    made = make_v2(tmp_path / "set", "v21")
    made.info(lambda info: info.update(splits=splits))
    done = repair(millrace)
    assert [json.loads(fix["after"]) for fix in done["fixes"]] == ([mended] if mended else [])
    assert [left in each for each in done["left"]] == ([True] if left else [])
    assert json.loads((tmp_path / "set/meta/info.json").read_text())["splits"] == (mended or splits)


def data_files(made: Set, base: str) -> list[tuple[str, list[int]]]:
    if base == "v30":
        return [("data/chunk-000/file-000.parquet", [0, 1, 2]), ("data/chunk-000/file-001.parquet", [3])]
    return [(f"data/chunk-000/episode_{i:06}.parquet", [i]) for i in range(len(LENGTHS))]


@pytest.mark.parametrize("base", ["v21", "v30", "groot"])
def test_timestamps_come_from_frame_index(millrace: Millrace, tmp_path: Path, base: str):
    """Times that start late, or of a hardware clock, become frame_index / fps; all other columns stay."""
    made = MAKERS[base](tmp_path / "set")
    good = {name: pq.read_table(made.path(name)) for name, _ in data_files(made, base)}
    late, drifting = data_files(made, base)[0][0], data_files(made, base)[-1][0]
    made.table(late, lambda c: c.update(timestamp=[t + 1 / FPS for t in c["timestamp"]]))
    made.table(drifting, lambda c: c.update(timestamp=[t * 1.02 for t in c["timestamp"]]))
    done = repair(millrace)
    clocks = [(fix["rule"], fix["file"]) for fix in done["fixes"] if fix["key"] == "timestamp"]
    assert clocks[:2] == [("LR038", late), ("LR039", drifting)]
    # Stored statistics are those of the good times.
    assert len(clocks) == 2 and done["left"] == []
    for name, table in good.items():
        now = pq.read_table(made.path(name))
        assert now.equals(table) and now.schema.equals(table.schema)
        groups = [pq.ParquetFile(made.path(name)).metadata.row_group(i).num_rows for i in range(1)]
        assert groups[0] > 0
    assert silent(millrace)


def test_timestamps_that_nothing_tells_are_left(millrace: Millrace, tmp_path: Path):
    made = make_v2(tmp_path / "set", "v21")
    first, second = "data/chunk-000/episode_000000.parquet", "data/chunk-000/episode_000001.parquet"
    made.table(first, lambda c: (c.update(timestamp=[t + 0.5 for t in c["timestamp"]]), c.pop("frame_index")))
    made.table(second, lambda c: c.update(timestamp=[0.0] * 31, frame_index=list(range(1, 32))))
    before = visible_files(tmp_path / "set/data")
    left = millrace(*REPAIR).object("lerobot_repair")["left"]
    assert any(each.startswith(first) and "no frame_index" in each for each in left)
    assert any(each.startswith(second) and "LR021" in each for each in left)
    assert visible_files(tmp_path / "set/data") == before


@pytest.mark.parametrize("base", ["v21", "v30", "groot"])
def test_statistics_that_are_wrong_or_missing(millrace: Millrace, tmp_path: Path, base: str):
    made = MAKERS[base](tmp_path / "set")
    good = visible_files(tmp_path / "set")
    if base == "v21":

        def damage(all_lines: list[dict]):
            all_lines[1]["stats"]["action"]["std"] = [0.25] * 3
            all_lines[3]["stats"].pop("observation.state")
            all_lines[0]["stats"]["index"]["count"] = [5]

        made.lines("meta/episodes_stats.jsonl", damage)
        wanted = {("LR058", "action"), ("LR055", "observation.state"), ("LR059", "index")}
    else:

        def damage(stats: dict):
            stats["action"]["max"][1] = 7.0
            stats.pop("observation.state")

        made.json("meta/stats.json", damage)
        wanted = {("LR058", "action"), ("LR055", "observation.state")}
    done = repair(millrace)
    assert {(fix["rule"], fix["key"]) for fix in done["fixes"]} == wanted and done["left"] == []
    (spread,) = [fix for fix in done["fixes"] if fix["key"] == "action"]
    assert "in 1 of 4 episodes" in spread["after"] if base == "v21" else "max of dimension 1 is 7" in spread["before"]
    assert silent(millrace)
    name = "meta/episodes_stats.jsonl" if base == "v21" else "meta/stats.json"
    kept = {file for file in good if file != name and not file.startswith("meta/episodes/")}
    assert {file: visible_files(tmp_path / "set")[file] for file in kept} == {file: good[file] for file in kept}


@pytest.mark.parametrize("version", ["2.1", "3.0"])
def test_statistics_that_are_gone(millrace: Millrace, version: str):
    """All of them, cameras too: those are decoded, since nothing is stored."""
    millrace("lerobot", "demo", "set", "--version", version, "--episodes", 2, "--codec", "h264")
    root = millrace.cwd / "set"
    name = "meta/episodes_stats.jsonl" if version == "2.1" else "meta/stats.json"
    stored = (root / name).read_text()
    (root / name).unlink()
    assert any(fix["key"].startswith("observation.images") for fix in repair(millrace)["fixes"])
    lines = (
        [json.loads(text) for text in (stored, (root / name).read_text())]
        if version == "3.0"
        else [json.loads(text.splitlines()[1])["stats"] for text in (stored, (root / name).read_text())]
    )
    before, after = lines
    assert before.keys() == after.keys()
    np.testing.assert_allclose(after["action"]["std"], before["action"]["std"], rtol=1e-9)
    for camera in ("observation.images.front", "observation.images.wrist"):
        # The demo's own are of the pictures before they were encoded.
        np.testing.assert_allclose(after[camera]["mean"], before[camera]["mean"], atol=0.02)
        assert after[camera]["count"] == before[camera]["count"]


def test_rows_that_cannot_be_counted_are_left_and_the_rest_is_mended(millrace: Millrace, tmp_path: Path):
    made = make_v30(tmp_path / "set")
    made.info(lambda info: info.update(total_frames=1))
    made.table("data/chunk-000/file-001.parquet", lambda c: c["action"].__setitem__(3, [0.0, float("nan"), 0.0]))
    done = repair(millrace)
    assert [fix["key"] for fix in done["fixes"]] == ["total_frames"]
    assert any("row 3 of action is null, or not finite" in each for each in done["left"])
    assert "not repaired: " in millrace("lerobot", "repair", "set").out


def test_metadata_only_reads_no_rows(millrace: Millrace, tmp_path: Path):
    made = make_v2(tmp_path / "set", "v21")
    made.info(lambda info: info.update(total_frames=1))
    for path in (tmp_path / "set/data").rglob("*.parquet"):
        path.write_bytes(b"damaged")
    done = millrace(*REPAIR, "--metadata-only").object("lerobot_repair")
    assert [fix["key"] for fix in done["fixes"]] == ["total_frames"] and done["left"] == []


def test_nothing_is_written_where_totals_are_not_known(millrace: Millrace, tmp_path: Path):
    made = MAKERS["v21"](tmp_path / "set")
    made.info(lambda info: info.update(total_frames=1000))
    made.write("meta/episodes.jsonl", made.path("meta/episodes.jsonl").read_bytes()[:-20])
    before = (tmp_path / "set/meta/info.json").read_bytes()
    assert "totals are not known" in millrace.fails("lerobot", "repair", "set")
    assert (tmp_path / "set/meta/info.json").read_bytes() == before


def test_cameras_of_a_good_dataset_are_not_decoded(millrace: Millrace, tmp_path: Path):
    """The videos of this set hold no pictures, so that decoding would fail."""
    make_v30(tmp_path / "set")
    assert millrace(*REPAIR).object("lerobot_repair") | {"url": ""} == {
        "type": "lerobot_repair",
        "url": "",
        "dry_run": False,
        "fixes": [],
        "left": [],
    }
