# SPDX-License-Identifier: Apache-2.0
"""Each rule of `millrace lerobot validate` speaks of a good dataset in which its fault was made, and of that file,
episode and column; of good datasets all are silent."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import REPOSITORY, Millrace

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from lerobot_sets import CAMERAS, FPS, LENGTHS, MAKERS, TASKS, Mp4, Set, make_v30  # noqa: E402

TOP, WRIST = CAMERAS
DATA2, DATA3 = "data/chunk-000/episode_{:06}.parquet", "data/chunk-000/file-{:03}.parquet"
EPISODES3 = "meta/episodes/chunk-000/file-000.parquet"
VIDEO2, VIDEO3 = "videos/chunk-000/{}/episode_{:06}.mp4", "videos/{}/chunk-000/file-{:03}.mp4"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12345\n"


@dataclass
class Fault:
    rule: str
    base: str
    make: Callable[[Set], object]
    flags: tuple = ()
    place: dict | None = None  # keys of the finding
    severity: str | None = None
    name: str = ""

    def __str__(self) -> str:
        return f"{self.rule}-{self.base}{self.name and '-' + self.name}"


FAULTS: list[Fault] = []


def fault(rule: int, base: str, *flags: str, severity: str | None = None, name: str = "", **place: object):
    """The function below makes this fault in a good dataset."""

    def add(make: Callable[[Set], object]):
        FAULTS.append(Fault(f"LR{rule:03}", base, make, flags, place, severity, name))
        return make

    return add


def more_rows(s: Set, file: str, count: int = 5, episode: int | None = None) -> None:
    """Behind the rows of the episodes, copies of the last one; of `episode`, if that is given."""

    def change(columns: dict):
        for name, values in columns.items():
            last = episode if name == "episode_index" and episode is not None else values[-1]
            columns[name] = [*values, *[last] * count]

    s.table(file, change)


def drop(key: str) -> Callable[[dict], object]:
    return lambda value: value.pop(key)


def put(**values: object) -> Callable[[dict], object]:
    return lambda value: value.update(values)


def feature(name: str, **values: object) -> Callable[[dict], object]:
    return lambda info: info["features"][name].update(values)


fault(1, "v21", file="meta/info.json")(lambda s: s.info(drop("fps")))
fault(1, "v30", name="json")(lambda s: s.write("meta/info.json", "{"))
fault(2, "v21")(lambda s: s.info(put(codebase_version="v1.6")))
fault(2, "v30", name="layout")(lambda s: s.info(put(codebase_version="v2.1")))
fault(3, "v30")(lambda s: s.write("meta/episodes.jsonl", ""))
fault(4, "v21", name="path", episode=1)(
    lambda s: s.info(put(data_path="data/chunk-{episode_index:03d}/episode_{episode_index:06d}.parquet"))
)
fault(4, "v21", name="brace")(lambda s: s.info(put(video_path="videos/{video_key")))
fault(4, "v30", name="other")(lambda s: s.info(put(data_path="data/chunk-{episode_chunk:03d}/file-000.parquet")))
fault(5, "v21")(lambda s: s.info(put(video_path="/data/{video_key}/{episode_index:06d}.mp4")))


@fault(5, "v30", name="link", file="data/chunk-000/file-001.parquet")
def link_out(s: Set):
    path = s.path(DATA3.format(1))
    outside = s.root.parent / "elsewhere.parquet"
    shutil.move(path, outside)
    path.symlink_to(outside)


fault(6, "v30", file=DATA3.format(1))(lambda s: s.write(DATA3.format(1), POINTER))
fault(7, "v21", file=DATA2.format(1))(lambda s: s.write(DATA2.format(1), s.path(DATA2.format(1)).read_bytes()[:-9]))
fault(7, "v30", name="empty", file=DATA3.format(0))(lambda s: s.write(DATA3.format(0), b""))
fault(7, "v30", name="episodes", file=EPISODES3)(lambda s: s.write(EPISODES3, s.path(EPISODES3).read_bytes()[:900]))
fault(7, "v30", name="inside")(lambda s: s.write(DATA3.format(0), damaged(s.path(DATA3.format(0)).read_bytes())))
fault(8, "v21", file=VIDEO2.format(TOP, 1), episode=1)(
    lambda s: s.write(VIDEO2.format(TOP, 1), s.path(VIDEO2.format(TOP, 1)).read_bytes()[:-5])
)
fault(75, "v21", file=VIDEO2.format(TOP, 99), field=TOP, severity="warning")(
    lambda s: shutil.copy(s.path(VIDEO2.format(TOP, 1)), s.path(VIDEO2.format(TOP, 99)))
)
fault(75, "v30", name="video", file=VIDEO3.format(TOP, 5), field=TOP, severity="warning")(
    lambda s: shutil.copy(s.path(VIDEO3.format(TOP, 0)), s.path(VIDEO3.format(TOP, 5)))
)
fault(75, "v30", name="data", file=DATA3.format(5), severity="warning")(
    lambda s: shutil.copy(s.path(DATA3.format(0)), s.path(DATA3.format(5)))
)
# Its rows come before those of episodes, whose numbers they move.
fault(75, "v21", name="data", file="data/chunk-000/episode_000001b.parquet", severity="error")(
    lambda s: shutil.copy(s.path(DATA2.format(0)), s.path("data/chunk-000/episode_000001b.parquet"))
)
fault(76, "v21", file=DATA2.format(1), severity="error")(lambda s: more_rows(s, DATA2.format(1)))
fault(76, "v30", name="last", file=DATA3.format(1), severity="warning")(lambda s: more_rows(s, DATA3.format(1)))
fault(76, "v30", file=DATA3.format(0), severity="error")(lambda s: more_rows(s, DATA3.format(0), episode=7))
fault(77, "v21", file=VIDEO2.format(WRIST, 2), episode=2, field=WRIST, severity="error")(
    lambda s: s.write(VIDEO2.format(WRIST, 2), b"")
)
fault(77, "v30", file=VIDEO3.format(TOP, 0), field=TOP, severity="error")(lambda s: s.write(VIDEO3.format(TOP, 0), b""))
fault(77, "v30", name="stray", file=VIDEO3.format(TOP, 9), field=TOP, severity="warning")(
    lambda s: s.write(VIDEO3.format(TOP, 9), b"")
)
fault(8, "v30", name="moov")(lambda s: s.write(VIDEO3.format(TOP, 0), Mp4(20, moov_first=False).content()[:300]))
fault(9, "v30", file="images/")(lambda s: s.write("images/top/episode-000003/frame-000000.png", b"x"))
fault(9, "v21", name="part", file="data/x.parquet.part")(lambda s: s.write("data/x.parquet.part", b"x"))
fault(9, "v30", name="old")(lambda s: shutil.copytree(s.root, s.root.parent / f"{s.root.name}_old"))
fault(10, "v21", severity="error")(lambda s: s.info(put(fps=0)))
fault(10, "v21", name="fraction", severity="warning")(lambda s: s.info(put(fps=29.97)))
fault(10, "v30", name="feature", field="action")(lambda s: s.info(feature("action", fps=15)))
fault(11, "v21")(lambda s: s.info(put(total_frames=1000)))
fault(11, "v30", name="episodes")(lambda s: s.info(put(total_episodes=3)))
fault(12, "v21")(lambda s: s.info(put(total_videos=2)))
fault(13, "v21")(lambda s: s.info(put(splits={"train": "0:100"})))
fault(13, "v30", name="gap")(lambda s: s.info(put(splits={"train": "0:1", "test": "2:4"})))
fault(14, "v30", severity="error")(lambda s: s.info(put(chunks_size=0)))
fault(14, "v30", name="size")(lambda s: s.info(put(data_files_size_in_mb=-1)))


@fault(14, "v21", name="chunk")
def other_chunk(s: Set):
    path = s.path(DATA2.format(3))
    shutil.move(path, s.path("data/chunk-001/episode_000003.parquet"))


fault(15, "v21", episode=1)(lambda s: s.lines("meta/episodes.jsonl", lambda e: e.insert(0, e.pop(1))))
fault(16, "v21", episode=2)(lambda s: s.lines("meta/episodes.jsonl", lambda e: e[2].update(length=0)))


def cell(column: str, row: int, value: object) -> Callable[[dict], object]:
    def change(columns: dict):
        columns[column][row] = value

    return change


fault(17, "v30", episode=2)(lambda s: s.table(EPISODES3, cell("dataset_from_index", 2, 54)))
fault(18, "v30", file=DATA3.format(0))(lambda s: s.table(EPISODES3, cell("data/file_index", 3, 0)))


@fault(18, "v21", name="short", episode=1)
def short_table(s: Set):
    s.table(DATA2.format(1), lambda c: [values.pop() for values in c.values()])


fault(19, "v30", field="data/file_index")(lambda s: s.table(EPISODES3, drop("data/file_index")))
fault(19, "v21", name="line")(lambda s: s.lines("meta/episodes.jsonl", lambda e: e[1].pop("tasks")))
fault(20, "v30", episode=2)(lambda s: s.table(EPISODES3, cell("meta/episodes/file_index", 2, 7)))
fault(21, "v30", episode=1, field="index", row=3)(lambda s: s.table(DATA3.format(0), cell("index", LENGTHS[0] + 3, 99)))
fault(21, "v21", name="frame", episode=1, field="frame_index")(
    lambda s: s.table(DATA2.format(1), cell("frame_index", 5, 6))
)


@fault(21, "v21", name="missing", field="frame_index", severity="warning")
def no_frame_index(s: Set):
    s.info(lambda info: info["features"].pop("frame_index"))
    for episode in range(len(LENGTHS)):
        s.table(DATA2.format(episode), drop("frame_index"))


@fault(22, "v30")
def thousand_chunks(s: Set):
    for chunk in (101, 1000):
        shutil.copy(s.path(DATA3.format(0)), s.path(f"data/chunk-{chunk}/file-000.parquet"))


fault(23, "v30", field="action", file=DATA3.format(1))(lambda s: s.table(DATA3.format(1), drop("action")))
fault(23, "v30", name="more", field="extra")(lambda s: s.table(DATA3.format(1), lambda c: c.update(extra=c["index"])))


def recast(s: Set, name: str, column: str, change: Callable[[list], list], kind: object):
    s.table(name, lambda c: c.update({column: change(c[column])}), {column: kind})


fault(24, "v21", severity="warning", field="action")(
    lambda s: recast(s, DATA2.format(0), "action", list, pa.list_(pa.float64(), 3))
)
fault(24, "v30", name="text", severity="error", field="action")(
    lambda s: recast(s, DATA3.format(0), "action", lambda v: [str(x) for x in v], pa.string())
)
fault(25, "v21", episode=1, row=4, field="action")(
    lambda s: recast(
        s,
        DATA2.format(1),
        "action",
        lambda v: [x[:2] if i == 4 else x for i, x in enumerate(v)],
        pa.list_(pa.float32()),
    )
)
fault(25, "v30", name="null", field="observation.state")(
    lambda s: s.table(DATA3.format(1), cell("observation.state", 7, None))
)
NAN = float("nan")
fault(26, "v30", episode=3, row=7, field="action", severity="error")(
    lambda s: s.table(DATA3.format(1), cell("action", 7, [0.0, NAN, 0.0]))
)


def rewrite_metadata(s: Set, name: str):
    read = pq.read_table(s.path(name))
    metadata = {key: value.replace(b'"Sequence"', b'"List"') for key, value in read.schema.metadata.items()}
    pq.write_table(read.replace_schema_metadata(metadata), s.path(name))


fault(27, "v21", file=DATA2.format(1))(lambda s: rewrite_metadata(s, DATA2.format(1)))


@fault(28, "v21", field="observations.state")
def plural(s: Set):
    s.info(lambda info: info["features"].update({"observations.state": info["features"].pop("observation.state")}))


fault(29, "v30", field="action")(lambda s: s.info(feature("action", names=["state"])))
fault(29, "v30", name="null", field=TOP)(lambda s: s.info(feature(TOP, names=None)))
fault(30, "v21", field="action")(lambda s: s.info(feature("action", names=["a", "gripper", "gripper"])))
fault(31, "v30", field=TOP, file=VIDEO3.format(TOP, 1))(
    lambda s: s.video(VIDEO3.format(TOP, 1), frames=LENGTHS[3], width=128)
)
fault(32, "v21")(lambda s: s.lines("meta/tasks.jsonl", lambda t: t.reverse()))
fault(32, "v30", name="table")(lambda s: s.table("meta/tasks.parquet", lambda c: c["task_index"].reverse()))
fault(33, "v30", field="task_index", episode=3)(lambda s: s.table(DATA3.format(1), cell("task_index", 3, 7)))
fault(34, "v21")(lambda s: s.lines("meta/tasks.jsonl", lambda t: t[1].update(task=TASKS[0])))
fault(34, "v30", name="column")(lambda s: s.table("meta/tasks.parquet", lambda c: c.update(name=c.pop("task"))))
fault(35, "v21", episode=1)(lambda s: s.lines("meta/episodes.jsonl", lambda e: e[1].update(tasks=[TASKS[0]])))
fault(36, "v21", file="meta/episodes.jsonl", line=5)(
    lambda s: s.write("meta/episodes.jsonl", s.path("meta/episodes.jsonl").read_text() + "\n")
)


def move_time(s: Set, name: str, change: Callable[[float], float]):
    s.table(name, lambda c: c.update(timestamp=[change(t) for t in c["timestamp"]]))


fault(37, "v21", episode=1, field="timestamp", row=4)(lambda s: s.table(DATA2.format(1), cell("timestamp", 4, 0.2)))
fault(38, "v21", episode=1, severity="error")(lambda s: move_time(s, DATA2.format(1), lambda t: t + 1 / FPS))
fault(38, "v21", name="little", episode=1, severity="warning")(
    lambda s: move_time(s, DATA2.format(1), lambda t: t + 0.004)
)
fault(39, "v21", episode=1)(lambda s: move_time(s, DATA2.format(1), lambda t: t * 1.001))


@fault(40, "v30", "--quick", file=VIDEO3.format(TOP, 0))
def long_files(s: Set):
    half_hour = 1800 * FPS

    def change(columns: dict):
        for camera in CAMERAS:
            for row, (begin, end) in enumerate(((0, half_hour), (half_hour, 2 * half_hour))):
                columns[f"videos/{camera}/from_timestamp"][row] = begin / FPS
                columns[f"videos/{camera}/to_timestamp"][row] = end / FPS
        columns["length"][:2] = [half_hour, half_hour]

    s.table(EPISODES3, change)
    s.video(VIDEO3.format(TOP, 0), frames=2 * half_hour)


fault(41, "v21", file=VIDEO2.format(WRIST, 1), episode=1, field=WRIST)(
    lambda s: s.path(VIDEO2.format(WRIST, 1)).unlink()
)
fault(41, "v30", name="file", severity="error")(lambda s: s.path(VIDEO3.format(WRIST, 1)).unlink())
fault(41, "v30", name="undeclared", severity="warning")(
    lambda s: s.video("videos/observation.images.other/chunk-000/file-000.mp4", frames=3)
)
fault(42, "v21", episode=1, severity="error")(lambda s: s.video(VIDEO2.format(TOP, 1), frames=LENGTHS[1] - 1))
fault(42, "v30", name="more", severity="warning")(lambda s: s.video(VIDEO3.format(TOP, 1), frames=LENGTHS[3] + 1))
fault(42, "v30", name="fewer", severity="error")(lambda s: s.video(VIDEO3.format(TOP, 1), frames=LENGTHS[3] - 1))


def shift(s: Set, row: int, key: str, seconds: float):
    def change(columns: dict):
        columns[f"videos/{TOP}/{key}"][row] += seconds

    s.table(EPISODES3, change)


fault(43, "v30", episode=1)(lambda s: shift(s, 1, "to_timestamp", -1 / FPS))
fault(43, "v30", name="overlap", episode=1)(lambda s: shift(s, 1, "from_timestamp", -2 / FPS))
fault(44, "v30", episode=1, severity="error")(lambda s: shift(s, 1, "from_timestamp", 1 / FPS))
fault(44, "v30", name="drift", episode=1, severity="warning")(lambda s: shift(s, 1, "from_timestamp", 0.001))
fault(45, "v30", episode=3)(lambda s: shift(s, 3, "from_timestamp", 55 / FPS))
fault(46, "v21", episode=0, severity="error")(
    lambda s: s.video(VIDEO2.format(TOP, 0), frames=LENGTHS[0], durations=[(9, 512), (1, 1536), (LENGTHS[0] - 10, 512)])
)
fault(46, "v21", name="edit", severity="warning")(
    lambda s: s.video(VIDEO2.format(TOP, 0), frames=LENGTHS[0], edits=[(9999, 1024)])
)
fault(47, "v21", episode=1)(lambda s: s.video(VIDEO2.format(TOP, 1), frames=LENGTHS[1], fps=25))
fault(48, "v30", file=VIDEO3.format(TOP, 1), name="scale")(
    lambda s: s.video(VIDEO3.format(TOP, 1), frames=LENGTHS[3], timescale=90000)
)
fault(48, "v21", file=VIDEO2.format(TOP, 1), name="codec")(
    lambda s: s.video(VIDEO2.format(TOP, 1), frames=LENGTHS[1], codec="hvc1")
)
fault(49, "v21", episode=1)(
    lambda s: s.video(VIDEO2.format(TOP, 1), frames=LENGTHS[1], offsets=[(1, 512), (LENGTHS[1] - 2, 512), (1, 1024)])
)
fault(50, "v21", episode=1)(lambda s: s.video(VIDEO2.format(TOP, 1), frames=LENGTHS[1], group=250))
fault(50, "v30", name="start", episode=1, severity="note")(
    lambda s: s.video(VIDEO3.format(TOP, 0), frames=sum(LENGTHS[:3]), group=5)
)
fault(51, "v21", severity="note")(lambda s: s.video(VIDEO2.format(TOP, 1), frames=LENGTHS[1], codec="av01"))
fault(52, "v21")(lambda s: s.video(VIDEO2.format(TOP, 1), frames=LENGTHS[1], moov_first=False))
fault(54, "v21", episode=1)(lambda s: s.video(VIDEO2.format(WRIST, 1), frames=LENGTHS[1] + 2))
fault(54, "v30", name="ranges", episode=3)(lambda s: shift(s, 3, "to_timestamp", 2 / FPS))


def stat(s: Set, feature: str, name: str, value: object):
    s.json("meta/stats.json", lambda stats: stats[feature].update({name: value}))


fault(55, "v30", field="action")(lambda s: s.json("meta/stats.json", drop("action")))
fault(55, "v30", name="nan", field="action")(lambda s: stat(s, "action", "mean", [0.0, NAN, 0.0]))
fault(55, "v30", name="order", field="action")(lambda s: stat(s, "action", "q50", [0.0, 5.0, 0.0]))
fault(55, "v30", name="shape", field=TOP)(lambda s: stat(s, TOP, "mean", [[[0.4]]]))
fault(55, "v21", name="missing")(lambda s: s.path("meta/episodes_stats.jsonl").unlink())
fault(55, "v21", name="episode", episode=1)(
    lambda s: s.lines("meta/episodes_stats.jsonl", lambda e: e[1]["stats"]["action"].update(std=[0.1, -0.1, 0.1]))
)
fault(55, "v30", name="table", episode=1, field="action")(
    lambda s: s.table(EPISODES3, cell("stats/action/max", 1, [-9.0, 1.0, 1.0]))
)
fault(56, "v30", field="action")(lambda s: stat(s, "action", "std", [0.5, 0.0, 0.5]))
fault(57, "v30", field=TOP)(lambda s: stat(s, TOP, "std", [[[0.006]]] * 3))
fault(58, "v30", field="action", file="meta/stats.json")(lambda s: stat(s, "action", "std", [0.2, 0.2, 0.2]))
fault(58, "v21", name="episode", episode=1, field="action")(
    lambda s: s.lines("meta/episodes_stats.jsonl", lambda e: e[1]["stats"]["action"].update(mean=[0.0, 0.0, 0.0]))
)
fault(59, "v30", field="action")(lambda s: stat(s, "action", "count", [224256]))
fault(59, "v21", name="episodes", field="action")(
    lambda s: s.lines("meta/episodes_stats.jsonl", lambda e: e[1]["stats"]["action"].update(count=[3]))
)
fault(60, "groot", "--groot", field="action")(
    lambda s: s.json("meta/stats.json", lambda stats: stats["action"].pop("q99"))
)
fault(61, "v21", "--policy-horizon", "28", episode=0)(lambda s: None)
fault(61, "groot", "--groot", "--policy-horizon", "16", severity="note", name="lost")(lambda s: None)


@fault(62, "v21", episode=3, name="copy")
def copied_episode(s: Set):
    s.table(
        DATA2.format(3), lambda c: c.update(action=pq.read_table(s.path(DATA2.format(1)))["action"].to_pylist()[:27])
    )
    s.table(DATA2.format(1), lambda c: [values.__delitem__(slice(27, None)) for values in c.values()])
    s.lines("meta/episodes.jsonl", lambda e: e[1].update(length=27))


fault(62, "v30", name="idle", episode=1)(
    lambda s: s.table(DATA3.format(0), lambda c: c["action"].__setitem__(slice(24, 55), [[0.1, 0.2, 0.3]] * 31))
)
fault(62, "v30", name="clipped", episode=1)(
    lambda s: s.table(
        DATA3.format(0),
        lambda c: c["action"].__setitem__(slice(30, 50), [[2.0, x[1], x[2]] for x in c["action"][30:50]]),
    )
)


@fault(62, "v30", name="stuck", episode=1)
def stuck_joint(s: Set):
    for number in range(2):
        s.table(
            DATA3.format(number),
            lambda c: c.update(
                action=[
                    [x[0] if e == 1 else i / 9, *x[1:]]
                    for i, (x, e) in enumerate(zip(c["action"], c["episode_index"], strict=True))
                ]
            ),
        )
    s.table(
        DATA3.format(0),
        lambda c: c.update(
            action=[[0.5, *x[1:]] if e == 1 else x for x, e in zip(c["action"], c["episode_index"], strict=True)]
        ),
    )


def modality(*path: str, **values: object) -> Callable[[Set], object]:
    def change(value: dict):
        for key in path:
            value = value[key]
        value.update(values)

    return lambda s: s.json("meta/modality.json", change)


fault(63, "groot", "--groot", severity="error")(modality("action", "gripper", end=9))
fault(63, "groot", "--groot", name="missing")(lambda s: s.path("meta/modality.json").unlink())
fault(63, "groot", name="overlap", severity="warning")(modality("state", "gripper", start=1))
fault(63, "groot", name="hole", severity="warning")(modality("state", "arm", end=1))
fault(64, "groot", "--groot")(modality("video", "top", original_key="observation.images.front"))
fault(64, "groot", name="annotation")(modality("annotation", **{"human.validity": {}}))
fault(64, "groot", name="type", field="annotation.human.task")(
    modality("annotation", **{"human.task": {"original_key": "timestamp"}})
)
fault(65, "groot", "--groot", "--language-key", "language_instruction")(lambda s: None)
fault(65, "groot", name="prefix")(modality("annotation", **{"annotation.human.task": {"original_key": "task_index"}}))
fault(66, "v30", "--groot")(lambda s: None)
fault(67, "groot", "--groot-version", "1.5", field=TOP)(
    lambda s: s.info(feature(TOP, names=["height", "width", "channel"]))
)


def relative(horizon: int, dims: int) -> Callable[[Set], object]:
    return lambda s: s.write("meta/relative_stats.json", json.dumps({"arm": {"mean": [[0.0] * dims] * horizon}}))


fault(68, "groot", "--groot", field="arm")(relative(16, 5))
fault(68, "groot", "--groot", "--policy-horizon", "20", name="horizon", field="arm")(relative(16, 2))
fault(68, "groot", "--groot", "--policy-horizon", "50", name="long")(lambda s: None)


@fault(68, "groot", "--groot-version", "1.5", name="wide", severity="warning", field="action")
def many_joints(s: Set):
    s.info(feature("action", shape=[40], names=None))
    s.json("meta/modality.json", lambda m: m.update(action={"all": {"start": 0, "end": 40}}))


@fault(69, "groot", "--groot", file="meta/stats.json")
def old_statistics(s: Set):
    os.utime(s.path("meta/stats.json"), (time.time() - 3600,) * 2)


fault(70, "groot", "--groot", field="action.arm")(modality("action", "arm", rotation_type="quaternion"))


@fault(70, "groot", name="norm", field="observation.state")
def no_quaternion(s: Set):
    s.info(feature("observation.state", shape=[4], names=None))
    s.json(
        "meta/modality.json", lambda m: m.update(state={"turn": {"start": 0, "end": 4, "rotation_type": "quaternion"}})
    )
    for episode in range(len(LENGTHS)):
        recast(
            s,
            DATA2.format(episode),
            "observation.state",
            lambda v: [[1.0, 1.0, 0.0, 0.0]] * len(v),
            pa.list_(pa.float32(), 4),
        )


@fault(71, "v30")
def moved_tag(s: Set):
    """As the Hub's client lays it out: the set is the snapshot of main, the tag is another commit."""
    cache = s.root.parent / "datasets--org--name"
    shutil.move(s.root, cache / "snapshots" / ("a" * 40))
    s.root.symlink_to(cache / "snapshots" / ("a" * 40))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("a" * 40)
    (cache / "refs" / "v3.0").write_text("b" * 40)
    s.root = cache / "snapshots" / ("a" * 40)


