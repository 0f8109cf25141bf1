# SPDX-License-Identifier: Apache-2.0
"""Small robot datasets as LeRobot and GR00T write them, made to be damaged: tables by pyarrow, videos as the boxes of an
MP4 without pictures."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FPS = 30
CAMERAS = ("observation.images.top", "observation.images.wrist")
TASKS = ("pick the cube", "place the cube")
LENGTHS = (24, 31, 1, 27)  # one frame is a legal episode
TASK_OF = (0, 1, 0, 1)
JOINTS = 3
HEIGHT, WIDTH = 48, 64


def box(kind: str, body: bytes) -> bytes:
    return struct.pack(">I", len(body) + 8) + kind.encode() + body


def runs(pairs) -> bytes:
    return struct.pack(">II", 0, len(pairs)) + b"".join(struct.pack(">Ii", *pair) for pair in pairs)


@dataclass
class Mp4:
    """The boxes of one video track. `durations` and `offsets` are (count, ticks); `edits` (duration, media time)."""

    frames: int
    fps: float = FPS
    timescale: int = 15360
    width: int = WIDTH
    height: int = HEIGHT
    group: int = 2
    parts: tuple = ()  # lengths of what was joined: each begins with a key frame
    codec: str = "avc1"
    durations: list = field(default_factory=list)
    offsets: list = field(default_factory=list)
    edits: list = field(default_factory=list)
    moov_first: bool = True

    def entry(self) -> bytes:
        if self.codec == "av01":
            config = box("av1C", bytes([0x81, 0x00, 0x0C, 0x00]))
        elif self.codec == "hvc1":
            config = box("hvcC", bytes(16) + bytes([0xFC, 0xFC]) + bytes(5))
        else:
            profile = bytes([0x67, 0x64, 0x00, 0x1E, 0xAC, 0xD0])
            config = box("avcC", b"\x01\x64\x00\x1e\xff\xe1" + struct.pack(">H", len(profile)) + profile + b"\0")
        picture = bytes(6) + b"\0\1" + bytes(16) + struct.pack(">HH", self.width, self.height) + bytes(50)
        return box("stsd", struct.pack(">II", 0, 1) + box(self.codec, picture + config))

    def tables(self) -> bytes:
        durations = self.durations or [(self.frames, round(self.timescale / self.fps))]
        keys: list[int] = []
        first = 1
        for length in self.parts or (self.frames,):
            keys += range(first, first + length, self.group)
            first += length
        out = self.entry() + box("stts", runs(durations))
        if self.offsets:
            out += box("ctts", runs(self.offsets))
        out += box("stss", struct.pack(f">II{len(keys)}I", 0, len(keys), *keys))
        return out + box("stsz", struct.pack(">III", 0, 1, self.frames))

    def content(self) -> bytes:
        ticks = sum(count * each for count, each in self.durations) or round(self.frames * self.timescale / self.fps)
        clock = bytes(12) + struct.pack(">II", self.timescale, ticks)
        media = box("mdhd", clock + bytes(4)) + box("hdlr", bytes(8) + b"vide" + bytes(13))
        media += box("minf", box("stbl", self.tables()))
        edits = b"".join(struct.pack(">IiI", *edit, 0x10000) for edit in self.edits)
        edts = box("edts", box("elst", struct.pack(">II", 0, len(self.edits)) + edits)) if self.edits else b""
        track = box("trak", box("tkhd", bytes(84)) + edts + box("mdia", media))
        moov = box("moov", box("mvhd", clock + bytes(80)) + track)
        head, mdat = box("ftyp", b"isom\0\0\2\0isomiso2"), box("mdat", bytes(self.frames * 40))
        return head + moov + mdat if self.moov_first else head + mdat + moov


def numbers(episode: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """State and action [length, JOINTS] of a motion that differs from episode to episode."""
    time = np.arange(length)[:, None] / FPS
    phase = np.arange(JOINTS)[None, :] + 0.37 * episode
    action = np.sin(3.1 * time + phase).astype(np.float32)
    return (0.9 * action + 0.05).astype(np.float32), action


def statistics(values: np.ndarray, quantiles: bool = True) -> dict:
    values = np.atleast_2d(values.astype(np.float64).reshape(len(values), -1))
    out = {name: getattr(np, name)(values, axis=0).tolist() for name in ("min", "max", "mean", "std")}
    out["count"] = [len(values)]
    for name in (1, 10, 50, 90, 99) if quantiles else ():
        out[f"q{name:02}"] = np.quantile(values, name / 100, axis=0).tolist()
    return out


def image_statistics(count: int, quantiles: bool = True) -> dict:
    def triple(value: float) -> list:
        return [[[value]]] * 3

    out = {"min": triple(0.0), "max": triple(1.0), "mean": triple(0.45), "std": triple(0.22), "count": [count]}
    for name, value in (("q01", 0.01), ("q10", 0.1), ("q50", 0.5), ("q90", 0.9), ("q99", 0.99)) if quantiles else ():
        out[name] = triple(value)
    return out


def features(version: str) -> dict:
    video = {"video.fps": FPS, "video.codec": "h264", "video.pix_fmt": "yuv420p", "video.height": HEIGHT}
    camera = {
        "dtype": "video",
        "shape": [HEIGHT, WIDTH, 3],
        "names": ["height", "width", "channels"],
        "info": video | {"video.width": WIDTH, "has_audio": False},
    }
    joints = {"dtype": "float32", "shape": [JOINTS], "names": [f"joint_{i}" for i in range(JOINTS)]}
    out = {"observation.state": joints, "action": joints} | {key: camera for key in CAMERAS}
    if version == "groot":
        out["annotation.human.task"] = {"dtype": "int64", "shape": [1], "names": None}
    out["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    for name in ("frame_index", "episode_index", "index", "task_index"):
        out[name] = {"dtype": "int64", "shape": [1], "names": None}
    return json.loads(json.dumps(out))


def rows(episode: int, version: str) -> dict[str, np.ndarray]:
    length = LENGTHS[episode]
    state, action = numbers(episode, length)
    first = sum(LENGTHS[:episode])
    out = {"observation.state": state, "action": action}
    if version == "groot":
        out["annotation.human.task"] = np.full(length, TASK_OF[episode])
    out["timestamp"] = (np.arange(length) / FPS).astype(np.float32)
    out["frame_index"] = np.arange(length)
    out["episode_index"] = np.full(length, episode)
    out["index"] = first + np.arange(length)
    out["task_index"] = np.full(length, TASK_OF[episode])
    return out


def table(columns: dict[str, np.ndarray], kind: str = "Sequence", fixed: bool = True) -> pa.Table:
    """As LeRobot's recorder writes it; `fixed` False: as what goes through pandas."""
    arrays, described = {}, {}
    for name, values in columns.items():
        if values.ndim == 2:
            flat = pa.array(values.ravel())
            width = values.shape[1]
            offsets = np.arange(len(values) + 1, dtype=np.int32) * width
            as_list = (
                pa.FixedSizeListArray.from_arrays(flat, width) if fixed else pa.ListArray.from_arrays(offsets, flat)
            )
            arrays[name] = as_list
            described[name] = {"feature": {"dtype": "float32", "_type": "Value"}, "length": width, "_type": kind}
        else:
            arrays[name] = pa.array(values)
            described[name] = {"dtype": str(values.dtype), "_type": "Value"}
    metadata = {"huggingface": json.dumps({"info": {"features": described}})} if fixed else {"pandas": "{}"}
    return pa.table(arrays).replace_schema_metadata(metadata)


