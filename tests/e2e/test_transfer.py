# SPDX-License-Identifier: Apache-2.0
"""cp, sync, ls, rm, verify and cat on folders, with the real binary."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from conftest import Millrace, kill


def make(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def read(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file() and ".millrace" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


@pytest.fixture
def tree(tmp_path: Path) -> dict[str, bytes]:
    files = {"a": b"1", "d/b.tmp": b"22", "d/e/c": os.urandom(300_000), "empty": b"", "ä ö%2F#?&+": b"odd"}
    make(tmp_path / "src", files)
    return files


def actions(ran) -> list[tuple[str, str]]:
    return [(each["action"], each["path"]) for each in ran.objects("transfer")]


def test_sync_moves_only_what_differs(millrace: Millrace, tree: dict, tmp_path: Path):
    first = millrace("sync", "src", "dst", "--json").object("transfer_summary")
    assert first["copied_files"] == len(tree)
    assert first["moved_bytes"] + first["server_bytes"] == sum(map(len, tree.values()))
    assert read(tmp_path / "dst") == tree
    second = millrace("sync", "src", "dst", "--json")
    assert actions(second) == [] and second.object("transfer_summary")["moved_bytes"] == 0
    assert second.object("transfer_summary")["saved_bytes"] == first["copied_bytes"]
    assert len(actions(millrace("sync", "src", "dst", "--json", "--all"))) == len(tree)


def test_an_edit_with_the_old_time_is_found(millrace: Millrace, tree: dict, tmp_path: Path):
    millrace("sync", "src", "dst")
    victim = tmp_path / "src" / "d" / "b.tmp"
    times = victim.stat()
    time.sleep(0.02)
    with victim.open("r+b") as file:
        file.write(b"33")
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert actions(millrace("sync", "src", "dst", "--json")) == [("copy", "d/b.tmp")]
    assert (tmp_path / "dst" / "d" / "b.tmp").read_bytes() == b"33"


def test_delete_is_asked_for_and_careful(millrace: Millrace, tree: dict, tmp_path: Path):
    make(tmp_path / "dst", {"old/x": b"1", "old/y": b"2", "keep.log": b"3"})
    assert millrace("sync", "src", "dst", "--json").object("transfer_summary")["extra_files"] == 3
    flags = ["--delete", "--exclude", "*.log"]
    dry = millrace("sync", "src", "dst", *flags, "--dry-run", "--json")
    assert actions(dry) == [("delete", "old/x"), ("delete", "old/y")]
    assert len(read(tmp_path / "dst")) == len(tree) + 3
    held = millrace("sync", "src", "dst", *flags, "--max-delete", 1, status=1)
    assert "nothing was deleted" in held.err and (tmp_path / "dst/old/x").exists()
    millrace("sync", "src", "dst", *flags)
    assert read(tmp_path / "dst") == tree | {"keep.log": b"3"}
    (tmp_path / "nothing").mkdir()
    assert "no files" in millrace("sync", "nothing", "dst", "--delete", status=1).err
    assert len(read(tmp_path / "dst")) == len(tree) + 1
    assert "max-delete" in millrace.fails("sync", "src", "dst", "--max-delete", 1, status=2)


def test_filters_go_in_the_order_typed(millrace: Millrace, tree: dict, tmp_path: Path):
    def left(*flags: str) -> list[str]:
        return [path for _, path in actions(millrace("sync", "src", "none", "--dry-run", "--json", *flags))]

    assert left("--include", "d/", "--include", "/d/e/***", "--exclude", "*") == ["d/e/c"]
    assert left("--exclude", "*", "--include", "a") == []
    assert left("--exclude", "d/", "--exclude=empty") == ["a", "ä ö%2F#?&+"]
    (tmp_path / "rules").write_text("# rules\n+ a\n- *\n")
    assert left("--filter-from", "rules") == ["a"]
    assert "rules, line 1" in millrace.fails("sync", "src", "none", "--filter-from", "src/a", status=2).replace(
        "src/a, line 1", "rules, line 1"
    )
    assert "no ']'" in millrace.fails("sync", "src", "none", "--exclude", "[a", status=2)


def test_links_are_passed_over_or_followed(millrace: Millrace, tree: dict, tmp_path: Path):
    (tmp_path / "src" / "link").symlink_to("a")
    (tmp_path / "src" / "loop").symlink_to(".")
    ran = millrace("sync", "src", "dst", "--json")
    assert [each for each in actions(ran) if each[0] == "pass"] == [("pass", "link"), ("pass", "loop")]
    assert read(tmp_path / "dst") == tree
    millrace("sync", "src", "dst", "--links", "follow")
    assert read(tmp_path / "dst") == tree | {"link": b"1"}


def test_one_unreadable_file_does_not_stop_the_rest(millrace: Millrace, tree: dict, tmp_path: Path):
    (tmp_path / "dst" / "a").mkdir(parents=True)  # where a file should come
    (tmp_path / "dst" / "a" / "x").write_bytes(b"1")
    ran = millrace("sync", "src", "dst", "--json", status=1)
    assert ran.object("transfer_summary")["failed"] == 1
    assert ("fail", "a") in actions(ran)
    assert ran.object("error")["message"].startswith("1 of 5 files failed, the first: ")
    assert {name: content for name, content in read(tmp_path / "dst").items() if name in tree} == {
        name: content for name, content in tree.items() if name != "a"
    }


def test_modes_are_as_cp_and_rsync_keep_them(millrace: Millrace, tmp_path: Path):
    modes = {"run": 0o755, "private": 0o600, "read_only": 0o444, "plain": 0o644, "large": 0o750}
    make(tmp_path / "src", {name: b"1" for name in modes} | {"large": bytes(20 << 20)})
    for name, mode in modes.items():
        (tmp_path / "src" / name).chmod(mode)

    def there(folder: str) -> dict[str, int]:
        return {name: (tmp_path / folder / name).stat().st_mode & 0o7777 for name in modes}

    millrace("sync", "src", "dst")
    assert there("dst") == modes
    millrace("cp", "src", "copy", "--recursive")
    assert there("copy") == modes
    millrace("cp", "src/run", "one")
    assert (tmp_path / "one").stat().st_mode & 0o7777 == 0o755
    # Existing files keep their attributes.
    (tmp_path / "one").chmod(0o640)
    millrace("cp", "src/run", "one")
    assert (tmp_path / "one").stat().st_mode & 0o7777 == 0o640
    (tmp_path / "dst/run").chmod(0o700)
    (tmp_path / "src/run").write_bytes(b"2")
    millrace("sync", "src", "dst")
    assert there("dst") == modes | {"run": 0o700} and (tmp_path / "dst/run").read_bytes() == b"2"


def test_quiet_is_quiet(millrace: Millrace, tree: dict, tmp_path: Path):
    for command in (["cp", "src/a", "one"], ["cp", "src", "two", "-r"], ["sync", "src", "dst"], ["rm", "two", "-r"]):
        assert "would" in (said := millrace(*command, "--quiet", "--dry-run").out) or "to copy" in said, command
        ran = millrace(*command, "--quiet")
        assert (ran.out, ran.err) == ("", ""), command
    assert millrace("sync", "src", "dst", "--quiet", "--json").object("transfer_summary")["skipped_files"] == len(tree)
    (tmp_path / "dst2/a").mkdir(parents=True)
    (tmp_path / "dst2/a/x").write_bytes(b"1")
    ran = millrace("sync", "src", "dst2", "--quiet", status=1)
    assert ran.out.startswith("fail    a ") and ran.out.count("\n") == 1, ran
    assert millrace("ls", "src", "--quiet").out.count("\n") == 4


@pytest.fixture
def bounded(millrace: Millrace, tmp_path: Path) -> Millrace:
    """Millrace without root's rights to read everything and to give files away."""
    if os.geteuid() == 0:
        without = "-dac_override,-dac_read_search,-chown"
        script = tmp_path / "bounded-millrace"
        script.write_text(
            f'#!/bin/sh\nexec setpriv --bounding-set={without} --inh-caps={without} {millrace.binary} "$@"\n'
        )
        script.chmod(0o755)
        return Millrace(str(script), tmp_path)
    return millrace


