# SPDX-License-Identifier: Apache-2.0
"""`millrace lerobot stats` where it writes: cameras, statistics of each episode, GR00T's relative ones, merges. NumPy in
float64 is the oracle."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from conftest import Millrace, visible_files

import millrace as mr

av = pytest.importorskip("av")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from lerobot_sets import CAMERAS, LENGTHS, MAKERS, TASKS, Set, make_groot, make_v2, make_v30, rows  # noqa: E402

NAMES = ("min", "max", "mean", "std")
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def sampled(length: int) -> np.ndarray:
    """LeRobot's rule (compute_stats.py of 0.3 to 0.6), in NumPy."""
    count = max(min(100, length), min(int(length**0.75), 10_000))
    return np.round(np.linspace(0, length - 1, count)).astype(int)


def numpy_stats(values: np.ndarray) -> dict[str, np.ndarray]:
    """Of [rows, dim]."""
    out = {name: getattr(np, name)(values, axis=0) for name in NAMES}
    return out | {name: np.quantile(values, share, axis=0) for name, share in QUANTILES.items()}


def picture_values(pictures: list[np.ndarray]) -> np.ndarray:
    """[pixels, 3] of pictures [height, width, 3]."""
    return np.concatenate([picture.reshape(-1, 3) for picture in pictures]).astype(np.float64) / 255


def check(stored: dict, values: np.ndarray, names: tuple[str, ...], count: int):
    wanted = numpy_stats(values)
    assert set(stored) == {*names, "count"} and stored["count"] == [count]
    for name in names:
        shape = np.shape(stored[name])
        assert shape in ((values.shape[1],), (3, 1, 1)), name
        np.testing.assert_allclose(np.ravel(stored[name]), wanted[name], rtol=1e-9, atol=1e-12, err_msg=name)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rules(millrace: Millrace, *flags: str) -> set[str]:
    found = millrace("lerobot", "validate", "set", "--json", "--fail-on", "never", *flags)
    return {each["rule"] for each in found.objects("lint")}


@pytest.mark.parametrize("version", ["2.1", "3.0"])
def test_cameras_of_a_dataset_by_lerobots_sampling(millrace: Millrace, version: str):
    """Statistics that were lost come back: equal to NumPy on the frames of each episode."""
    root = millrace.cwd / "set"
    millrace("lerobot", "demo", "set", "--version", version, "--episodes", 3, "--codec", "h264")
    file = root / "meta" / ("episodes_stats.jsonl" if version == "2.1" else "stats.json")
    file.unlink()
    before = visible_files(root)
    report = millrace("lerobot", "stats", "set", "--images", "--write", "--json").object("lerobot_stats")
    after = visible_files(root)
    written = {name for name in after if before.get(name) != after[name]}
    assert written == set(report["written"]) and not any(name.startswith(("data", "videos")) for name in written)
    assert report["left_out"] == [] and {f["name"] for f in report["features"]} >= set(CAMERAS_OF_DEMO)
    names = NAMES if version == "2.1" else (*NAMES, *QUANTILES)
    table = pa.concat_tables(pq.read_table(path) for path in sorted(root.glob("data/*/*.parquet")))
    if version == "2.1":
        lengths = [line["length"] for line in lines(root / "meta/episodes.jsonl")]
        stats = [line["stats"] for line in lines(file)]
    else:
        rows = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
        lengths = [row["length"] for row in rows]
        stats = [unflatten(row) for row in rows]
    begins = np.cumsum([0, *lengths])
    for camera in CAMERAS_OF_DEMO:
        pictures = []
        for path in sorted(root.glob(f"videos/**/{camera}/**/*.mp4")):
            video = mr.video.Reader(path)
            pictures += list(video.frames(range(len(video))))
        assert len(pictures) == sum(lengths)
        for episode, length in enumerate(lengths):
            chosen = [pictures[begins[episode] + i] for i in sampled(length)]
            check(stats[episode][camera], picture_values(chosen), names, len(chosen))
        if version == "3.0":
            check(json.loads(file.read_text())[camera], picture_values(pictures), names, len(pictures))
    for episode, length in enumerate(lengths):
        values = np.array(table["action"].slice(begins[episode], length).to_pylist(), dtype=np.float64)
        check(stats[episode]["action"], values, names, length)
    assert not {rule for rule in rules(millrace) if "LR055" <= rule <= "LR059"}


