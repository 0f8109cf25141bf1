# SPDX-License-Identifier: Apache-2.0
"""`millrace lerobot split`, `merge` and `delete`, read by pyarrow and PyAV."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import Millrace, full_disk, kill, visible_files

av = pytest.importorskip("av")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

CAMERAS = ["observation.images.front", "observation.images.wrist"]
NUMBERED = ("episode_index", "index")
QUANTILES = {f"q{q:02d}": q / 100 for q in (1, 10, 50, 90, 99)}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def decoded(path: Path) -> list[tuple[float, bytes]]:
    with av.open(str(path)) as file:
        return [(float(f.pts * f.time_base), f.to_ndarray().tobytes()) for f in file.decode(video=0)]


class Episodes:
    """What a dataset of v2.1 or v3.0 says of each episode: its row of metadata, its table, its frames."""

    def __init__(self, root: Path):
        self.root = root
        self.info = json.loads((root / "meta/info.json").read_text())
        self.v3 = self.info["codebase_version"] == "v3.0"
        self.videos: dict[str, list] = {}
        if self.v3:
            files = sorted(root.glob("meta/episodes/*/*.parquet"))
            self.rows = [row for path in files for row in pq.read_table(path).to_pylist()]
            tasks = pq.read_table(root / "meta/tasks.parquet").to_pydict()
            self.tasks = dict(zip(tasks["task_index"], tasks["task"], strict=True))
            self.first = {}
            for row in self.rows:
                key = (row["data/chunk_index"], row["data/file_index"])
                self.first.setdefault(key, row["dataset_from_index"])
        else:
            self.rows = lines(root / "meta/episodes.jsonl")
            self.tasks = {line["task_index"]: line["task"] for line in lines(root / "meta/tasks.jsonl")}
            self.stat_lines = {
                line["episode_index"]: line["stats"] for line in lines(root / "meta/episodes_stats.jsonl")
            }

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, row: dict, kind: str) -> dict:
        if self.v3:
            return {"chunk_index": row[f"{kind}/chunk_index"], "file_index": row[f"{kind}/file_index"]}
        return {"episode_chunk": row["episode_index"] // 1000, "episode_index": row["episode_index"]}

    def table(self, i: int) -> pa.Table:
        row = self.rows[i]
        table = pq.read_table(self.root / self.info["data_path"].format(**self.place(row, "data")))
        if self.v3:
            first = self.first[row["data/chunk_index"], row["data/file_index"]]
            table = table.slice(row["dataset_from_index"] - first, row["length"])
        return table

    def frames(self, i: int, camera: str) -> list[tuple[float, bytes]]:
        """With the time from the episode's beginning, as LeRobot finds them: from_timestamp + timestamp."""
        row = self.rows[i]
        path = self.info["video_path"].format(video_key=camera, **self.place(row, f"videos/{camera}"))
        if path not in self.videos:
            self.videos[path] = decoded(self.root / path)
        begin = row[f"videos/{camera}/from_timestamp"] if self.v3 else 0
        end = row[f"videos/{camera}/to_timestamp"] if self.v3 else float("inf")
        return [(t - begin, picture) for t, picture in self.videos[path] if begin - 1e-6 <= t < end - 1e-6]

    def stats(self, i: int) -> dict:
        if not self.v3:
            return self.stat_lines[i]
        stats: dict = {}
        for name, value in self.rows[i].items():
            if name.startswith("stats/"):
                feature, statistic = name.removeprefix("stats/").rsplit("/", 1)
                stats.setdefault(feature, {})[statistic] = value
        return stats

    def check_numbers(self) -> None:
        """Episodes and rows are numbered from 0, and the statistics of these numbers are NumPy's."""
        begin = 0
        for i, row in enumerate(self.rows):
            table = self.table(i)
            assert row["episode_index"] == i and row["length"] == len(table)
            assert table["episode_index"].to_pylist() == [i] * len(table)
            assert table["index"].to_pylist() == list(range(begin, begin + len(table)))
            assert row["tasks"] == [self.tasks[n] for n in dict.fromkeys(table["task_index"].to_pylist())]
            for name in (*NUMBERED, "task_index"):
                values = table[name].to_numpy().astype(np.float64)
                stats = self.stats(i)[name]
                for how in ("min", "max", "mean", "std"):
                    np.testing.assert_allclose(stats[how], [getattr(values, how)()], rtol=1e-12, atol=1e-12)
                for how in QUANTILES.keys() & stats.keys():
                    np.testing.assert_allclose(stats[how], [np.quantile(values, QUANTILES[how])], rtol=1e-12)
                assert stats["count"] == [len(table)]
            begin += len(table)
        assert self.info["total_episodes"] == len(self) and self.info["total_frames"] == begin
        assert self.info["splits"] == {"train": f"0:{len(self)}"}