@pytest.mark.parametrize("mode", [0o000, 0o400], ids=["may not read", "may not enter"])
def test_an_unreadable_directory_does_not_stop_the_rest(bounded: Millrace, tree: dict, tmp_path: Path, mode: int):
    closed = {path for path in tree if path.startswith("d/")}
    assert closed and closed != set(tree)
    make(tmp_path / "dst", {path: b"kept" for path in closed} | {"extra": b"1"})
    (tmp_path / "src/d").chmod(mode)
    try:
        synced = bounded("sync", "src", "dst", "--delete", status=1)
        assert "src/d/" in synced.err and "permission denied" in synced.err
        assert "may not be read" in bounded("ls", "src", "-r", status=1).err
        assert "may not be read" in bounded("rm", "src", "-r", "--dry-run", status=1).err
        assert bounded("sync", "src", "without", "--exclude", "d/").err == ""
        assert "unreadable" in bounded("verify", "src", "dst", status=3).out
        assert read(tmp_path / "dst") == {path: b"kept" if path in closed else tree[path] for path in tree} | {
            "extra": b"1"
        }
    finally:
        (tmp_path / "src/d").chmod(0o755)
    bounded("sync", "src", "dst", "--delete")
    assert read(tmp_path / "dst") == tree
    (tmp_path / "dst/d").chmod(mode)  # the target's own
    (tmp_path / "src/new").write_bytes(b"new")
    try:
        assert "d" in bounded("sync", "src", "dst", status=1).err
        assert (tmp_path / "dst/new").read_bytes() == b"new"
    finally:
        (tmp_path / "dst/d").chmod(0o755)


