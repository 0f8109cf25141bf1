# SPDX-License-Identifier: Apache-2.0
"""benchmarks/compare.py, which says whether one build is slower than another."""

import json
import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "compare.py"


def compare(*args: object, status: int = 0) -> dict[str, list[str]]:
    """The cells of each row by its first word."""
    ran = subprocess.run([sys.executable, SCRIPT, *map(str, args)], capture_output=True, text=True)
    assert ran.returncode == status, ran
    rows = [line.split() for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
    return {row[0]: row[1:] for row in rows}


def results(path: pathlib.Path, *rows: object) -> pathlib.Path:
    path.write_text("\n".join(["a heading", *map(json.dumps, rows)]))
    return path


def test_files_are_compared_by_medians(tmp_path: pathlib.Path):
    old = results(tmp_path / "old", {"tool": "mr", "mb_s": [1, 2, 9], "ok": True}, {"tool": "hf", "mb_s": 4})
    new = results(tmp_path / "new", {"tool": "mr", "mb_s": [10, 20, 90], "ok": True}, {"tool": "hf", "mb_s": 2, "x": 1})
    rows = compare(old, new)
    assert rows["mr.mb_s"] == ["2", "20", "10.000", "*"]
    assert rows["hf.mb_s"] == ["4", "2", "0.500"]
    assert rows["only"][-1] == "hf.x"
    assert "common" in " ".join(compare(old, results(tmp_path / "other", {"y": 1}), status=1)["the"])


def test_checkouts_run_by_turns(tmp_path: pathlib.Path):
    log = tmp_path / "log"
    for side, number in (("old", 2), ("new", 3)):
        (tmp_path / side / ".venv" / "bin").mkdir(parents=True)
        (tmp_path / side / ".venv" / "bin" / "python").symlink_to(sys.executable)
        (tmp_path / side / "bench.py").write_text(
            f"open({str(log)!r}, 'a').write('{side} ')\nprint('noise')\nprint('{{\"seconds\": {number}}}')\n"
        )
    rows = compare(tmp_path / "old", tmp_path / "new", "--runs", 2, "--", "bench.py")
    assert rows["seconds"] == ["2", "3", "1.500", "*"]
    assert log.read_text().split() == ["old", "new", "old", "new"]
    assert "wall_s" in compare(tmp_path / "old", tmp_path / "new", "--runs", 1, "--", "true")
    assert "compare.py:" in compare(tmp_path / "old", tmp_path / "new", status=2)
