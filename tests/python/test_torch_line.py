# SPDX-License-Identifier: Apache-2.0
"""Which step a restore takes when a run has gone back, or another run was pointed at the folder. Each process of a run
is a process here: what it has restored decides."""

import functools
import json
import shutil
import subprocess
import sys
import textwrap
import warnings

import pytest
import xxhash

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from checkpoint_helpers import data_files, flip_last_byte  # noqa: E402

import millrace as mr  # noqa: E402

_PROCESS = """
import sys, warnings
import torch
import millrace as mr

root, restore, saves = sys.argv[1], sys.argv[2], [int(step) for step in sys.argv[3].split(",") if step]
options = {"keep_last": int(sys.argv[4])} if len(sys.argv) > 4 and sys.argv[4] != "0" else {}
options.update({"new_run": True} if len(sys.argv) > 5 else {})
with warnings.catch_warnings(record=True) as caught, mr.torch.Checkpointer(root, **options) as checkpointer:
    warnings.simplefilter("always")
    state = {"x": torch.zeros(3)}
    if restore != "no":
        print("restored", checkpointer.restore(state, None if restore == "newest" else int(restore)), state["x"][0].item())
    for step in saves:
        checkpointer.save(step, {"x": torch.full((3,), float(step))}).wait(60)
for warning in caught:
    print("warned", warning.message)
"""


