# SPDX-License-Identifier: Apache-2.0
"""A small real dataset for all Python tests: two of the novels, tokenised into four shards."""

import atexit
import os
import pathlib
import shutil
import sys
import tempfile

import pytest

import millrace as mr

# Indexes of tars without one stay with the tests.
INDEXES = tempfile.mkdtemp(prefix="millrace-test-indexes-")
os.environ["MILLRACE_INDEX_FOLDER"] = INDEXES
atexit.register(shutil.rmtree, INDEXES, ignore_errors=True)

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))


class Dataset:
    """raw/ (text), tokenizer.json, shards/ (four shards, one a task, npy ids)."""

    TASKS = 4

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.raw = folder / "raw"
        self.tokenizer = folder / "tokenizer.json"
        self.shards = folder / "shards"

    @property
    def tars(self) -> list[str]:
        return [str(self.shards / f"{task:05d}.tar") for task in range(self.TASKS)]


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> Dataset:
    from demo import train_tokenizer

    made = Dataset(tmp_path_factory.mktemp("dataset"))
    novels = [str(ROOT / f"examples/data/austen/{name}.txt") for name in ("persuasion", "northanger-abbey")]
    mr.split(novels, out=str(made.raw), parts=made.TASKS, documents="paragraph")
    raw = sorted(made.raw.iterdir())
    train_tokenizer(raw, made.tokenizer)
    for task in range(made.TASKS):
        mr.prepare(
            [str(path) for path in raw],
            tokenizer=str(made.tokenizer),
            out=str(made.shards),
            task=(task, made.TASKS),
            documents="paragraph",
        )
    mr.finish(str(made.shards))
    return made
