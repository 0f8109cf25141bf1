# SPDX-License-Identifier: Apache-2.0
"""mr.lerobot.Loader: order, exact resume at any number of ranks, mixtures, damaged episodes."""

from __future__ import annotations

import concurrent.futures
import gc
import importlib
import json
import pathlib
import threading
import weakref

import numpy as np
import pytest

import millrace as mr

pytest.importorskip("av")
pytest.importorskip("pyarrow")

from robot_sets import CAMERAS, make

FPS = 30
ACTIONS = {"action": [i / FPS for i in range(4)]}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
    return make(tmp_path_factory.mktemp("robot") / "set", "--episodes", 4, "--codec", "h264")


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> pathlib.Path:
    """Another rate and one camera."""
    flags = ("--episodes", 3, "--codec", "h264", "--cameras", 1, "--fps", 20, "--seed", 7, "--version", "2.1")
    return make(tmp_path_factory.mktemp("robot") / "other", *flags)


def rows(batch: dict) -> list[int]:
    return [int(row) for row in batch["index"]]


def check_batch(dataset, batch: dict) -> None:
    wanted = dataset.batch(rows(batch))
    assert set(wanted) <= set(batch)
    for name, value in wanted.items():
        assert batch[name] == value if isinstance(value, list) else np.array_equal(batch[name], value), name


