# SPDX-License-Identifier: Apache-2.0
"""layout apply, show and clean."""

import os
from pathlib import Path

from conftest import Millrace


def declare(root: Path) -> Path:
    file = root / "layout.yaml"
    (root / "fsx").mkdir()
    file.write_text(f"""\
mode: "0770"
models: 7
mounts: [{{path: {root}/fsx, mountpoint: false}}]
classes: {{scratch: {{max_age: 2m}}}}
directories:
  - {{path: {root}/fsx/datasets}}
  - {{path: "{root}/fsx/{{model}}/{{checkpoints,outputs}}"}}
  - {{path: {root}/fsx/tmp, class: scratch}}
""")
    return file


def test_apply_rests_once_all_is_there(millrace: Millrace, tmp_path: Path):
    file = declare(tmp_path)
    assert millrace("layout", "show", file, "--json", status=3).object("layout_summary")["different"] == 16
    millrace("layout", "apply", file, "--dry-run", status=3)
    assert not (tmp_path / "fsx/datasets").exists()
    assert millrace("layout", "apply", file, "--json").object("layout_summary")["created"] == 16
    assert "as declared" in millrace("layout", "show", file).out
    again = millrace("layout", "apply", file, "--json").object("layout_summary")
    assert (again["created"], again["mended"], again["different"]) == (0, 0, 0)
    os.chmod(tmp_path / "fsx/model3", 0o700)  # made on the way, so not declared
    os.chmod(tmp_path / "fsx/model3/outputs", 0o700)
    assert millrace("layout", "apply", file, "--json").object("layout_summary")["mended"] == 1


def test_clean_removes_by_age(millrace: Millrace, tmp_path: Path):
    file = declare(tmp_path)
    millrace("layout", "apply", file)
    (tmp_path / "fsx/tmp/new").write_text("x")
    (tmp_path / "fsx/datasets/old").write_text("x")
    for name in ("tmp/old", "datasets/old"):
        (tmp_path / "fsx" / name).write_text("x")
        # Its change time stays: a file touched now is young, whatever its date.
        os.utime(tmp_path / "fsx" / name, (0, 0))
    assert millrace("layout", "clean", file, "--json").object("clean_summary")["kept"] == 2
    assert (tmp_path / "fsx/tmp/old").exists()


def test_a_declaration_that_is_wrong_names_its_line(millrace: Millrace, tmp_path: Path):
    file = tmp_path / "layout.yaml"
    file.write_text("mounts: [{path: /}]\n")
    assert "layout.yaml:1:17" in millrace.fails("layout", "apply", file)
    file.write_text(f"mounts: [{{path: {tmp_path}, wait: 0}}]\ndirectories: [{{path: {tmp_path}/a}}]\n")
    assert "is not mounted after 0 s" in millrace.fails("layout", "apply", file)
    assert "no class of the declaration has a max_age" in millrace.fails("layout", "clean", file)
