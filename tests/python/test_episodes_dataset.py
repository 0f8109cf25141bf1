# SPDX-License-Identifier: Apache-2.0
"""mr.episodes.Dataset against Python's csv."""

from __future__ import annotations

import csv
import json
import multiprocessing
import pathlib
import pickle
import random

import numpy as np
import pytest

import millrace as mr

LENGTHS = (7, 1, 30, 12)
NAMES = ["q0", "q1", "a0", "a1", "a2"]


@pytest.fixture(scope="module", params=["npz", "packed"])
def root(request, tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("episodes")
    rng = random.Random(1)
    for episode, length in enumerate(LENGTHS):
        with (folder / f"episode_{episode}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow([*NAMES, "task"])
            for row in range(length):
                out.writerow([*(round(rng.uniform(-9, 9), 4) for _ in NAMES), f"task {episode} {row}"])
    report = mr.episodes.convert(folder, to=request.param)
    assert report["converted"] == len(LENGTHS)
    return folder


@pytest.fixture(scope="module")
def truth(root) -> list[list[dict]]:
    episodes = []
    for episode in range(len(LENGTHS)):
        with (root / f"episode_{episode}.csv").open(newline="") as file:
            episodes.append(list(csv.DictReader(file)))
    return episodes


def values(rows: list[dict], names: list[str]) -> np.ndarray:
    return np.array([[float(row[name]) for name in names] for row in rows], np.float32)


def test_windows_padding_and_texts(root, truth):
    windows = {"action": [-2, 0, 5]}
    frames = mr.episodes.Dataset(root, columns={"state": ["q1", "q0"], "action": ["a*"]}, windows=windows)
    assert len(frames) == sum(LENGTHS) and frames.first_frames == [0, 7, 8, 38, 50]
    numbers = list(range(len(frames)))
    random.Random(2).shuffle(numbers)
    for number, item in zip(numbers, frames.__getitems__(numbers), strict=True):
        episode = int(np.searchsorted(frames.first_frames, number, "right")) - 1
        row = number - frames.first_frames[episode]
        rows = truth[episode]
        assert (item["episode_index"], item["frame_index"]) == (episode, row)
        assert item["task"] == rows[row]["task"]
        assert np.array_equal(item["state"], values([rows[row]], ["q1", "q0"])[0])
        places = [min(max(row + delta, 0), len(rows) - 1) for delta in windows["action"]]
        assert item["action"].dtype == np.float32
        assert np.array_equal(item["action"], values([rows[place] for place in places], ["a0", "a1", "a2"]))
        pad = [not 0 <= row + delta < len(rows) for delta in windows["action"]]
        assert item["action_is_pad"].tolist() == pad
    assert frames[-1]["frame_index"] == LENGTHS[-1] - 1


def test_some_episodes_without_their_ends(root, truth):
    frames = mr.episodes.Dataset(root, episodes=[2, 1, 0], skip_first=1, skip_last=2, texts=[])
    assert frames.episodes == [0, 1, 2] and frames.first_frames == [0, 4, 4, 31]
    batch = frames.batch(range(len(frames)))
    assert "task" not in batch
    wanted = [values(truth[0][1:5], NAMES), values(truth[2][1:28], NAMES)]
    assert np.array_equal(batch["numbers"], np.concatenate(wanted))


def order(batch: dict) -> list[tuple[int, int]]:
    return list(zip(batch["episode_index"].tolist(), batch["frame_index"].tolist(), strict=True))


def test_in_the_loader_with_exact_resume(root):
    frames = mr.episodes.Dataset(root, columns={"action": ["a*"]}, windows={"action": range(4)})
    with mr.episodes.Loader(frames, batch_size=8, seed=1, epochs=1, drop_last=False) as loader:
        batches = []
        for batch in loader:
            batches.append(order(batch))
            if len(batches) == 3:
                state = json.loads(json.dumps(loader.state_dict()))
    seen = [place for batch in batches for place in batch]
    assert sorted(seen) == [(episode, row) for episode, length in enumerate(LENGTHS) for row in range(length)]
    assert seen != sorted(seen)
    with mr.episodes.Loader(frames, batch_size=8, seed=1, epochs=1, drop_last=False) as loader:
        loader.load_state_dict(state)
        assert [order(batch) for batch in loader] == batches[3:]


def child(frames, queue) -> None:
    queue.put(float(frames.batch([3, 40])["numbers"].sum()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_other_processes(root, method):
    frames = mr.episodes.Dataset(root)
    wanted = float(frames.batch([3, 40])["numbers"].sum())
    assert float(pickle.loads(pickle.dumps(frames)).batch([3, 40])["numbers"].sum()) == wanted
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=child, args=(frames, queue))
    process.start()
    assert queue.get(timeout=60) == wanted
    process.join(60)


def test_the_form_is_looked_up_once(root, truth, monkeypatch):
    """Not once for each window; and what is laid into the folder later changes nothing."""
    frames = mr.episodes.Dataset(root, texts=[])

    def exists(path):
        raise AssertionError(f"a window asks for {path}")

    monkeypatch.setattr("os.path.exists", exists)
    wanted = np.concatenate([values(episode, NAMES) for episode in truth])
    assert np.array_equal(frames.batch(range(len(frames)))["numbers"], wanted)
    assert np.array_equal(pickle.loads(pickle.dumps(frames)).batch([9])["numbers"], wanted[9:10])


def test_progress_of_a_start(root, tmp_path):
    told: list[tuple[int, int]] = []
    mr.episodes.Dataset(root, progress=lambda *counts: told.append(counts))
    assert told[-1] == (len(LENGTHS), len(LENGTHS))
    for number in range(200):
        (tmp_path / f"episode_{number}.csv").write_text("x\n" + "1\n" * (number % 5 + 1))
    mr.episodes.convert(tmp_path, to="npz")
    told.clear()
    frames = mr.episodes.Dataset(tmp_path, progress=lambda *counts: told.append(counts))
    assert told == sorted(set(told)) and told[-1] == (200, 200) and {all_ for _, all_ in told} == {200}
    assert frames.first_frames[-1] == sum(number % 5 + 1 for number in range(200))

    def stop(opened: int, all_: int) -> None:
        raise InterruptedError(f"{opened} of {all_}")

    with pytest.raises(InterruptedError, match="of 200"):
        mr.episodes.Dataset(tmp_path, progress=stop)


def test_wrong_arguments(root):
    dataset = mr.episodes.Dataset
    with pytest.raises(ValueError, match="no column x; it has q0"):
        dataset(root, columns={"action": ["x"]})
    with pytest.raises(ValueError, match="no feature state"):
        dataset(root, columns={"action": ["a*"]}, windows={"state": [0]})
    with pytest.raises(ValueError, match="no text column name"):
        dataset(root, texts=["name"])
    with pytest.raises(ValueError, match="episodes 0 to 3"):
        dataset(root, episodes=[4])
    with pytest.raises(IndexError, match="frame 50 of a dataset of 50"):
        dataset(root)[50]
