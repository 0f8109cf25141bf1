# SPDX-License-Identifier: Apache-2.0
"""`millrace lerobot diff`: each difference that was made is found, with its place and size, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Millrace

import millrace as mr

av = pytest.importorskip("av")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

CAMERA = "observation.images.front"
BINARY = os.environ.get("MILLRACE_BIN") or str(Path(sys.executable).with_name("millrace"))
PARTS = ("info", "tasks", "episodes", "stats")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """`v21` and `v30`, what was converted from the first, and what was converted back."""
    folder = tmp_path_factory.mktemp("diff")
    for name, version in (("v21", "2.1"), ("v30", "3.0")):
        flags = ("--version", version, "--episodes", "4", "--codec", "h264")
        subprocess.run([BINARY, "lerobot", "demo", folder / name, *flags], check=True, capture_output=True)
    mr.lerobot.convert(folder / "v21", folder / "there", to="3.0")
    mr.lerobot.convert(folder / "there", folder / "back", to="2.1")
    return folder


def diff(millrace: Millrace, a: Path, b: Path, *flags: str, status: int) -> dict:
    found = millrace("lerobot", "diff", a, b, "--json", *flags, status=status).object("lerobot_diff")
    assert (found["differences"] > 0) == (status == 3)
    text = millrace("lerobot", "diff", a, b, *flags, status=status).out
    assert ("equal; compared:" in text) == (status == 0)
    return found


def differing(found: dict) -> dict[str, object]:
    """What differs, by part."""
    parts = {part: found[part] for part in PARTS if found[part]}
    for part in ("features", "cameras"):
        if some := [each for each in found[part] if each["differ"]]:
            parts[part] = some
    return parts


@pytest.mark.parametrize("flags", [(), ("--frames",)])
def test_a_conversion_there_and_back_is_equal(millrace: Millrace, made: Path, flags):
    for a, b in (("v21", "back"), ("v21", "there"), ("there", "back"), ("v21", "v21")):
        found = diff(millrace, made / a, made / b, *flags, status=0)
        assert differing(found) == {} and found["a"]["frames"] == found["b"]["frames"] > 0
        assert {each["rows"] for each in found["features"]} == {found["a"]["frames"]}
        assert {"action", "timestamp", "index", "task_index"} <= {each["name"] for each in found["features"]}
        if flags:
            assert {each["frames"] for each in found["cameras"]} == {found["a"]["frames"]}
            # Joined videos have other bytes than one an episode, and files with equal bytes are not decoded.
            decoded = {each["decoded"] for each in found["cameras"]}
            assert b != "v21" or decoded == {0}
            assert "there" not in (a, b) or decoded == {found["a"]["frames"]}
        else:
            assert found["cameras"] == [] and "--frames" in " ".join(found["not_compared"])


def change_table(path: Path, column: str, change: Callable[[list], object]) -> None:
    table = pq.read_table(path)
    values = table.column(column).to_pylist()
    change(values)
    at = table.schema.get_field_index(column)
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type)), path)


def change_json(path: Path, change: Callable[[dict], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def change_lines(path: Path, change: Callable[[list], object]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "v21", tmp_path / "copy"))


DATA = "data/chunk-000/episode_{:06}.parquet"


def test_numbers_of_rows(millrace: Millrace, made: Path, copy: Path):
    def change(values: list) -> None:
        values[7][1] += 0.5
        values[9][0] -= 2.0

    before = np.array(pq.read_table(copy / DATA.format(2)).column("action").to_pylist())
    change_table(copy / DATA.format(2), "action", change)
    after = np.array(pq.read_table(copy / DATA.format(2)).column("action").to_pylist())
    for base in ("v21", "there"):
        told = diff(millrace, made / base, copy, status=3)
        found = differing(told)
        (action,) = found.pop("features")
        largest = float(np.abs(before - after).max())
        assert found == {}
        assert action == {
            "name": "action", "rows": told["a"]["frames"], "differ": 2, "first_episode": 2, "first_row": 7, "largest": largest
        }  # fmt: skip


def test_nan_and_infinity(millrace: Millrace, made: Path, copy: Path, tmp_path: Path):
    def change(values: list) -> None:
        values[3][0] = float("nan")

    change_table(copy / DATA.format(1), "action", change)
    (action,) = differing(diff(millrace, made / "v21", copy, status=3))["features"]
    assert (action["differ"], action["first_episode"], action["first_row"], action["largest"]) == (1, 1, 3, None)
    shutil.copytree(copy, tmp_path / "same")
    diff(millrace, copy, tmp_path / "same", status=0)


def test_metadata(millrace: Millrace, made: Path, copy: Path):
    def info(value: dict) -> None:
        value.update(fps=25, robot_type="other")
        value["features"]["action"]["names"] = ["x", "y", "z"]

    change_json(copy / "meta/info.json", info)
    change_lines(copy / "meta/tasks.jsonl", lambda lines: lines[0].update(task="another"))
    found = differing(diff(millrace, made / "v21", copy, status=3))
    assert {each["key"] for each in found["info"]} == {"fps", "robot_type", "features.action.names"}
    assert next(each for each in found["info"] if each["key"] == "fps") == {"key": "fps", "a": "30", "b": "25"}
    assert {(each["task"] == "another", each["a"], each["b"]) for each in found["tasks"]} == {
        (True, None, 0),
        (False, 0, None),
    }
    # The rows' task is another text now.
    assert [each["name"] for each in found["features"]] == ["task_index"]


def test_a_feature_of_one_side(millrace: Millrace, made: Path, copy: Path):
    for path in copy.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.append_column("reward", pa.array([0.0] * len(table), pa.float32())), path)
    change_json(
        copy / "meta/info.json",
        lambda v: v["features"].update(reward={"dtype": "float32", "shape": [1], "names": None}),
    )
    assert differing(diff(millrace, made / "v21", copy, status=3)) == {
        "info": [{"key": "features.reward", "a": None, "b": "float32"}]
    }
    assert differing(diff(millrace, copy, made / "v21", status=3)) == {
        "info": [{"key": "features.reward", "a": "float32", "b": None}]
    }


def test_statistics(millrace: Millrace, made: Path, copy: Path):
    def change(lines: list) -> None:
        for episode in (1, 3):
            lines[episode]["stats"]["action"]["mean"][0] += 0.25
        del lines[2]["stats"]["observation.state"]["max"]

    before = json.loads((copy / "meta/episodes_stats.jsonl").read_text().splitlines()[1])["stats"]["action"]["mean"][0]
    change_lines(copy / "meta/episodes_stats.jsonl", change)
    found = differing(diff(millrace, made / "v21", copy, status=3))
    assert found.keys() == {"stats"}
    mean, most = found["stats"]
    assert (mean["feature"], mean["statistic"], mean["differ"], mean["first_episode"]) == ("action", "mean", 2, 1)
    assert mean["of_episodes"] and mean["largest"] == pytest.approx(0.25) and before is not None
    assert (most["feature"], most["statistic"], most["differ"], most["largest"]) == (
        "observation.state",
        "max",
        1,
        None,
    )


@pytest.mark.parametrize("version", ["2.1", "3.0"])
def test_episodes_of_one_side(millrace: Millrace, made: Path, tmp_path: Path, version: str):
    """Of an episode that is gone the later ones have other numbers; `index` is compared from each one's beginning."""
    base = made / ("v21" if version == "2.1" else "v30")
    mr.lerobot.delete(base, tmp_path / "less", [3])
    found = differing(diff(millrace, base, tmp_path / "less", "--frames", status=3))
    lengths = {each["episode"]: each for each in found["episodes"]}
    assert lengths.keys() == {3} and lengths[3]["b"] is None and lengths[3]["a"] > 0
    assert {each["key"] for each in found.pop("info")} == {"splits"}
    found.pop("stats", None)  # those of the dataset
    assert found.keys() == {"episodes"}


