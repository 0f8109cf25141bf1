# SPDX-License-Identifier: Apache-2.0
"""`millrace lerobot demo`, read by pyarrow, pandas and PyAV."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import Millrace, Ran, kill, visible_files

av = pytest.importorskip("av")
pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

CAMERAS = ["observation.images.front", "observation.images.wrist"]
VECTORS = ["observation.state", "action"]


def frames_of(path: Path) -> list:
    with av.open(str(path)) as file:
        return [(f.pts * f.time_base, f.to_ndarray().tobytes()) for f in file.decode(video=0)]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def make(millrace: Millrace, *flags: object, out: str = "set") -> tuple[Path, dict, dict]:
    report = millrace("lerobot", "demo", out, *flags, "--json").object("lerobot_demo")
    root = millrace.cwd / out
    return root, json.loads((root / "meta/info.json").read_text()), report


def check_rows(table, length: int, episode: int, begin: int, fps: float):
    for name in VECTORS:
        assert table.schema.field(name).type == pa.list_(pa.float32(), 3)
    assert table["frame_index"].to_pylist() == list(range(length))
    assert table["episode_index"].to_pylist() == [episode] * length
    assert table["index"].to_pylist() == list(range(begin, begin + length))
    assert np.array_equal(table["timestamp"].to_numpy(), (np.arange(length) / fps).astype(np.float32))


def check_stats(stats: dict, table, names: tuple[str, ...]):
    for name in (*VECTORS, "timestamp", "index"):
        values = np.array(table[name].to_pylist(), dtype=np.float64).reshape(len(table), -1)
        wanted = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
        wanted |= {f"q{q:02d}": np.quantile(values, q / 100, axis=0) for q in (1, 10, 50, 90, 99)}
        for statistic in names:
            given = np.array(stats[name][statistic])
            np.testing.assert_allclose(given, wanted[statistic], rtol=1e-12, atol=1e-12, err_msg=f"{name} {statistic}")


@pytest.mark.parametrize("version", ["2.1", "groot"])
def test_version_2(millrace: Millrace, version: str):
    flags = ("--version", version, "--episodes", 4, "--codec", "h264", "--fps", 20)
    root, info, report = make(millrace, *flags)
    assert info["codebase_version"] == "v2.1" and info["total_episodes"] == 4 and info["total_videos"] == 8
    episodes, stats = lines(root / "meta/episodes.jsonl"), lines(root / "meta/episodes_stats.jsonl")
    tasks = {task["task_index"]: task["task"] for task in lines(root / "meta/tasks.jsonl")}
    begin = 0
    for episode in range(4):
        place = {"episode_chunk": 0, "episode_index": episode}
        table = pq.read_table(root / info["data_path"].format(**place))
        length = episodes[episode]["length"]
        check_rows(table, length, episode, begin, 20)
        assert set(table.column_names) == {n for n, f in info["features"].items() if f["dtype"] != "video"}
        assert episodes[episode]["tasks"] == [tasks[i] for i in set(table["task_index"].to_pylist())]
        check_stats(stats[episode]["stats"], table, ("min", "max", "mean", "std"))
        for camera in CAMERAS:
            frames = frames_of(root / info["video_path"].format(video_key=camera, **place))
            assert [float(time) for time, _ in frames] == [i / 20 for i in range(length)]
            image = stats[episode]["stats"][camera]
            assert np.shape(image["mean"]) == (3, 1, 1) and image["count"] == [length]
        begin += length
    assert begin == info["total_frames"] == report["frames"]
    if version == "groot":
        modality = json.loads((root / "meta/modality.json").read_text())
        assert modality["video"]["front"] == {"original_key": CAMERAS[0]}
        whole = pa.concat_tables(pq.read_table(path) for path in sorted(root.glob("data/*/*.parquet")))
        numbers = json.loads((root / "meta/stats.json").read_text())
        values = np.array(whole["action"].to_pylist(), dtype=np.float64)
        np.testing.assert_allclose(numbers["action"]["q99"], np.quantile(values, 0.99, axis=0), rtol=1e-12)
        np.testing.assert_allclose(numbers["action"]["mean"], values.mean(0), rtol=1e-12)
        assert set(numbers["action"]) == {"mean", "std", "min", "max", "q01", "q99"}


@pytest.mark.parametrize("fps", ["30", "30000/1001"])
def test_version_3_holds_the_frames_of_version_2(millrace: Millrace, fps: str):
    flags = ("--episodes", 4, "--codec", "av1", "--fps", fps)
    old, _, _ = make(millrace, *flags, "--version", "2.1", out="old")
    root, info, report = make(millrace, *flags)
    rate = info["fps"]
    table = pq.read_table(root / "data/chunk-000/file-000.parquet")
    episodes = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert pq.ParquetFile(root / "data/chunk-000/file-000.parquet").num_row_groups == 4
    for episode in episodes:
        begin, length = episode["dataset_from_index"], episode["length"]
        assert episode["dataset_to_index"] == begin + length
        check_rows(table.slice(begin, length), length, episode["episode_index"], begin, rate)
        for camera in CAMERAS:
            assert episode[f"videos/{camera}/from_timestamp"] == begin / rate
            assert episode[f"videos/{camera}/to_timestamp"] == (begin + length) / rate
            assert np.shape(episode[f"stats/{camera}/mean"]) == (3, 1, 1)
    assert len(table) == info["total_frames"] == report["frames"]
    for camera in CAMERAS:
        joined = frames_of(root / f"videos/{camera}/chunk-000/file-000.mp4")
        parts = [frames_of(path) for path in sorted(old.glob(f"videos/chunk-000/{camera}/*.mp4"))]
        assert [picture for _, picture in joined] == [picture for part in parts for _, picture in part]
        step = joined[1][0]
        assert abs(float(1 / step) - rate) < 1e-9
        assert [time for time, _ in joined] == [i * step for i in range(len(joined))], "times are exact"
    check_stats(
        json.loads((root / "meta/stats.json").read_text()),
        table,
        ("min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99"),
    )
    tasks = pd.read_parquet(root / "meta/tasks.parquet")
    assert tasks.iloc[1].name == "reach for the green block" and tasks.iloc[1]["task_index"] == 1


def test_the_same_flags_give_the_same_bytes(millrace: Millrace):
    flags = ("--episodes", 2, "--cameras", 1, "--fps", 10)
    make(millrace, *flags, out="a")
    make(millrace, *flags, out="b")
    make(millrace, *flags, "--seed", 1, out="c")
    a, b, c = (visible_files(millrace.cwd / name) for name in "abc")
    assert a == b
    assert a != c and a.keys() == c.keys()


def test_what_is_there_is_not_touched(millrace: Millrace):
    (millrace.cwd / "taken").mkdir()
    (millrace.cwd / "taken/note").write_text("mine")
    assert "not empty" in millrace.fails("lerobot", "demo", "taken")
    assert visible_files(millrace.cwd / "taken") == {"note": b"mine"}
    assert "--fps" in millrace.fails("lerobot", "demo", "x", "--fps", "fast", status=2)


def wrong_rules(ran: Ran) -> set[str]:
    return {finding["rule"] for finding in ran.objects("lint") if finding["severity"] != "note"}


@pytest.mark.parametrize("version", ["2.1", "3.0", "groot"])
def test_every_rule_holds_for_the_demo(millrace: Millrace, version: str):
    root, _, _ = make(millrace, "--version", version, "--episodes", 3)
    flags = ("--deep", "--json", *(["--groot"] if version == "groot" else []))
    ran = millrace("lerobot", "validate", "set", *flags)
    summary = ran.object("lerobot_validate")
    assert summary["videos_decoded"] == summary["videos"] > 0
    assert wrong_rules(ran) == set()
    # One packet of one video is overwritten; its index still says that all is well.
    video = sorted(root.glob("videos/**/*.mp4"))[0]
    content = bytearray(video.read_bytes())
    begin = content.index(b"mdat") + 4
    content[begin + 40 : begin + 400] = b"\xff" * 360
    video.write_bytes(content)
    assert wrong_rules(millrace("lerobot", "validate", "set", "--json")) == set()
    assert wrong_rules(millrace("lerobot", "validate", "set", "--deep", "--json", status=3)) == {"LR053"}


def test_conversion_and_back(millrace: Millrace):
    """v2.1 -> v3.0 -> v2.1: every frame, row and number is as before, and v3.0 is what the demo writes itself."""
    flags = ("--episodes", 5, "--codec", "h264")
    old, old_info, _ = make(millrace, *flags, "--version", "2.1", out="old")
    made, made_info, _ = make(millrace, *flags, out="made")
    before = visible_files(old)
    report = millrace("lerobot", "convert", "old", "new", "--to", "3.0", "--json").object("lerobot_convert")
    new = millrace.cwd / "new"
    assert report["frames"] == old_info["total_frames"] and report["encoded_videos"] == 0
    assert visible_files(old) == before, "the source is only read"
    assert not (millrace.cwd / "new.partial").exists()
    info = json.loads((new / "meta/info.json").read_text())
    assert info == made_info
    for camera in CAMERAS:
        path = f"videos/{camera}/chunk-000/file-000.mp4"
        assert frames_of(new / path) == frames_of(made / path)
    table = "data/chunk-000/file-000.parquet"
    assert pq.read_table(new / table).equals(pq.read_table(made / table))
    assert pq.ParquetFile(new / table).num_row_groups == 5
    ours = pq.read_table(new / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    theirs = pq.read_table(made / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    for mine, its in zip(ours, theirs, strict=True):
        for name, value in mine.items():
            np.testing.assert_allclose(value, its[name], rtol=1e-12) if "timestamp" in name else None
            assert "timestamp" in name or value == its[name], name
    mine, its = (json.loads((root / "meta/stats.json").read_text()) for root in (new, made))
    for feature, stats in mine.items():
        for name, value in stats.items():
            np.testing.assert_allclose(value, its[feature][name], rtol=1e-9, atol=1e-12, err_msg=f"{feature} {name}")
    report = millrace("lerobot", "convert", "new", "again", "--to", "2.1", "--json").object("lerobot_convert")
    again = millrace.cwd / "again"
    assert report["copied_videos"] == 10 and report["encoded_videos"] == 0
    for name, content in before.items():
        path = again / name
        if name.endswith(".mp4"):
            assert frames_of(path) == frames_of(old / name), name
        elif name.endswith(".parquet"):
            assert pq.read_table(path).equals(pq.read_table(old / name)), name
        elif name.endswith(".jsonl"):
            assert sorted(lines(path), key=str) == sorted(lines(old / name), key=str) or "stats" in name, name
        else:
            assert json.loads(path.read_text()) == json.loads(content), name
    for mine, its in zip(
        lines(again / "meta/episodes_stats.jsonl"), lines(old / "meta/episodes_stats.jsonl"), strict=True
    ):
        assert mine == its


def test_conversion_refuses(millrace: Millrace):
    old, _, _ = make(millrace, "--episodes", 3, "--version", "2.1", "--codec", "h264", out="old")
    assert "already" in millrace.fails("lerobot", "convert", "old", "old", "--to", "3.0")
    assert "has that version" in millrace.fails("lerobot", "convert", "old", "c", "--to", "2.1")
    # A cut video stops it and is named; what was begun for other files is not gone on with.
    video = old / f"videos/chunk-000/{CAMERAS[1]}/episode_000002.mp4"
    content = video.read_bytes()
    video.write_bytes(content[: len(content) // 2])
    assert "episode_000002.mp4" in millrace.fails("lerobot", "convert", "old", "d", "--to", "3.0")
    assert not (millrace.cwd / "d").exists()
    video.write_bytes(content)
    assert "something else" in millrace.fails("lerobot", "convert", "old", "d", "--to", "3.0")


@pytest.mark.long
def test_a_stopped_conversion_says_what_it_keeps(millrace: Millrace):
    make(millrace, "--episodes", 40, "--cameras", 4, "--version", "2.1", "--codec", "h264", "--fps", 10, out="old")
    running = millrace.start("lerobot", "convert", "old", "new/", "--to", "3.0")
    while running.poll() is None and not (millrace.cwd / "new.partial").exists():
        time.sleep(0.001)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=30)
    assert running.returncode == 130, stderr
    assert "new.partial keeps the finished files; run the same command again to continue" in stderr
    assert not (millrace.cwd / "new").exists()


@pytest.mark.parametrize("to", ["3.0", "2.0"])
def test_conversion_that_was_killed_goes_on(millrace: Millrace, to: str):
    make(millrace, "--episodes", 40, "--cameras", 4, "--version", "2.1", "--codec", "h264", "--fps", 10, out="old")
    millrace("lerobot", "convert", "old", "whole", "--to", to)
    running = millrace.start("lerobot", "convert", "old", "new", "--to", to)
    first = "file-000" if to == "3.0" else "episode_000000"
    data = millrace.cwd / f"new.partial/data/chunk-000/{first}.parquet"
    while running.poll() is None and not data.exists():
        time.sleep(0.001)
    in_time = kill(running)
    if not in_time:
        shutil.rmtree(millrace.cwd / "new")
    report = millrace("lerobot", "convert", "old", "new", "--to", to, "--json").object("lerobot_convert")
    assert report["reused"] >= (1 if in_time else 0)
    assert visible_files(millrace.cwd / "new") == visible_files(millrace.cwd / "whole")


@pytest.mark.long
@pytest.mark.skipif("MILLRACE_TEST_DATA" not in os.environ, reason="MILLRACE_TEST_DATA is not set")
def test_a_recorded_dataset_keeps_its_frames_and_its_faults(millrace: Millrace):
    """H.264 with B-frames and two key frames an episode. Its timestamps begin at 1/fps, which is a fault (LR038)."""
    shutil.copytree(Path(os.environ["MILLRACE_TEST_DATA"]) / "lerobot/pick_n_place", millrace.cwd / "old")
    info_file = millrace.cwd / "old/meta/info.json"
    info = json.loads(info_file.read_text())
    del info["features"]["observation.images.egoview"]  # declared, and not there
    for kind in ("data_path", "video_path"):
        info[kind] = info[kind].replace("chunk-{episode_index", "chunk-{episode_chunk")
    info_file.unlink()
    info_file.write_text(json.dumps(info))
    report = millrace("lerobot", "convert", "old", "new", "--to", "3.0", "--json").object("lerobot_convert")
    assert "LR038" in report["inherited"] and report["encoded_videos"] == 0
    camera = "observation.images.ego_view"
    joined = frames_of(millrace.cwd / f"new/videos/{camera}/chunk-000/file-000.mp4")
    parts = [frames_of(path) for path in sorted((millrace.cwd / "old").glob(f"videos/*/{camera}/*.mp4"))]
    assert [picture for _, picture in joined] == [picture for part in parts for _, picture in part]
    assert [time for time, _ in joined] == [i * joined[1][0] for i in range(2096)]
    # v2.0 has no statistics of its episodes: those of numbers are NumPy's, those of pictures by LeRobot's sampling.
    tables = [pq.read_table(path) for path in sorted((millrace.cwd / "old").glob("data/*/*.parquet"))]
    rows = pq.read_table(millrace.cwd / "new/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    for row, table in zip(rows, tables, strict=True):
        values = np.array(table["action"].to_pylist())
        for how in ("min", "max", "mean", "std"):
            np.testing.assert_allclose(row[f"stats/action/{how}"], getattr(values, how)(0), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(row["stats/action/q50"], np.quantile(values, 0.5, axis=0), rtol=1e-12)
        assert row[f"stats/{camera}/count"] == [100] and np.shape(row[f"stats/{camera}/mean"]) == (3, 1, 1)
    with av.open(str(sorted((millrace.cwd / "old").glob(f"videos/*/{camera}/*.mp4"))[0])) as file:
        pictures = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    chosen = np.stack([pictures[i] for i in np.round(np.linspace(0, len(pictures) - 1, 100)).astype(int)])
    np.testing.assert_allclose(
        np.ravel(rows[0][f"stats/{camera}/mean"]), chosen.mean(axis=(0, 1, 2)) / 255, atol=0.01, rtol=0
    )
    report = millrace("lerobot", "convert", "old", "newer", "--to", "2.1", "--json").object("lerobot_convert")
    assert report["version"] == "v2.1" and report["copied_videos"] == 5
    assert [line["stats"]["action"]["mean"] for line in lines(millrace.cwd / "newer/meta/episodes_stats.jsonl")] == [
        row["stats/action/mean"] for row in rows
    ]
    name = f"videos/chunk-000/{camera}/episode_000003.mp4"
    assert (millrace.cwd / "newer" / name).read_bytes() == (millrace.cwd / "old" / name).read_bytes()
