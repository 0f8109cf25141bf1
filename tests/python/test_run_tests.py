# SPDX-License-Identifier: Apache-2.0
"""tools/run_tests.py: which failures a run forgives, on suites made for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
# Fails the first time, and passes if it is given the seed that it printed then.
ONCE = """
import os, pathlib
def test_once():
    print("MILLRACE_TEST_SEED=4711")
    ran = pathlib.Path("ran")
    if not ran.exists():
        ran.touch()
        assert False, "{said}"
    assert os.environ["MILLRACE_TEST_SEED"] == "4711"
    with open("alone", "a") as file:
        file.write("x")
"""


class Run:
    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "tools").mkdir()
        (folder / "tests").mkdir()
        for name in ("run_tests.py", "check_skips.py"):
            shutil.copy(TOOLS / name, folder / "tools")
        (folder / "tests/skips.toml").write_text('[[skip]]\nreason = "listed"\nwhy = "a test"\n')
        (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\ntimeout = 3\n")
        self("begin")

    def __call__(self, *words: str, status: int = 0) -> str:
        command = [sys.executable, "tools/run_tests.py", *words]
        # Not in the run that this test belongs to, whose folder pytest would empty.
        env = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_TEST_")}
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=100)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stderr

    def python(self, code: str) -> None:
        """Only the verdict fails: a stage of ./dev that failed would count whatever is forgiven."""
        (self.folder / "tests/test_it.py").write_text(code)
        self("pytest", "python", "-q", "tests")

    def cpp(self, script: str) -> None:
        """A test that runs this script of the shell."""
        (self.folder / "build/cpp").mkdir(parents=True)
        (self.folder / "build/cpp/CTestTestfile.cmake").write_text(
            f'add_test([=[room.Test.Name/0]=] "sh" "-c" [=[{script}]=])\n'
            "set_tests_properties([=[room.Test.Name/0]=] PROPERTIES TIMEOUT 3)\n"
        )
        self("ctest", "dev", "build/cpp")

    @property
    def flaky(self) -> str:
        return (self.folder / "build/flaky.txt").read_text()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_failure_that_passes_alone_three_times_is_forgiven_and_listed(run: Run):
    run.python(ONCE.format(said="too slow"))
    said = run("verdict")
    assert "failed once, passed alone" in said and "tests/test_it.py::test_once" in said
    assert "MILLRACE_TEST_SEED=4711" in run.flaky and "-m pytest tests/test_it.py::test_once" in run.flaky
    assert (run.folder / "alone").read_text() == "xxx"


def test_a_failure_that_stays_fails_the_run_and_names_its_command(run: Run):
    run.python("class TestX:\n    def test_never(self):\n        assert 1 == 2\n")
    said = run("verdict", status=1)
    assert "failed alone, too" in said and "-m pytest tests/test_it.py::TestX::test_never" in said
    assert run.flaky == ""


@pytest.mark.parametrize(
    "said", ["WARNING: ThreadSanitizer: data race", "millrace.CorruptionError: block 3", "died with SIGSEGV"]
)
def test_some_failures_are_never_forgiven(run: Run, said: str):
    run.python(ONCE.format(said=said))
    run("verdict", status=1)
    assert not (run.folder / "alone").exists() and run.flaky == ""


def test_a_test_that_hangs_is_named_and_not_forgiven(run: Run):
    run.python("import time\ndef test_hangs():\n    time.sleep(60)\n")
    said = run("verdict", status=1)
    assert "tests/test_it.py::test_hangs" in said and "a time-out" in said


def test_more_than_five_failures_are_not_run_again(run: Run):
    run.python("import pytest\n@pytest.mark.parametrize('i', range(6))\ndef test_many(i):\n    assert i < 0\n")
    said = run("verdict", status=1)
    assert said.count("one of 6") == 6 and "alone:" not in said.split("FAILED")[0]


def test_a_skip_that_is_not_listed_fails_the_run(run: Run):
    skips = "import pytest\ndef test_passes(): pass\ndef test_skips():\n    pytest.skip('{}')\n"
    run.python(skips.format("listed"))
    run("verdict")
    run.python(skips.format("of my own"))
    assert "tests/skips.toml does not list" in run("verdict", status=1)


def test_a_suite_that_cannot_be_collected_fails_the_run(run: Run):
    run.python("import nothing_of_this_name\n")
    assert "test_it.py" in run("verdict", status=1)


def test_cpp_tests_are_run_alone_by_their_exact_name(run: Run):
    run.cpp("echo MILLRACE_TEST_SEED=12; test -e ran && exit 0; touch ran; exit 1")
    said = run("verdict")
    assert "room.Test.Name/0" in run.flaky and "MILLRACE_TEST_SEED=12" in run.flaky and "run 3 of 3" in said


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("test -e ran && exit 0; touch ran; kill -SEGV $$", "a crash"),
        ("test -e ran && exit 0; touch ran; exec sleep 60", "a time-out"),
        ("test -e ran && exit 0; touch ran; echo '==1==ERROR: AddressSanitizer: x'; exit 1", "a sanitizer's report"),
    ],
)
def test_cpp_crashes_and_hangs_are_not_forgiven(run: Run, script: str, why: str):
    run.cpp(script)
    assert why in run("verdict", status=1)


def test_nothing_failed(run: Run):
    run.python("def test_passes(): pass\n")
    run.cpp("exit 0")
    assert "FAILED" not in run("verdict") and run.flaky == ""


def test_a_suite_that_could_not_begin_fails_the_run(run: Run):
    run("pytest", "python", "--no-such-option")
    assert "no test failed" in run("verdict", status=1)


def test_a_stage_of_dev_with_a_forgiven_failure_passes(run: Run):
    """`stage` and `verdict` as ./dev has them, around a suite with one failure that is forgiven and one that is not."""
    dev = (TOOLS.parent / "dev").read_text()
    parts = [re.search(rf"^{name}\(\) {{\n.*?^}}\n", dev, re.MULTILINE | re.DOTALL)[0] for name in ("stage", "verdict")]
    script = (
        "set -euo pipefail\nsay() { :; }\nstep() { :; }\nFAILED_STAGES=()\n" + "".join(parts) + f"PY={sys.executable}\n"
    )
    suite = 'stage tests $PY tools/run_tests.py pytest python -q tests\nstage "$1" "$1"\nverdict\n'
    (run.folder / "run.sh").write_text(script + suite)
    (run.folder / "tests/test_it.py").write_text(ONCE.format(said="too slow"))

    def status(other: str) -> tuple[int, str]:
        (run.folder / "ran").unlink(missing_ok=True)
        env = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_TEST_")}
        done = subprocess.run(
            ["bash", "run.sh", other], cwd=run.folder, env=env, capture_output=True, text=True, timeout=100
        )
        return done.returncode, done.stderr

    assert status("true")[0] == 0 and "test_once" in run.flaky
    code, said = status("false")
    assert code == 1 and "FAILED stage: false" in said