def assert_same_episode(a: Episodes, i: int, b: Episodes, j: int) -> None:
    """Everything but the numbers of episodes and rows."""
    numbered = list(NUMBERED) + ([] if a.tasks == b.tasks else ["task_index"])
    assert a.table(i).drop_columns(numbered).equals(b.table(j).drop_columns(numbered))
    assert a.rows[i]["tasks"] == b.rows[j]["tasks"]
    for camera in CAMERAS:
        mine, its = a.frames(i, camera), b.frames(j, camera)
        assert [picture for _, picture in mine] == [picture for _, picture in its]
        assert len(mine) == a.rows[i]["length"]
        np.testing.assert_allclose([t for t, _ in mine], [t for t, _ in its], atol=1e-9)
    mine, its = a.stats(i), b.stats(j)
    for feature in mine.keys() - set(numbered):
        for how in mine[feature].keys() & its[feature].keys():
            assert mine[feature][how] == its[feature][how], (feature, how)


def demo(millrace: Millrace, out: str, *flags: object) -> Episodes:
    millrace("lerobot", "demo", out, *flags)
    return Episodes(millrace.cwd / out)


def rules(millrace: Millrace, root: str, *flags: str) -> set[str]:
    found = millrace("lerobot", "validate", root, "--json", "--fail-on", "never", *flags).objects("lint")
    return {finding["rule"] for finding in found if finding["severity"] != "note"}


@pytest.mark.parametrize(("version", "fps"), [("2.1", "30"), ("3.0", "30"), ("3.0", "30000/1001"), ("groot", "20")])
def test_split_then_merge_is_the_dataset(millrace: Millrace, version: str, fps: str):
    old = demo(millrace, "old", "--version", version, "--episodes", 5, "--fps", fps, "--seed", 3)
    before = visible_files(old.root)
    flags = ("--part", "a=0-1,3", "--part", "b=2,4")
    plans = millrace("lerobot", "split", "old", "parts", *flags, "--dry-run", "--json").objects("lerobot_split")
    assert not (millrace.cwd / "parts").exists() and not (millrace.cwd / "parts.partial").exists()
    made = millrace("lerobot", "split", "old", "parts", *flags, "--json").objects("lerobot_split")
    for plan, report in zip(plans, made, strict=True):
        assert {key: plan[key] for key in ("output", "version", "episodes", "frames", "files")} == {
            key: report[key] for key in ("output", "version", "episodes", "frames", "files")
        }
        assert report["encoded_videos"] == 0 and report["inherited"] == []
    assert visible_files(old.root) == before, "the source is only read"
    a, b = Episodes(millrace.cwd / "parts/a"), Episodes(millrace.cwd / "parts/b")
    for part, episodes in ((a, (0, 1, 3)), (b, (2, 4))):
        part.check_numbers()
        assert len(part) == len(episodes)
        for i, episode in enumerate(episodes):
            assert_same_episode(part, i, old, episode)
    millrace("lerobot", "merge", "parts/a", "parts/b", "new", "--json")
    new = Episodes(millrace.cwd / "new")
    new.check_numbers()
    assert new.tasks == old.tasks and new.info == old.info
    for i, episode in enumerate((0, 1, 3, 2, 4)):
        assert_same_episode(new, i, old, episode)
    checks = ("--deep", "--groot") if version == "groot" else ("--deep",)
    known = {"LR010"} if "/" in fps else set()  # that the rate is no whole number
    assert rules(millrace, "new", *checks) == rules(millrace, "parts/a", *checks) == known