def test_a_shorter_episode(millrace: Millrace, made: Path, copy: Path):
    table = pq.read_table(copy / DATA.format(0))
    pq.write_table(table.slice(0, len(table) - 5), copy / DATA.format(0))
    change_lines(copy / "meta/episodes.jsonl", lambda lines: lines[0].update(length=len(table) - 5))
    found = diff(millrace, made / "v21", copy, status=3)
    parts = differing(found)
    # The copy's numbers of later frames still count the rows that are gone.
    assert [each["name"] for each in parts.pop("features")] == ["index"]
    assert parts == {"episodes": [{"episode": 0, "a": len(table), "b": len(table) - 5, "other_tasks": False}]}
    assert {each["rows"] for each in found["features"]} == {found["b"]["frames"]}


def shorten(root: Path, episode: int, by: int) -> list[int]:
    """Its last rows and frames go, and later rows are numbered anew. Returns the lengths of before."""
    tables = [pq.read_table(path) for path in sorted(root.glob("data/*/*.parquet"))]
    lengths = [len(table) for table in tables]
    left = lengths[episode] - by
    tables[episode] = tables[episode].slice(0, left)
    begin = 0
    for number, table in enumerate(tables):
        at = table.schema.get_field_index("index")
        counted = pa.array(range(begin, begin + len(table)), pa.int64())
        pq.write_table(table.set_column(at, table.schema.field(at), counted), root / DATA.format(number))
        begin += len(table)
    change_lines(root / "meta/episodes.jsonl", lambda lines: lines[episode].update(length=left))
    change_json(root / "meta/info.json", lambda info: info.update(total_frames=begin))
    for path in root.glob(f"videos/*/*/episode_{episode:06}.mp4"):
        path.rename(path.with_suffix(".whole"))
        with av.open(str(path.with_suffix(".whole"))) as whole, av.open(str(path), "w") as out:
            stream = out.add_stream_from_template(whole.streams.video[0])
            for packet in [packet for packet in whole.demux(video=0) if packet.dts is not None][:left]:
                packet.stream = stream
                out.mux(packet)
        path.with_suffix(".whole").unlink()
    return lengths


