# SPDX-License-Identifier: Apache-2.0
"""mr.lerobot.Dataset and mr.torch.lerobot.Dataset against pyarrow and PyAV."""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import pickle
import random
import shutil
import sys

import numpy as np
import pytest

import millrace as mr

pytest.importorskip("av")
pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")

from robot_sets import CAMERAS, Truth, check_equal, make  # noqa: E402

FPS = 30
DATA = os.environ.get("MILLRACE_TEST_DATA")


@pytest.fixture(scope="module", params=["2.1 h264", "3.0 av1", "groot hevc"])
def root(request, tmp_path_factory) -> pathlib.Path:
    version, codec = request.param.split()
    folder = tmp_path_factory.mktemp("robot") / "set"
    return make(folder, "--version", version, "--codec", codec, "--episodes", 4)


@pytest.fixture(scope="module")
def truth(root) -> Truth:
    return Truth(root)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> pathlib.Path:
    return make(tmp_path_factory.mktemp("robot") / "small", "--episodes", 3, "--codec", "h264")


WINDOWS = {"action": list(range(16)), "observation.state": [-2, 0], CAMERAS[0]: [-3, 0, 5], CAMERAS[1]: [0]}


def seconds(windows: dict[str, list[int]]) -> dict[str, list[float]]:
    return {name: [delta / FPS for delta in deltas] for name, deltas in windows.items()}


def test_every_frame_without_windows(root, truth):
    frames = mr.lerobot.Dataset(root)
    assert len(frames) == len(truth.rows) and frames.fps == FPS and frames.cameras == CAMERAS
    assert frames.first_frames == truth.begins and frames.episodes == list(range(4))
    for row in range(len(frames)):
        check_equal(frames[row], truth.item(row, {}), row)


def test_windows_and_padding_in_any_order(root, truth):
    frames = mr.lerobot.Dataset(root, delta_timestamps=seconds(WINDOWS))
    rows = [*range(len(frames)), *random.Random(3).choices(range(len(frames)), k=40)]
    random.Random(4).shuffle(rows)
    for begin in range(0, len(rows), 32):
        some = rows[begin : begin + 32]
        for row, item in zip(some, frames.__getitems__(some), strict=True):
            check_equal(item, truth.item(row, WINDOWS), row)
    batch = frames.batch([5, 5, -1])
    assert batch["action"].shape == (3, 16, 3) and batch[CAMERAS[0]].shape[:3] == (3, 3, 3)
    assert isinstance(batch["task"], list) and np.array_equal(batch["action"][0], batch["action"][1])
    check_equal(frames[-1], truth.item(len(frames) - 1, WINDOWS))


def test_chosen_episodes(root, truth):
    """The list's order has no effect, `index` stays that of the dataset, and a window never leaves its episode."""
    frames = mr.lerobot.Dataset(root, episodes=[3, 1], delta_timestamps={"action": [-1 / FPS, 1 / FPS]})
    rows = [row for episode in (1, 3) for row in range(truth.begins[episode], truth.begins[episode + 1])]
    assert len(frames) == len(rows) and frames.episodes == [1, 3]
    for number, row in enumerate(rows):
        item = frames[number]
        assert item["index"] == row
        check_equal(item, truth.item(row, {"action": [-1, 1]}), row)


def test_pictures_as_floats_and_channels_last(small):
    bytes_first = mr.lerobot.Dataset(small).batch([3, 90])
    floats = mr.lerobot.Dataset(small, pictures="float32").batch([3, 90])
    last = mr.lerobot.Dataset(small, layout="hwc", cameras=[CAMERAS[1]]).batch([3, 90])
    assert CAMERAS[0] not in last
    assert np.array_equal(last[CAMERAS[1]].transpose(0, 3, 1, 2), bytes_first[CAMERAS[1]])
    for camera in CAMERAS:
        assert floats[camera].dtype == np.float32
        assert np.array_equal(floats[camera], bytes_first[camera] / np.float32(255))
    assert mr.lerobot.Dataset(small, cameras=[])[0].keys() & set(CAMERAS) == set()