def test_statistics_of_a_part_are_those_of_its_rows(millrace: Millrace):
    for version, names in (("3.0", QUANTILES), ("groot", {"q01": 0.01, "q99": 0.99})):
        demo(millrace, f"old{version}", "--version", version, "--episodes", 4, "--codec", "h264")
        millrace("lerobot", "split", f"old{version}", f"new{version}", "--episodes", "1-2")
        new = Episodes(millrace.cwd / f"new{version}")
        stats = json.loads((new.root / "meta/stats.json").read_text())
        whole = pa.concat_tables([new.table(0), new.table(1)])
        for feature in ("action", "observation.state", "timestamp"):
            values = np.array(whole[feature].to_pylist(), dtype=np.float64).reshape(len(whole), -1)
            for how in ("min", "max", "mean", "std"):
                np.testing.assert_allclose(stats[feature][how], getattr(values, how)(0), rtol=1e-12, atol=1e-12)
            for how, quantile in names.items():
                np.testing.assert_allclose(stats[feature][how], np.quantile(values, quantile, axis=0), rtol=1e-12)
    assert json.loads((new.root / "meta/modality.json").read_text()) == json.loads(
        (millrace.cwd / "oldgroot/meta/modality.json").read_text()
    )
    image = json.loads((millrace.cwd / "new3.0/meta/stats.json").read_text())[CAMERAS[0]]
    assert np.shape(image["mean"]) == (3, 1, 1)


def test_delete_keeps_the_others(millrace: Millrace):
    for version in ("2.1", "3.0"):
        old = demo(millrace, f"old{version}", "--version", version, "--episodes", 5, "--codec", "h264", "--fps", 10)
        report = millrace("lerobot", "delete", f"old{version}", f"new{version}", "--episodes", "0,2-3", "--json")
        assert report.object("lerobot_delete")["episodes"] == 2
        new = Episodes(millrace.cwd / f"new{version}")
        new.check_numbers()
        assert_same_episode(new, 0, old, 1)
        assert_same_episode(new, 1, old, 4)


def test_fractions_lose_no_episode(millrace: Millrace):
    old = demo(millrace, "old", "--version", "2.1", "--episodes", 7, "--cameras", 1, "--codec", "h264", "--fps", 10)
    flags = ("--fraction", "train=0.7", "--fraction", "val=0.2", "--fraction", "test=0.1", "--json")
    made = millrace("lerobot", "split", "old", "parts/", *flags).objects("lerobot_split")
    assert [report["output"] for report in made] == ["parts/train", "parts/val", "parts/test"]
    assert [report["episodes"] for report in made] == [5, 1, 1]
    assert sum(report["frames"] for report in made) == old.info["total_frames"]
    last = pq.read_table(millrace.cwd / "parts/test/data/chunk-000/episode_000000.parquet")
    assert last["action"].equals(old.table(6)["action"])