@pytest.mark.parametrize("version", ["2.1", "3.0"])
def test_an_episode_that_is_shorter_in_one(millrace: Millrace, made: Path, copy: Path, tmp_path: Path, version: str):
    """It is compared as far as both have it, and the episodes behind it whole: each from its own beginning."""
    lengths = shorten(copy, 1, by=6)

    def change(values: list) -> None:
        values[4][0] += 0.25

    before = np.array(pq.read_table(copy / DATA.format(2)).column("action").to_pylist())
    change_table(copy / DATA.format(2), "action", change)
    largest = float(np.abs(np.array(pq.read_table(copy / DATA.format(2)).column("action").to_pylist()) - before).max())
    base, other = made / "v21", copy
    if version == "3.0":
        base, other = made / "there", tmp_path / "converted"
        mr.lerobot.convert(copy, other, to="3.0")
    both = sum(lengths) - 6
    for a, b, there in ((base, other, "ab"), (other, base, "ba")):
        found = diff(millrace, a, b, "--frames", status=3)
        assert (found[there[0]]["frames"], found[there[1]]["frames"]) == (sum(lengths), both)
        parts = differing(found)
        if version == "3.0":
            parts.pop("stats")  # those of the dataset
        assert parts.pop("episodes") == [
            {"episode": 1, there[0]: lengths[1], there[1]: lengths[1] - 6, "other_tasks": False}
        ]
        (action,) = parts.pop("features")
        assert action == {
            "name": "action", "rows": both, "differ": 1, "first_episode": 2, "first_row": 4, "largest": largest
        }  # fmt: skip
        assert parts == {}
        assert {each["rows"] for each in found["features"]} == {both}
        assert [each["frames"] for each in found["cameras"]] == [both, both]
        decoded = both if version == "3.0" else lengths[1] - 6  # of files with other bytes
        assert [each["decoded"] for each in found["cameras"]] == [decoded, decoded]
        text = millrace("lerobot", "diff", a, b, status=3).out
        shown = [lengths[1], lengths[1] - 6] if there == "ab" else [lengths[1] - 6, lengths[1]]
        assert ["1", *map(str, shown)] in [line.split()[:3] for line in text.splitlines()]


def test_frames(millrace: Millrace, made: Path, copy: Path):
    """Against PyAV: a video of other pixels, first frame and largest difference of RGB."""
    name = f"videos/chunk-000/{CAMERA}/episode_000002.mp4"
    with av.open(str(copy / name)) as file:
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    frames[11] = 255 - frames[11]
    with av.open(str(copy / name), "w") as out:
        stream = out.add_stream("libx264", rate=30, options={"crf": "10", "g": "2"})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        out.mux(stream.encode())
    assert differing(diff(millrace, made / "v21", copy, status=0)) == {}
    found = diff(millrace, made / "v21", copy, "--frames", status=3)
    (camera,) = differing(found)["cameras"]
    with av.open(str(made / "v21" / name)) as one, av.open(str(copy / name)) as two:
        pairs = zip(one.decode(video=0), two.decode(video=0), strict=True)
        planes = [np.array_equal(a.to_ndarray(), b.to_ndarray()) for a, b in pairs]
    assert (camera["name"], camera["first_episode"], camera["first_frame"]) == (CAMERA, 2, planes.index(False))
    assert camera["differ"] == planes.count(False) and camera["largest"] > 100
    assert camera["decoded"] == len(frames)


def test_python_says_the_same(millrace: Millrace, made: Path, copy: Path):
    change_json(copy / "meta/info.json", lambda value: value.update(robot_type="other"))
    told = diff(millrace, made / "v21", copy, "--frames", status=3)
    assert mr.lerobot.diff(made / "v21", copy, frames=True) == {k: v for k, v in told.items() if k != "type"}
    assert mr.lerobot.diff(made / "v21", made / "there")["differences"] == 0


def test_what_is_missing_or_short_is_named(millrace: Millrace, made: Path, copy: Path, tmp_path: Path):
    err = millrace("lerobot", "diff", made / "v21", tmp_path / "no", status=1).err
    assert str(tmp_path / "no") in err
    table = pq.read_table(copy / DATA.format(1))
    pq.write_table(table.slice(0, 3), copy / DATA.format(1))
    err = millrace("lerobot", "diff", made / "v21", copy, status=1).err
    assert DATA.format(1) in err and "3 rows" in err and "LR018" in err
