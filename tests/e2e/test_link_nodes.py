# SPDX-License-Identifier: Apache-2.0
"""A link that several nodes run: one at a time, or tasks that share the work. Nodes are processes with folders of links
of their own."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Millrace, kill
from links import Linked, within
from s3_fixture import S3
from slurm_fixture import Slurm

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine


@pytest.fixture
def linked(millrace: Millrace, s3: S3, tmp_path: Path) -> Callable[..., Linked]:
    return lambda *options: Linked(millrace, s3, tmp_path, *options)


class Node:
    """A node of several that share a directory: it has its own folder of links."""

    def __init__(self, link: Linked, folder: Path):
        self.millrace = Millrace(link.millrace.binary, folder)
        self.millrace.env = link.millrace.env | {"MILLRACE_LINKS": str(folder / f"links-{id(self)}")}
        self.millrace("link", "join", link.directory)
        self.process: subprocess.Popen | None = None

    def start(self, *options: str) -> subprocess.Popen:
        self.process = self.millrace.start("link", "run", "one", "--json", *options)
        return self.process

    def status(self, status: int = 0) -> dict:
        return self.millrace("link", "status", "one", "--json", status=status).object("link_status")

    def carries(self) -> bool:
        return self.status()["running"] and not self.status()["doing"].startswith("stands by")


@pytest.mark.long
def test_another_node_takes_over_when_the_leader_is_killed(
    linked: Callable[..., Linked], tmp_path: Path, seeded: random.Random
):
    link = linked("--take-over=4s", "--import=new,changed,deleted", "--export=new,changed,deleted")
    assert "belongs to a link" in link.millrace.fails("link", "add", link.directory, link.url, "--name=two")
    first, second, third = nodes = [Node(link, tmp_path) for _ in range(3)]
    assert "already" in second.millrace.fails("link", "join", link.directory)
    try:
        first.start()
        within(120, first.carries)
        second.start(), third.start()
        within(120, lambda: all("stands by: " in each.status()["doing"] for each in (second, third)))
        assert "runs this link" in link.millrace.fails("link", "run", "one", "--once")
        written = {}
        for number in range(40):
            content = seeded.randbytes(seeded.choice([10, 300_000, 3 << 20]))
            written[f"a/{number}"] = content
            link.write(f"a/{number}", content) if number % 2 else link.put(f"a/{number}", content)
            if number == 20:
                assert kill(first.process)
        within(60, lambda: second.carries() or third.carries())
        within(60, lambda: link.files() == link.objects() == written)
        leader, other = (second, third) if second.carries() else (third, second)
        assert not other.carries()
        # The barrier holds on every node, also on one that only stands by.
        for node in (leader, other):
            waited = node.millrace("link", "wait", link.directory, "--within=60s", "--json").object("link_wait")
            assert waited["files"] == len(written)
        # One that is stopped leaves its place at once, and one that comes back stands by.
        leader.process.send_signal(signal.SIGTERM)
        leader.process.communicate(timeout=30)
        assert leader.process.returncode == 0
        within(120, other.carries)
        first.start()
        within(120, lambda: first.status()["doing"].startswith("stands by"))
        (link.directory / "a/1").unlink()
        link.put("a/3", b"changed there")
        within(60, lambda: "a/1" not in link.objects() and link.files()["a/3"] == b"changed there")
        assert other.status()["problems"] == other.status()["conflicts"] == 0
        other.millrace("link", "rm", "one", status=1)
    finally:
        for node in nodes:
            if node.process and node.process.poll() is None:
                kill(node.process)
    third.millrace("link", "rm", "one")
    assert (link.directory / ".millrace/link.json").exists(), "the link is still that of the others"


@pytest.mark.long
def test_four_tasks_carry_at_once_and_one_is_killed(
    linked: Callable[..., Linked], tmp_path: Path, seeded: random.Random
):
    link = linked("--take-over=4s", "--import=new,changed,deleted", "--export=new,changed,deleted")
    nodes = [Node(link, tmp_path) for _ in range(4)]
    written = {}
    for number in range(80):
        content = seeded.randbytes(seeded.choice([10, 300_000, 3 << 20]))
        written[f"{number % 7}/{number}"] = content
        link.write(f"{number % 7}/{number}", content) if number % 2 else link.put(f"{number % 7}/{number}", content)
    try:
        for number, node in enumerate(nodes):
            node.start(f"--task={number}/4")
        within(60, lambda: all(node.carries() for node in nodes))
        # Nobody carries alone beside them, and nothing is released that one of them may not know of.
        assert "runs this link" in link.millrace.fails("link", "run", "one", "--once")
        assert kill(nodes[seeded.randrange(4)].process)
        alive = [node for node in nodes if node.process.poll() is None]
        assert len(alive) == 3
        within(120, lambda: link.files() == link.objects() == written)
        for node in alive:
            waited = node.millrace("link", "wait", link.directory, "--within=60s", "--json").object("link_wait")
            assert waited["files"] == len(written)
        # What one of them learned the others know: a change is no conflict, and what is removed stays away.
        for number in range(0, 80, 9):
            written[f"{number % 7}/{number}"] = b"%d" % number
            link.write(f"{number % 7}/{number}", b"%d" % number)
        (link.directory / "3/3").unlink()
        link.s3.client.delete_object(Bucket=link.bucket, Key="data/4/4")
        del written["3/3"], written["4/4"]
        within(120, lambda: link.files() == link.objects() == written)
        assert [node.status()["conflicts"] for node in alive] == [0, 0, 0]
        for node in alive:
            node.process.send_signal(signal.SIGTERM)
        for node in alive:
            node.process.communicate(timeout=30)
            assert node.process.returncode == 0
    finally:
        for node in nodes:
            if node.process and node.process.poll() is None:
                kill(node.process)
    # One goes on alone with what they knew, once they were silent for long enough.
    (link.directory / "5/5").unlink()
    del written["5/5"]
    alone = nodes[0].start()
    within(60, lambda: link.files() == link.objects() == written)
    assert nodes[0].status()["conflicts"] == 0
    kill(alone)


def test_tasks_need_a_link_for_several_nodes(linked: Callable[..., Linked]):
    link = linked()
    assert "--take-over" in link.millrace.fails("link", "run", "one", "--task=0/4", "--once")
    assert "3/10 is one" in link.millrace.fails("link", "run", "one", "--task=4/4", status=2)


@pytest.mark.long
def test_tasks_of_slurm_carry_a_link(millrace: Millrace, s3: S3, slurm: Slurm, tmp_path: Path):
    """The script of examples/, with two nodes of two tasks each."""
    script = Path(__file__).parents[2] / "examples/link/link-tasks.sbatch"
    directory, bucket = tmp_path / "shared", s3.bucket()
    written = {f"{number % 5}/{number}": b"%d" % number * 1000 for number in range(60)}
    for number, (path, content) in enumerate(written.items()):
        if number % 2:
            s3.client.put_object(Bucket=bucket, Key=f"data/{path}", Body=content)
            continue
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/millrace").symlink_to(millrace.binary)
    environment = "".join(f",{name}={value}" for name, value in s3.env.items())
    path = f"{tmp_path / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    job = slurm.submit(
        "-N", 2, "--ntasks-per-node=2", "--cpus-per-task=1", "--mem=0",
        f"--export=PATH={path},SLURM_TMPDIR={tmp_path}{environment}", "-o", tmp_path / "job.out",
        script, directory, f"s3://{bucket}/data", cwd=tmp_path,
    )  # fmt: skip

    def objects() -> dict[str, bytes]:
        pages = s3.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="data/")
        keys = [each["Key"] for page in pages for each in page.get("Contents", []) if ".millrace" not in each["Key"]]
        return {key[5:]: s3.client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}

    def files() -> dict[str, bytes]:
        found = [each for each in directory.rglob("*") if each.is_file() and ".millrace" not in each.parts]
        return {str(each.relative_to(directory)): each.read_bytes() for each in found}

    try:
        within(180, lambda: files() == objects() == written)
        running = sorted(each.name for each in tmp_path.glob(f"links-{job}-*"))
        assert running == [f"links-{job}-{task}" for task in (0, 1, 2, 3)] + [f"links-{job}-add"], running
    except AssertionError as error:
        raise AssertionError((tmp_path / "job.out").read_text()) from error
    finally:
        slurm.cancel_all()