def test_merge_numbers_tasks_by_their_texts(millrace: Millrace):
    """Versions, codecs and kinds of lists may differ; the same task has one number, annotations too."""
    first = demo(millrace, "first", "--version", "groot", "--episodes", 3, "--codec", "h264")
    demo(millrace, "other", "--version", "groot", "--episodes", 2, "--codec", "av1", "--seed", 5)
    tasks = [{"task_index": 0, "task": "wait"}, {"task_index": 1, "task": first.tasks[1]}]
    (millrace.cwd / "other/meta/tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    episodes = lines(millrace.cwd / "other/meta/episodes.jsonl")
    for number, path in enumerate(sorted((millrace.cwd / "other").glob("data/*/*.parquet"))):
        table = pq.read_table(path)
        for name in ("action", "observation.state"):  # as what went through pandas
            lists = pa.array(table[name].to_pylist(), pa.list_(pa.float32()))
            table = table.set_column(table.column_names.index(name), name, lists)
        pq.write_table(table.select(sorted(table.column_names)), path)
        episodes[number]["tasks"] = [tasks[number]["task"]]
    (millrace.cwd / "other/meta/episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in episodes))
    for to in ("2.1", "3.0"):
        millrace("lerobot", "merge", "first", "other", f"both{to}", "--to", to)
        both = Episodes(millrace.cwd / f"both{to}")
        both.check_numbers()
        assert list(both.tasks.values()) == [*first.tasks.values(), "wait"]
        wanted = [0, 1, 2, 3, 1]
        for i, task in enumerate(wanted):
            assert set(both.table(i)["task_index"].to_pylist()) == {task}
            assert set(both.table(i)["annotation.human.task_description"].to_pylist()) == {task}
        assert both.table(4).schema.field("action").type == pa.list_(pa.float32(), 3) or to == "2.1"
        for i in range(3):
            assert_same_episode(both, i, first, i)
        other = Episodes(millrace.cwd / "other")
        for camera in CAMERAS:
            assert [p for _, p in both.frames(4, camera)] == [p for _, p in other.frames(1, camera)]


SPEC = """# of the demo
state.joints = observation.state[0:2]
state.gripper = observation.state[2:3]
action.joints = action[0:2]
action.gripper = action[2:3]
"""


@pytest.mark.parametrize("version", ["2.1", "3.0"])
def test_conversion_to_groot(millrace: Millrace, version: str):
    old = demo(millrace, "old", "--version", version, "--episodes", 3, "--fps", 20)
    ran = millrace("lerobot", "convert", "old", "proposed", "--to", "groot", "--json")
    report = ran.object("lerobot_convert")
    assert report["version"] == "v2.1" and report["encoded_videos"] == 0
    assert report["proposed"] == [
        "state.single_arm = observation.state[0:2]",
        "state.gripper = observation.state[2:3]",
        "action.single_arm = action[0:2]",
        "action.gripper = action[2:3]",
        "video.front = observation.images.front",
        "video.wrist = observation.images.wrist",
        "annotation.human.task_description = task_index",
    ]
    assert "proposed from names" in ran.err and report["proposed"][0] in ran.err
    (millrace.cwd / "spec.txt").write_text(SPEC)
    flags = ("--to", "groot", "--modality", "spec.txt", "--json")
    report = millrace("lerobot", "convert", "old", "new", *flags).object("lerobot_convert")
    assert [line.split(".")[0] for line in report["proposed"]] == ["video", "video", "annotation"]
    new = Episodes(millrace.cwd / "new")
    modality = json.loads((new.root / "meta/modality.json").read_text())
    groups = {"joints": {"start": 0, "end": 2}, "gripper": {"start": 2, "end": 3}}
    assert modality["state"] == modality["action"] == groups
    assert modality["video"]["front"] == {"original_key": CAMERAS[0]}
    assert modality["annotation"] == {"human.task_description": {"original_key": "task_index"}}
    for i in range(3):
        assert_same_episode(new, i, old, i)
    whole = pa.concat_tables([new.table(i) for i in range(3)])
    stats = json.loads((new.root / "meta/stats.json").read_text())
    assert set(stats) == {"observation.state", "action", "timestamp"}
    values = np.array(whole["action"].to_pylist(), dtype=np.float64)
    np.testing.assert_allclose(stats["action"]["q99"], np.quantile(values, 0.99, axis=0), rtol=1e-12)
    for name in ("proposed", "new"):
        found = rules(millrace, name, "--groot", "--language-key", "annotation.human.task_description")
        assert found == set(), name
    wrong = ("lerobot", "convert", "old", "x", "--to", "3.0", "--modality", "spec.txt")
    assert "--to groot" in millrace.fails(*wrong, status=2)
    (millrace.cwd / "spec.txt").write_text(SPEC + "state.more = observation.state[2:9]\n")
    refused = millrace.fails("lerobot", "convert", "old", "x", "--to", "groot", "--modality", "spec.txt")
    assert "line 6" in refused and "observation.state has the numbers [0:3]" in refused


def test_conversion_to_v20(millrace: Millrace):
    """What v2.0 keeps: no statistics of episodes. Of a set for GR00T, GR00T's reader finds its statistics, too."""
    for version in ("2.1", "3.0", "groot"):
        old = demo(millrace, f"from{version}", "--version", version, "--episodes", 3, "--codec", "h264", "--fps", 20)
        made = f"made{version}"
        plan = millrace("lerobot", "convert", old.root.name, made, "--to", "2.0", "--dry-run", "--json")
        report = millrace("lerobot", "convert", old.root.name, made, "--to", "2.0", "--json").object("lerobot_convert")
        assert plan.object("lerobot_convert")["files"] == report["files"]
        assert report["version"] == "v2.0" and report["encoded_videos"] == 0
        root = millrace.cwd / made
        info = json.loads((root / "meta/info.json").read_text())
        assert info["codebase_version"] == "v2.0" and info["total_videos"] == 6 and info["total_chunks"] == 1
        names = {path.name for path in (root / "meta").iterdir()}
        usual = {"info.json", "episodes.jsonl", "tasks.jsonl", "stats.json"}
        assert names == usual | ({"modality.json"} if version == "groot" else set())
        assert rules(millrace, made, "--deep") == set()
        whole = pa.concat_tables([pq.read_table(path) for path in sorted(root.glob("data/*/*.parquet"))])
        stats = json.loads((root / "meta/stats.json").read_text())
        assert stats.keys() == info["features"].keys()
        for name, each in stats.items():
            is_float = info["features"][name]["dtype"] == "float32"
            quantiles = ["q01", "q99"] if version == "groot" and is_float else []
            assert list(each) == ["mean", "std", "max", "min", *quantiles]
            if name in CAMERAS:
                assert np.shape(each["mean"]) == (3, 1, 1)
                continue
            values = np.array(whole[name].to_pylist(), dtype=np.float64).reshape(len(whole), -1)
            for how in ("mean", "std", "max", "min"):
                np.testing.assert_allclose(each[how], getattr(values, how)(0), rtol=1e-12, atol=1e-12)
            for how in quantiles:
                np.testing.assert_allclose(each[how], np.quantile(values, QUANTILES[how], axis=0), rtol=1e-12)
    assert rules(millrace, "madegroot", "--groot", "--language-key", "annotation.human.task_description") == set()
    # An edit keeps the version; v2.0 and v2.1 together become v2.1.
    report = millrace("lerobot", "delete", "madegroot", "less", "--episodes", "1", "--json").object("lerobot_delete")
    assert report["version"] == "v2.0" and (millrace.cwd / "less/meta/modality.json").exists()
    assert rules(millrace, "less", "--groot", "--language-key", "annotation.human.task_description") == set()
    report = millrace("lerobot", "merge", "made2.1", "from2.1", "both", "--json").object("lerobot_merge")
    assert report["version"] == "v2.1" and (millrace.cwd / "both/meta/episodes_stats.jsonl").exists()
    report = millrace("lerobot", "merge", "made2.1", "from2.1", "both20", "--to", "2.0", "--json")
    assert report.object("lerobot_merge")["version"] == "v2.0"
    assert rules(millrace, "both", "--deep") == rules(millrace, "both20", "--deep") == set()
    assert "has that version already (v2.0)" in millrace.fails("lerobot", "convert", "made2.1", "x", "--to", "2.0")


def test_modality_is_shown_proposed_and_written(millrace: Millrace):
    """What `lerobot modality` prints can be edited and given back; validate takes what it writes."""
    old = demo(millrace, "old", "--version", "groot", "--episodes", 2, "--codec", "h264", "--fps", 10)
    stored = json.loads((old.root / "meta/modality.json").read_text())
    shown = millrace("lerobot", "modality", "old", "--json").object("lerobot_modality")
    assert (shown["from"], shown["proposed"], shown["written"]) == ("file", 0, False)
    assert shown["modality"] == stored
    (old.root / "meta/modality.json").unlink()
    printed = millrace("lerobot", "modality", "old").out
    assert printed.splitlines()[:2] == [
        "# proposed from the names in info.json",
        "state.single_arm = observation.state[0:2]",
    ]
    assert not (old.root / "meta/modality.json").exists()
    (millrace.cwd / "spec.txt").write_text(printed.replace("single_arm", "joints"))
    spec = ("--spec", "spec.txt")
    done = millrace("lerobot", "modality", "old", *spec, "--write")
    assert "stats old --write" in done.err and "state.joints = observation.state[0:2]" in done.out
    written = json.loads((old.root / "meta/modality.json").read_text())
    assert written["state"]["joints"] == {"start": 0, "end": 2} and written["video"].keys() == stored["video"].keys()
    again = millrace("lerobot", "modality", "old", "--json").object("lerobot_modality")
    assert again["entries"] == [line for line in done.out.splitlines() if not line.startswith("#")]
    millrace("lerobot", "stats", "old", "--write")
    language = ("--language-key", "annotation.human.task_description")
    assert rules(millrace, "old", "--groot", *language) == set()
    # One that is there stays, unless a spec is to replace it.
    before = visible_files(old.root)
    assert "--spec FILE --force" in millrace.fails("lerobot", "modality", "old", *spec, "--write")
    assert "needs --spec" in millrace.fails("lerobot", "modality", "old", "--write", "--force", status=2)
    (millrace.cwd / "wrong.txt").write_text("state.a = observation.state[0:9]\n")
    wrong = millrace.fails("lerobot", "modality", "old", "--spec", "wrong.txt", "--write", "--force")
    assert "the spec: line 1" in wrong and "[0:3]" in wrong
    assert "none.txt: No such file" in millrace.fails("lerobot", "modality", "old", "--spec", "none.txt")
    assert visible_files(old.root) == before
    (millrace.cwd / "spec.txt").write_text("state.all = observation.state\n")
    report = millrace("lerobot", "modality", "old", *spec, "--write", "--force", "--json").object("lerobot_modality")
    assert report["from"] == "spec" and report["proposed"] == len(report["entries"]) - 1
    assert json.loads((old.root / "meta/modality.json").read_text())["state"] == {"all": {"start": 0, "end": 3}}
    # GR00T reads no v3.0.
    demo(millrace, "new", "--version", "3.0", "--episodes", 2, "--codec", "h264", "--fps", 10)
    assert "--to groot" in millrace.fails("lerobot", "modality", "new", "--write")
    assert millrace("lerobot", "modality", "new").out.splitlines()[:5] == printed.splitlines()[:5]
    (old.root / "meta/modality.json").write_text('{"state": 3}')
    assert "meta/modality.json: state: it is no object" in millrace.fails("lerobot", "modality", "old")


def test_edits_refuse(millrace: Millrace):
    demo(millrace, "a", "--version", "2.1", "--episodes", 2, "--cameras", 1, "--codec", "h264", "--fps", 10)
    demo(millrace, "b", "--version", "2.1", "--episodes", 2, "--cameras", 2, "--codec", "h264", "--fps", 10)
    demo(millrace, "c", "--version", "2.1", "--episodes", 2, "--cameras", 1, "--codec", "h264", "--fps", 20)
    demo(millrace, "d", "--version", "3.0", "--episodes", 2, "--cameras", 1, "--codec", "h264", "--fps", 10)

    def refused(*args: object, status: int = 1) -> str:
        return millrace.fails("lerobot", *args, status=status)

    assert "there is no episode 2: the dataset has 0 to 1" in refused("split", "a", "x", "--episodes", "1-2")
    assert "no episode would be left" in refused("delete", "a", "x", "--episodes", "0-1")
    assert "'1-x' is no episode" in refused("delete", "a", "x", "--episodes", "1-x", status=2)
    assert "twice" in refused("split", "a", "x", "--episodes", "0,0")
    assert "'..=0'" in refused("split", "a", "x", "--part", "..=0", status=2)
    assert "--part or --fraction" in refused("split", "a", "x", status=2)
    assert "at most 1" in refused("split", "a", "x", "--fraction", "p=0.7", "--fraction", "q=0.5")
    assert "lies in the source a" in refused("split", "a", "a/x", "--episodes", "0")
    assert "b cannot be merged with a: it has the feature observation.images.wrist" in refused("merge", "a", "b", "x")
    assert "c cannot be merged with a: fps is 20, not 10" in refused("merge", "a", "c", "x")
    assert "--to" in refused("merge", "a", "d", "x")
    assert "is there already" in refused("merge", "a", "a", "b")
    assert "two datasets" in refused("merge", "a", "x", status=2)
    assert not any((millrace.cwd / name).exists() for name in ("x", "x.partial", "a/x.partial"))


def damage(root: Path, pattern: str, keep: float) -> Path:
    path = sorted(root.glob(pattern))[-1]
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    return path


@pytest.mark.parametrize("version", ["2.1", "3.0"])
@pytest.mark.parametrize("pattern", ["videos/**/*.mp4", "data/**/*.parquet"])
def test_a_truncated_file_is_named_and_the_source_stays(millrace: Millrace, version: str, pattern: str):
    for keep in (0.5, 0.97, 0):
        old = demo(millrace, f"old{keep}", "--version", version, "--episodes", 3, "--codec", "h264", "--fps", 10)
        path = damage(old.root, pattern, keep)
        before = visible_files(old.root)
        for verb in (
            ("split", old.root.name, "new", "--episodes", "1-2"),
            ("merge", old.root.name, old.root.name, "new"),
            ("convert", old.root.name, "new", "--to", "3.0" if version == "2.1" else "2.1"),
        ):
            assert path.name in millrace.fails("lerobot", *verb), (keep, verb)
            assert not (millrace.cwd / "new").exists()
            shutil.rmtree(millrace.cwd / "new.partial", ignore_errors=True)
        assert visible_files(old.root) == before


@pytest.mark.parametrize(
    "verb",
    [
        ("convert", "old", "new", "--to", "3.0"),
        ("split", "old", "new", "--episodes", "0-6"),
        ("merge", "old", "old", "new"),
    ],
    ids=lambda verb: verb[0],
)
def test_a_full_disk_is_told_and_the_run_can_go_on(millrace: Millrace, verb: tuple):
    old = demo(millrace, "old", "--version", "2.1", "--episodes", 8, "--cameras", 1, "--codec", "h264", "--fps", 10)
    before = visible_files(old.root)
    millrace("lerobot", *(("whole" if each == "new" else each) for each in verb))
    whole = visible_files(millrace.cwd / "whole")
    total = sum(len(content) for content in whole.values())
    for share in (0.05, 0.6, 0.97):
        shutil.rmtree(millrace.cwd / "new.partial", ignore_errors=True)
        said = millrace.fails("lerobot", *verb, env=full_disk(int(total * share), millrace.cwd))
        assert "No space left" in said or "no space" in said, said
        assert not (millrace.cwd / "new").exists()
        # What is there is whole: a later run takes it as it is.
        for name, content in visible_files(millrace.cwd / "new.partial").items():
            assert whole.get(name, content) == content, name
    millrace("lerobot", *verb)
    assert visible_files(millrace.cwd / "new") == whole
    assert visible_files(old.root) == before


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * "0" + "\nsize 12345\n"


def test_what_is_wrong_with_a_source_is_said(millrace: Millrace):
    demo(millrace, "good", "--version", "2.1", "--episodes", 3, "--cameras", 1, "--codec", "h264", "--fps", 10)
    video = f"videos/chunk-000/{CAMERAS[0]}/episode_000001.mp4"
    table = "data/chunk-000/episode_000001.parquet"

    def refused(change) -> str:
        shutil.copytree(millrace.cwd / "good", millrace.cwd / "bad")
        change(millrace.cwd / "bad")
        try:
            return millrace.fails("lerobot", "split", "bad", "new", "--episodes", "1-2")
        finally:
            assert not (millrace.cwd / "new").exists()
            shutil.rmtree(millrace.cwd / "bad")
            shutil.rmtree(millrace.cwd / "new.partial", ignore_errors=True)

    def lengths(root: Path, length: int) -> None:
        path = root / "meta/episodes.jsonl"
        changed = [line | ({"length": length} if line["episode_index"] == 1 else {}) for line in lines(path)]
        path.write_text("".join(json.dumps(line) + "\n" for line in changed))

    for name in (video, table):
        said = refused(lambda root, name=name: (root / name).write_text(POINTER))
        assert name in said and "Git LFS pointer" in said
        assert name in refused(lambda root, name=name: (root / name).unlink())
        assert name in refused(lambda root, name=name: (root / name).write_bytes(b""))
    assert "episode 1 has no frames [LR016]" in refused(lambda root: lengths(root, 0))
    said = refused(lambda root: lengths(root, 2))
    assert f"bad/{table}: it has " in said and "meta/episodes.jsonl says 2 [LR011]" in said
    assert table in refused(lambda root: lengths(root, 99))
    stats = "meta/episodes_stats.jsonl"
    said = refused(lambda root: (root / stats).write_text("".join((root / stats).read_text().splitlines(True)[:2])))
    assert f"{stats} has 2 lines for 3 episodes" in said
    assert "[LR032]" in refused(lambda root: (root / "meta/tasks.jsonl").write_text('{"task_index": 1, "task": "a"}\n'))
    assert "[LR001]" in refused(lambda root: (root / "meta/info.json").write_text("{"))


def test_a_missing_video_is_found_before_anything_is_made(millrace: Millrace):
    demo(millrace, "good", "--version", "2.1", "--episodes", 3, "--cameras", 1, "--codec", "h264", "--fps", 10)
    videos = f"videos/chunk-000/{CAMERAS[0]}"
    for number in (1, 2):
        (millrace.cwd / f"good/{videos}/episode_{number:06}.mp4").unlink()
    for flags in (["--dry-run"], []):
        said = millrace.fails("lerobot", "convert", "good", "new", "--to", "3.0", *flags)
        assert f"{videos}/episode_000001.mp4 is missing, and so are 1 more" in said
        assert not (millrace.cwd / "new.partial").exists()


def psnr(a: bytes, b: bytes) -> float:
    error = np.square(np.frombuffer(a, np.uint8).astype(float) - np.frombuffer(b, np.uint8)).mean()
    return 100 if error == 0 else 10 * np.log10(255**2 / error)


def test_frames_are_encoded_only_where_packets_cannot_be_copied(millrace: Millrace):
    """As LeRobot's own delete leaves a file: one stream whose groups know no episodes."""
    flags = ("--version", "3.0", "--episodes", 5, "--cameras", 1, "--codec", "h264", "--fps", 10, "--seed", 2)
    old = demo(millrace, "old", *flags)
    lengths = [row["length"] for row in old.rows]
    path = old.root / f"videos/{CAMERAS[0]}/chunk-000/file-000.mp4"
    with av.open(str(path)) as file:
        pictures = [frame.to_ndarray(format="yuv420p") for frame in file.decode(video=0)]
    begin_of_3 = sum(lengths[:3])
    with av.open(str(path), "w") as file:
        keys = {"forced-idr": "1", "g": "1000", "sc_threshold": "0", "bf": "0", "crf": "18"}
        stream = file.add_stream("libx264", rate=10, options=keys)
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
        for i, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="yuv420p")
            frame.pict_type = av.video.frame.PictureType.I if i in (0, begin_of_3) else 0
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    old = Episodes(old.root)
    report = millrace("lerobot", "delete", "old", "new", "--episodes", "0", "--json").object("lerobot_delete")
    assert report["encoded_videos"] == 1 and report["copied_videos"] == 1 and report["min_psnr_db"] >= 30
    new = Episodes(millrace.cwd / "new")
    new.check_numbers()
    for i in range(4):
        mine, its = new.frames(i, CAMERAS[0]), old.frames(i + 1, CAMERAS[0])
        assert len(mine) == len(its) == lengths[i + 1]
        if i >= 2:  # from the key frame on
            assert [picture for _, picture in mine] == [picture for _, picture in its]
        worst = min(psnr(a, b) for (_, a), (_, b) in zip(mine, its, strict=True))
        assert worst >= report["min_psnr_db"] - 0.01 and (i >= 2) == (worst == 100)
    assert rules(millrace, "new", "--deep") <= {"LR050"}


@pytest.mark.parametrize("verb", ["split", "merge"])
@pytest.mark.parametrize("version", ["2.1", "3.0"])
def test_an_edit_that_was_killed_goes_on(millrace: Millrace, verb: str, version: str):
    flags = ("--version", version, "--episodes", 20, "--cameras", 3, "--codec", "h264", "--fps", 10)
    old = demo(millrace, "old", *flags)
    before = visible_files(old.root)
    if verb == "split":
        command: tuple = ("split", "old", "{}", "--part", "a=0-12", "--part", "b=13-19")
    else:
        command = ("merge", "old", "old", "{}")

    def arguments(target: str) -> list[str]:
        return ["lerobot", *(str(each).format(target) for each in command)]

    millrace(*arguments("whole"))
    whole = visible_files(millrace.cwd / "whole")
    for wait in (0, 0.02, 0.05):
        running = millrace.start(*arguments("new"))
        while running.poll() is None and not list((millrace.cwd / "new.partial").glob("**/*.mp4")):
            time.sleep(0.001)
        time.sleep(wait)
        in_time = kill(running) and not (millrace.cwd / "new").exists()  # it may end its work as it is killed
        kept = len(visible_files(millrace.cwd / "new.partial")) if in_time else 0
        if in_time:
            reports = millrace(*arguments("new"), "--json").objects(f"lerobot_{verb}")
            assert sum(report["reused"] for report in reports) >= kept
        assert visible_files(millrace.cwd / "new") == whole
        shutil.rmtree(millrace.cwd / "new")
    assert visible_files(old.root) == before


@pytest.mark.skipif("MILLRACE_TEST_DATA" not in os.environ, reason="MILLRACE_TEST_DATA is not set")
def test_cuts_of_long_groups_are_copied_where_that_is_exact(millrace: Millrace):
    """H.264 with B-frames and two key frames an episode: joined to v3.0 first, then taken apart again."""
    camera = "observation.images.ego_view"
    shutil.copytree(Path(os.environ["MILLRACE_TEST_DATA"]) / "lerobot/pick_n_place", millrace.cwd / "old")
    info_file = millrace.cwd / "old/meta/info.json"
    info = json.loads(info_file.read_text())
    del info["features"]["observation.images.egoview"]  # declared, and not there
    for kind in ("data_path", "video_path"):
        info[kind] = info[kind].replace("chunk-{episode_index", "chunk-{episode_chunk")
    info_file.unlink()
    info_file.write_text(json.dumps(info))
    millrace("lerobot", "convert", "old", "packed", "--to", "3.0")
    report = millrace("lerobot", "delete", "packed", "new", "--episodes", "1,3", "--json").object("lerobot_delete")
    assert report["encoded_videos"] == 0
    joined = [picture for _, picture in decoded(millrace.cwd / f"new/videos/{camera}/chunk-000/file-000.mp4")]
    parts = [decoded(path) for path in sorted((millrace.cwd / "old").glob(f"videos/*/{camera}/*.mp4"))]
    assert joined == [picture for i in (0, 2, 4) for _, picture in parts[i]]