class Set:
    """A dataset in a folder, and how to change its files."""

    def __init__(self, root: Path):
        self.root = root

    def path(self, name: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, name: str, content: bytes | str) -> None:
        self.path(name).write_bytes(content if isinstance(content, bytes) else content.encode())

    def json(self, name: str, change: Callable[[dict], object]) -> None:
        value = json.loads(self.path(name).read_text())
        change(value)
        self.write(name, json.dumps(value))

    def info(self, change: Callable[[dict], object]) -> None:
        self.json("meta/info.json", change)

    def lines(self, name: str, change: Callable[[list[dict]], object]) -> None:
        values = [json.loads(line) for line in self.path(name).read_text().splitlines()]
        change(values)
        self.write(name, "".join(json.dumps(value) + "\n" for value in values))

    def table(self, name: str, change: Callable[[dict[str, list]], object], types: dict | None = None) -> None:
        """Changes the columns as lists; what stays keeps its type, unless `types` says another."""
        before = pq.read_table(self.path(name))
        columns = {column: before[column].to_pylist() for column in before.column_names}
        change(columns)
        kinds = {field.name: field.type for field in before.schema} | (types or {})
        arrays = {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
        pq.write_table(pa.table(arrays).replace_schema_metadata(before.schema.metadata), self.path(name))

    def video(self, name: str, **changes: object) -> None:
        self.write(name, Mp4(**changes).content())


def common_info(version: str) -> dict:
    info = {"codebase_version": {"v21": "v2.1", "groot": "v2.0", "v30": "v3.0"}[version], "robot_type": "so101"}
    info |= {"total_episodes": len(LENGTHS), "total_frames": sum(LENGTHS), "total_tasks": len(TASKS)}
    if version == "v30":
        info |= {"chunks_size": 1000, "data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
        data = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        video = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    else:
        info |= {"total_videos": len(LENGTHS) * len(CAMERAS), "total_chunks": 1, "chunks_size": 1000}
        data = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
        video = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    info |= {"fps": FPS, "splits": {"train": f"0:{len(LENGTHS)}"}, "data_path": data, "video_path": video}
    return info | {"features": features(version)}


def all_rows(version: str) -> dict[str, np.ndarray]:
    parts = [rows(episode, version) for episode in range(len(LENGTHS))]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def make_v2(root: Path, version: str) -> Set:
    made = Set(root)
    made.write("meta/info.json", json.dumps(common_info(version)))
    made.write(
        "meta/tasks.jsonl", "".join(json.dumps({"task_index": i, "task": t}) + "\n" for i, t in enumerate(TASKS))
    )
    lines, stats = "", ""
    for episode, length in enumerate(LENGTHS):
        columns = rows(episode, version)
        pq.write_table(table(columns), made.path(f"data/chunk-000/episode_{episode:06}.parquet"))
        for camera in CAMERAS:
            made.video(f"videos/chunk-000/{camera}/episode_{episode:06}.mp4", frames=length)
        lines += json.dumps({"episode_index": episode, "tasks": [TASKS[TASK_OF[episode]]], "length": length}) + "\n"
        each = {name: statistics(values, quantiles=False) for name, values in columns.items()}
        each |= {camera: image_statistics(min(length, 100), quantiles=False) for camera in CAMERAS}
        stats += json.dumps({"episode_index": episode, "stats": each}) + "\n"
    made.write("meta/episodes.jsonl", lines)
    if version == "v21":
        made.write("meta/episodes_stats.jsonl", stats)
    return made


def make_groot(root: Path) -> Set:
    made = make_v2(root, "groot")
    stats = {}
    for name, values in all_rows("groot").items():
        if values.dtype.kind == "f":
            each = statistics(values)
            stats[name] = {key: each[key] for key in ("mean", "std", "min", "max", "q01", "q99")}
    made.write("meta/stats.json", json.dumps(stats))
    groups = {"arm": {"start": 0, "end": 2}, "gripper": {"start": 2, "end": 3}}
    modality = {"state": groups, "action": groups, "annotation": {"human.task": {}}}
    modality["video"] = {"top": {"original_key": CAMERAS[0]}, "wrist": {}}
    made.write("meta/modality.json", json.dumps(modality))
    return made


FILES = ((0, 1, 2), (3,))  # the episodes of each data and video file of v3.0


def make_v30(root: Path, fixed: bool = True) -> Set:
    made = Set(root)
    made.write("meta/info.json", json.dumps(common_info("v30")))
    names = pa.table({"task_index": pa.array(range(len(TASKS))), "task": pa.array(TASKS)})
    pq.write_table(
        names.replace_schema_metadata({"pandas": '{"index_columns": ["task"]}'}), made.path("meta/tasks.parquet")
    )
    episodes: dict[str, list] = {}

    def add(name: str, value: object) -> None:
        episodes.setdefault(name, []).append(value)

    for number, members in enumerate(FILES):
        begin = 0
        with pq.ParquetWriter(
            made.path(f"data/chunk-000/file-{number:03}.parquet"), table(rows(0, "v30"), "List", fixed).schema
        ) as writer:
            for episode in members:
                columns = rows(episode, "v30")
                writer.write_table(table(columns, "List", fixed))
                length, first = LENGTHS[episode], sum(LENGTHS[:episode])
                add("episode_index", episode)
                add("tasks", [TASKS[TASK_OF[episode]]])
                add("length", length)
                for key, value in (("chunk_index", 0), ("file_index", number)):
                    add(f"data/{key}", value)
                add("dataset_from_index", first)
                add("dataset_to_index", first + length)
                for camera in CAMERAS:
                    add(f"videos/{camera}/chunk_index", 0)
                    add(f"videos/{camera}/file_index", number)
                    add(f"videos/{camera}/from_timestamp", begin / FPS)
                    add(f"videos/{camera}/to_timestamp", (begin + length) / FPS)
                each = {name: statistics(values) for name, values in columns.items()}
                each |= {camera: image_statistics(min(length, 100)) for camera in CAMERAS}
                for feature, values in each.items():
                    for name, value in values.items():
                        add(f"stats/{feature}/{name}", value)
                add("meta/episodes/chunk_index", 0)
                add("meta/episodes/file_index", 0)
                begin += length
        for camera in CAMERAS:
            made.video(
                f"videos/{camera}/chunk-000/file-{number:03}.mp4", frames=begin, parts=[LENGTHS[i] for i in members]
            )
    pq.write_table(pa.table(episodes), made.path("meta/episodes/chunk-000/file-000.parquet"))
    stats = {name: statistics(values) for name, values in all_rows("v30").items()}
    stats |= {camera: image_statistics(83) for camera in CAMERAS}
    made.write("meta/stats.json", json.dumps(stats))
    return made


MAKERS: dict[str, Callable[[Path], Set]] = {
    "v21": lambda root: make_v2(root, "v21"),
    "v30": make_v30,
    "groot": make_groot,
}
