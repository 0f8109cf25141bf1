# SPDX-License-Identifier: Apache-2.0
"""Runs jobs on Slurm, for example from a notebook: `millrace.slurm.submit` returns a `Job` with the commands of
`millrace job` as methods.

Each call runs the program `millrace`, which comes with this package. Python and the terminal therefore share one ledger
and one set of messages. Exceptions are those of the rest of the package: FileNotFoundError (no such job or script, no
Slurm on this machine), ValueError (Slurm refuses the script), ConnectionError (the controller does not answer),
TimeoutError.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import millrace

#: The exception that is raised for each error code of the program.
_EXCEPTIONS: dict[str, type[Exception]] = {
    "not_found": FileNotFoundError,
    "already_exists": FileExistsError,
    "invalid_argument": ValueError,
    "out_of_range": ValueError,
    "permission_denied": PermissionError,
    "timeout": TimeoutError,
    "unavailable": ConnectionError,
    "unsupported": NotImplementedError,
    "corruption": millrace.CorruptionError,
    "cancelled": millrace.Cancelled,
}


class JobFailed(RuntimeError):
    """Raised when a job did not end COMPLETED. `status` is the result of `Job.status()`."""

    def __init__(self, message: str, status: dict[str, Any]):
        super().__init__(message)
        self.status = status


def _program() -> str:
    beside = Path(sysconfig.get_path("scripts")) / "millrace"
    found = str(beside) if beside.exists() else shutil.which("millrace")
    if not found:
        raise FileNotFoundError("the program `millrace` is neither beside this Python nor on PATH; install millrace-io")
    return found


def _raise(objects: list[dict[str, Any]], stderr: str) -> None:
    errors = [each for each in objects if each["type"] == "error"]
    if not errors:
        raise ValueError(stderr.strip())
    raise _EXCEPTIONS.get(errors[-1]["code"], OSError)(errors[-1]["message"])


def _call(*words: str, may_fail: bool = False) -> list[dict[str, Any]]:
    done = subprocess.run([_program(), "job", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode and not may_fail:
        _raise(objects, done.stderr)
    return objects


@dataclass(frozen=True)
class Job:
    """A job, given by its number ("12"), an element of an array ("12_3") or the name of a run."""

    job_id: str

    def status(self) -> dict[str, Any]:
        """Returns the output of `millrace job show --json`: state, nodes, times, and the ledger's record."""
        return _call("show", "--json", self.job_id)[0]

    def wait(self) -> dict[str, Any]:
        """Waits until the job ends and returns its state, as printed by `millrace job wait --json`. Raises JobFailed if
        the job did not end COMPLETED. Ctrl-C does not affect the job."""
        objects = _call("wait", "--json", self.job_id, may_fail=True)
        ended = [each for each in objects if each["type"] == "job"]
        if not ended:
            _raise(objects, "")
        if ended[-1]["state"] != "COMPLETED":
            raise JobFailed(f"job {self.job_id} ended {ended[-1]['state']} (exit {ended[-1]['exit']})", ended[-1])
        return ended[-1]

    def logs(self) -> list[str]:
        """Returns the lines that are in the job's log files now."""
        return [each["line"] for each in _call("logs", "--json", self.job_id)]

    def follow(self) -> Iterator[str]:
        """Yields each line as it is written, of all ranks and elements, until the job ends."""
        command = [_program(), "job", "logs", "--json", "--follow", self.job_id]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL) as process:
            assert process.stdout
            try:
                for line in process.stdout:
                    each = json.loads(line)
                    if each["type"] == "error":
                        _raise([each], "")
                    yield each["line"]
            finally:
                process.terminate()

    def why(self) -> list[dict[str, Any]]:
        """Returns why the job waits or how it ended: one dict for each reason among its elements, with meaning,
        evidence and fix."""
        return _call("why", "--json", self.job_id)

    def cancel(self) -> None:
        _call("cancel", "--json", self.job_id)

    def requeue(self) -> None:
        """Runs the job again under the same number."""
        _call("requeue", "--json", self.job_id)


def submit(
    script: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    sbatch: Sequence[str] = (),
    after: Sequence[str] = (),
    check: bool = True,
) -> Job:
    """Submits a batch script and records it in the ledger.

    arguments: arguments of the script.
    sbatch: options for sbatch, such as "--time=60".
    after: conditions such as "ok:1234".
    check: True: first checks what would go wrong, and raises ValueError instead of submitting a job that would fail.
    """
    options = [f"--sbatch={option}" for option in sbatch] + [f"--after={condition}" for condition in after]
    options += [] if check else ["--no-check"]
    made = _call("submit", "--json", *options, os.fspath(script), "--", *map(str, arguments))
    return Job(made[0]["job_id"])


def check(
    script: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    sbatch: Sequence[str] = (),
    deep: bool = False,
    probe: bool = False,
) -> list[dict[str, Any]]:
    """Checks what would go wrong with a batch script. Returns the objects that `millrace job check --json` prints, of
    type "lint" (a finding) and "job_check" (an answer).

    deep: True: reads all of the data.
    probe: True: checks paths on one node of the partition.
    """
    options = [f"--sbatch={option}" for option in sbatch] + ["--deep"] * deep + ["--probe"] * probe
    found = _call("check", "--json", "--fail-on=never", *options, os.fspath(script), "--", *map(str, arguments))
    return [each for each in found if each["type"] != "lint_summary"]


def ls(*, days: int = 7, all_users: bool = False) -> list[dict[str, Any]]:
    """Returns your jobs in the queue and the runs that ended within `days`, as printed by `millrace job ls --json`."""
    return _call("ls", "--json", "--days", str(days), *(["--all-users"] if all_users else []))