@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
def test_resized_pictures_are_those_of_pillow(small, fit):
    """What is resized while it is decoded equals the decoded frame, resized by Pillow."""
    image = pytest.importorskip("PIL.Image")
    ops = pytest.importorskip("PIL.ImageOps")
    windows = {CAMERAS[0]: [-1 / FPS, 0, 0]}
    rows = [90, 3, 3, 17]
    whole = mr.lerobot.Dataset(small, layout="hwc", delta_timestamps=windows).batch(rows)
    how = {"crop": ops.fit, "stretch": image.Image.resize, "pad": ops.pad}[fit]
    for size in [(56, 40), (24, 64)]:
        options = {"image_size": size, "image_fit": fit, "delta_timestamps": windows}
        given = mr.lerobot.Dataset(small, layout="hwc", **options).batch(rows)
        for camera in CAMERAS:
            frames = whole[camera].reshape(-1, *whole[camera].shape[-3:])
            pictures = [how(image.fromarray(f), size[::-1], image.Resampling.BILINEAR) for f in frames]
            expected = np.stack([np.asarray(picture) for picture in pictures])
            assert np.array_equal(given[camera].reshape(-1, *size, 3), expected)
        first = mr.lerobot.Dataset(small, **options).batch(rows)
        floats = mr.lerobot.Dataset(small, pictures="float32", **options).batch(rows)
        for camera in CAMERAS:
            assert np.array_equal(first[camera], np.moveaxis(given[camera], -1, -3))
            assert np.array_equal(floats[camera], first[camera] / np.float32(255))


def test_one_number_is_both_sides_and_the_stored_size_changes_nothing(small):
    height, width = mr.lerobot.Dataset(small)[0][CAMERAS[0]].shape[1:]
    square = pickle.loads(pickle.dumps(mr.lerobot.Dataset(small, image_size=32)))
    assert square[5][CAMERAS[1]].shape == (3, 32, 32)
    same = mr.lerobot.Dataset(small, image_size=(height, width), image_fit="stretch")[5]
    assert np.array_equal(same[CAMERAS[0]], mr.lerobot.Dataset(small)[5][CAMERAS[0]])


@pytest.mark.parametrize("size", [0, -3, (32,), (32, 0), (1, 2, 3), (32, 1.5), (10**6, 32), "ab"])
def test_a_size_that_is_none_is_refused(small, size):
    with pytest.raises(ValueError, match="image_size: a height and a width of 1 to 16384 pixels"):
        mr.lerobot.Dataset(small, image_size=size)


def test_what_a_gpu_would_decode_is_refused(small):
    with pytest.raises(NotImplementedError, match="processor"):
        mr.lerobot.Dataset(small, decode_device="cuda")


def test_few_decoders_and_little_memory_give_the_same(root, truth):
    frames = mr.lerobot.Dataset(root, max_decoders=1, memory_bytes=1, num_threads=3)
    rows = random.Random(5).choices(range(len(frames)), k=24)
    for row, item in zip(rows, frames.__getitems__(rows), strict=True):
        check_equal(item, truth.item(row, {}), row)


def test_skipped_frames_have_no_number_and_windows_see_them(root, truth):
    windows = {"action": [-2, 0, 4]}
    frames = mr.lerobot.Dataset(root, cameras=[], skip_first=2, skip_last=4, delta_timestamps=seconds(windows))
    rows = [row for episode in range(4) for row in range(truth.begins[episode] + 2, truth.begins[episode + 1] - 4)]
    assert len(frames) == len(rows) and frames.skipped_frames == 4 * 6
    for number, row in enumerate(rows):
        item = frames[number]
        assert item["index"] == row and not item["action_is_pad"].any()
        assert np.array_equal(item["action"], [truth.rows[row + delta]["action"] for delta in windows["action"]])


def test_slices_and_numbers(small):
    frames = mr.lerobot.Dataset(small, cameras=[])
    assert [int(item["index"]) for item in frames[1:7:2]] == [1, 3, 5]
    assert frames[np.int64(4)]["index"] == 4
    with pytest.raises(IndexError, match=f"frame {len(frames)} of a dataset of {len(frames)}"):
        frames[len(frames)]
    copy = pickle.loads(pickle.dumps(frames))
    assert copy[9]["index"] == 9 and copy.cameras == []