def test_an_epoch_has_each_frame_once_and_is_shuffled(root):
    frames = mr.lerobot.Dataset(root, delta_timestamps=ACTIONS)
    with mr.lerobot.Loader(frames, batch_size=8, seed=1, epochs=1, drop_last=False) as loader:
        first = list(loader)
        assert len(first) == len(loader) == -(-len(frames) // 8)
        second = list(loader)
    for batch in first:
        check_batch(frames, batch)
    orders = [[row for batch in batches for row in rows(batch)] for batches in (first, second)]
    assert [sorted(order) for order in orders] == [list(range(len(frames)))] * 2
    assert orders[0] != orders[1] and orders[0] != sorted(orders[0])
    with mr.lerobot.Loader(frames, batch_size=8, shuffle=False, epochs=1) as loader:
        assert rows(next(loader)) == list(range(8))


def ranks(dataset, world: int, batch: int, state: dict | None, steps: int, **options):
    """The frames of each global batch, and the state behind them, from `world` loaders."""
    loaders = [
        mr.lerobot.Loader(dataset, global_batch_size=batch, seed=3, rank=rank, world_size=world, **options)
        for rank in range(world)
    ]
    given, states = [], []
    for loader in loaders:
        with loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            given.append([rows(next(loader)) for _ in range(steps)])
            states.append(loader.state_dict())
    assert all(each == states[0] for each in states)
    return [sorted(row for rank in given for row in rank[step]) for step in range(steps)], states[0]


def test_a_resume_at_another_world_size_goes_on_with_the_next_frames(root):
    frames = mr.lerobot.Dataset(root, cameras=[])
    whole, end = ranks(frames, 1, 12, None, 30)
    begun, state = ranks(frames, 3, 12, None, 11)
    assert begun == whole[:11]
    middle, state = ranks(frames, 2, 12, state, 9)
    assert middle == whole[11:20]
    rest, state = ranks(frames, 4, 12, state, 10)
    assert rest == whole[20:] and state == end


def test_state_counts_what_was_returned_and_not_what_was_read_ahead(root):
    frames = mr.lerobot.Dataset(root, cameras=[])
    with mr.lerobot.Loader(frames, batch_size=16, seed=5, epochs=1, prefetch=6) as loader:
        batches, states = [], [loader.state_dict()]
        for batch in loader:
            batches.append(rows(batch))
            states.append(loader.state_dict())
        assert len(batches) > 4
    for number in range(len(batches)):
        with mr.lerobot.Loader(frames, batch_size=16, seed=5, epochs=1) as loader:
            loader.load_state_dict(states[number])
            assert [rows(batch) for batch in loader] == batches[number:]


def test_passes_follow_each_other_behind_an_early_end(root):
    frames = mr.lerobot.Dataset(root, cameras=[])
    with mr.lerobot.Loader(frames, batch_size=16, seed=5, epochs=1, prefetch=4) as loader:
        passes = [[rows(batch) for batch in loader] for _ in range(3)]
    with mr.lerobot.Loader(frames, batch_size=16, seed=5, epochs=1, prefetch=4) as loader:
        assert rows(next(loader)) == passes[0][0] and rows(next(loader)) == passes[0][1]
        assert [rows(batch) for batch in loader] == passes[0][2:]
        assert rows(next(iter(loader))) == passes[1][0]
        assert rows(next(iter(loader))) == passes[2][0]
        loader.set_epoch(1)
        assert [rows(batch) for batch in loader] == passes[1]


def test_another_dataset_or_seed_is_refused(root, other):
    frames = mr.lerobot.Dataset(root, cameras=[])
    with mr.lerobot.Loader(frames, batch_size=4, seed=5) as loader:
        next(loader)
        state = loader.state_dict()
    for dataset, seed in ((frames, 6), (mr.lerobot.Dataset(other, cameras=[]), 5)):
        with mr.lerobot.Loader(dataset, batch_size=4, seed=seed) as loader, pytest.raises(ValueError, match="another"):
            loader.load_state_dict(state)


def test_fill_last_gives_all_ranks_as_many_rows(root):
    frames = mr.lerobot.Dataset(root, cameras=[])
    seen = []
    for rank in range(3):
        options = {"rank": rank, "world_size": 3, "epochs": 1, "fill_last": "repeat", "shuffle": False}
        with mr.lerobot.Loader(frames, batch_size=7, **options) as loader:
            for batch in loader:
                assert len(batch["index"]) == len(batch["row_mask"]) == 7
                seen += [row for row, real in zip(rows(batch), batch["row_mask"], strict=True) if real]
    assert sorted(seen) == list(range(len(frames)))


def mixture(root, other, **options):
    arm = mr.lerobot.Dataset(root, cameras=[CAMERAS[1]])
    hand = mr.lerobot.Dataset(other, delta_timestamps={"action": [0, 1 / 20]}, cameras=[])
    sources = [mr.lerobot.Source(arm, weight=3), mr.lerobot.Source(hand, weight=1)]
    return mr.lerobot.Loader(sources, seed=2, **options)


def facts(batch: dict) -> list:
    return [batch["source"].tolist(), [None if part is None else rows(part) for part in batch["parts"]]]


def test_a_mixture_of_unlike_datasets_by_weight_and_its_resume(root, other):
    with mixture(root, other, batch_size=8) as loader:
        batches, states = [], []
        for _ in range(40):
            batch = next(loader)
            batches.append(facts(batch))
            states.append(loader.state_dict())
            for number, part in enumerate(batch["parts"]):
                assert len(part["index"]) == (batch["source"] == number).sum()
            assert batch["parts"][0]["action"].shape[1:] == (3,)
            assert batch["parts"][1]["action"].shape[1:] == (2, 3)
            assert CAMERAS[1] in batch["parts"][0] and CAMERAS[0] not in batch["parts"][1]
    assert sum(len(parts[1]) for _, parts in batches) == 80
    with mixture(root, other, batch_size=8) as loader:
        loader.load_state_dict(json.loads(json.dumps(states[17])))
        assert [facts(next(loader)) for _ in range(10)] == batches[18:28]
    seen = []
    for rank in range(2):
        with mixture(root, other, global_batch_size=8, rank=rank, world_size=2) as loader:
            loader.load_state_dict(states[17])
            seen.append([facts(next(loader)) for _ in range(10)])
    for step in range(10):
        for number in range(2):
            both = [row for each in seen for row in each[step][1][number] or []]
            assert sorted(both) == sorted(batches[18 + step][1][number])


def test_the_last_batch_of_a_mixture_is_filled_up(root, other):
    sizes = [len(mr.lerobot.Dataset(path, cameras=[])) for path in (root, other)]
    seen = []
    for rank in range(3):
        options = {"rank": rank, "world_size": 3, "stop": "all_empty", "fill_last": "repeat"}
        with mixture(root, other, batch_size=16, **options) as loader:
            for batch in loader:
                assert len(batch["source"]) == len(batch["row_mask"]) == 16
                for number, part in enumerate(batch["parts"]):
                    real = batch["row_mask"][batch["source"] == number]
                    seen += [
                        (number, row) for row, is_real in zip(rows(part) if part else [], real, strict=True) if is_real
                    ]
    assert set(seen) == {(number, row) for number, size in enumerate(sizes) for row in range(size)}


@pytest.fixture
def damaged(root, tmp_path) -> pathlib.Path:
    """A v2.1 copy with a broken packet in the middle of episode 1's video."""
    copy = tmp_path / "set"
    mr.lerobot.convert(root, copy, to="2.1")
    video = copy / f"videos/chunk-000/{CAMERAS[0]}/episode_000001.mp4"
    content = bytearray(video.read_bytes())
    begin = content.index(b"mdat") + 4 + len(content) // 3
    content[begin : begin + 300] = b"\xff" * 300
    video.write_bytes(content)
    return copy


def test_damaged_video_is_an_error_and_the_state_stays_before_it(damaged):
    frames = mr.lerobot.Dataset(damaged)
    with mr.lerobot.Loader(frames, batch_size=4, shuffle=False, epochs=1) as loader:
        given = []
        with pytest.raises(mr.CorruptionError, match=r"episode_000001\.mp4: episode 1"):
            for batch in loader:
                given += rows(batch)
        state = loader.state_dict()
        with pytest.raises(mr.CorruptionError):
            next(loader)
        assert loader.state_dict() == state
    assert given == list(range(len(given))) and len(given) >= frames.first_frames[1] // 4 * 4


def test_provenance_names_what_took_the_place_of_damaged_frames(damaged):
    """Of its own rank by what the loader met itself, of all ranks by their states."""
    frames = mr.lerobot.Dataset(damaged)
    numbers = {f"{damaged} episode {episode}": i for i, episode in enumerate(frames.episodes)}
    options = {"global_batch_size": 12, "seed": 4, "epochs": 1, "on_bad": "quarantine", "world_size": 2}
    loaders = [mr.lerobot.Loader(frames, rank=rank, **options) for rank in range(2)]
    given = [[rows(batch) for batch in loader] for loader in loaders]
    bad = {frame.frame for loader in loaders for frame in loader.quarantined_frames()}
    states = [loader.state_dict() for loader in loaders]

    def named(ranks):
        return [[frames.first_frames[numbers[part.shard]] + part.sample for (part,) in rank] for rank in ranks]

    replaced = 0
    with mr.lerobot.Loader(frames, rank=0, **options) as other:
        for step in range(len(given[0])):
            assert named(loaders[1].provenance(step))[1] == given[1][step]
            ranks = other.provenance(step, states)
            assert named(ranks) == [given[0][step], given[1][step]]
            replaced += sum(bool(part.replaces) for rank in ranks for (part,) in rank)
            assert all("episode_000001.mp4" in part.replaces for rank in ranks for (part,) in rank if part.replaces)
    assert bad and replaced >= len(bad) - 1
    for loader in loaders:
        loader.close()


def test_damaged_frames_are_quarantined_alike_on_all_ranks(damaged, root):
    sound = mr.lerobot.Dataset(root, cameras=[])
    with mr.lerobot.Loader(sound, global_batch_size=12, seed=4, epochs=1) as loader:
        wanted = [rows(batch) for batch in loader]
    frames = mr.lerobot.Dataset(damaged)
    begin, end = frames.first_frames[1:3]
    runs = []
    for world in (1, 2, 3):
        given: list[list[int]] = [[] for _ in wanted]
        bad = set()
        for rank in range(world):
            options = {"rank": rank, "world_size": world, "on_bad": "quarantine", "epochs": 1, "seed": 4}
            with mr.lerobot.Loader(frames, global_batch_size=12, **options) as loader:
                for step, batch in enumerate(loader):
                    given[step] += rows(batch)
                bad |= {frame.frame for frame in loader.quarantined_frames()}
                assert all("episode_000001.mp4" in frame.reason for frame in loader.quarantined_frames())
                state = loader.state_dict()
        runs.append(([sorted(step) for step in given], bad))
    assert all(run == runs[0] for run in runs)
    steps, bad = runs[0]
    assert bad and all(begin <= frame < end for frame in bad)
    for step, expected in zip(steps, wanted, strict=True):
        gone = [row for row in expected if row in bad]
        kept = list(step)
        for row in set(expected) - bad:
            kept.remove(row)
        assert len(kept) == len(gone) and not set(kept) & bad
    with mr.lerobot.Loader(frames, global_batch_size=12, seed=4, epochs=1, on_bad="quarantine", max_bad=1) as loader:
        with pytest.raises(mr.CorruptionError, match="max_bad=1"):
            list(loader)
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert loader.state_dict()["quarantined_frames"] == state["quarantined_frames"]


def test_a_loader_that_is_dropped_is_gone(root):
    """Without waiting for Python to look for cycles: what it reserves of the memory is for the next one."""
    frames = mr.lerobot.Dataset(root, cameras=[])
    gc.disable()
    try:
        loader = mr.lerobot.Loader(frames, batch_size=4, epochs=1)
        next(loader)
        gone = weakref.ref(loader)
        loader.close()
        del loader
        assert gone() is None
    finally:
        gc.enable()


def test_wrong_arguments(root):
    frames = mr.lerobot.Dataset(root, cameras=[])
    with pytest.raises(TypeError, match=r"mr\.lerobot\.Dataset"):
        mr.lerobot.Loader(str(root), batch_size=4)
    with pytest.raises(ValueError, match="batch_size"):
        mr.lerobot.Loader(frames)
    with pytest.raises(ValueError, match="schedule"):
        mr.lerobot.Loader(frames, batch_size=4, schedule={10: [1]})
    with pytest.raises(ValueError, match="rank 2 of 2"):
        mr.lerobot.Loader(frames, batch_size=4, rank=2, world_size=2)


def test_tensors(root):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    frames = mr.torch.lerobot.Dataset(root, delta_timestamps=ACTIONS)
    with mr.torch.lerobot.Loader(frames, batch_size=4, seed=1) as loader:
        batch = next(loader)
        state = loader.state_dict()
        after = next(loader)
    wanted = torch.utils.data.default_collate([frames[int(row)] for row in batch["index"]])
    for name, value in wanted.items():
        assert batch[name] == value if isinstance(value, list) else torch.equal(batch[name], value), name
    with mr.torch.lerobot.Loader(frames, batch_size=4, seed=1) as loader:
        loader.load_state_dict(state)
        assert torch.equal(next(loader)["index"], after["index"])


def on_a_device(loader):
    """A loader of mr.torch.lerobot as if it had been opened with device=."""
    from late_device import Late

    lerobot, device = (importlib.import_module(f"millrace.torch.{name}") for name in ("lerobot", "device"))
    loader._copied = device.DeviceCopies(lerobot._Read(loader), Late())
    return loader


def test_frames_are_copied_to_a_device_ahead_of_training(root):
    """Passes, a `for` that is left, states, skips, with copies under way; the state counts what was returned."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    frames = mr.torch.lerobot.Dataset(root, cameras=[CAMERAS[1]])
    options = {"batch_size": 16, "seed": 5, "epochs": 1}
    taken, states = [], []
    for prepare in (lambda loader: loader, on_a_device):
        with prepare(mr.torch.lerobot.Loader(frames, **options)) as loader:
            given, behind = [], [loader.state_dict()]

            def take(batch, loader=loader, given=given, behind=behind):
                given.append(batch)
                behind.append(loader.state_dict())

            for _ in range(2):
                take(next(loader))
            for batch in loader:
                take(batch)
            take(next(iter(loader)))
            take(next(iter(loader)))  # the next pass, as the `for` before was left
            assert loader.next_pass == 2
            loader.load_state_dict(behind[2])
            take(next(loader))
            loader.skip(4, 5)
            for batch in loader:
                take(batch)
            taken.append(given)
            states.append(behind)
    assert states[0] == states[1] and len(taken[0]) == len(taken[1]) > 10
    for plain, copied in zip(*taken, strict=True):
        assert list(plain) == list(copied)
        for name, value in plain.items():
            assert copied[name] == value if isinstance(value, list) else torch.equal(copied[name], value), name


def test_an_error_of_frames_ahead_comes_behind_the_batches_before_it(damaged):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    frames = mr.torch.lerobot.Dataset(damaged)
    options = {"batch_size": 4, "shuffle": False, "epochs": 1}
    runs = []
    for prepare in (lambda loader: loader, on_a_device):
        with prepare(mr.torch.lerobot.Loader(frames, **options)) as loader:
            given = []
            with pytest.raises(mr.CorruptionError, match=r"episode_000001\.mp4: episode 1"):
                for batch in loader:
                    given += rows(batch)
            state = loader.state_dict()
            with pytest.raises(mr.CorruptionError):
                next(loader)
            assert loader.state_dict() == state
            runs.append((given, state))
    assert runs[0] == runs[1] and runs[0][0]


def test_parts_of_a_mixture_are_copied_to_a_device(root, other):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    arm = mr.torch.lerobot.Dataset(root, cameras=[])
    hand = mr.torch.lerobot.Dataset(other, cameras=[])
    sources = [mr.lerobot.Source(arm, weight=3), mr.lerobot.Source(hand)]
    with on_a_device(mr.torch.lerobot.Loader(sources, batch_size=8, seed=2)) as loader:
        targets = []
        empty_like = loader._copied._copies.empty_like
        loader._copied._copies.empty_like = lambda value: targets.append(empty_like(value)) or targets[-1]
        for _ in range(3):
            batch = next(loader)
            tensors = [batch["source"]] + [
                v for part in batch["parts"] for v in part.values() if not isinstance(v, list)
            ]
            assert all(any(value is target for target in targets) for value in tensors)
            for number, dataset in enumerate((arm, hand)):
                wanted = dataset.batch(rows(batch["parts"][number]))
                assert torch.equal(batch["parts"][number]["action"], wanted["action"])


def test_the_thread_that_copies_frames_ends_with_its_loader(root):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    frames = mr.torch.lerobot.Dataset(root, cameras=[])
    loader = on_a_device(mr.torch.lerobot.Loader(frames, batch_size=4))
    next(loader)
    thread = loader._copied._thread
    gone = weakref.ref(loader)
    del loader
    thread.join(60)
    gc.collect()
    assert not thread.is_alive() and gone() is None
    loader = on_a_device(mr.torch.lerobot.Loader(frames, batch_size=4))
    next(loader)
    thread = loader._copied._thread
    loader.close()
    assert not thread.is_alive()


def test_a_batch_that_comes_just_when_the_wait_for_it_ends():
    from millrace import _robot_loader

    class Late(concurrent.futures.Future):
        def result(self, timeout=None):
            if timeout is not None and not self.done():
                self.set_result("batch")
                raise TimeoutError
            return super().result(timeout)

    future = Late()
    threading.Timer(0.05, lambda: future.done() or future.set_result("batch")).start()
    assert _robot_loader._result(future) == "batch"
