# SPDX-License-Identifier: Apache-2.0
"""A directory kept in step with a bucket of the real S3 server: the verbs, kills, a server that goes away."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Millrace, kill
from links import Linked, within
from s3_fixture import S3

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine


@pytest.fixture
def linked(millrace: Millrace, s3: S3, tmp_path: Path) -> Callable[..., Linked]:
    return lambda *options: Linked(millrace, s3, tmp_path, *options)


@pytest.fixture
def running(linked: Callable[..., Linked]) -> Iterator[Callable[..., tuple[Linked, subprocess.Popen]]]:
    started: list[subprocess.Popen] = []

    def start(*options: object) -> tuple[Linked, subprocess.Popen]:
        link = linked(*options)
        started.append(link.millrace.start("link", "run", "one", "--json"))
        return link, started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            kill(process)


def test_new_changed_and_removed_files_go_both_ways(linked: Callable[..., Linked]):
    link = linked("--import=new,changed,deleted", "--export=new,changed,deleted")
    large = random.Random(1).randbytes(20 << 20)
    link.write("from here/ä.txt", b"one")
    link.write("large", large)
    link.put("from/there", b"two", Metadata={"file-permissions": "0100640", "file-mtime": "1700000000000000000ns"})
    events = {(each["event"], each["path"]) for each in link.once()}
    assert events == {("export", "from here/ä.txt"), ("export", "large"), ("import", "from/there")}
    assert link.files() == link.objects() == {"from here/ä.txt": b"one", "from/there": b"two", "large": large}
    info = (link.directory / "from/there").stat()
    assert info.st_mode & 0o777 == 0o640 and info.st_mtime_ns == 1_700_000_000_000_000_000
    head = link.s3.client.head_object(Bucket=link.bucket, Key="data/large")
    assert int(head["Metadata"]["file-permissions"], 8) & 0o777 == (link.directory / "large").stat().st_mode & 0o777
    assert link.once() == []

    # A change inside a large file moves what changed.
    with (link.directory / "large").open("r+b") as file:
        file.seek(9 << 20)
        file.write(b"changed")
    (event,) = link.once()
    assert event["path"] == "large" and 0 < event["moved_bytes"] <= 8 << 20
    (link.directory / "from here/ä.txt").unlink()
    link.s3.client.delete_object(Bucket=link.bucket, Key="data/from/there")
    assert {each["event"] for each in link.once()} == {"delete_there", "delete_here"}
    assert set(link.files()) == set(link.objects()) == {"large"}
    # Both lie in a trash.
    trash = [path.read_bytes() for path in (link.directory / ".millrace/trash").rglob("*") if path.is_file()]
    assert trash == [b"two"]
    listed = link.s3.client.list_objects_v2(Bucket=link.bucket, Prefix="data/.millrace/trash/")["Contents"]
    assert len(listed) == 1 and listed[0]["Key"].endswith("/from here/ä.txt")
    status = link.status()
    assert not status["running"] and status["files"] == 1 and status["problems"] == 0


def test_a_running_link_follows_in_seconds_and_wait_proves_it(running: Callable):
    link, process = running("--import=new,changed,deleted", "--export=new,changed,deleted")
    within(120, lambda: link.status()["last_sweep"])
    link.write("step-1/model", os.urandom(3 << 20))
    link.write("step-1/done", b"")
    link.put("shard", b"from there")
    waited = link.millrace("link", "wait", link.directory / "step-1", "--within=60s", "--json").object("link_wait")
    assert waited["files"] == 2 and set(waited["proofs"]) <= {"etag", "content"}
    assert set(link.objects()) >= {"step-1/model", "step-1/done"}
    within(120, lambda: (link.directory / "shard").exists())
    shutil.rmtree(link.directory / "step-1")
    within(120, lambda: set(link.objects()) == {"shard"})
    assert "runs this link" in link.millrace.fails("link", "run", "one", "--once")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert all(json.loads(line)["type"] == "link_event" for line in out.splitlines())
    link.write("late", b"x")
    assert "millrace link run one" in link.millrace.fails("link", "wait", link.directory / "late")


@pytest.mark.long
def test_sixteen_links_of_one_process(millrace: Millrace, s3: S3, tmp_path: Path):
    bucket = s3.bucket()
    millrace.env = millrace.env | s3.env | {"MILLRACE_LINKS": str(tmp_path / "links")}
    names = [f"link{number}" for number in range(16)]
    for name in names:
        (tmp_path / name).mkdir()
        millrace("link", "add", tmp_path / name, f"s3://{bucket}/{name}", "--quiet-time=0s", "--poll=200ms",
                 "--poll-most=1s")  # fmt: skip
    process = millrace.start("link", "run")
    try:
        for name in names:
            (tmp_path / name / "here").write_text(name)
            s3.client.put_object(Bucket=bucket, Key=f"{name}/there", Body=name.encode())

        def keys() -> set[str]:
            return {each["Key"] for each in s3.client.list_objects_v2(Bucket=bucket).get("Contents", [])}

        within(120, lambda: {f"{name}/here" for name in names} <= keys())
        within(120, lambda: all((tmp_path / name / "there").exists() for name in names))
        assert [(tmp_path / name / "there").read_text() for name in names] == names
        assert all(each["running"] for each in millrace("link", "status", "--json").objects("link_status"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
    finally:
        if process.poll() is None:
            kill(process)


@pytest.mark.parametrize("task", [(), ("--task=0/1",)], ids=["alone", "task"])
def test_a_server_that_goes_away_is_waited_for(millrace: Millrace, tmp_path: Path, task: tuple[str, ...]):
    server = S3.start(tmp_path / "s3")
    shared = ("--take-over=60s",) if task else ()
    link = Linked(millrace, server, tmp_path, "--import=new,changed,deleted", *shared)
    try:
        link.write("a", b"a")
        link.once()
        process = millrace.start("link", "run", "one", *task)
        within(120, lambda: link.status()["running"] and link.status()["doing"] == "waiting for changes")
        gateway = millrace.env["AWS_ENDPOINT_URL"]
        server.destroy()
        link.write("b", b"b")
        within(60, lambda: link.status(status=3)["error"] if not link_is_quiet(link) else False)
        assert gateway.split("//")[1] in link.status(status=3)["error"]
        assert link.files() == {"a": b"a", "b": b"b"}, "what cannot be seen is not removed"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            kill(process)


def link_is_quiet(link: Linked) -> bool:
    shown = link.millrace.start("link", "status", "one", "--json")
    return not json.loads(shown.communicate(timeout=20)[0].splitlines()[0])["error"]


@pytest.mark.long
def test_kills_lose_nothing(linked: Callable[..., Linked], seeded: random.Random):
    link = linked("--import=new,changed,deleted", "--export=new,changed,deleted")
    rng = seeded
    written: dict[str, bytes] = {}
    for _ in range(int(os.environ.get("MILLRACE_TEST_KILLS", "8"))):
        for _ in range(6):
            path, content = f"{rng.randrange(4)}/{rng.randrange(30)}", rng.randbytes(rng.choice([10, 10_000, 9 << 20]))
            # A path is changed on one side only, so that there is no conflict to decide.
            link.write(path, content) if int(path[0]) % 2 else link.put(path, content)
            written[path] = content
        process = link.millrace.start("link", "run", "one")
        time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.communicate()
    for _ in range(2):
        process = link.millrace.start("link", "run", "one", "--once", "--json")
        out, errors = process.communicate(timeout=120)
        failed = [line for line in out.splitlines() if '"fail"' in line]
        assert process.returncode == 0 and not failed, f"{errors}\n" + "\n".join(failed)
    files = link.files()
    assert files == link.objects()
    # A kill between a copy and its line in the state makes the next change of that path a conflict, which keeps both.
    assert set(files) >= set(written) and set(files.values()) >= set(written.values())
    assert len(files) <= len(written) + link.status()["conflicts"]


def test_a_kill_costs_no_part_that_had_arrived(linked: Callable[..., Linked], seeded: random.Random):
    link = linked("--export=new,changed", "--import=new,changed")
    client, content = link.s3.client, seeded.randbytes(96 << 20)
    link.write("large", content)
    slowly = link.millrace.env
    link.millrace.env = slowly | {"MILLRACE_S3_BYTES_PER_SECOND": "20MB"}
    process = link.millrace.start("link", "run", "one")
    arrived: dict[int, int] = {}

    def some_have_arrived() -> bool:
        for upload in client.list_multipart_uploads(Bucket=link.bucket).get("Uploads", []):
            parts = client.list_parts(Bucket=link.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
            arrived.update({part["PartNumber"]: part["Size"] for part in parts.get("Parts", [])})
        return len(arrived) >= 3

    within(60, some_have_arrived)
    assert kill(process)
    link.millrace.env = slowly
    sent = [event for event in link.once() if event["event"] == "export"]
    assert [event["path"] for event in sent] == ["large"]
    assert sent[0]["moved_bytes"] <= len(content) - sum(arrived.values())
    assert link.objects() == {"large": content}
    assert not client.list_multipart_uploads(Bucket=link.bucket).get("Uploads")


def test_mistakes_are_told_before_anything_moves(linked: Callable[..., Linked], tmp_path: Path):
    link = linked()
    millrace = link.millrace
    assert "already" in millrace.fails("link", "add", link.directory, link.url, "--name=two")
    (link.directory / "below").mkdir()
    (tmp_path / "empty").mkdir()
    assert "belongs to a link" in millrace.fails("link", "add", link.directory / "below", link.url)
    assert "no directory" in millrace.fails("link", "add", tmp_path / "missing", link.url)
    assert "takes two slashes" in millrace.fails("link", "add", tmp_path / "empty", "s3:/bucket/data")
    for mistake in ("bucket/data", tmp_path / "missing"):
        told = millrace.fails("link", "add", tmp_path / "empty", mistake)
        assert "neither a URL (s3://bucket/prefix) nor a directory" in told
    other = tmp_path / "other"
    other.mkdir()
    assert "--delete" in millrace("link", "add", other, link.url, "--delete=trash:1d", status=2).err
    assert "none of new" in millrace("link", "add", other, link.url, "--import=all", status=2).err
    assert "no link" in millrace.fails("link", "run", "three")
    assert "no link" in millrace.fails("link", "wait", tmp_path)
    assert "no such file" in millrace.fails("link", "wait", link.directory / "misspelt")
    link.write("a", b"a")
    link.once()
    # The directory is not mounted: nothing is removed, and the reason is told.
    aside = tmp_path / "aside"
    link.directory.rename(aside)
    link.directory.mkdir()
    assert "not mounted" in millrace("link", "run", "one", "--once", status=1).err
    assert link.objects() == {"a": b"a"}
    link.directory.rmdir()
    aside.rename(link.directory)
    millrace("link", "rm", "one")
    assert link.files() == link.objects() == {"a": b"a"}
    assert not (link.directory / ".millrace/link.json").exists()