def test_owners_that_cannot_be_given_are_told_once(bounded: Millrace, tree: dict, tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("only root makes files of others")
    for path in tree:
        os.chown(tmp_path / "src" / path, 12345, 12345)
    for command in (["sync", "src", "one"], ["cp", "src", "two", "-r"]):
        ran = bounded(*command, "--posix")
        assert ran.err.count("may not give files to others") == 1 and "12345:12345" in ran.err, ran
        assert read(tmp_path / command[2]) == tree
    assert bounded("sync", "src", "three").err == ""


def test_memory_has_bounds(millrace: Millrace, tree: dict, tmp_path: Path):
    for command in (("cp", "src", "dst", "--recursive"), ("sync", "src", "dst"), ("stage", "src", "dst")):
        assert "--memory: at least 16.8 MB" in millrace(*command, "--memory", "1MiB", status=2).err
        assert (
            "MILLRACE_MEMORY" in millrace(*command, "--memory", "1GiB", status=1, env={"MILLRACE_MEMORY": "64MiB"}).err
        )
        assert not (tmp_path / "dst").exists()
    for command in (("cp", "src", "one", "--recursive"), ("sync", "src", "two"), ("stage", "src", "three")):
        millrace(*command, "--memory", "256MiB")
        assert read(tmp_path / command[2]) == tree


def test_cp_folder_rules(millrace: Millrace, tree: dict, tmp_path: Path):
    millrace("cp", "src/a", "one")
    millrace("cp", "src/a", "folder/")
    (tmp_path / "there").mkdir()
    millrace("cp", "src/a", "there")
    millrace("cp", "src/a", tmp_path / "there" / "b", "--dry-run")
    assert (tmp_path / "one").read_bytes() == b"1"
    assert read(tmp_path / "folder") == {"a": b"1"} == read(tmp_path / "there")
    assert "--recursive" in millrace.fails("cp", "src", "there")
    assert "same object" in millrace.fails("cp", "one", "one")
    assert "No such file" in millrace.fails("cp", "nope", "there")
    millrace("cp", "src", "all", "--recursive")
    assert read(tmp_path / "all") == tree
    (tmp_path / "all" / "a").write_bytes(b"9")
    millrace("cp", "src", "all", "--recursive")
    assert read(tmp_path / "all") == tree


def test_ls(millrace: Millrace, tree: dict, tmp_path: Path):
    millrace("sync", "src", "dst")
    top = millrace("ls", "dst", "--json", "--summarize")
    assert [each["path"] for each in top.objects("object")] == ["a", "empty", "ä ö%2F#?&+"]
    assert [each["path"] for each in top.objects("folder")] == ["d/"]
    assert top.object("ls_summary")["objects"] == 3
    deep = millrace("ls", "dst", "--recursive", "--json").objects("object")
    assert [each["path"] for each in deep] == sorted(tree, key=str.encode)
    assert {each["path"]: each["bytes"] for each in deep} == {name: len(content) for name, content in tree.items()}
    assert ".millrace/" in millrace("ls", "dst", "--hidden").out
    assert "300000  d/e/c" in millrace("ls", "dst", "--recursive", "--bytes").out
    assert millrace("ls", "dst/a").out.endswith("  a\n")
    assert "No such file" in millrace.fails("ls", "nope")


def test_rm(millrace: Millrace, tree: dict, tmp_path: Path):
    assert "--recursive" in millrace.fails("rm", "src")
    assert "--force-root" in millrace.fails("rm", "/", "--recursive")
    assert "recursive" in millrace.fails("rm", "src/a", "--exclude", "x", status=2)
    dry = millrace("rm", "src", "--recursive", "--dry-run", "--json")
    assert [each["path"] for each in dry.objects("removed")] == sorted(tree, key=str.encode)
    millrace("rm", "src/a")
    millrace("rm", "src", "--recursive", "--include", "*.tmp", "--include", "*/", "--exclude", "*")
    assert set(read(tmp_path / "src")) == set(tree) - {"a", "d/b.tmp"}
    (tmp_path / "outside").write_bytes(b"x")
    (tmp_path / "src" / "link").symlink_to("../outside")
    assert millrace("rm", "src", "--recursive", "--json").object("rm_summary")["objects"] == 4
    assert read(tmp_path / "src") == {} and (tmp_path / "outside").exists()


def test_verify(millrace: Millrace, tree: dict, tmp_path: Path):
    millrace("sync", "src", "dst")
    ran = millrace("verify", "src", "dst", "--json")
    assert {each["proof"] for each in ran.objects("compared")} == {"content"}
    assert ran.object("verify_summary")["by_content"] == len(tree)
    assert millrace("verify", "src", "dst", "--recorded", "--json").object("verify_summary")["by_record"] == len(tree)
    assert millrace("verify", "src", "dst", "--size-only", "--json").object("verify_summary")["by_size"] == len(tree)
    (tmp_path / "dst" / "a").write_bytes(b"9")
    (tmp_path / "dst" / "empty").unlink()
    (tmp_path / "dst" / "extra").write_bytes(b"9")
    ran = millrace("verify", "src", "dst", "--json", status=3)
    assert [each["message"] for each in ran.objects("finding")] == [
        "a: different, other content",
        "empty: missing, not at the target",
    ]
    assert ran.object("verify_summary")["ok"] is False
    assert len(millrace("verify", "src", "dst", "--extra", "--json", status=3).objects("finding")) == 3
    assert "error: a: different" in millrace("verify", "src", "dst", status=3).out
    assert "error" not in millrace("verify", "src/a", "src/a").out
    millrace("verify", "src/a", "dst/a", status=3)
    # Recorded hashes count only for the versions for which they were recorded.
    millrace("verify", "src", "dst", "--recorded", status=3)


def test_cat(millrace: Millrace, tree: dict):
    done = millrace("cat", "src/a", "src/d/b.tmp")
    assert done.out == "122"
    assert millrace("cat", "src/d/e/c", "--json").object("cat")["bytes"] == 300_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly_and_the_next_run_goes_on(millrace: Millrace, tmp_path: Path, number: int):
    files = {f"{i:04}": random.Random(i).randbytes(200_000) for i in range(1500)}
    make(tmp_path / "src", files)
    process = millrace.start("sync", "src", "dst", "--json")
    while not (tmp_path / "dst").exists() or len(read_names(tmp_path / "dst")) < 20:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, (out[-500:], err)
    assert err.endswith(f"stopped by {signal.Signals(number).name}\n")
    assert "run the same command again to continue" in err
    names = read_names(tmp_path / "dst")
    assert len(names) < len(files)
    assert all((tmp_path / "dst" / name).read_bytes() == files[name] for name in names)
    summary = millrace("sync", "src", "dst", "--json").object("transfer_summary")
    assert summary["copied_files"] == len(files) - len(names)
    assert read(tmp_path / "dst") == files


def read_names(root: Path) -> list[str]:
    return [entry.name for entry in os.scandir(root) if not entry.name.startswith(".")]


def test_kill_at_any_moment(millrace: Millrace, tmp_path: Path, seeded: random.Random):
    files = {f"{i:03}": seeded.randbytes(seeded.randrange(300_000)) for i in range(300)}
    make(tmp_path / "src", files)
    killed = 0
    for turn in range(4):
        process = millrace.start("sync", "src", "dst", "--quiet")
        time.sleep(seeded.uniform(0.01, 0.15) if turn else 0.02)
        killed += kill(process)
        if (tmp_path / "dst").exists():
            for name in read_names(tmp_path / "dst"):
                assert (tmp_path / "dst" / name).read_bytes() == files[name]
    millrace("sync", "src", "dst")
    assert read(tmp_path / "dst") == files
    assert killed > 0
    # Among these would be what the killed runs were writing.
    assert set(os.listdir(tmp_path / "dst")) == set(files) | {".millrace"}


def test_holes_stay_holes(millrace: Millrace, tmp_path: Path):
    (tmp_path / "src").mkdir()
    with (tmp_path / "src" / "sparse").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(30 << 20)
        file.write(b"data")
    (tmp_path / "src" / "zeros").write_bytes(bytes(20 << 20))
    millrace("sync", "src", "dst")
    assert (tmp_path / "dst" / "sparse").read_bytes() == (tmp_path / "src" / "sparse").read_bytes()
    assert (tmp_path / "dst" / "sparse").stat().st_blocks * 512 < 2 << 20
    assert (tmp_path / "dst" / "zeros").stat().st_blocks * 512 >= 20 << 20, "zeros that took room take room"


def test_a_layout_elsewhere_is_said_to_be_none(millrace: Millrace, tmp_path: Path):
    make(tmp_path / "src", {"a": b"1"})
    ran = millrace("sync", "src", "dst", "--lustre-layout", "spread")
    assert "does not lie on Lustre" in ran.err and (tmp_path / "dst" / "a").read_bytes() == b"1"
    assert "does not lie" not in millrace("sync", "src", "dst", "--lustre-layout", "all", "--dry-run").err


def test_a_file_and_a_folder_change_places(millrace: Millrace, tmp_path: Path):
    """With --delete the target follows; without, it says what is in the way, and the rest arrives."""
    make(tmp_path / "src", {"file-now": b"1", "folder-now/x": b"2", "folder-now/y/z": b"3", "other": b"4"})
    make(tmp_path / "dst", {"file-now/old": b"a", "file-now/deep/old": b"b", "folder-now": b"c"})
    (tmp_path / "dst" / "file-now" / "empty").mkdir()
    (tmp_path / "src" / "empty-before").write_bytes(b"5")
    (tmp_path / "dst" / "empty-before" / "deep").mkdir(parents=True)
    before = read(tmp_path / "dst")
    ran = millrace("sync", "src", "dst", "--json", status=1)
    told = {each["path"]: (each["action"], each["reason"]) for each in ran.objects("transfer")}
    assert told["file-now"][0] == "fail" and "directory is in its place: --delete" in told["file-now"][1]
    assert told["folder-now/x"] == ("refuse", "at the target a file is where its folder belongs: --delete removes it")
    assert read(tmp_path / "dst") == before | {"other": b"4"}
    planned = millrace("sync", "src", "dst", "--delete", "--dry-run", "--json").object("transfer_summary")
    assert (planned["copied_files"], planned["deleted_files"]) == (4, 3)
    # A file that may not be removed keeps its folder: no other file is affected.
    millrace("sync", "src", "dst", "--delete", "--exclude", "old", status=1)
    assert (tmp_path / "dst" / "file-now" / "old").read_bytes() == b"a"
    assert (tmp_path / "dst" / "folder-now" / "y" / "z").read_bytes() == b"3"
    millrace("sync", "src", "dst", "--delete")
    assert read(tmp_path / "dst") == read(tmp_path / "src")
    again = millrace("sync", "src", "dst", "--delete", "--json").object("transfer_summary")
    assert (again["copied_files"], again["deleted_files"]) == (0, 0)


def test_standard_input_becomes_an_object(millrace, tmp_path):
    def run(*args, **options):
        command = [millrace.binary, "cp", *args]
        return subprocess.run(command, cwd=tmp_path, env=millrace.env, capture_output=True, timeout=60, **options)

    content = os.urandom(3_000_001)
    done = run("-", "there/file", input=content)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there" / "file").read_bytes() == content
    assert run("-", "there/file", input=b"").returncode == 0
    assert (tmp_path / "there" / "file").read_bytes() == b""
    nameless = run("-", "there/", input=b"x")
    assert nameless.returncode == 1 and b"has no name" in nameless.stderr

    # A stop in the middle leaves the old content.
    reading, writing = os.pipe()
    os.write(writing, b"half")
    stopped = subprocess.Popen(
        [millrace.binary, "cp", "-", "there/file"],
        cwd=tmp_path,
        stdin=reading,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    time.sleep(0.5)
    stopped.send_signal(signal.SIGINT)
    assert stopped.wait(10) == 128 + signal.SIGINT
    assert (tmp_path / "there" / "file").read_bytes() == b""
    assert os.listdir(tmp_path / "there") == ["file"]
    os.close(reading)
    os.close(writing)


def folders(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir() and ".millrace" not in path.parts}


def test_empty_directories_are_kept(millrace: Millrace, tree: dict, tmp_path: Path):
    for name in ("e1", "d/e2/e3", "out/e4"):
        (tmp_path / "src" / name).mkdir(parents=True)
    before = folders(tmp_path / "src")
    dry = millrace("sync", "src", "dst", "--dry-run", "--json").object("transfer_summary")
    assert dry["made_folders"] == 3 and not (tmp_path / "dst").exists()
    made = millrace("sync", "src", "dst", "--exclude", "/out/", "--json").object("transfer_summary")
    assert made["made_folders"] == 2 and folders(tmp_path / "dst") == before - {"out", "out/e4"}
    again = millrace("sync", "src", "dst", "--json")
    assert again.object("transfer_summary")["made_folders"] == 1 and actions(again) == []
    millrace("cp", "src", "copied", "--recursive")
    assert folders(tmp_path / "dst") == folders(tmp_path / "copied") == before
    assert read(tmp_path / "copied") == tree
    # One that holds files at the target is nothing to be made, and its files are extra ones.
    make(tmp_path / "dst", {"e1/more": b"1"})
    deleted = millrace("sync", "src", "dst", "--delete", "--json").object("transfer_summary")
    assert deleted["deleted_files"] == 1 and (tmp_path / "dst" / "e1").is_dir()


def test_mv_takes_empty_directories_along(millrace: Millrace, tree: dict, tmp_path: Path):
    for name in ("e1", "d/e2/e3", "left/out"):
        (tmp_path / "src" / name).mkdir(parents=True)
    before = folders(tmp_path / "src")
    millrace("mv", "src", "dst", "--recursive", "--exclude", "/left/")
    assert folders(tmp_path / "dst") == before - {"left", "left/out"} and read(tmp_path / "dst") == tree
    assert folders(tmp_path / "src") == {"left", "left/out"}  # what a filter leaves out stays
    millrace("mv", "src", "dst", "--recursive")
    assert folders(tmp_path / "dst") == before and not (tmp_path / "src").exists()


def test_a_file_and_an_empty_directory_change_places(millrace: Millrace, tmp_path: Path):
    (tmp_path / "src" / "x").mkdir(parents=True)
    make(tmp_path / "src", {"keep": b"1", "y": b"2"})
    make(tmp_path / "dst", {"x": b"a file"})
    (tmp_path / "dst" / "y").mkdir()
    refused = millrace("sync", "src", "dst", status=1)
    assert "--delete removes it" in refused.err + refused.out
    millrace("sync", "src", "dst", "--delete")
    assert (tmp_path / "dst" / "x").is_dir() and (tmp_path / "dst" / "y").read_bytes() == b"2"


def test_times_that_64_bits_of_nanoseconds_do_not_hold(millrace: Millrace, tmp_path: Path):
    """Of the year 2400: they end in 2262, and ext4 in 2446."""
    make(tmp_path / "src", {"x": b"1", "y": b"2"})
    (tmp_path / "dst").mkdir()
    time_ns = 13_569_465_600 * 10**9 + 123_456_789
    for name in ("x", "y"):
        os.utime(tmp_path / "src" / name, ns=(time_ns, time_ns))
        assert (tmp_path / "src" / name).stat().st_mtime_ns == time_ns, "the file system has no such time"
    millrace("sync", "src", "dst", "--posix")
    assert [(tmp_path / "dst" / name).stat().st_mtime_ns for name in ("x", "y")] == [time_ns] * 2
    assert actions(millrace("sync", "src", "dst", "--posix", "--json")) == []
    listed = {each["path"]: each["modified"] for each in millrace("ls", "src", "--json").objects("object")}
    assert listed["x"] == "2400-01-01T00:00:00Z"
    # One nanosecond is another time.
    os.utime(tmp_path / "dst" / "x", ns=(time_ns + 1, time_ns + 1))
    assert ("copy", "x") in actions(millrace("sync", "src", "dst", "--posix", "--json", "--dry-run"))


def test_folders_get_their_attributes(millrace: Millrace, tmp_path: Path):
    make(tmp_path / "src", {"a/b/x": b"1", "a-b/y": b"2", "closed/z": b"3"})
    (tmp_path / "src" / "empty").mkdir()
    (tmp_path / "src" / "link").symlink_to("a")
    (tmp_path / "src").chmod(0o701)
    modes = {"a": 0o711, "a/b": 0o1777, "a-b": 0o700, "closed": 0o555, "empty": 0o2775}
    for second, (name, mode) in enumerate(modes.items()):
        (tmp_path / "src" / name).chmod(mode)
        os.utime(tmp_path / "src" / name, ns=(10**18, 10**18 + second))

    def kept(root: Path) -> dict:
        stats = {name: (root / name).stat() for name in modes}
        return {name: (stat.st_mode & 0o7777, stat.st_mtime_ns) for name, stat in stats.items()}

    millrace("sync", "src", "dst")
    assert all(kept(tmp_path / "dst")[name] != kept(tmp_path / "src")[name] for name in modes)
    # DST's own copy of a linked folder is not what SRC has there.
    (tmp_path / "elsewhere").mkdir(mode=0o701)
    (tmp_path / "dst" / "empty").rmdir()
    (tmp_path / "dst" / "empty").symlink_to(tmp_path / "elsewhere")
    dry = millrace("sync", "src", "dst", "--posix", "--dry-run", "--json", status=1).object("transfer_summary")
    assert dry["set_folders"] == 4 and kept(tmp_path / "dst")["a"] != kept(tmp_path / "src")["a"]
    ran = millrace("sync", "src", "dst", "--posix", "--json", status=1).object("transfer_summary")
    assert ran["set_folders"] == 4 and (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o701
    (tmp_path / "dst" / "empty").unlink()
    ran = millrace("sync", "src", "dst", "--posix", "--json").object("transfer_summary")
    assert kept(tmp_path / "dst") == kept(tmp_path / "src")
    assert (tmp_path / "dst").stat().st_mode & 0o777 != 0o701, "DST may be a folder of many users"
    assert not (tmp_path / "dst" / "link").exists()
    again = millrace("sync", "src", "dst", "--posix", "--json")
    assert again.object("transfer_summary")["set_folders"] == 0 and actions(again) == [("pass", "link")]
    millrace("cp", "src", "copied", "-r", "--posix")
    assert kept(tmp_path / "copied") == kept(tmp_path / "src")
    (tmp_path / "src" / "a").chmod(0o770)
    assert "attributes of 1 folder" in millrace("sync", "src", "dst", "--posix").out
    assert kept(tmp_path / "dst") == kept(tmp_path / "src")
    # A folder that a filter leaves out is none of the sync.
    (tmp_path / "src" / "a-b").chmod(0o777)
    millrace("sync", "src", "dst", "--posix", "--exclude", "/a-b/")
    assert kept(tmp_path / "dst")["a-b"] == (0o700, 10**18 + 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_folders_of_others_keep_their_attributes(binary: str, tmp_path: Path):
    nobody = 65534
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(binary, folder / "millrace")
        make(folder / "src", {"theirs/x": b"1", "own/y": b"2"})
        for path in (folder / "src", folder / "src/theirs", folder / "src/own"):
            path.chmod(0o750)
            os.chown(path, nobody, nobody)
        for shared in (folder / "dst", folder / "dst/theirs", folder / "t"):
            shared.mkdir()
            shared.chmod(0o777)
        command = [folder / "millrace", "sync", "src", "dst", "--posix", "--json"]
        env = os.environ | {"HOME": name, "TMPDIR": str(folder / "t")}
        done = subprocess.run(
            command, cwd=folder, env=env, user=nobody, group=nobody, extra_groups=[], capture_output=True, text=True
        )
        assert done.returncode == 0, done
        assert '"set_folders":1' in done.stdout
        assert "dst/theirs belongs to user 0, and so keeps its owner, mode and times" in done.stderr
        modes = [(folder / path).stat().st_mode & 0o777 for path in ("dst", "dst/theirs", "dst/own")]
        assert modes == [0o777, 0o777, 0o750]


def test_a_parent_is_what_the_system_says(millrace: Millrace):
    cwd = millrace.cwd
    for folder in ("releases/v2", "releases/data", "data"):
        (cwd / folder).mkdir(parents=True)
    (cwd / "current").symlink_to("releases/v2")
    (cwd / "releases/data/f").write_text("wanted")
    (cwd / "data/f").write_text("precious")
    assert millrace("cat", "current/../data/f").out == "wanted"
    assert millrace("cat", "releases/v2/../data/f").out == "wanted"
    millrace("rm", "current/../data", "-r")
    assert (cwd / "data/f").read_text() == "precious" and not (cwd / "releases/data/f").exists()
    millrace("sync", "data", "current/../new")
    assert (cwd / "releases/new/f").read_text() == "precious" and not (cwd / "new").exists()
    (cwd / "loop").symlink_to("loop")
    assert "loop/.." in millrace.fails("cat", "loop/../x")


def test_folders_overlap_behind_a_link_too(millrace: Millrace):
    (millrace.cwd / "real/sub").mkdir(parents=True)
    (millrace.cwd / "real/f").write_text("x")
    (millrace.cwd / "inner").symlink_to("real/sub")
    assert "overlap" in millrace.fails("sync", "real", "inner")


def test_no_file_replaces_standard_output(millrace: Millrace, tmp_path: Path):
    (millrace.cwd / "f").write_text("x")
    (millrace.cwd / "so").symlink_to("/proc/self/fd/1")
    os.mkfifo(millrace.cwd / "pipe")
    with (tmp_path / "redirected").open("w") as out:
        words = [millrace.binary, "cp", "f", "so"]
        ran = subprocess.run(words, cwd=millrace.cwd, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 1 and "so leads to /proc/self/fd/1" in ran.stderr
    assert (millrace.cwd / "so").is_symlink()
    assert "pipe is a device, pipe or socket" in millrace.fails("cp", "f", "pipe")
