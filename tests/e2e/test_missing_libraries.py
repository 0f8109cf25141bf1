# SPDX-License-Identifier: Apache-2.0
"""Libraries that are opened when they are first needed: without them everything else works, and the error says what to
install. The wheel holds them (./dev check wheel)."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Millrace

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ODD = "(?<=qr)[b-d]{1,3}|x+y"  # no scanner knows it


def without(library: str, command: list[object], folder: Path) -> subprocess.CompletedProcess:
    """Runs it where an empty file lies over every copy of the library."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    copies = {line.split("=> ")[1] for line in known.splitlines() if line.strip().startswith(library)}
    mounts = "".join(f"mount --bind /dev/null $(realpath '{copy}')\n" for copy in copies)
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0:
        pytest.skip("no mounts of one's own here")
    script = f'set -e\n{mounts}exec "$@"'
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *map(str, command)], cwd=folder, capture_output=True, text=True
    )


def test_without_oniguruma(millrace: Millrace, tokenizer: Path, tmp_path: Path) -> None:
    whole = json.loads(tokenizer.read_text())
    whole["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": ODD}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    (tmp_path / "odd.json").write_text(json.dumps(whole))
    (tmp_path / "a.txt").write_text("a\n")
    command = [millrace.binary, "prepare", "a.txt", "--out", "shards", "--tokenizer"]
    ran = without("libonig.so.5", [*command, "odd.json"], tmp_path)
    assert ran.returncode == 1
    for part in (ODD, "libonig5", "oniguruma", "millrace-io"):
        assert part in ran.stderr, ran
    assert without("libonig.so.5", [*command, tokenizer], tmp_path).returncode == 0


def test_without_libcurl(millrace: Millrace, tmp_path: Path) -> None:
    ran = without("libcurl.so.4", [millrace.binary, "ls", "http://127.0.0.1:1/a"], tmp_path)
    assert ran.returncode == 1
    for part in ("libcurl4", "RHEL", "millrace-io"):
        assert part in ran.stderr, ran
    assert without("libcurl.so.4", [millrace.binary, "ls", "."], tmp_path).returncode == 0


def test_parquet_takes_the_pyarrow_that_is_named(binary: str, tokenizer: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    home = Path(pa.__file__).parent
    bin_folder = tmp_path / "env" / "bin"
    bin_folder.mkdir(parents=True)
    shutil.copy(binary, bin_folder / "millrace")
    adapters = list(Path(binary).parent.glob("libmillrace_parquet_*.so"))
    assert adapters
    for adapter in adapters:  # in a build folder they know where their Arrow was
        unknown = b"/" + b"x" * (len(str(home)) - 1)
        (bin_folder / adapter.name).write_bytes(adapter.read_bytes().replace(str(home).encode(), unknown))
    other = tmp_path / "pyarrow"
    other.mkdir()
    (other / "libarrow.so.1800").touch()

    def prepare(out: str, pyarrow: Path) -> subprocess.CompletedProcess:
        command = [bin_folder / "millrace", "prepare", "a.parquet", "--tokenizer", tokenizer, "--out", out]
        env = os.environ | {"MILLRACE_PYARROW": str(pyarrow)}
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)

    ran = prepare("none", other)
    major, minor = pa.__version__.split(".")[:2]
    assert ran.returncode == 1
    for part in (f"needs pyarrow {major}.{minor}", "pip install 'millrace-io[parquet]'", f"{other} is pyarrow 18.0"):
        assert part in ran.stderr, ran
    ran = prepare("some", home)
    assert ran.returncode == 0, ran
