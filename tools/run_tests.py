# SPDX-License-Identifier: Apache-2.0
"""Runs suites of tests and says once, at the end, what failed and how each failure is run alone.

    run_tests.py begin                            forget the results of an earlier run
    run_tests.py ctest NAME FOLDER [ARGUMENT...]  the C++ tests of a build, as suite NAME
    run_tests.py pytest NAME [ARGUMENT...]        Python tests, as suite NAME
    run_tests.py verdict                          run failed tests alone, print the tables, exit with 1 if the run failed

A suite keeps its JUnit file, its command and its environment in build/results. Its exit status is 0 once these are
there, whatever failed: only `verdict` judges. `verdict` runs each test that failed
three times more, alone and with the seed of its first run. A test that passes each time is forgiven and listed in
build/flaky.txt, to be mended next. Never forgiven: a report of a sanitizer, a crash, a time-out, wrong data, and more
than five failed tests. Which tests skipped is held against tests/skips.toml as each suite ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import check_skips

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "build/results"
FLAKY = ROOT / "build/flaky.txt"
MOST_FORGIVEN = 5
RUNS_ALONE = 3
# What a suite has of its own beside the environment of `verdict`, which knows the servers.
ENVIRONMENT = re.compile(r"MILLRACE_|[A-Z]SAN_OPTIONS$|PYTHONPATH$")

# What a failure says, and why no second run can make up for it. The first that fits is named.
UNFORGIVABLE = {
    "a sanitizer's report": re.compile(r"(Address|Thread|Leak|UndefinedBehavior)Sanitizer|: runtime error: "),
    "a crash": re.compile(
        r"SEGFAULT|Subprocess aborted|Child aborted|Bus error|ILLEGAL|terminate called|Fatal Python error"
        r"|worker '\w+' crashed|core dumped|SIG(SEGV|ABRT|BUS|ILL|FPE)\b|returned? ?(code|status)? ?-(6|7|8|11)\b"
    ),
    "a time-out": re.compile(r"^Timeout\b|Timeout \(>[\d.]+s\)", re.MULTILINE),
    "wrong data": re.compile(
        r"CorruptionError|\bcorruption:|Arrays are not|Tensor-likes are not|differ(s|ent)? (data|bytes|ids|content)|a mixture"
        r"|^E +(assert|At index \d+ diff:) \(?b['\"]",
        re.MULTILINE,
    ),
}


@dataclasses.dataclass
class Failure:
    suite: str
    test: str  # the name in CTest, or pytest's node id
    said: str
    command: list[str]  # runs it alone

    @property
    def seed(self) -> str | None:
        found = re.findall(r"MILLRACE_TEST_SEED=(\d+)", self.said)
        return found[-1] if found else None

    @property
    def unforgivable(self) -> str | None:
        return next((why for why, pattern in UNFORGIVABLE.items() if pattern.search(self.said)), None)

    def shown_command(self, environment: dict[str, str]) -> str:
        """The command for a person, with what it needs of the environment; a server's keys are left to `./dev`."""
        needed = {k: v for k, v in environment.items() if k.endswith("SAN_OPTIONS") or k == "MILLRACE_BIN"}
        if self.seed:
            needed["MILLRACE_TEST_SEED"] = self.seed
        return " ".join([f"{k}={shlex.quote(v)}" for k, v in needed.items()] + [shlex.join(self.command)])


def run_suite(name: str, kind: str, command: list[str]) -> int:
    RESULTS.mkdir(parents=True, exist_ok=True)
    junit = RESULTS / f"{name}.xml"
    junit.unlink(missing_ok=True)
    environment = {k: v for k, v in os.environ.items() if ENVIRONMENT.match(k)}
    status = subprocess.run(command, cwd=ROOT).returncode
    record = {"kind": kind, "command": command, "status": status, "environment": environment}
    path = RESULTS / f"{name}.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(record, indent=1))
    if junit.exists() and check_skips.check([str(junit)]):
        (RESULTS / f"{name}.skips").touch()
    return 0


def run_ctest(name: str, folder: str, arguments: list[str]) -> int:
    ctest = shutil.which("ctest", path=Path(sys.executable).parent) or "ctest"
    jobs = str((os.cpu_count() or 1) + 1)
    command = [ctest, "--test-dir", folder, "--output-on-failure", "-j", jobs, "--progress"]
    return run_suite(name, "ctest", [*command, "--output-junit", str(RESULTS / f"{name}.xml"), *arguments])


def own_folder(name: str) -> list[str]:
    """Where pytest's temporary files go in a run of ./dev: its own folder has a longer path than sockets may have."""
    run = os.environ.get("MILLRACE_TEST_RUN")
    return [f"--basetemp={run}/{name}"] if run else []


def run_pytest(name: str, arguments: list[str]) -> int:
    junit = [f"--junitxml={RESULTS / name}.xml", "-o", "junit_family=xunit1"]
    junit += ["-o", "junit_logging=all", "-o", "junit_log_passing_tests=false"]
    return run_suite(name, "pytest", [sys.executable, "-m", "pytest", *own_folder("p"), *junit, *arguments])


