# SPDX-License-Identifier: Apache-2.0
"""`millrace lerobot download`, and inspect and validate of hf://."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
from conftest import Millrace, full_disk, kill, visible_files
from hub_server import CDN, Handler, Hub, Repo, Seen

INFO = {version: json.dumps({"codebase_version": version}).encode() for version in ("v2.1", "v3.0")}
V3 = {
    "meta/info.json": INFO["v3.0"],
    "meta/tasks.parquet": b"tasks",
    "data/chunk-000/file-000.parquet": bytes(range(256)) * (20 << 10),
    "videos/top/chunk-000/file-000.mp4": b"mp4" * 30_000,
}
V2 = {"meta/info.json": INFO["v2.1"], "meta/tasks.jsonl": b"{}\n", "data/chunk-000/episode_000000.parquet": b"old"}


@pytest.fixture
def at_hub(millrace: Millrace, hub: Hub) -> Millrace:
    kept = {k: v for k, v in millrace.env.items() if not k.startswith(("HF_", "HUGGING_FACE_", "MILLRACE_"))}
    millrace.env = kept | hub.env
    return millrace


@pytest.fixture
def pusht(hub: Hub) -> Repo:
    """v2.1, then v3.0, then a commit of main that has no tag."""
    repo = hub.add("lerobot/pusht", V2)
    repo.tags["v2.1"] = repo.branches["main"]
    repo.tags["v3.0"] = repo.commit(V3)
    repo.commit(V3 | {"README.md": b"new\n"})
    return repo


def note_in(folder: Path) -> dict:
    return json.loads((folder / ".millrace/hub.json").read_text())


def test_a_short_name_gets_the_newest_version(at_hub: Millrace, pusht: Repo, tmp_path: Path):
    planned = at_hub("lerobot", "download", "pusht", "--dry-run", "--json").object("lerobot_download")
    assert planned["dry_run"] and planned["copied_files"] == len(V3) and not (tmp_path / "pusht").exists()
    ran = at_hub("lerobot", "download", "pusht")
    assert "lerobot/pusht v3.0, commit" in ran.out and "--revision main takes that" in ran.err
    assert visible_files(tmp_path / "pusht") == V3
    note = note_in(tmp_path / "pusht")
    assert note["repo"] == "lerobot/pusht" and note["revision"] == "v3.0" and note["complete"]
    assert note["commit"] == pusht.tags["v3.0"]
    again = at_hub("lerobot", "download", "lerobot/pusht", "--out", "pusht", "--json").object("lerobot_download")
    assert again["copied_files"] == 0 and again["skipped_files"] == len(V3)


@pytest.mark.parametrize(
    "args, files",
    [
        (["pusht", "--revision", "v2.1"], V2),
        (["hf://datasets/lerobot/pusht@v2.1"], V2),
        (["pusht", "--revision", "main"], V3 | {"README.md": b"new\n"}),
        (["pusht", "--include", "meta/"], {path: V3[path] for path in V3 if path.startswith("meta/")}),
        (["pusht", "--include", "*.parquet", "--exclude", "meta/"], {"data/chunk-000/file-000.parquet": None}),
        (["pusht", "--exclude", "*.mp4"], {path: V3[path] for path in V3 if not path.endswith(".mp4")}),
    ],
)
def test_revisions_and_patterns_choose(at_hub: Millrace, pusht: Repo, tmp_path: Path, args: list[str], files: dict):
    at_hub("lerobot", "download", *args, "--out", "to")
    assert visible_files(tmp_path / "to") == {path: content or V3[path] for path, content in files.items()}


def test_a_folder_with_another_commit_stays_as_it_is(at_hub: Millrace, hub: Hub, pusht: Repo, tmp_path: Path):
    at_hub("lerobot", "download", "pusht", "--revision", "v2.1", "--out", "to")
    said = at_hub.fails("lerobot", "download", "pusht", "--out", "to")
    assert "to holds commit" in said and "v2.1" in said and "--replace" in said
    hub.add("lerobot/other", V3)
    assert "holds the dataset lerobot/pusht" in at_hub.fails("lerobot", "download", "other", "--out", "to")
    assert visible_files(tmp_path / "to") == V2
    at_hub("lerobot", "download", "pusht", "--out", "to", "--replace")
    assert visible_files(tmp_path / "to") == V3 and note_in(tmp_path / "to")["revision"] == "v3.0"


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("pusht_sim", "lerobot/pusht"),
        ("aloha_real_1_episodes", "lerobot/aloha_static_cups_open"),
        ("xarm_lift_medium_human", "lerobot/xarm_lift_medium"),
        ("droid_sample", "NVIDIA/Isaac-GR00T"),
    ],
)
def test_the_guides_names_that_do_not_exist_are_told(at_hub: Millrace, pusht: Repo, tmp_path: Path, name, nearest):
    said = at_hub.fails("lerobot", "download", name)
    assert f"LeRobot's list of datasets has no {name} either: take " in said and nearest in said
    assert not (tmp_path / name).exists()


def test_a_misspelt_name_is_told(at_hub: Millrace, pusht: Repo):
    assert "did you mean lerobot/pusht?" in at_hub.fails("lerobot", "download", "pushd")
    assert "it has main, v2.1, v3.0" in at_hub.fails("lerobot", "download", "pusht", "--revision", "v2.2")


def test_what_the_tag_and_the_files_say_is_compared(at_hub: Millrace, hub: Hub):
    repo = hub.add("lerobot/odd", V2)
    assert "no version tag, so main is taken" in at_hub("lerobot", "download", "odd", "--dry-run").err
    repo.tags["v3.0"] = repo.branches["main"]
    said = at_hub("lerobot", "download", "odd", "--dry-run", "--json").object("lerobot_download")
    assert said["warnings"] == ['the tag is v3.0, and meta/info.json says "v2.1"']
    hub.add("lerobot/text", {"a.txt": b"x"})
    assert "no LeRobot dataset" in at_hub("lerobot", "download", "text", "--dry-run").err


def test_a_killed_download_continues_with_its_commit(at_hub: Millrace, hub: Hub, pusht: Repo, tmp_path: Path):
    asked, released = threading.Event(), threading.Event()

    def hold_videos(_handler: Handler, seen: Seen) -> None:
        if seen.host == CDN and ".mp4" in seen.path:
            asked.set()
            released.wait(30)

    hub.trouble = hold_videos
    running = at_hub.start("lerobot", "download", "pusht", "--revision", "main")
    assert asked.wait(20)
    assert kill(running)
    released.set()
    hub.trouble = lambda _handler, _seen: None
    commit = pusht.branches["main"]
    note = note_in(tmp_path / "pusht")
    assert note["commit"] == commit and not note["complete"]
    pusht.commit({"meta/info.json": INFO["v3.0"], "README.md": b"newer\n"})
    done = at_hub("lerobot", "download", "pusht", "--json").object("lerobot_download")
    assert done["commit"] == commit and done["revision"] == "main"
    assert visible_files(tmp_path / "pusht") == V3 | {"README.md": b"new\n"}
    assert note_in(tmp_path / "pusht")["complete"]


def test_a_killed_replacement_still_removes_what_is_old(at_hub: Millrace, hub: Hub, pusht: Repo, tmp_path: Path):
    at_hub("lerobot", "download", "pusht", "--revision", "v2.1", "--out", "to")
    asked, released = threading.Event(), threading.Event()

    def hold_videos(_handler: Handler, seen: Seen) -> None:
        if seen.host == CDN and ".mp4" in seen.path:
            asked.set()
            released.wait(30)

    hub.trouble = hold_videos
    running = at_hub.start("lerobot", "download", "pusht", "--out", "to", "--replace")
    assert asked.wait(20) and kill(running)
    released.set()
    hub.trouble = lambda _handler, _seen: None
    at_hub("lerobot", "download", "pusht", "--out", "to")
    assert visible_files(tmp_path / "to") == V3


def test_space_is_checked_before_a_byte_comes(at_hub: Millrace, hub: Hub, pusht: Repo, tmp_path: Path):
    def petabytes(handler: Handler, seen: Seen) -> bool:
        if "/tree/" not in seen.path:
            return False
        files = [{"type": "file", "path": "x.mp4", "size": 10**15, "oid": "a" * 40, "lfs": {"oid": "b" * 64}}]
        handler.reply(200, json.dumps(files).encode())
        return True

    hub.trouble = petabytes
    assert "it needs 1.00 PB, and" in at_hub.fails("lerobot", "download", "pusht", "--revision", "v3.0")
    assert not hub.paths(CDN)


def test_a_full_disk_is_told_and_the_download_can_go_on(at_hub: Millrace, pusht: Repo, tmp_path: Path):
    """Another program may take the space that was there when the download began."""
    total = sum(len(content) for content in V3.values())
    for share in (0.01, 0.5, 0.99):
        shutil.rmtree(tmp_path / "pusht", ignore_errors=True)
        ran = at_hub("lerobot", "download", "pusht", status=1, env=full_disk(int(total * share), tmp_path))
        assert "No space left" in ran.out + ran.err, ran
        for name, content in visible_files(tmp_path / "pusht").items():
            assert V3[name] == content, "a file that is there is whole"
        assert not (tmp_path / "pusht/.millrace/hub.json").exists() or not note_in(tmp_path / "pusht")["complete"]
    at_hub("lerobot", "download", "pusht")
    assert visible_files(tmp_path / "pusht") == V3 and note_in(tmp_path / "pusht")["complete"]


def test_inspect_and_validate_read_no_video_of_the_hub(at_hub: Millrace, hub: Hub, tmp_path: Path):
    pytest.importorskip("pyarrow")
    from lerobot_sets import CAMERAS, LENGTHS, Mp4, make_v30

    made = make_v30(tmp_path / "set")
    for camera in CAMERAS:
        content = Mp4(sum(LENGTHS[:3]), parts=LENGTHS[:3]).content()
        at = content.index(b"mdat") - 4
        size = int.from_bytes(content[at : at + 4], "big")
        frames = (size + 4_000_000).to_bytes(4, "big") + content[at + 4 : at + size] + bytes(4_000_000)
        made.write(f"videos/{camera}/chunk-000/file-000.mp4", content[:at] + frames + content[at + size :])
    files = {str(p.relative_to(tmp_path / "set")): p.read_bytes() for p in (tmp_path / "set").rglob("*") if p.is_file()}
    repo = hub.add("lerobot/set", files)
    sent = []
    hub.bend = lambda path, content: content

    def count(_handler: Handler, seen: Seen) -> None:
        if seen.host == CDN and ".mp4" in seen.path and seen.range:
            first, last = seen.range.removeprefix("bytes=").split("-")
            sent.append(int(last) - int(first) + 1)

    hub.trouble = count
    here = at_hub("lerobot", "validate", "set", "--json").objects("lint")
    there = at_hub("lerobot", "validate", repo.url, "--json").objects("lint")
    assert [each["rule"] for each in here] == [each["rule"] for each in there]
    assert sent and sum(sent) < 1_000_000
    inspected = at_hub("lerobot", "inspect", repo.url, "--json").object("lerobot_inspect")
    assert inspected["frames"] == sum(LENGTHS)
    at_hub("lerobot", "download", "set", "--out", "got")
    assert visible_files(tmp_path / "got") == files
    assert at_hub("lerobot", "validate", "got", "--json").objects("lint") is not None