CAMERAS_OF_DEMO = ("observation.images.front", "observation.images.wrist")


def unflatten(row: dict) -> dict[str, dict]:
    out: dict[str, dict] = {}
    for name, value in row.items():
        if name.startswith("stats/"):
            _, feature, statistic = name.split("/")
            out.setdefault(feature, {})[statistic] = value
    return out


def test_long_episodes_and_large_pictures_are_sampled(millrace: Millrace):
    """An episode of 240 frames of 320 x 200: 100 frames, and every second pixel both ways."""
    root = millrace.cwd / "set"
    made = Set(root)
    length, width, height, camera = 240, 320, 200, "observation.images.top"
    features = {
        camera: {"dtype": "video", "shape": [height, width, 3], "names": ["height", "width", "channels"]},
        "action": {"dtype": "float32", "shape": [1], "names": None},
    }
    info = {"codebase_version": "v2.1", "robot_type": "x", "total_episodes": 1, "total_frames": length, "fps": 30}
    info |= {"total_tasks": 1, "total_videos": 1, "total_chunks": 1, "chunks_size": 1000, "splits": {"train": "0:1"}}
    info["data_path"] = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    info["video_path"] = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    made.write("meta/info.json", json.dumps(info | {"features": features}))
    made.write("meta/tasks.jsonl", json.dumps({"task_index": 0, "task": TASKS[0]}) + "\n")
    made.write("meta/episodes.jsonl", json.dumps({"episode_index": 0, "tasks": [TASKS[0]], "length": length}) + "\n")
    pq.write_table(
        pa.table({"action": pa.array(np.arange(length, dtype=np.float32))}),
        made.path("data/chunk-000/episode_000000.parquet"),
    )
    path = made.path(f"videos/chunk-000/{camera}/episode_000000.mp4")
    with av.open(str(path), "w") as file:
        stream = file.add_stream("h264", rate=30, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.time_base = width, height, Fraction(1, 30)
        y, x = np.mgrid[:height, :width]
        for i in range(length):
            # Odd pixels are dark, so that a wrong stride shows.
            grid = np.where((x % 2 == 0) & (y % 2 == 0), 130 + i // 2, 20)
            picture = np.stack([grid, grid // 2, 255 - grid], axis=2).astype(np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)
    millrace("lerobot", "stats", "set", "--images", "--write")
    stored = lines(root / "meta/episodes_stats.jsonl")[0]["stats"]
    chosen = list(mr.video.Reader(path).frames([int(i) for i in sampled(length)]))
    assert len(chosen) == 100
    check(stored[camera], picture_values([picture[::2, ::2] for picture in chosen]), NAMES, 100)


@pytest.mark.parametrize("base", ["v21", "v30", "groot"])
def test_what_is_written_is_exact_and_the_rest_stays(millrace: Millrace, tmp_path: Path, base: str):
    made = MAKERS[base](tmp_path / "set")
    rng = np.random.default_rng(3)
    actions = [(1000 + rng.normal(0, 0.01, (length, 3))).astype(np.float32) for length in LENGTHS]
    if base == "v30":
        begin = 0
        for number, members in enumerate(((0, 1, 2), (3,))):
            values = np.concatenate([actions[i] for i in members])
            made.table(f"data/chunk-000/file-{number:03}.parquet", lambda c, v=values: c.update(action=v.tolist()))
            begin += len(members)
    else:
        for episode, values in enumerate(actions):
            name = f"data/chunk-000/episode_{episode:06}.parquet"
            made.table(name, lambda c, v=values: c.update(action=v.tolist()))
    before = visible_files(tmp_path / "set")
    camera = None
    if base == "v30":
        table = pq.read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet")
        camera = table[f"stats/{CAMERAS[0]}/mean"].to_pylist()
    written = millrace("lerobot", "stats", "set", "--write", "--json").object("lerobot_stats")["written"]
    after = visible_files(tmp_path / "set")
    assert {name for name in after if before.get(name) != after[name]} == set(written)
    whole = np.concatenate(actions).astype(np.float64)
    if base == "v21":
        assert written == ["meta/episodes_stats.jsonl"]
        for line, values in zip(lines(tmp_path / "set/meta/episodes_stats.jsonl"), actions, strict=True):
            check(line["stats"]["action"], values.astype(np.float64), NAMES, len(values))
            assert np.ravel(line["stats"][CAMERAS[0]]["mean"]).tolist() == [0.45] * 3
    elif base == "v30":
        assert sorted(written) == ["meta/episodes/chunk-000/file-000.parquet", "meta/stats.json"]
        now = pq.read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet")
        assert now.column_names == table.column_names
        assert now[f"stats/{CAMERAS[0]}/mean"].to_pylist() == camera
        for name in ("tasks", "length", "dataset_to_index", f"videos/{CAMERAS[0]}/to_timestamp"):
            assert now[name].to_pylist() == table[name].to_pylist() and now[name].type == table[name].type
        for row, values in zip(now.to_pylist(), actions, strict=True):
            check(unflatten(row)["action"], values.astype(np.float64), (*NAMES, *QUANTILES), len(values))
        stats = json.loads((tmp_path / "set/meta/stats.json").read_text())
        check(stats["action"], whole, (*NAMES, *QUANTILES), len(whole))
        assert stats[CAMERAS[1]]["count"] == [83]
    else:
        stats = json.loads((tmp_path / "set/meta/stats.json").read_text())
        assert set(stats) == {"observation.state", "action", "timestamp"}
        check(stats["action"] | {"count": [83]}, whole, (*NAMES, "q01", "q99"), 83)
    assert not {"LR055", "LR058", "LR059"} & rules(millrace)


def test_files_are_read_once_unless_memory_is_short(millrace: Millrace, tmp_path: Path):
    make_v30(tmp_path / "set")
    found = millrace("lerobot", "stats", "set", "--json").object("lerobot_stats")
    assert found["files"] == found["files_read"] == 2
    less = millrace("lerobot", "stats", "set", "--json", "--memory", "1KiB").object("lerobot_stats")
    assert less["files_read"] > 2 and less["features"] == found["features"]


@pytest.mark.parametrize("horizon", [1, 16])
def test_relative_actions_are_numpys(millrace: Millrace, tmp_path: Path, horizon: int):
    made = make_groot(tmp_path / "set")
    if horizon == 16:
        made.json("meta/modality.json", lambda m: m["state"].update(lift=m["state"].pop("gripper")))
    flags = ("--relative", "arm", "--relative", "gripper=lift") if horizon == 16 else ()
    report = millrace("lerobot", "stats", "set", "--horizon", horizon, *flags, "--write", "--json")
    found = {each["group"]: each for each in report.object("lerobot_stats")["relative"]}
    stored = json.loads((tmp_path / "set/meta/relative_stats.json").read_text())
    assert set(found) == set(stored) == {"arm", "gripper"}
    for group, (begin, end) in {"arm": (0, 2), "gripper": (2, 3)}.items():
        windows = []
        for episode, length in enumerate(LENGTHS):
            columns = rows(episode, "groot")
            action = columns["action"][:, begin:end].astype(np.float64)
            state = columns["observation.state"][:, begin:end].astype(np.float64)
            windows += [action[i : i + horizon] - state[i] for i in range(length - horizon + 1)]
        values = np.stack(windows)
        assert found[group]["windows"] == len(windows) and np.shape(stored[group]["mean"]) == (horizon, end - begin)
        for name, wanted in numpy_stats(values).items():
            np.testing.assert_allclose(found[group][name], wanted, rtol=1e-9, atol=1e-12)
            if name in ("max", "min", "q01", "q99", "mean", "std"):
                assert stored[group][name] == found[group][name]
    assert not {"LR068", "LR063"} & rules(millrace, "--groot", "--policy-horizon", str(horizon))


def test_relative_actions_that_are_no_differences_are_refused(millrace: Millrace, tmp_path: Path):
    made = make_groot(tmp_path / "set")
    stats = ("lerobot", "stats", "set", "--horizon")
    assert "no group wrist of actions" in millrace.fails(*stats, 4, "--relative", "wrist")
    assert "it has 2 numbers, and its state 1" in millrace.fails(*stats, 4, "--relative", "arm=gripper")
    assert "no episode has 32 rows" in millrace.fails(*stats, 32)
    made.json("meta/modality.json", lambda m: m["action"]["arm"].update(rotation_type="axis_angle"))
    assert "a rotation" in millrace.fails(*stats, 4, "--relative", "arm")
    found = millrace(*stats, 4, "--json").object("lerobot_stats")["relative"]
    assert [each["group"] for each in found] == ["gripper"]


@pytest.mark.parametrize("base", ["v21", "v30"])
def test_merged_quantiles_are_intervals_that_hold_the_truth(millrace: Millrace, tmp_path: Path, base: str):
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = np.random.default_rng(seed)
    whole = []
    for number in range(3):
        make = make_v30 if base == "v30" else lambda root: make_v2(root, "v21")
        made = make(tmp_path / f"set{number}")
        parts = [rng.normal(rng.normal(0, 2), 1, (length, 3)).astype(np.float32) for length in LENGTHS]
        whole += parts
        for file, members in enumerate(((0, 1, 2), (3,)) if base == "v30" else [(i,) for i in range(4)]):
            name = f"file-{file:03}" if base == "v30" else f"episode_{file:06}"
            values = np.concatenate([parts[i] for i in members])
            made.table(f"data/chunk-000/{name}.parquet", lambda c, v=values: c.update(action=v.tolist()))
        millrace("lerobot", "stats", f"set{number}", "--write")
    ran = millrace("lerobot", "stats", "--merge", "set0", "set1", "set2", "--out", "stats.json", "--json")
    found = {each["name"]: each for each in ran.object("lerobot_stats_merged")["features"]}
    assert "intervals" in ran.err
    values = np.concatenate(whole).astype(np.float64)
    action = found["action"]
    assert action["count"] == len(values) == 3 * sum(LENGTHS) and action["parts"] == 12
    for name in NAMES:
        np.testing.assert_allclose(action[name], getattr(values, name)(axis=0), rtol=1e-9, atol=1e-12)
    for name, share in QUANTILES.items():
        truth = np.quantile(values, share, axis=0)
        low, high = np.array(action[name]["low"]), np.array(action[name]["high"])
        assert (low <= truth).all() and (truth <= high).all(), (name, low, truth, high)
        if base == "v30":
            span = values.max(axis=0) - values.min(axis=0)
            assert (high - low < 0.9 * span).all(), "tighter than the bounds"
    written = json.loads((tmp_path / "stats.json").read_text())
    assert set(written["action"]) == {*NAMES, "count"} and np.shape(written[CAMERAS[0]]["mean"]) == (3, 1, 1)
    only = millrace.fails("lerobot", "stats", "--merge", "set0", "set1", "--write", status=2)
    assert "--merge" in only


def test_a_video_that_is_shorter_than_its_episode_is_named(millrace: Millrace):
    millrace("lerobot", "demo", "set", "--version", "2.1", "--episodes", 2, "--codec", "h264")
    paths = sorted((millrace.cwd / "set").glob(f"videos/*/{CAMERAS_OF_DEMO[0]}/*.mp4"))
    count = [len(mr.video.Reader(path)) for path in paths]
    if count[0] == count[1]:
        lengths = lines(millrace.cwd / "set/meta/episodes.jsonl")
        raise AssertionError(f"the demo's episodes have one length: {lengths}")
    short, long = sorted(range(2), key=lambda i: count[i])
    paths[long].write_bytes(paths[short].read_bytes())
    said = millrace.fails("lerobot", "stats", "set", "--images")
    assert f"episode_{long:06}.mp4, episode {long}: the video has {count[short]} frames" in said
