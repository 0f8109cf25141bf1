# SPDX-License-Identifier: Apache-2.0
"""mr.lerobot.GrootDataset against pyarrow, PyAV and the formulae of Isaac-GR00T."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import shutil
import subprocess

import numpy as np
import pytest

import millrace as mr

pytest.importorskip("av")
pytest.importorskip("pyarrow")

from robot_sets import BINARY, Truth, make

DATA = os.environ.get("MILLRACE_TEST_DATA")
HORIZON = 8


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
    made = make(tmp_path_factory.mktemp("robot") / "set", "--version", "groot", "--episodes", 3, "--codec", "h264")
    flags = ["--groot", "--horizon", HORIZON, "--write"]
    subprocess.run([BINARY, "lerobot", "stats", made, *map(str, flags)], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def truth(root) -> Truth:
    return Truth(root)


def column(truth: Truth, name: str) -> np.ndarray:
    return np.array([row[name] for row in truth.rows], np.float32)


def groups(root: pathlib.Path, kind: str) -> dict[str, slice]:
    entries = json.loads((root / "meta/modality.json").read_text())[kind]
    return {name: slice(entry["start"], entry["end"]) for name, entry in entries.items()}


def test_names_shapes_and_values(root, truth):
    frames = mr.lerobot.GrootDataset(root, action_deltas=range(HORIZON), state_deltas=[-1, 0], video_deltas=[0])
    states, actions = column(truth, "observation.state"), column(truth, "action")
    assert frames.skipped_frames == 3 * (HORIZON - 1) and len(frames) == len(truth.rows) - frames.skipped_frames
    annotation = json.loads((root / "meta/modality.json").read_text())["annotation"]
    assert frames.language_key == "annotation." + next(iter(annotation))
    number = 0
    for episode in range(3):
        begin, end = truth.begins[episode : episode + 2]
        for row in range(begin, end - HORIZON + 1):
            item = frames[number]
            assert (item["episode_index"], item["frame_index"]) == (episode, row - begin)
            for name, part in groups(root, "state").items():
                wanted = states[[max(row - 1, begin), row]][:, part]
                assert item[f"state.{name}"].dtype == np.float32
                assert np.array_equal(item[f"state.{name}"], wanted)
            for name, part in groups(root, "action").items():
                assert np.array_equal(item[f"action.{name}"], actions[row : row + HORIZON, part])
            for name, entry in json.loads((root / "meta/modality.json").read_text())["video"].items():
                picture = truth.pictures[entry["original_key"]][row]
                assert np.array_equal(item[f"video.{name}"], picture.transpose(1, 2, 0)[None])
            assert item[frames.language_key] == truth.tasks[truth.rows[row]["task_index"]]
            number += 1
    assert number == len(frames)


def test_every_frame_has_a_number_where_windows_are_padded(root, truth):
    frames = mr.lerobot.GrootDataset(root, video=[], action_deltas=range(HORIZON), pad=True)
    assert len(frames) == len(truth.rows) and frames.skipped_frames == 0
    last = frames[truth.begins[1] - 1]
    assert last["action_is_pad"].tolist() == [False] + [True] * (HORIZON - 1)
    for name, part in groups(root, "action").items():
        wanted = column(truth, "action")[truth.begins[1] - 1, part]
        assert np.array_equal(last[f"action.{name}"], np.repeat(wanted[None], HORIZON, axis=0))


def expected(mode: str, values: np.ndarray, statistics: dict) -> np.ndarray:
    """Of one number: the formulae, one value after the other."""
    low, high = {"q99": ("q01", "q99"), "min_max": ("min", "max"), "mean_std": ("mean", "std")}[mode]
    low, high = statistics[low], statistics[high]
    if mode == "mean_std":
        return values if high == 0 else (values - low) / high
    scaled = np.zeros_like(values) if np.isclose(low, high) else 2 * (values - low) / (high - low) - 1
    return np.clip(scaled, -1, 1) if mode == "q99" else scaled


@pytest.mark.parametrize("mode", ["q99", "min_max", "mean_std"])
def test_normalisation_and_the_way_back(root, truth, mode):
    plain = mr.lerobot.GrootDataset(root, video=[], action_deltas=range(HORIZON))
    scaled = mr.lerobot.GrootDataset(root, video=[], action_deltas=range(HORIZON), normalize=mode)
    statistics = json.loads((root / "meta/stats.json").read_text())
    rows = range(0, len(plain), 3)
    before, after = plain.batch(rows), scaled.batch(rows)
    for kind, of in (("state", "observation.state"), ("action", "action")):
        for name, part in groups(root, kind).items():
            key = f"{kind}.{name}"
            for i, number in enumerate(range(part.start, part.stop)):
                each = {statistic: values[number] for statistic, values in statistics[of].items()}
                wanted = expected(mode, before[key][..., i].astype(np.float64), each)
                np.testing.assert_allclose(after[key][..., i], wanted, atol=2e-5)
            inside = np.ones(before[key].shape, bool) if mode != "q99" else np.abs(after[key]) < 1
            back = scaled.restore(key, after[key])
            np.testing.assert_allclose(back[inside], before[key][inside], atol=2e-4)
    some = mr.lerobot.GrootDataset(root, video=[], normalize={f"state.{name}": mode for name in groups(root, "state")})
    assert all(np.array_equal(some[0][key], mr.lerobot.GrootDataset(root, video=[])[0][key])
               for key in some.keys if key.startswith("action."))  # fmt: skip


def test_relative_actions(root, truth):
    common = [name for name in groups(root, "action") if name in groups(root, "state")]
    assert common
    options = {"video": [], "action_deltas": range(HORIZON)}
    plain = mr.lerobot.GrootDataset(root, **options)
    relative = mr.lerobot.GrootDataset(root, relative=common, **options)
    scaled = mr.lerobot.GrootDataset(root, relative=common, normalize="mean_std", **options)
    rows = range(len(plain))
    absolute, differences, small = plain.batch(rows), relative.batch(rows), scaled.batch(rows)
    for name in common:
        wanted = absolute[f"action.{name}"] - absolute[f"state.{name}"][:, -1:]
        assert np.array_equal(differences[f"action.{name}"], wanted)
        # The statistics are those of exactly these windows, so each number has mean 0 and deviation 1 at each step.
        made = small[f"action.{name}"]
        varies = wanted.std(0) > 1e-4
        np.testing.assert_allclose(made.mean(0)[varies], 0, atol=1e-3)
        np.testing.assert_allclose(made.std(0)[varies], 1, atol=1e-3)
        back = scaled.restore(f"action.{name}", made, absolute[f"state.{name}"][:, -1])
        np.testing.assert_allclose(back, absolute[f"action.{name}"], atol=1e-4)
        with pytest.raises(ValueError, match="give the state"):
            scaled.restore(f"action.{name}", made)


def widen(root: pathlib.Path) -> None:
    """Adds columns of three angles, made of the state and the action."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in root.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        for of in ("observation.state", "action"):
            first = np.array(table[of].to_pylist())[:, 0]
            angles = np.stack([first, np.sin(3 * first), first - 0.5], -1).astype(np.float32)
            table = table.append_column(f"{of}.wide", pa.FixedSizeListArray.from_arrays(angles.ravel(), 3))
        pq.write_table(table, path)
    info = json.loads((root / "meta/info.json").read_text())
    for of in ("observation.state", "action"):
        info["features"][f"{of}.wide"] = {"dtype": "float32", "shape": [3], "names": None}
    (root / "meta/info.json").write_text(json.dumps(info))
    path = root / "meta/episodes_stats.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for of in ("observation.state", "action"):
            given = line["stats"][of]
            numbers = {name: [values[0]] * 3 if name != "count" else values for name, values in given.items()}
            line["stats"][f"{of}.wide"] = numbers
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_rotations_angles_and_grippers(root, truth, tmp_path):
    """The demo's arm has no rotation; its first three numbers are called one here, since any three are Euler angles."""
    copy = tmp_path / "set"
    shutil.copytree(root, copy)
    modality = json.loads((copy / "meta/modality.json").read_text())
    for kind, of in (("state", "observation.state"), ("action", "action")):
        width = column(truth, of).shape[1]
        assert width >= 2
        wrist = {"start": 0, "end": 3, "original_key": f"{of}.wide", "rotation_type": "euler_angles_rpy"}
        modality[kind] |= {"wrist": wrist, "hand": {"start": width - 1, "end": width}}
    (copy / "meta/modality.json").write_text(json.dumps(modality))
    widen(copy)
    (copy / "meta/stats.json").unlink()
    options = {"video": [], "action_deltas": range(HORIZON)}
    plain = mr.lerobot.GrootDataset(copy, **options)
    turned = {"state.wrist": "rotation_6d", "action.wrist": "axis_angle"}
    frames = mr.lerobot.GrootDataset(copy, rotations=turned, sin_cos=["hand"], **options)
    before, after = plain.batch(range(5)), frames.batch(range(5))
    assert after["state.wrist"].shape == (5, 1, 6) and after["action.wrist"].shape == (5, HORIZON, 3)
    _, b, c = np.moveaxis(before["state.wrist"].astype(np.float64), -1, 0)
    x = np.stack([np.cos(b) * np.cos(c), -np.cos(b) * np.sin(c), np.sin(b)], -1)  # the first row of Rx Ry Rz
    np.testing.assert_allclose(after["state.wrist"][..., :3], x, atol=1e-5)
    assert np.array_equal(
        after["state.hand"], np.concatenate([np.sin(before["state.hand"]), np.cos(before["state.hand"])], -1)
    )
    assert np.array_equal(after["action.hand"], before["action.hand"])
    np.testing.assert_allclose(frames.restore("action.wrist", after["action.wrist"]), before["action.wrist"], atol=1e-4)
    # By bounds, so no statistics are needed.
    modes = {"state.wrist": "min_max", "action.wrist": "min_max", "action.hand": "binary"}
    scaled = mr.lerobot.GrootDataset(copy, rotations=turned, normalize=modes, **options)
    small = scaled.batch(range(5))
    assert np.array_equal(small["state.wrist"], after["state.wrist"])
    np.testing.assert_allclose(small["action.wrist"] * np.pi, after["action.wrist"], rtol=1e-5)
    assert np.array_equal(small["action.hand"], before["action.hand"] > 0.5)
    np.testing.assert_allclose(scaled.restore("action.wrist", small["action.wrist"]), before["action.wrist"], atol=1e-4)
    for wrong, said in (
        ({"rotations": {"state.wrist": "rotation_5d"}}, "no representation of rotations is called 'rotation_5d'"),
        ({"rotations": {"state.hand": "matrix"}}, "state.hand has no rotation_type"),
        ({"rotations": {"state.elbow": "matrix"}}, "state.elbow is not among what is read"),
        ({"rotations": turned, "normalize": {"state.wrist": "q99"}}, "state.wrist is a rotation .* 'min_max'"),
        ({"sin_cos": ["wrist"], "rotations": turned}, "state.wrist is among rotations too"),
        ({"sin_cos": ["hand"], "normalize": {"state.hand": "binary"}}, "sines and cosines"),
    ):
        with pytest.raises(ValueError, match=said):
            mr.lerobot.GrootDataset(copy, **options, **wrong)
    with pytest.raises(ValueError, match="angles are not known"):
        frames.restore("state.hand", after["state.hand"])
    modality["state"]["wrist"]["rotation_type"] = "quaternion"
    (copy / "meta/modality.json").write_text(json.dumps(modality))
    with pytest.raises(ValueError, match="has 3 numbers, and its rotation_type quaternion takes 4"):
        mr.lerobot.GrootDataset(copy, rotations=turned, **options)


