# SPDX-License-Identifier: Apache-2.0
"""`millrace.lerobot`: the functions behind the verbs, on a dataset without cameras."""

import json
import pathlib

import numpy as np
import pytest

import millrace

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

LENGTHS = (3, 1, 4, 2)
INTEGERS = ("frame_index", "episode_index", "index", "task_index")


def columns_of(episode: int) -> dict[str, np.ndarray]:
    length = LENGTHS[episode]
    rows = np.arange(length)
    numbers = {
        "frame_index": rows,
        "episode_index": np.full(length, episode),
        "index": rows + sum(LENGTHS[:episode]),
        "task_index": np.zeros(length, np.int64),
    }
    floats = {"action": (rows + 10 * episode).astype(np.float32), "timestamp": (rows / 10).astype(np.float32)}
    return floats | numbers


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> pathlib.Path:
    root = tmp_path / "old"
    (root / "meta").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    episodes, stats = "", ""
    for episode, length in enumerate(LENGTHS):
        columns = columns_of(episode)
        pq.write_table(pa.table(columns), root / f"data/chunk-000/episode_{episode:06}.parquet")
        episodes += json.dumps({"episode_index": episode, "tasks": ["reach"], "length": length}) + "\n"
        each = {
            name: {how: [float(getattr(np, how)(values))] for how in ("min", "max", "mean", "std")}
            | {"count": [length]}
            for name, values in columns.items()
        }
        stats += json.dumps({"episode_index": episode, "stats": each}) + "\n"
    types = dict.fromkeys(("action", "timestamp"), "float32") | dict.fromkeys(INTEGERS, "int64")
    info = {
        "codebase_version": "v2.1",
        "robot_type": "arm",
        "total_episodes": len(LENGTHS),
        "total_frames": sum(LENGTHS),
        "total_tasks": 1,
        "total_videos": 0,
        "total_chunks": 1,
        "chunks_size": 1000,
        "fps": 10,
        "splits": {"train": f"0:{len(LENGTHS)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": None,
        "features": {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in types.items()},
    }
    (root / "meta/info.json").write_text(json.dumps(info))
    (root / "meta/episodes.jsonl").write_text(episodes)
    (root / "meta/episodes_stats.jsonl").write_text(stats)
    (root / "meta/tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "reach"}) + "\n")
    return root


def actions(root: pathlib.Path) -> list[float]:
    return [value for path in sorted(root.glob("data/*/*")) for value in pq.read_table(path)["action"].to_pylist()]


def test_the_functions_make_datasets(dataset: pathlib.Path, tmp_path: pathlib.Path):
    lerobot = millrace.lerobot
    made = lerobot.split(dataset, tmp_path / "parts", parts={"a": range(2), "b": "2-3"})
    assert [each["output"] for each in made] == [str(tmp_path / "parts/a"), str(tmp_path / "parts/b")]
    assert [each["frames"] for each in made] == [4, 6]
    merged = lerobot.merge([tmp_path / "parts/a", str(tmp_path / "parts/b")], tmp_path / "new", to="3.0")
    assert (merged["version"], merged["episodes"], merged["inherited"]) == ("v3.0", 4, [])
    assert actions(tmp_path / "new") == actions(dataset)
    back = lerobot.convert(tmp_path / "new", tmp_path / "back", to="2.1")
    assert back["frames"] == sum(LENGTHS)
    for episode in range(len(LENGTHS)):
        name = f"data/chunk-000/episode_{episode:06}.parquet"
        assert pq.read_table(tmp_path / "back" / name).equals(pq.read_table(dataset / name))
    groot = lerobot.convert(dataset, tmp_path / "groot", to="groot", modality="state.all = action[0:1]")
    assert groot["proposed"] == ["action.all = action[0:1]", "annotation.human.task_description = task_index"]
    assert json.loads((tmp_path / "groot/meta/modality.json").read_text())["state"] == {
        "all": {"start": 0, "end": 1, "original_key": "action"}
    }
    lerobot.delete(dataset, tmp_path / "fewer", [0, 2])
    assert actions(tmp_path / "fewer") == [10, 30, 31]
    assert lerobot.split(dataset, tmp_path / "x", fractions={"a": 0.5}, dry_run=True)[0]["episodes"] == 2
    assert not (tmp_path / "x").exists()


def test_wrong_arguments_are_exceptions(dataset: pathlib.Path, tmp_path: pathlib.Path):
    lerobot = millrace.lerobot
    with pytest.raises(FileExistsError, match="is there already"):
        lerobot.convert(dataset, dataset, to="3.0")
    with pytest.raises(ValueError, match=r"expected '2\.0', '2\.1' or '3\.0'"):
        lerobot.convert(dataset, tmp_path / "x", to="1.6")
    with pytest.raises(ValueError, match="one of these only"):
        lerobot.split(dataset, tmp_path / "x", episodes=[1], fractions={"a": 0.5})
    with pytest.raises(ValueError, match="no name for a folder"):
        lerobot.split(dataset, tmp_path / "x", parts={"../a": [1]})
    with pytest.raises(ValueError, match="there is no episode 4"):
        lerobot.delete(dataset, tmp_path / "x", [4])
    with pytest.raises(TypeError, match="convert"):
        lerobot.convert(dataset, tmp_path / "x")
    (dataset / "data/chunk-000/episode_000002.parquet").write_bytes(b"PAR1")
    with pytest.raises(millrace.CorruptionError, match=r"episode_000002\.parquet"):
        lerobot.convert(dataset, tmp_path / "x", to="3.0")
    assert not (tmp_path / "x").exists()