def child(frames, rows, queue) -> None:
    queue.put([item[CAMERAS[0]].sum() for item in frames.__getitems__(rows)])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_open_their_own_files(small, method):
    frames = mr.lerobot.Dataset(small)
    rows = [80, 3, 40]
    wanted = [item[CAMERAS[0]].sum() for item in frames.__getitems__(rows)]
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    processes = [context.Process(target=child, args=(frames, rows, queue)) for _ in range(2)]
    for process in processes:
        process.start()
    for _ in processes:
        assert queue.get(timeout=60) == wanted
    for process in processes:
        process.join(60)
    assert [item[CAMERAS[0]].sum() for item in frames.__getitems__(rows)] == wanted


def test_wrong_arguments(small):
    dataset = mr.lerobot.Dataset
    with pytest.raises(ValueError, match="there is no episode 3"):
        dataset(small, episodes=[3])
    with pytest.raises(ValueError, match="no feature actions"):
        dataset(small, delta_timestamps={"actions": [0]})
    with pytest.raises(ValueError, match=r"0\.01 of action is not within"):
        dataset(small, delta_timestamps={"action": [0, 0.01]})
    with pytest.raises(ValueError, match="no camera top"):
        dataset(small, cameras=["top"])
    with pytest.raises(ValueError, match="uint8"):
        dataset(small, pictures="float16")
    with pytest.raises(FileNotFoundError):
        dataset(small / "nothing")


def test_damage_is_named(small, tmp_path):
    root = tmp_path / "set"
    shutil.copytree(small, root)
    video = root / f"videos/{CAMERAS[1]}/chunk-000/file-000.mp4"
    content = bytearray(video.read_bytes())
    begin = content.index(b"mdat") + 4 + len(content) // 3
    content[begin : begin + 400] = b"\xff" * 400
    video.write_bytes(content)
    frames = mr.lerobot.Dataset(root)
    with pytest.raises(mr.CorruptionError, match=r"file-000\.mp4: episode \d"):
        frames.batch(range(len(frames)))
    assert mr.lerobot.Dataset(root, cameras=[CAMERAS[0]])[0]["index"] == 0
    video.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{CAMERAS[1]}/chunk-000/file-000\.mp4: missing"):
        mr.lerobot.Dataset(root)
    table = pq.read_table(root / "data/chunk-000/file-000.parquet")
    pq.write_table(table.slice(0, len(table) - 1), root / "data/chunk-000/file-000.parquet")
    frames = mr.lerobot.Dataset(root, cameras=[])
    assert frames[0]["index"] == 0
    with pytest.raises(mr.CorruptionError, match="LR018"):
        frames[-1]


def test_a_clock_that_drifts_changes_no_frame(small, tmp_path):
    """huggingface/lerobot#3177: offsets of joined videos that are up to half a frame off."""
    root = tmp_path / "set"
    shutil.copytree(small, root)
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    for name in table.column_names:
        if name.endswith("from_timestamp"):
            moved = [value + 0.4 * (i > 0) / FPS for i, value in enumerate(table[name].to_pylist())]
            table = table.set_column(table.column_names.index(name), name, pa.array(moved))
    pq.write_table(table, path)
    rows = [0, 70, 100]
    wanted = mr.lerobot.Dataset(small).batch(rows)
    given = mr.lerobot.Dataset(root).batch(rows)
    assert all(np.array_equal(given[camera], wanted[camera]) for camera in CAMERAS)