DEPTH = {"is_depth_map": True, "depth_unit": "mm", "video.pix_fmt": "gray12le", "video.codec": "hevc"}
DEPTH |= {"video.depth_min": 0.01, "video.depth_max": 10.0, "video.shift": 3.5, "video.use_log": True}
fault(73, "v30", field=TOP)(lambda s: s.info(lambda info: info["features"][TOP]["info"].update(is_depth_map=True)))
fault(73, "v30", name="bits", field=TOP, file=VIDEO3.format(TOP, 0))(
    lambda s: s.info(lambda info: info["features"][TOP]["info"].update(DEPTH))
)


def language(style: str, camera: str | None) -> Callable[[Set], object]:
    def make(s: Set):
        s.info(lambda info: info["features"].update(language_events={"dtype": "language", "shape": [1], "names": None}))
        entry = {"role": "user", "content": "where?", "style": style, "camera": camera}
        kind = pa.list_(pa.struct([(name, pa.string()) for name in entry]))
        for number in range(2):
            s.table(
                DATA3.format(number),
                lambda c: c.update(language_events=[[entry] if i == 4 else [] for i in range(len(c["index"]))]),
                {"language_events": kind},
            )

    return make


fault(74, "v30", field="language_events", row=4)(language("vqa", None))
fault(74, "v30", name="camera", field="language_events")(language("interjection", TOP))