def process(*arguments, status=0):
    """One process of the run: what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode != 0) == (status != 0), done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def _set_back(tmp_path_factory):
    root = tmp_path_factory.mktemp("line") / "run"
    process(root, "no", "500,600,700")
    said = process(root, 500, "550,600,650")
    return root, said


@pytest.fixture
def set_back(_set_back, tmp_path):
    """Saves 500, 600, 700; back to 500; then 550, 600 and 650."""
    return shutil.copytree(_set_back[0], tmp_path / "run")


def steps_of(root, **having):
    infos = mr._core.list_steps(str(root))
    return [info["step"] for info in infos if all(info[name] == value for name, value in having.items())]


def test_a_run_that_goes_back_says_once_what_it_leaves_behind(_set_back):
    said = [line for line in _set_back[1].splitlines() if line.startswith("warned")]
    assert len(said) == 1 and "continues step 500 and saves step 550" in said[0] and "600, 700" in said[0]


def test_restore_takes_the_newest_attempt_and_then_its_ancestors(set_back):
    assert (set_back / "latest").read_text() == "step-000000000650\n"
    assert process(set_back, "newest", "").splitlines()[0] == "restored 650 650.0"
    with mr.torch.Checkpointer(set_back) as checkpointer:
        assert checkpointer.latest_step() == 650 and checkpointer.steps() == [500, 550, 600, 650]
    for step, next_older in ((650, 600), (600, 550), (550, 500)):
        flip_last_byte(data_files(set_back, step)[-1])
        with mr.torch.Checkpointer(set_back) as checkpointer, pytest.warns(RuntimeWarning, match=f"step {step}"):
            assert checkpointer.restore({"x": torch.zeros(3)}) == next_older
    flip_last_byte(data_files(set_back, 500)[0])
    with mr.torch.Checkpointer(set_back) as checkpointer, pytest.warns(RuntimeWarning):
        with pytest.raises(mr.CorruptionError):  # 700 is whole, and of another line
            checkpointer.restore({"x": torch.zeros(3)})
        assert checkpointer.restore({"x": torch.zeros(3)}, step=700) == 700


def test_a_damaged_manifest_does_not_bring_the_other_line_back(set_back):
    for step, next_older in ((650, 600), (600, 550), (550, 500)):
        manifest = set_back / f"step-{step:012}/manifest.json"
        manifest.chmod(0o644)
        manifest.write_text("{}")
        with mr.torch.Checkpointer(set_back) as checkpointer, pytest.warns(RuntimeWarning, match=f"step {step}"):
            assert checkpointer.restore({"x": torch.zeros(3)}) == next_older


def test_steps_that_were_left_behind_are_counted_apart(set_back):
    assert steps_of(set_back, left_behind=True) == [700]
    process(set_back, "newest", "680", 3)
    assert steps_of(set_back) == [600, 650, 680, 700], "700 stays until the line is past it"
    process(set_back, "newest", "750", 3)
    assert steps_of(set_back) == [650, 680, 750]


def test_a_process_that_restored_nothing_does_not_save_into_the_folder(set_back):
    before = steps_of(set_back)
    said = process(set_back, "no", "10", status=1)
    assert "FileExistsError" in said and "up to step 700" in said and "new_run=True" in said
    assert steps_of(set_back) == before
    process(set_back, "no", "10,20", 0, "new_run")
    assert steps_of(set_back, left_behind=False) == [10, 20]
    assert process(set_back, "newest", "30").splitlines()[0] == "restored 20 20.0"
    assert steps_of(set_back, left_behind=False) == [10, 20, 30]


def test_an_empty_folder_needs_no_word(tmp_path):
    assert process(tmp_path / "run", "newest", "1,2") == "restored None 0.0\n"


def test_folders_of_earlier_builds_have_no_lines(set_back):
    text_of = functools.partial(json.dumps, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for path in set_back.glob("step-*/manifest.json"):
        document = json.loads(path.read_text())
        del document["line"], document["checksum"]
        document["checksum"] = xxhash.xxh3_128_hexdigest(text_of(document).encode())
        path.chmod(0o644)
        path.write_text(text_of(document))
    assert all(info["line"] is None and info["damage"] is None for info in mr._core.list_steps(str(set_back)))
    assert steps_of(set_back, left_behind=False) == [500, 550, 600, 650]
    process(set_back, "newest", "660")
    assert [step for _, step in mr._core.list_steps(str(set_back))[-2]["line"]] == [500, 650]
    assert steps_of(set_back, left_behind=True) == [700]


def test_a_restore_in_between_begins_another_attempt(tmp_path):
    with mr.torch.Checkpointer(tmp_path) as checkpointer, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in (10, 20, 30):
            checkpointer.save(step, {"x": torch.full((3,), float(step))}).wait(60)
        assert checkpointer.restore({"x": torch.zeros(3)}, step=10) == 10
        for step in (15, 40):  # a step below those that it saved before
            checkpointer.save(step, {"x": torch.full((3,), float(step))}).wait(60)
        assert checkpointer.steps() == [10, 15, 40]
        assert checkpointer.restore({"x": torch.zeros(3)}) == 40
        checkpointer.save(50, {"x": torch.zeros(3)}).wait(60)
        assert checkpointer.steps() == [10, 15, 40, 50]
    assert sum("left behind" in str(warning.message) for warning in caught) == 1
    assert steps_of(tmp_path, left_behind=True) == [20, 30]


def test_tiers_are_one_folder(tmp_path):
    near, far = tmp_path / "near", tmp_path / "far"
    state = {"x": torch.zeros(3)}
    with mr.torch.Checkpointer(far, tiers=[near]) as checkpointer:
        for step in (10, 20, 30):
            checkpointer.save(step, {"x": torch.full((3,), float(step))}).wait(60)
    with mr.torch.Checkpointer(far, tiers=[near]) as checkpointer, pytest.warns(RuntimeWarning, match="left behind"):
        assert checkpointer.restore(state, step=10) == 10
        checkpointer.save(15, {"x": torch.full((3,), 15.0)}).wait(60)
    shutil.rmtree(far / "step-000000000015")  # only the near tier has the newest line's step
    with mr.torch.Checkpointer(far, tiers=[near]) as checkpointer:
        assert checkpointer.restore(state) == 15 and checkpointer.steps() == [10, 15]
    with mr.torch.Checkpointer(far) as checkpointer:
        assert checkpointer.restore(state) == 30


@pytest.mark.timeout(600)  # many processes: minutes on a busy machine
def test_the_plug_in_of_dcp_follows_the_line(tmp_path):
    pytest.importorskip("torch.distributed.checkpoint", reason="this PyTorch has no torch.distributed")
    script = tmp_path / "process.py"
    script.write_text(
        textwrap.dedent("""
        import sys, warnings
        import torch
        import torch.distributed.checkpoint as dcp
        import millrace as mr
        warnings.filterwarnings("ignore", message=".*single process.*|.*one process.*|.*TypedStorage.*")
        root, load, saves, new_run = sys.argv[1], sys.argv[2], sys.argv[3], len(sys.argv) > 4
        writer = mr.torch.dcp.StorageWriter(root, new_run=new_run)
        state = {"x": torch.zeros(3)}
        if load != "no":
            dcp.load(state, storage_reader=mr.torch.dcp.StorageReader(root + load))
            print("loaded", state["x"][0].item())
        for step in saves.split(","):
            if step.startswith("back"):
                dcp.load(state, storage_reader=mr.torch.dcp.StorageReader(f"{root}/step-{step[4:]}"))
            elif step:
                dcp.save({"x": torch.full((3,), float(step))}, checkpoint_id=f"{root}/step-{step}", storage_writer=writer)
        writer.close()
        """)
    )

    def run(*arguments, status=0):
        done = subprocess.run(
            [sys.executable, script, tmp_path / "run", *arguments], capture_output=True, text=True, timeout=120
        )
        assert (done.returncode != 0) == (status != 0), done.stdout + done.stderr
        return done.stdout + done.stderr

    root = tmp_path / "run"
    run("no", "500,600,700")
    assert "left behind" in run("/step-500", "550,600,650")
    assert "loaded 650.0" in run("", "")
    assert "new_run=True" in run("no", "10", status=1)
    assert steps_of(root, left_behind=True) == [700]
    run("", "660,670,back650,680")  # within one process
    assert steps_of(root, left_behind=False) == [500, 550, 600, 650, 680]
    run("no", "10", "new")
    assert steps_of(root, left_behind=False) == [10]