@pytest.mark.skipif(DATA is None, reason="MILLRACE_TEST_DATA is not set")
def test_numbered_frames_of_one_long_group(tmp_path):
    """40 frames that show their numbers, of which only the first is a key frame."""
    root = tmp_path / "set"
    camera = "observation.images.top"
    (root / f"videos/chunk-000/{camera}").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta").mkdir()
    source = pathlib.Path(DATA) / "lerobot/labeled_frames_video.mp4"
    shutil.copyfile(source, root / f"videos/chunk-000/{camera}/episode_000000.mp4")
    integers = {name: {"dtype": "int64", "shape": [1], "names": None} for name in
                ("frame_index", "episode_index", "index", "task_index")}  # fmt: skip
    features = {camera: {"dtype": "video", "shape": [480, 640, 3], "names": ["height", "width", "channels"]},
                "timestamp": {"dtype": "float32", "shape": [1], "names": None}, **integers}  # fmt: skip
    count = np.arange(40)
    columns = {"timestamp": (count / 30).astype(np.float32), "frame_index": count, "index": count}
    columns |= {"episode_index": 0 * count, "task_index": 0 * count}
    pq.write_table(pa.table(columns), root / "data/chunk-000/episode_000000.parquet")
    info = {"codebase_version": "v2.1", "robot_type": "none", "total_episodes": 1, "total_frames": 40, "total_tasks": 1,
            "total_videos": 1, "total_chunks": 1, "chunks_size": 1000, "fps": 30, "splits": {"train": "0:1"},
            "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
            "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
            "features": features}  # fmt: skip
    (root / "meta/info.json").write_text(json.dumps(info))
    (root / "meta/episodes.jsonl").write_text(json.dumps({"episode_index": 0, "tasks": ["count"], "length": 40}) + "\n")
    (root / "meta/tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "count"}) + "\n")
    truth = Truth(root)
    assert len({picture.tobytes() for picture in truth.pictures[camera]}) == 40
    windows = {camera: [-1, 0, 7]}
    frames = mr.lerobot.Dataset(root, delta_timestamps=seconds(windows))
    rows = random.Random(6).sample(range(40), 40)
    for row, item in zip(rows, frames.__getitems__(rows), strict=True):
        check_equal(item, truth.item(row, windows), row)
    for row in rows[:5]:
        check_equal(frames[row], truth.item(row, windows), row)


# ---- tensors

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def as_tensors(item: dict) -> dict:
    """As LeRobot's class gives them."""
    tensors = {name: value if isinstance(value, str) else torch.tensor(value) for name, value in item.items()}
    return {name: value / 255 if name in CAMERAS else value for name, value in tensors.items()}


def check_tensors(given: dict, wanted: dict) -> None:
    assert set(given) == set(wanted)
    for name, value in wanted.items():
        if isinstance(value, str):
            assert given[name] == value
        else:
            assert (given[name].dtype, given[name].shape) == (value.dtype, value.shape), name
            assert torch.equal(given[name], value), name


def test_tensors_are_those_of_lerobot(root, truth):
    frames = mr.torch.lerobot.Dataset(root, delta_timestamps=seconds(WINDOWS))
    for row in (0, 1, 40, len(frames) - 1):
        check_tensors(frames[row], as_tensors(truth.item(row, WINDOWS)))
    assert mr.torch.lerobot.Dataset(root, return_uint8=True)[7][CAMERAS[0]].dtype == torch.uint8
    assert (frames.num_frames, frames.num_episodes) == (len(truth.rows), 4)


def test_image_transforms_see_each_camera(small):
    seen = []

    def turn(picture):
        seen.append(tuple(picture.shape))
        return picture.flip(-1)

    plain = mr.torch.lerobot.Dataset(small)
    turned = mr.torch.lerobot.Dataset(small, image_transforms=turn)
    assert torch.equal(turned[3][CAMERAS[0]], plain[3][CAMERAS[0]].flip(-1))
    assert torch.equal(turned.batch([3, 9])[CAMERAS[1]], plain.batch([3, 9])[CAMERAS[1]].flip(-1))
    assert len(seen) == 6 and len(seen[0]) == 3


@pytest.mark.parametrize("method", ["fork", "spawn"] if sys.platform == "linux" else ["spawn"])
def test_in_the_workers_of_a_dataloader(small, method):
    frames = mr.torch.lerobot.Dataset(small, delta_timestamps={"action": [0, 1 / FPS]}, return_uint8=True)
    frames[0]  # opens files before the fork
    loader = torch.utils.data.DataLoader(
        frames, batch_size=8, num_workers=2, multiprocessing_context=method, timeout=120
    )
    place = 0
    for batch in loader:
        rows = range(place, place + len(batch["index"]))
        wanted = torch.utils.data.default_collate(frames.__getitems__(rows))
        check_tensors({k: v for k, v in batch.items() if k != "task"}, {k: v for k, v in wanted.items() if k != "task"})
        assert batch["task"] == wanted["task"]
        place += len(rows)
    assert place == len(frames)
