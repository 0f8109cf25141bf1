# SPDX-License-Identifier: Apache-2.0
"""examples/slurm/cli_filter.lua in a real Slurm: what it says at sbatch, and that it never stands in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY, Millrace
from slurm_fixture import Slurm

PLUGIN = "cli_filter_lua.so"
FILTER = REPOSITORY / "examples/slurm/cli_filter.lua"


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if shutil.which("slurmctld", path="/usr/sbin:/usr/bin") and not list(Path("/usr/lib").glob(f"*/slurm*/{PLUGIN}")):
        pytest.skip(f"{PLUGIN} is not installed: this Slurm was built without Lua")
    cluster = Slurm.start(
        tmp_path_factory.mktemp("filtered") / "c", "--conf=CliFilterPlugins=lua",
        "--group=main:nodes=1,cpus=4,memory_mb=16000,gpus=0",
    )  # fmt: skip
    yield cluster
    cluster.destroy()


class Submitter:
    """A user's shell on a machine where the plug-in is installed."""

    def __init__(self, slurm: Slurm, millrace: Millrace, folder: Path):
        self.slurm, self.folder = slurm, folder
        self.tools = folder / "bin"
        self.tools.mkdir()
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "NCCL"))}
        self.env = clean | slurm.env | {"PATH": f"{self.tools}:{os.environ['PATH']}", "HOME": str(folder)}
        self.env["MILLRACE_LEDGER"] = str(folder / "ledger")
        self.program(f'exec {millrace.binary} "$@"')
        self.install()

    def program(self, body: str) -> None:
        """What the plug-in finds as `millrace`; each call leaves a line."""
        path = self.tools / "millrace"
        path.unlink(missing_ok=True)
        path.write_text(f'#!/bin/bash\necho "$*" >>{self.folder}/calls\n{body}\n')
        path.chmod(0o755)

    def install(self, **settings: str) -> None:
        text = FILTER.read_text()
        for name, value in settings.items():
            (line,) = (each for each in text.splitlines() if each.startswith(f"  {name} = "))
            text = text.replace(line, f"  {name} = {value},")
        Path(self.slurm.conf).with_name("cli_filter.lua").write_text(text)

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        calls = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return calls

    def run(self, *command: object, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(map(str, command)), env=self.env | env, cwd=self.folder, capture_output=True, text=True, timeout=100
        )

    def sbatch(self, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
        """With one number on stdout where it was submitted, whatever the plug-in prints."""
        done = self.run("sbatch", "--parsable", *words, **env)
        assert done.returncode != 0 or done.stdout.strip().isdigit(), done
        return done


@pytest.fixture
def user(filtered: Slurm, millrace: Millrace, tmp_path: Path) -> Iterator[Submitter]:
    yield Submitter(filtered, millrace, tmp_path)
    filtered.cancel_all()


def script(folder: Path, *options: str) -> Path:
    path = folder / "it's a job.sbatch"
    path.write_text("\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in options), 'echo "$@"', ""]))
    return path


def test_a_sound_job_is_submitted_without_a_word(user: Submitter):
    good = script(user.folder, "--time=1", "--output=/dev/null")
    done = user.sbatch("-p", "main", good, "--lr", "3 e-4")
    assert (done.returncode, done.stderr) == (0, "")
    # Options as they were typed, the script, and its arguments.
    (call,) = user.calls()
    assert call == f"job check --sbatch=--parsable --sbatch=-p --sbatch=main -- {good} --lr 3 e-4"


def test_what_would_go_wrong_is_printed_and_the_job_submitted(user: Submitter):
    bad = script(user.folder, "--time=1", "--output=none/%j.log")
    done = user.sbatch(bad)
    assert done.returncode == 0, done
    assert (
        f"sbatch: millrace: {bad}:3:" in done.stderr
        and f"the log's folder {user.folder}/none is missing" in done.stderr
    )
    assert f"mkdir -p {user.folder}/none" in done.stderr and "fine:" not in done.stderr
    # An option of the command line holds, also one whose value is a word of its own.
    assert user.sbatch("-o", "/dev/null", bad).stderr == ""
    asked = user.sbatch("-p", "nowhere", "-o", "/dev/null", bad)
    assert asked.returncode != 0 and "there is no partition nowhere" in asked.stderr


def test_an_administrator_may_refuse(user: Submitter):
    user.install(refuse="true")
    bad = script(user.folder, "--time=1", "--output=none/%j.log")
    refused = user.sbatch(bad)
    assert refused.returncode != 0 and "not submitted, because it would fail" in refused.stderr
    assert user.sbatch(bad, MILLRACE_CLI_FILTER="off").returncode == 0
    assert user.sbatch("--output=/dev/null", bad).returncode == 0
    # A check that could not be made refuses nothing.
    user.program("echo 'error: no such flag' >&2; exit 2")
    unchecked = user.sbatch(bad)
    assert (unchecked.returncode, unchecked.stderr) == (0, "")


def test_lint_reads_the_script_alone(user: Submitter):
    user.install(verb='"lint"')
    path = script(user.folder, "--time=1", f"--output={user.folder}/made/%j.log")
    path.write_text(path.read_text() + f"mkdir -p {user.folder}/made\n")
    user.run("sbatch", "--test-only", path)
    assert user.calls() == []
    done = user.sbatch("--partition=main", path, "argument")
    assert done.returncode == 0 and "[SB01]" in done.stderr
    assert user.calls() == [f"job lint -- {path}"]


def test_it_is_not_in_the_way(user: Submitter):
    """Without millrace, with one that hangs or crashes, and where there is no script to read."""
    bad = script(user.folder, "--time=1", "--output=none/%j.log")
    user.install(refuse="true", seconds="1")
    # Neither it nor what it has started holds sbatch.
    user.program("trap '' TERM; sleep 60 & sleep 60; exit 3")
    before = time.monotonic()
    hung = user.sbatch(bad)
    assert hung.returncode == 0 and "took longer than 1 s and was left out" in hung.stderr, hung
    assert time.monotonic() - before < 50
    user.program("kill -SEGV $$")
    assert user.sbatch(bad).returncode == 0
    user.calls()
    assert user.run("sbatch", "--output=/dev/null", "--wrap=true").returncode == 0
    assert user.run("srun", "--time=1", "true").returncode == 0
    assert user.calls() == []
    (user.tools / "millrace").unlink()
    missing = user.sbatch(bad, PATH="/usr/bin:/bin")
    assert (missing.returncode, missing.stderr) == (0, "")


def test_millrace_itself_is_not_checked_again(user: Submitter, millrace: Millrace):
    good = script(user.folder, "--time=1", "--output=/dev/null")
    done = user.run(millrace.binary, "job", "check", good)
    assert done.returncode == 0 and user.calls() == []
    done = user.run(millrace.binary, "job", "submit", good)
    assert done.returncode == 0 and user.calls() == []
    # Nobody has looked at this one.
    done = user.run(millrace.binary, "job", "submit", "--no-check", good)
    assert done.returncode == 0 and len(user.calls()) == 1
