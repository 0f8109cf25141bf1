# SPDX-License-Identifier: Apache-2.0
"""LeRobot's own class opens what Millrace writes (demo, convert, stats), and decodes the pixels that mr.video decodes; what
it records is validated silently and converted exactly.

LeRobot pins many packages, so it lives in environments of its own, which `./dev check frameworks` makes: MILLRACE_TEST_LEROBOT
names the interpreter of one with 0.4.4 (v3.0), MILLRACE_TEST_LEROBOT_6 of one with 0.6.1 (v3.0, Python 3.12),
MILLRACE_TEST_LEROBOT_V2 of one with 0.3.3 (v2.1)."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import millrace as mr

pq = pytest.importorskip("pyarrow.parquet")

BINARY = os.environ.get("MILLRACE_BIN") or str(pathlib.Path(sys.executable).with_name("millrace"))
OLD, NEW, NEWEST = "MILLRACE_TEST_LEROBOT_V2", "MILLRACE_TEST_LEROBOT", "MILLRACE_TEST_LEROBOT_6"
CASES = [("3.0", NEW), ("3.0", NEWEST), ("2.1", OLD), ("groot", OLD)]
IDS = ["3.0", "3.0-0.6", "2.1", "groot"]


@pytest.mark.parametrize("version, variable", CASES, ids=IDS)
def test_lerobot_reads_the_demo(tmp_path, version, variable):
    if variable not in os.environ:
        pytest.skip("lerobot is not installed (./dev check frameworks)")
    root = tmp_path / "arm"
    subprocess.run([BINARY, "lerobot", "demo", root, "--version", version, "--episodes", "3"], check=True)
    script = pathlib.Path(__file__).with_name("lerobot_read.py")
    done = subprocess.run(
        [os.environ[variable], script, root, "30"],
        capture_output=True,
        text=True,
        timeout=300,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HOME": str(tmp_path / "hf")},
    )
    assert done.returncode == 0, done.stderr
    items = [json.loads(line) for line in done.stdout.splitlines()]
    info = json.loads((root / "meta/info.json").read_text())
    assert len(items) == info["total_frames"]
    tasks = ["reach for the red block", "reach for the green block", "reach for the blue block"]
    for index, item in enumerate(items):
        assert item["index"] == index and item["task"] == tasks[item["episode_index"]]
        assert len(item["action"]) == 3
    for camera in ("observation.images.front", "observation.images.wrist"):
        pictures = []
        for path in sorted(root.glob(f"videos/**/{camera}/**/*.mp4")):
            video = mr.video.Reader(path)
            pictures += list(video.frames(range(len(video)), layout="chw"))
        assert [item[camera] for item in items] == [hashlib.sha256(p.tobytes()).hexdigest() for p in pictures]


def lerobot(variable: str, script: str, *args: object, home: pathlib.Path) -> str:
    """The output of a script in LeRobot's environment."""
    done = subprocess.run(
        [os.environ[variable], pathlib.Path(__file__).with_name(script), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HOME": str(home / "hf")},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def items(variable: str, root: pathlib.Path, home: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in lerobot(variable, "lerobot_read.py", root, 30, home=home).splitlines()]


def millrace(*args: object) -> list[dict]:
    done = subprocess.run([BINARY, "lerobot", *map(str, args), "--json"], capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def findings(root: pathlib.Path) -> list[dict]:
    # LR057: the releases that the tests use let uint8 overflow in the deviation of pictures.
    found = millrace("validate", root, "--deep")
    worse = [each for each in found if each["type"] == "lint" and each["severity"] != "note"]
    return [each for each in worse if each["rule"] != "LR057"]


RECORDED = [
    ("2.1", OLD, "3.0", NEW),
    ("2.1", OLD, "3.0", NEWEST),
    ("3.0", NEW, "2.1", OLD),
    ("3.0", NEWEST, "2.1", OLD),
    ("2.1", OLD, "2.0", OLD),
]


@pytest.mark.parametrize(
    "version, variable, other, other_variable", RECORDED, ids=["2.1", "2.1-0.6", "3.0", "3.0-0.6", "2.0"]
)
def test_what_lerobot_records_is_silent_and_converts_exactly(tmp_path, version, variable, other, other_variable):
    """LeRobot of each version reads the same items from its own recording, our conversion, and our way back."""
    if variable not in os.environ or other_variable not in os.environ:
        pytest.skip("lerobot is not installed (./dev check frameworks)")
    recorded, converted, back = (tmp_path / name for name in ("recorded", "converted", "back"))
    lerobot(variable, "lerobot_write.py", recorded, home=tmp_path)
    assert findings(recorded) == []
    wanted = items(variable, recorded, tmp_path)
    assert len(wanted) == 41 + 37 + 5
    millrace("convert", recorded, converted, "--to", other)
    assert findings(converted) == []
    assert items(other_variable, converted, tmp_path) == wanted
    millrace("convert", converted, back, "--to", version)
    assert items(variable, back, tmp_path) == wanted


@pytest.mark.parametrize("version, variable", CASES[:3], ids=IDS[:3])
def test_lerobot_opens_the_statistics_that_we_write(tmp_path, version, variable):
    """Its own of a recording agree with ours but for the deviation of pictures; a dataset that lost them opens again."""
    if variable not in os.environ:
        pytest.skip("lerobot is not installed (./dev check frameworks)")
    root = tmp_path / "recorded"
    lerobot(variable, "lerobot_write.py", root, home=tmp_path)
    before = items(variable, root, tmp_path)
    repair = millrace("repair", root, "--dry-run")
    assert repair[0]["fixes"] == [] and repair[0]["left"] == []
    stored = stored_stats(root)
    millrace("stats", root, "--images", "--write")
    written = stored_stats(root)
    assert len(written) == len(stored) >= 3
    for old, new in zip(stored, written, strict=True):
        assert old.keys() == new.keys()
        for name in old:
            for statistic in ("min", "max", "mean", "count"):
                near = 0.02 if "images" in name else 1e-5
                flat = [np.ravel(each[name][statistic]).astype(float) for each in (old, new)]
                if "images" not in name or statistic in ("mean", "count"):
                    np.testing.assert_allclose(flat[1], flat[0], atol=near, rtol=1e-5, err_msg=f"{name} {statistic}")
                assert np.shape(old[name][statistic]) == np.shape(new[name][statistic])
    assert items(variable, root, tmp_path) == before
    assert {each["severity"] for each in millrace("validate", root) if each["type"] == "lint"} <= {"note"}


def stored_stats(root: pathlib.Path) -> list[dict]:
    """Of each episode, and of v3.0 those of the dataset too."""
    lines = root / "meta/episodes_stats.jsonl"
    if lines.exists():
        return [json.loads(line)["stats"] for line in lines.read_text().splitlines()]
    all_stats = [json.loads((root / "meta/stats.json").read_text())]
    for row in pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist():
        stats: dict[str, dict] = {}
        for name, value in row.items():
            if name.startswith("stats/"):
                _, feature, statistic = name.split("/")
                stats.setdefault(feature, {})[statistic] = value
        all_stats.append(stats)
    return all_stats