def node_id(case: ElementTree.Element) -> str:
    """pytest's name of a test, from the file, classes and name that JUnit keeps apart."""
    file = case.get("file", "")
    module = file.removesuffix(".py").replace("/", ".")
    classes = case.get("classname", "").removeprefix(module).strip(".")
    return "::".join([file, *(classes.split(".") if classes else []), case.get("name", "")])


def failures(name: str) -> list[Failure]:
    record = json.loads((RESULTS / f"{name}.json").read_text())
    junit = RESULTS / f"{name}.xml"
    found: dict[str, Failure] = {}
    for case in ElementTree.parse(junit).iter("testcase") if junit.exists() else []:
        problems = [*case.findall("failure"), *case.findall("error")]
        if not problems:
            continue
        texts = [text for each in problems for text in (each.get("message"), each.text)]
        said = "\n".join(filter(None, [*texts, case.findtext("system-out"), case.findtext("system-err")]))
        if record["kind"] == "ctest":
            test = case.get("name", "")
            folder = record["command"][record["command"].index("--test-dir") + 1]
            exact = "^" + re.sub(r"([.^$*+?()\[\]|\\])", r"\\\1", test) + "$"
            command = [record["command"][0], "--test-dir", folder, "--output-on-failure", "-R", exact]
        else:
            test = node_id(case)
            command = [record["command"][0], "-m", "pytest", test]
        # A test that fails and whose clean-up fails too is there twice.
        found.setdefault(test, Failure(name, test, "", command)).said += said + "\n"
    return list(found.values())


def passes_alone(failure: Failure, environment: dict[str, str]) -> bool:
    """Whether a test passes each time when nothing runs beside it."""
    given = os.environ | environment
    if failure.seed:
        given["MILLRACE_TEST_SEED"] = failure.seed
    for number in range(1, RUNS_ALONE + 1):
        print(f"run {number} of {RUNS_ALONE}, alone: {failure.test}", file=sys.stderr, flush=True)
        log = RESULTS / f"alone-{failure.suite}.log"
        command = failure.command + (own_folder("a") if "pytest" in failure.command else [])
        with log.open("ab") as out:
            try:
                # Its own limit ends a test that hangs; this one ends what escapes that.
                status = subprocess.run(command, cwd=ROOT, env=given, stdout=out, stderr=out, timeout=900)
            except subprocess.TimeoutExpired:
                return False
        if status.returncode != 0:
            sys.stderr.write("".join(log.read_text(errors="replace").splitlines(keepends=True)[-60:]))
            return False
    return True


def table(title: str, rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = [
        "  " + "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
    return "\n".join([title, *lines]) + "\n"


def verdict() -> int:
    names = sorted(path.stem for path in RESULTS.glob("*.json"))
    records = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in names}
    failed = [failure for name in names for failure in failures(name)]
    fatal = [
        (name, "skipped tests that tests/skips.toml does not list")
        for name in names
        if (RESULTS / f"{name}.skips").exists()
    ]
    # A suite that failed without a failed test: it could not be collected, was interrupted, or nothing ran.
    fatal += [
        (name, f"exit status {record['status']}, and no test failed")
        for name, record in records.items()
        if record["status"] != 0 and not any(failure.suite == name for failure in failed)
    ]
    many = len(failed) > MOST_FORGIVEN
    forgiven: list[Failure] = []
    lost: list[tuple[Failure, str]] = []
    for failure in failed:
        if why := failure.unforgivable:
            lost.append((failure, why))
        elif many or fatal:
            lost.append(
                (
                    failure,
                    "not run again" if fatal else f"one of {len(failed)}, and {MOST_FORGIVEN} are forgiven at most",
                )
            )
        elif passes_alone(failure, records[failure.suite]["environment"]):
            forgiven.append(failure)
        else:
            lost.append((failure, "failed alone, too"))

    def row(failure: Failure, *cells: str) -> tuple[str, ...]:
        return (failure.suite, failure.test, *cells, failure.shown_command(records[failure.suite]["environment"]))

    FLAKY.parent.mkdir(exist_ok=True)
    FLAKY.write_text("")
    if forgiven:
        text = table("failed once, passed alone (to be mended next):", [row(each) for each in forgiven])
        FLAKY.write_text(text)
        sys.stderr.write(text)
    if lost:
        sys.stderr.write(
            table("FAILED tests, why they count, and how each is run alone:", [row(each, why) for each, why in lost])
        )
    if fatal:
        sys.stderr.write(table("FAILED suites:", fatal))
    return 1 if lost or fatal else 0


def main() -> int:
    match sys.argv[1:]:
        case ["begin"]:
            shutil.rmtree(RESULTS, ignore_errors=True)
            return 0
        case ["ctest", name, folder, *arguments]:
            return run_ctest(name, folder, arguments)
        case ["pytest", name, *arguments]:
            return run_pytest(name, arguments)
        case ["verdict"]:
            return verdict()
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