def test_in_the_loader_and_in_other_processes(root):
    frames = mr.lerobot.GrootDataset(root, action_deltas=range(HORIZON), normalize="q99")
    copy = pickle.loads(pickle.dumps(frames))
    with mr.lerobot.Loader(frames, batch_size=4, seed=1, epochs=1, drop_last=False) as loader:
        batches = list(loader)
    assert sum(len(batch["frame_index"]) for batch in batches) == len(frames)
    item = copy[5]
    for batch in batches:
        for i in range(len(batch["frame_index"])):
            if (batch["episode_index"][i], batch["frame_index"][i]) == (item["episode_index"], item["frame_index"]):
                assert all(np.array_equal(batch[key][i], item[key]) for key in frames.keys)
                return
    raise AssertionError("frame 5 is in no batch")


def test_wrong_arguments(root, tmp_path):
    groot = mr.lerobot.GrootDataset
    with pytest.raises(ValueError, match="no video 'top'; it has front"):
        groot(root, video=["top"])
    with pytest.raises(ValueError, match="no annotation 'x'"):
        groot(root, language="x")
    with pytest.raises(ValueError, match="normalize"):
        groot(root, normalize="q98")
    with pytest.raises(ValueError, match="is not among what is read"):
        groot(root, relative=["nothing"])
    with pytest.raises(ValueError, match=r"8 x \d+, and the window has 4 actions .*--horizon 4"):
        name = next(name for name in groups(root, "action") if name in groups(root, "state"))
        groot(root, relative=[name], normalize="q99", action_deltas=range(4))
    with pytest.raises(ValueError, match="no episode has more than the 9999 frames"):
        groot(root, action_deltas=range(10_000))
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    (copy / "meta/stats.json").unlink()
    with pytest.raises(ValueError, match=r"meta/stats\.json with observation\.state is missing; .*--groot --write"):
        groot(copy, normalize="q99")
    (copy / "meta/modality.json").unlink()
    with pytest.raises(ValueError, match=r"no meta/modality\.json"):
        groot(copy)


