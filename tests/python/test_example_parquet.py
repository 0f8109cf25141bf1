# SPDX-License-Identifier: Apache-2.0
"""examples/pretrain_parquet.py: it learns, a run in two parts is the run in one, and ranks evaluate each token once."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("pyarrow")

EXAMPLE = Path(__file__).parents[2] / "examples" / "pretrain_parquet.py"


def write_tables(dataset, folder: Path) -> tuple[str, Path]:
    import pyarrow
    import pyarrow.parquet

    text = "".join(path.read_text() for path in sorted(dataset.raw.iterdir()))
    paragraphs = [paragraph for paragraph in text.split("\n\n") if paragraph.strip()][:400]
    for name, part in (("a", paragraphs[:150]), ("b", paragraphs[150:340]), ("valid", paragraphs[340:])):
        table = pyarrow.table({"number": list(range(len(part))), "body": part})
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=64)
    return f"{folder}/[ab].parquet", folder / "valid.parquet"


def run(dataset, tables: tuple[str, Path], out: Path, *more: object, ranks: int = 1) -> list[str]:
    launch = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    sizes = ["--seq-len", "64", "--batch-size", "8", "--save-every", "10"]
    command = [sys.executable, *launch, EXAMPLE, "--train", tables[0], "--valid", tables[1], "--column", "body"]
    command += ["--tokenizer", dataset.tokenizer, "--out", out, *sizes, *more]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("step")]


def test_it_learns_resumes_and_evaluates(dataset, tmp_path):
    tables = write_tables(dataset, tmp_path)
    whole = run(dataset, tables, tmp_path / "whole", "--steps", 20)
    first, last = (float(line.split()[-1]) for line in whole)
    assert last < first < 12
    parts = run(dataset, tables, tmp_path / "parts", "--steps", 10)
    parts += run(dataset, tables, tmp_path / "parts", "--steps", 20)
    assert parts == whole
    (alone,) = run(dataset, tables, tmp_path / "whole", "--evaluate")
    (shared,) = run(dataset, tables, tmp_path / "whole", "--evaluate", ranks=2)
    assert alone.split()[:2] == ["step", "20"]
    assert float(alone.split()[3]) == pytest.approx(last, abs=2e-4)
    assert alone.split()[-1] == shared.split()[-1]  # tokens: none twice, none left out
    assert float(shared.split()[3]) == pytest.approx(last, abs=2e-4)


def test_evaluation_without_a_checkpoint_says_so(dataset, tmp_path):
    tables = write_tables(dataset, tmp_path)
    with pytest.raises(AssertionError, match="no checkpoint; train first"):
        run(dataset, tables, tmp_path / "none", "--evaluate")