def damaged(data: bytes) -> bytes:
    """The pages of a table in which bytes were changed."""
    return data[:4] + bytes(byte ^ 0x55 for byte in data[4:200]) + data[200:]


@pytest.fixture(scope="session")
def good_sets(tmp_path_factory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("sets")

    @functools.cache
    def made(base: str) -> Path:
        MAKERS[base](folder / base)
        return folder / base

    return made


def findings(millrace: Millrace, root: Path, *flags: object) -> list[dict]:
    return millrace("lerobot", "validate", root, "--json", "--fail-on", "never", *flags).objects("lint")


@pytest.mark.parametrize("broken", FAULTS, ids=str)
def test_a_fault_is_found(millrace: Millrace, good_sets, tmp_path: Path, broken: Fault):
    shutil.copytree(good_sets(broken.base), tmp_path / "set")
    made = Set(tmp_path / "set")
    broken.make(made)
    found = [each for each in findings(millrace, made.root, *broken.flags) if each["rule"] == broken.rule]
    assert found, broken
    wanted = (broken.place or {}) | ({"severity": broken.severity} if broken.severity else {})
    assert any(all(each.get(key) == value for key, value in wanted.items()) for each in found), (wanted, found)


@pytest.mark.parametrize(("base", "file"), [("v21", DATA2.format(1)), ("v30", DATA3.format(0))])
@pytest.mark.parametrize("episode", [None, 7])
def test_rows_of_nobody_are_told_once(millrace: Millrace, good_sets, tmp_path: Path, base: str, file: str, episode):
    """Not as a wrong total, whose fix would make a correct one wrong, and not as rows that an episode lacks."""
    shutil.copytree(good_sets(base), tmp_path / "set")
    more_rows(Set(tmp_path / "set"), file, 5, episode)
    found = findings(millrace, tmp_path / "set")
    assert [each["rule"] for each in found] == ["LR076"]
    assert "5 of its " in found[0]["message"] and "Remove these rows" in found[0]["fix"]
    assert ("episode_index goes to 7" in found[0]["message"]) == (episode == 7)
    repaired = millrace("lerobot", "repair", tmp_path / "set", "--dry-run", "--json").object("lerobot_repair")
    assert not [each for each in repaired["fixes"] if each["key"].startswith("total_")]


@pytest.mark.parametrize(
    ("base", "file", "content"),
    [
        ("v21", VIDEO2.format(TOP, 99), VIDEO2.format(TOP, 1)),
        ("v30", VIDEO3.format(WRIST, 5), VIDEO3.format(WRIST, 0)),
        ("v30", DATA3.format(5), DATA3.format(0)),
        ("v21", DATA2.format(99), DATA2.format(1)),
    ],
)
def test_a_file_of_nobody_is_told_once(millrace: Millrace, good_sets, tmp_path: Path, base, file, content):
    shutil.copytree(good_sets(base), tmp_path / "set")
    shutil.copy(tmp_path / "set" / content, tmp_path / "set" / file)
    found = findings(millrace, tmp_path / "set")
    assert [(each["rule"], each["file"]) for each in found] == [("LR075", file)]
    assert findings(millrace, tmp_path / "set", "--quick") == found


@pytest.mark.parametrize("base", ["v21", "v30"])
def test_lance_is_refused_by_name(millrace: Millrace, good_sets, tmp_path: Path, base: str):
    """LeRobot reads such a set by another reader; its frames are in no Parquet and no MP4."""
    shutil.copytree(good_sets(base), tmp_path / "set")
    Set(tmp_path / "set").info(put(storage_format="lance"))
    verbs = (
        ["inspect"],
        ["validate"],
        ["stats"],
        ["repair"],
        ["modality"],
        ["convert", tmp_path / "out", "--to", "3.0"],
    )
    for verb, *more in verbs:
        ran = millrace("lerobot", verb, tmp_path / "set", *more, status=1)
        assert "its frames are stored in Lance tables" in ran.err, (verb, ran.err)
        assert "use the Parquet and MP4 dataset that it was converted from" in ran.err
    assert not (tmp_path / "out").exists()
    import millrace as mr

    with pytest.raises(NotImplementedError, match="Lance tables"):
        mr.lerobot.Dataset(tmp_path / "set")
    Set(tmp_path / "set").info(put(storage_format="parquet"))
    millrace("lerobot", "inspect", tmp_path / "set")


def test_every_rule_has_a_fault():
    # LR053 wants a decoder and LR072 ten thousand files: src/millrace/lerobot/validate_test.cpp makes both.
    assert {f"LR{number:03}" for number in range(1, 78)} - {each.rule for each in FAULTS} == {"LR053", "LR072"}


@pytest.mark.parametrize("flags", [(), ("--quick",)], ids=["rows", "quick"])
@pytest.mark.parametrize("base", ["v21", "v30", "groot"])
def test_a_good_dataset_stays_silent(millrace: Millrace, good_sets, base: str, flags: tuple):
    asked = ("--groot", "--language-key", "annotation.human.task") if base == "groot" else ()
    ran = millrace("lerobot", "validate", good_sets(base), "--json", *flags, *asked)
    assert ran.objects("lint") == []
    summary = ran.object("lerobot_validate")
    assert summary["episodes"] == len(LENGTHS) and summary["frames"] == sum(LENGTHS)
    assert summary["videos"] == (4 if base == "v30" else 2 * len(LENGTHS)) and summary["rows"] == (not flags)


def lists(s: Set):
    shutil.rmtree(s.root)
    make_v30(s.root, fixed=False)


# What LeRobot's own writers and tools make, and is no fault.
@pytest.mark.parametrize(
    ("change", "notes"),
    [
        (lists, {"LR024"}),
        (lambda s: s.table("meta/tasks.parquet", lambda c: c.update(__index_level_0__=c.pop("task"))), set()),
        (lambda s: [stat(s, camera, "count", [224256]) for camera in CAMERAS], set()),
        (lambda s: s.info(put(tools=[{"type": "function"}], unknown=1)), set()),
        (
            lambda s: s.video(
                VIDEO3.format(TOP, 0), frames=56, parts=LENGTHS[:3], offsets=[(56, 512)], edits=[(1866, 512)]
            ),
            set(),
        ),
        (lambda s: renumber(s), set()),
        (lambda s: other_types(s), {"LR024"}),
        (lambda s: embedded_pictures(s), set()),
        (lambda s: s.write(".cache/huggingface/download/data/x.metadata", "x"), set()),
    ],
    ids=[
        "pandas-lists",
        "old-task-column",
        "pixels",
        "unknown-keys",
        "delay",
        "gaps",
        "other-types",
        "pictures",
        "hub-folder",
    ],
)
def test_what_lerobot_writes_is_no_fault(millrace: Millrace, good_sets, tmp_path: Path, change, notes: set):
    shutil.copytree(good_sets("v30"), tmp_path / "set")
    change(Set(tmp_path / "set"))
    found = findings(millrace, tmp_path / "set")
    assert {each["rule"] for each in found} == notes
    assert all(each["severity"] == "note" for each in found)


def other_types(s: Set):
    """Forms of the same values that third parties write, and that loaders take."""
    for number in range(2):
        name = DATA3.format(number)
        recast(s, name, "action", list, pa.large_list(pa.float32()))
        recast(s, name, "observation.state", list, pa.list_(pa.float32(), 3))
    read = pq.read_table(s.path("meta/tasks.parquet"))
    tasks = read["task"].combine_chunks().cast(pa.large_string()).dictionary_encode()
    pq.write_table(pa.table({"task_index": read["task_index"], "task": tasks}), s.path("meta/tasks.parquet"))


def embedded_pictures(s: Set):
    """A camera whose pictures are in the table."""
    key = "observation.images.inside"
    s.info(lambda info: info["features"].update({key: info["features"][TOP] | {"dtype": "image"}}))
    s.json("meta/stats.json", lambda stats: stats.update({key: stats[TOP]}))
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    picture = {"bytes": b"\x89PNG" + bytes(100), "path": "frame-000000.png"}
    for number in range(2):
        s.table(DATA3.format(number), lambda c: c.update({key: [picture] * len(c["index"])}), {key: kind})


def renumber(s: Set):
    """After an episode was deleted, the numbers of files have gaps."""
    s.path(DATA3.format(1)).rename(s.path(DATA3.format(7)))
    s.table(EPISODES3, cell("data/file_index", 3, 7))


def test_the_docs_hold_every_dataset_rule(millrace: Millrace):
    printed = millrace("lerobot", "validate", "--rules").out
    section = (REPOSITORY / "docs/rules.md").read_text().split("## millrace lerobot validate\n")[1].split("\n## ")[0]
    assert printed.strip() in section
    assert len(re.findall(r"^\*\*LR\d{3}\*\* ", section, re.M)) == 77