def test_tensors(root):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    frames = mr.torch.lerobot.GrootDataset(root, action_deltas=range(HORIZON), normalize="q99")
    loader = torch.utils.data.DataLoader(frames, batch_size=4)
    batch = next(iter(loader))
    arrays = mr.lerobot.GrootDataset(root, action_deltas=range(HORIZON), normalize="q99").batch(range(4))
    for key in frames.frames.keys:
        assert torch.equal(batch[key], torch.from_numpy(arrays[key]))


@pytest.mark.skipif(DATA is None, reason="MILLRACE_TEST_DATA is not set")
def test_the_set_of_nvidia(tmp_path):
    """pick_n_place, as it is but for its path templates; it declares a camera that has no files."""
    copy = tmp_path / "set"
    shutil.copytree(pathlib.Path(DATA) / "lerobot/pick_n_place", copy, copy_function=shutil.copyfile)
    for folder, _, _ in os.walk(copy):
        os.chmod(folder, 0o755)
    path = copy / "meta/info.json"
    path.write_text(path.read_text().replace("chunk-{episode_index:03d}", "chunk-{episode_chunk:03d}"))
    frames = mr.lerobot.GrootDataset(copy, action_deltas=range(16), normalize="q99")
    lengths = [416, 470, 470, 412, 328]
    assert len(frames) == sum(lengths) - 5 * 15
    item = frames[400]
    assert item["video.ego_view"].shape == (1, 256, 256, 3) and item["action.left_arm"].shape == (16, 7)
    assert isinstance(item["annotation.human.action.task_description"], str)
    assert all(np.abs(item[key]).max() <= 1 for key in frames.keys if not key.startswith("video."))
