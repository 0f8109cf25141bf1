# SPDX-License-Identifier: Apache-2.0
"""`millrace lerobot` as a whole: what inspect says, forms of output, trees that are mixed, truncated files, S3."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import Millrace

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from lerobot_sets import CAMERAS, FPS, LENGTHS, MAKERS, Mp4, make_v30  # noqa: E402


@pytest.mark.parametrize("base", ["v21", "v30", "groot"])
def test_inspect_says_what_is_there(millrace: Millrace, tmp_path: Path, base: str):
    MAKERS[base](tmp_path / "set")
    found = millrace("lerobot", "inspect", "set", "--json").object("lerobot_inspect")
    assert found["episodes"] == len(LENGTHS) and found["frames"] == sum(LENGTHS)
    assert found["hours"] == pytest.approx(sum(LENGTHS) / FPS / 3600)
    assert found["lengths"] == {"min": 1, "median": 27, "max": 31}
    assert [camera["key"] for camera in found["cameras"]] == list(CAMERAS)
    assert all(camera["files"] == (2 if base == "v30" else 4) for camera in found["cameras"])
    assert [task["episodes"] for task in found["tasks"]] == [2, 2]
    ranges = {each["name"]: (each["min"], each["max"]) for each in found["features"]}
    assert ranges["action"][0] == pytest.approx(-1, abs=0.02) and ranges["action"][1] == pytest.approx(1, abs=0.02)
    assert found["bytes"]["videos"] == sum(p.stat().st_size for p in (tmp_path / "set" / "videos").rglob("*.mp4"))
    bins = found["length_histogram"]
    assert all(sum(b["from"] <= length < b["to"] for length in LENGTHS) == b["episodes"] for b in bins)
    assert sum(b["episodes"] for b in bins) == len(LENGTHS) and len(bins) <= 21
    assert found["explanation"] == [] and found["errors"] == found["warnings"] == 0
    text = millrace("lerobot", "inspect", "set").out
    assert "4 episodes, 83 frames, 0.0 minutes at 30 frames a second" in text and "pick the cube" in text
    assert "name the folder of the dataset" in millrace.fails("lerobot", "inspect", "set/meta/info.json")


@pytest.mark.parametrize("base", ["v21", "v30", "groot"])
def test_json_has_what_a_page_shows(millrace: Millrace, tmp_path: Path, base: str):
    """Frames of each camera, and states and actions of the rows of one episode."""
    MAKERS[base](tmp_path / "set")
    read = pa.concat_tables(pq.read_table(path) for path in sorted((tmp_path / "set" / "data").rglob("*.parquet")))
    for episode in (None, 0, 1, 2, 3):
        flags = () if episode is None else ("--episode", episode)
        found = millrace("lerobot", "inspect", "set", "--json", *flags).object("lerobot_preview")
        episode = episode or 0
        first = sum(LENGTHS[:episode])
        assert (found["episode"], found["length"], found["not_shown"]) == (episode, LENGTHS[episode], [])
        assert found["rows"] == list(range(LENGTHS[episode]))
        series = {each["feature"]: each for each in found["series"]}
        assert set(series) == {"observation.state", "action"}
        for name, each in series.items():
            wanted = np.array(read[name].to_pylist()[first : first + LENGTHS[episode]], dtype=np.float64)
            assert np.array_equal(np.array(each["values"]), wanted.T) and len(each["names"]) in (0, len(wanted.T))
        # A joined video of v3.0 holds the first three episodes.
        offset = first if base == "v30" and episode < 3 else 0
        for camera in CAMERAS:
            frames = [each for each in found["frames"] if each["camera"] == camera]
            assert [each["frame"] - each["row"] for each in frames] == [offset] * len(frames)
            assert (frames[0]["row"], frames[-1]["row"]) == (0, LENGTHS[episode] - 1) and len(frames) <= 8
            assert (tmp_path / "set" / frames[0]["file"]).is_file()
    assert "there is no episode 4; it has 4" in millrace.fails("lerobot", "inspect", "set", "--episode", 4)
    # Damage is told, and the rest is there.
    victim = found["frames"][0]["file"]
    (tmp_path / "set" / victim).unlink()
    for path in (tmp_path / "set" / "data").rglob("*.parquet"):
        path.write_bytes(path.read_bytes()[:100])
    told = millrace("lerobot", "inspect", "set", "--json", "--episode", 3).object("lerobot_preview")
    assert told["series"] == [] and told["rows"] == [] and len(told["not_shown"]) == 2
    assert {each["camera"] for each in told["frames"]} == set(CAMERAS[1:])


def test_long_episodes_are_thinned_and_nan_is_null(millrace: Millrace, tmp_path: Path):
    made = MAKERS["v21"](tmp_path / "set")

    def lengthen(columns: dict[str, list]) -> None:
        for values in columns.values():
            values.extend(values * 50)
        columns["action"][3] = [0.0, float("nan"), 1.0]

    made.table("data/chunk-000/episode_000000.parquet", lengthen)
    made.lines("meta/episodes.jsonl", lambda episodes: episodes[0].update(length=24 * 51))
    found = millrace("lerobot", "inspect", "set", "--json").object("lerobot_preview")
    assert found["rows"] == list(range(0, 24 * 51, 3))
    action = next(each for each in found["series"] if each["feature"] == "action")
    assert [each[1] for each in action["values"]] == [0.0, None, 1.0]
    assert [len(each) for each in action["values"]] == [len(found["rows"])] * 3


def test_the_guides_mixed_tree_is_explained(millrace: Millrace, tmp_path: Path):
    """Tables of v3.0 under names of v2.x, as the data-preparation guide lists them."""
    made = make_v30(tmp_path / "set")
    made.path("meta/episodes/chunk-000/file-000.parquet").unlink()
    rows = {"episode_index": [0, 1], "length": [24, 31], "task_index": [0, 1]}
    pq.write_table(pa.table(rows), made.path("meta/episodes/chunk-000/episode_000000.parquet"))
    text = millrace("lerobot", "inspect", "set").out
    assert "This tree is of no one version" in text and "is in no version: v2.x has meta/episodes.jsonl" in text
    rules = {each["rule"] for each in millrace("lerobot", "validate", "set", "--json", status=3).objects("lint")}
    assert {"LR002", "LR011", "LR019"} <= rules


def test_pick_n_place_has_the_faults_it_has(millrace: Millrace):
    data = os.environ.get("MILLRACE_TEST_DATA")
    if not data:
        pytest.skip("set MILLRACE_TEST_DATA to check GR00T's own demo data")
    root = Path(data) / "lerobot" / "pick_n_place"
    found = millrace("lerobot", "validate", root, "--json", "--max-findings", 0, status=3).objects("lint")
    by_rule: dict[str, list[dict]] = {}
    for each in found:
        by_rule.setdefault(each["rule"], []).append(each)
    assert {each["episode"] for each in by_rule["LR004"]} == {1, 2, 3, 4}
    assert {(each["episode"], each["field"]) for each in by_rule["LR041"]} == {
        (i, "observation.images.egoview") for i in range(5)
    }
    assert {each["episode"] for each in by_rule["LR038"] if each["severity"] == "error"} == set(range(5))
    assert len(by_rule["LR012"]) == 2 and len(by_rule["LR013"]) == 1
    assert {"LR021", "LR049", "LR050"} <= set(by_rule)
    # 416, 470, 470, 412 and 328 rows and frames, in H.264 of 256 x 256: nothing is wrong with those.
    assert not {"LR007", "LR008", "LR018", "LR025", "LR026", "LR031", "LR033", "LR042", "LR063", "LR064"} & set(by_rule)
    assert millrace("lerobot", "inspect", root, "--json").object("lerobot_inspect")["frames"] == 2096


def test_findings_have_every_form(millrace: Millrace, tmp_path: Path):
    made = make_v30(tmp_path / "set")
    made.table("data/chunk-000/file-001.parquet", lambda c: c["task_index"].__setitem__(3, 7))
    text = millrace("lerobot", "validate", "set", status=3).out
    assert (
        "data/chunk-000/file-001.parquet: error: episode 3, row 3, column task_index: there is no task 7 [LR033]"
        in text
    )
    sarif = json.loads(millrace("lerobot", "validate", "set", "--sarif", status=3).out)
    assert [each["ruleId"] for each in sarif["runs"][0]["results"]] == ["LR033"]
    assert len(sarif["runs"][0]["tool"]["driver"]["rules"]) == 79
    assert millrace("lerobot", "validate", "--explain", "lr042", "--json").object("rule")["id"] == "LR042"
    made.write(".millrace-ignore", "LR033 -- the task table comes later\n")
    ran = millrace("lerobot", "validate", "set", "--json")
    assert ran.object("lint_summary")["suppressed"] == 1
    assert "URL" in millrace.fails("lerobot", "validate", status=2)
    assert "no such folder" in millrace.fails("lerobot", "validate", "none")
    assert "info.json" in millrace.fails("lerobot", "inspect", "set/data")


@pytest.mark.parametrize("base", ["v21", "v30"])
def test_a_cut_anywhere_is_a_finding_and_never_a_crash(millrace: Millrace, tmp_path: Path, seeded, base: str):
    MAKERS[base](tmp_path / "good")
    files = sorted(p.relative_to(tmp_path / "good") for p in (tmp_path / "good").rglob("*") if p.is_file())
    for path in seeded.sample(files, min(12, len(files))):
        shutil.rmtree(tmp_path / "set", ignore_errors=True)
        shutil.copytree(tmp_path / "good", tmp_path / "set")
        whole = (tmp_path / "set" / path).read_bytes()
        (tmp_path / "set" / path).write_bytes(whole[: seeded.randrange(len(whole) - 1)])
        found = millrace("lerobot", "validate", "set", "--json", "--fail-on", "never").objects("lint")
        assert any(each["severity"] != "note" for each in found), path


@pytest.mark.parametrize("base", ["v21", "v30", "groot"])
def test_statistics_are_numpys(millrace: Millrace, tmp_path: Path, base: str):
    made = MAKERS[base](tmp_path / "set")
    if base == "v21":
        # Large values that spread little: the float32 formula of LeRobot gives 0.25 here.
        rng = np.random.default_rng(7)
        for episode, length in enumerate(LENGTHS):
            values = (1000 + rng.normal(0, 0.01, (length, 3))).astype(np.float32)
            made.table(f"data/chunk-000/episode_{episode:06}.parquet", lambda c, v=values: c.update(action=v.tolist()))
    if base == "groot":
        # Stored as float64, with values that no float32 has.
        made.info(lambda info: info["features"]["action"].update(dtype="float64"))
        for episode, length in enumerate(LENGTHS):
            values = np.random.default_rng(episode).normal(0, 1, (length, 3)).tolist()
            name = f"data/chunk-000/episode_{episode:06}.parquet"
            made.table(name, lambda c, v=values: c.update(action=v), {"action": pa.list_(pa.float64())})
    columns: dict[str, list] = {}
    for path in sorted((tmp_path / "set" / "data").rglob("*.parquet")):
        read = pq.read_table(path)
        for name in read.column_names:
            columns.setdefault(name, []).extend(read[name].to_pylist())
    flags = ("--groot",) if base == "groot" else ()
    found = millrace("lerobot", "stats", "set", "--json", "--out", "stats.json", *flags).object("lerobot_stats")
    written = json.loads((tmp_path / "stats.json").read_text())
    quantiles = {"q01": 0.01, "q99": 0.99} | ({} if flags else {"q10": 0.1, "q50": 0.5, "q90": 0.9})
    assert found["rows"] == sum(LENGTHS) and len(found["features"]) == len(written) == (3 if flags else 7)
    for feature in found["features"]:
        values = np.array(columns[feature["name"]], dtype=np.float64).reshape(sum(LENGTHS), -1)
        stored = written[feature["name"]]
        for name in ("min", "max"):
            assert feature[name] == stored[name] == getattr(values, name)(axis=0).tolist()
        for name, quantile in quantiles.items():
            assert feature[name] == stored[name] == np.quantile(values, quantile, axis=0).tolist(), (
                feature["name"],
                name,
            )
        np.testing.assert_allclose(feature["mean"], values.mean(axis=0), rtol=1e-14, atol=1e-15)
        np.testing.assert_allclose(feature["std"], values.std(axis=0), rtol=1e-10, atol=1e-15)
        assert ("count" in stored) == (not flags)
    assert "--force" in millrace.fails("lerobot", "stats", "set", "--out", "stats.json")
    # What it writes is what validate wants.
    shutil.copy(tmp_path / "stats.json", tmp_path / "set" / "meta" / "stats.json")
    rules = {
        each["rule"] for each in millrace("lerobot", "validate", "set", "--json", "--fail-on", "never").objects("lint")
    }
    assert (
        not rules & {"LR056", "LR059", "LR060"}
        and ("LR055" in rules) == (base == "v30")
        and ("LR058" in rules) == (base == "v21")
    )


def test_statistics_of_what_is_no_number_are_refused(millrace: Millrace, tmp_path: Path):
    made = make_v30(tmp_path / "set")
    made.table("data/chunk-000/file-001.parquet", lambda c: c["action"].__setitem__(3, [0.0, float("nan"), 0.0]))
    assert "file-001.parquet: row 3 of action is null, or not finite" in millrace.fails("lerobot", "stats", "set")


class Counting:
    """Passes bytes on between a client and a server, and counts those of the server."""

    def __init__(self, host: str, port: int):
        self.target = (host, port)
        self.received = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            threading.Thread(target=self.pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client, True), daemon=True).start()

    def pump(self, source: socket.socket, sink: socket.socket, counts: bool):
        try:
            while data := source.recv(1 << 16):
                self.received += len(data) if counts else 0
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def test_on_s3_no_video_is_downloaded(millrace: Millrace, s3, tmp_path: Path):
    made = make_v30(tmp_path / "set")
    for number in range(2):
        for camera in CAMERAS:
            name = f"videos/{camera}/chunk-000/file-{number:03}.mp4"
            frames = sum(LENGTHS[:3]) if number == 0 else LENGTHS[3]
            # The index is at the end of one, and before the frames of the other; each has 8 MB of frames.
            moov_first = number == 0
            content = Mp4(frames, parts=LENGTHS[:3] if number == 0 else (), moov_first=moov_first).content()
            at = content.index(b"mdat") - 4
            size = int.from_bytes(content[at : at + 4], "big")
            frames_box = (size + 8_000_000).to_bytes(4, "big") + content[at + 4 : at + size] + bytes(8_000_000)
            made.write(name, content[:at] + frames_box + content[at + size :])
    bucket = s3.bucket()
    for path in (tmp_path / "set").rglob("*"):
        if path.is_file():
            s3.client.put_object(Bucket=bucket, Key=f"set/{path.relative_to(tmp_path / 'set')}", Body=path.read_bytes())
    host, port = s3.endpoint.split("//")[1].split(":")
    through = Counting(host, int(port))
    env = s3.env | {"AWS_ENDPOINT_URL": through.endpoint}
    ran = millrace("lerobot", "validate", f"s3://{bucket}/set", "--json", env=env)
    assert [(each["rule"], each["severity"]) for each in ran.objects("lint")] == [("LR052", "warning")]
    assert ran.object("lerobot_validate")["videos"] == 4
    others = sum(p.stat().st_size for p in (tmp_path / "set").rglob("*") if p.is_file() and p.suffix != ".mp4")
    assert through.received < others + (200 << 10), (through.received, others)
    before = through.received
    inspected = millrace("lerobot", "inspect", f"s3://{bucket}/set", "--json", env=env).object("lerobot_inspect")
    assert inspected["frames"] == sum(LENGTHS)
    assert through.received - before < others + (100 << 10)


@pytest.mark.parametrize(
    "verb", [("inspect",), ("validate",), ("stats",), ("repair",), ("modality",), ("convert", "--to", "2.1")], ids=str
)
def test_ctrl_c_ends_a_wait_for_a_silent_server(millrace: Millrace, verb: tuple):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        millrace.env |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
        name, *flags = verb
        target = ["out"] if name == "convert" else []
        running = millrace.start("lerobot", name, "s3://bucket/set", *target, *flags, "--endpoint-url", endpoint)
        silent.settimeout(20)
        connection, _ = silent.accept()
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=20)
        connection.close()
    assert running.returncode == 130 and "stopped by SIGINT" in err
    assert list(millrace.cwd.iterdir()) == [], "nothing is left"


def test_without_its_library_it_says_what_to_install(binary: str, tmp_path: Path):
    make_v30(tmp_path / "set")
    alone = tmp_path / "bin" / "millrace"
    alone.parent.mkdir()
    shutil.copy(binary, alone)
    assert "pip install 'millrace-io[parquet]'" in Millrace(str(alone), tmp_path).fails("lerobot", "validate", "set")
