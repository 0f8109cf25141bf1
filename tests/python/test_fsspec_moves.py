# SPDX-License-Identifier: Apache-2.0
"""`mv` through fsspec loses nothing, whatever its two names are. fsspec's own file system `file` says what is right."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("millrace.fsspec")  # registers the protocol

TREE = ["d/a", "d/b", "d/sub/a", "d/sub/deep/c", "e/a", "f", "dd/a"]
NAMES = [
    "d",
    "d/sub",
    "d/sub/deep",
    "d/new",
    "d/sub/new",
    "d/d",
    "e",
    "e/new",
    "new",
    "new/er",
    "dd",
    "f",
    "d/a",
    "e/a",
]
# Onto or into itself.
SELVES = [
    ("d", "d"),
    ("d", "d/"),
    ("d", "./d"),
    ("./d", "d/"),
    ("d/", "d"),
    ("d", "d/new"),
    ("d", "d/sub"),
    ("d", "d/sub/new"),
    ("d/sub", "d"),
    ("d", "d/sub/../new"),
    ("d", "e/../d"),
    ("f", "./f"),
]
Tree = dict[str, bytes]


def make_tree(put: Callable[[str, bytes], None]) -> Tree:
    tree = {path: f"the content of {path}".encode() for path in TREE}
    for path, content in tree.items():
        put(path, content)
    return tree


def on_disk(folder: Path) -> Tree:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make_disk(folder: Path) -> Tree:
    def put(path: str, content: bytes) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)

    shutil.rmtree(folder, ignore_errors=True)
    return make_tree(put)


def of_file_system(folder: Path, source: str, target: str) -> tuple[Tree, Tree, bool]:
    """The tree before and after a move by fsspec's `file`, and whether it raised."""
    before = make_disk(folder)
    raised = False
    with contextlib.chdir(folder):
        try:
            fsspec.filesystem("file").mv(source, target, recursive=True)
        except (OSError, ValueError):
            raised = True
    return before, on_disk(folder), raised


def check(source: str, target: str, ours: Tree, raised: bool, oracle: tuple[Tree, Tree, bool]) -> None:
    before, right, was_refused = oracle
    for path, content in before.items():
        if content not in ours.values():
            assert ours.get(path) in before.values(), f"{source} to {target}: {path} is lost"  # else replaced by a move
    if right == before:
        # `file` refuses to move a folder to where one of that name is; as `copy` does, ours puts both together.
        is_self = os.path.normpath(target + "/x").startswith(os.path.normpath(source) + "/")
        if is_self or not was_refused:
            assert ours == before, f"{source} to {target}: `file` changes nothing"
        return
    # By fsspec's rules for `copy`, 'd/' is what is in d, and a target 'new/' is made and gets the folder by its name.
    # `file` does not see the '/'.
    is_new = target.endswith("/") and not any(path.startswith(os.path.normpath(target) + "/") for path in before)
    if not source.endswith("/") and not is_new and not raised:
        assert ours == right, f"{source} to {target}"


def pairs(rounds: int) -> list[tuple[str, str]]:
    seed = int(os.environ.get("MILLRACE_TEST_SEED", random.randrange(1 << 31)))
    print(f"MILLRACE_TEST_SEED={seed}")
    chosen = random.Random(seed)
    forms = ["{}", "{}", "{}/", "./{}", "d/../{}"]
    return [tuple(chosen.choice(forms).format(chosen.choice(NAMES)) for _ in range(2)) for _ in range(rounds)]


@pytest.mark.parametrize("verb", ["mv", "move", "rename"])
def test_moves_of_files(tmp_path: Path, verb: str) -> None:
    fs = fsspec.filesystem("millrace")
    for source, target in SELVES + pairs(60):
        oracle = of_file_system(tmp_path / "right", source, target)
        make_disk(tmp_path / "ours")
        raised = False
        with contextlib.chdir(tmp_path / "ours"):
            try:
                getattr(fs, verb)(source, target, recursive=True)
            except (OSError, ValueError):
                raised = True
        check(source, target, on_disk(tmp_path / "ours"), raised, oracle)


@pytest.fixture
def in_bucket(s3, bucket, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    return f"s3://{bucket}"


def test_moves_in_s3(tmp_path: Path, s3, in_bucket: str) -> None:
    fs = fsspec.filesystem("millrace")
    bucket = in_bucket.removeprefix("s3://")

    def in_s3(folder: str) -> Tree:
        told = s3.client.list_objects_v2(Bucket=bucket, Prefix=folder + "/")
        keys = [each["Key"] for each in told.get("Contents", [])]
        return {
            key.removeprefix(folder + "/"): s3.client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys
        }

    names = [pair for pair in SELVES + pairs(40) if "./" not in "".join(pair)]  # other keys, in S3
    for source, target in names:
        oracle = of_file_system(tmp_path / "right", source, target)
        folder = uuid.uuid4().hex
        root = f"{in_bucket}/{folder}"
        make_tree(lambda path, content, root=root: fs.pipe_file(f"{root}/{path}", content))
        raised = False
        try:
            fs.mv(f"{root}/{source}", f"{root}/{target}", recursive=True)
        except (OSError, ValueError):
            raised = True
        check(source, target, in_s3(folder), raised, oracle)


def test_names_that_lead_to_one_place(tmp_path: Path) -> None:
    fs = fsspec.filesystem("millrace")
    before = make_disk(tmp_path / "tree")
    (tmp_path / "way").symlink_to(tmp_path / "tree")
    for source, target in [("tree/d", "way/d/"), ("way/d", "tree/d/new"), ("tree/d", "way/d/sub")]:
        with pytest.raises(ValueError, match="inside"):
            fs.mv(f"{tmp_path}/{source}", f"{tmp_path}/{target}", recursive=True)
    fs.mv(f"{tmp_path}/tree/f", f"file://{tmp_path}/way/f")
    assert on_disk(tmp_path / "tree") == before


def test_lists_and_patterns(tmp_path: Path) -> None:
    fs = fsspec.filesystem("millrace")
    with contextlib.chdir(tmp_path):
        before = make_disk(tmp_path / "t")
        for sources, targets in [
            (["t/d/a", "t/e/a"], "t/new"),  # two of one name
            (["t/d/a", "t/f"], ["t/f", "t/g"]),  # the second would be replaced before it moves
            (["t/d"], ["t/g"]),  # a folder without recursive
            ("t/d", "t/g"),
            ("t/*", "t/d/sub"),
        ]:
            with pytest.raises(ValueError, match=r"both move|would replace|is a folder|inside"):
                fs.mv(sources, targets, recursive=sources == "t/*")
            assert on_disk(tmp_path / "t") == before
        with pytest.raises(NotImplementedError):
            fs.mv("t/d", "t/g", recursive=True, maxdepth=1)
        assert on_disk(tmp_path / "t") == before
        fs.mv(["t/d", "t/f"], ["t/g", "t/h"], recursive=True)
        fs.mv("t/g/*", "t/i", recursive=True)
    after = {path.replace("d/", "i/", 1) if path.startswith("d/") else "h" if path == "f" else path for path in before}
    assert set(on_disk(tmp_path / "t")) == after


def test_links_and_what_is_new_stay(tmp_path: Path) -> None:
    fs = fsspec.filesystem("millrace")
    make_disk(tmp_path)
    (tmp_path / "d" / "sub" / "link").symlink_to("../a")
    (tmp_path / "d" / "tree").symlink_to(tmp_path / "e")
    (tmp_path / "d" / "empty").mkdir()
    fs.mv(f"{tmp_path}/d", f"{tmp_path}/new", recursive=True)
    assert not (tmp_path / "d").exists()
    assert os.readlink(tmp_path / "new" / "sub" / "link") == "../a"
    assert os.readlink(tmp_path / "new" / "tree") == str(tmp_path / "e")
    assert (tmp_path / "new" / "empty").is_dir()
    assert (tmp_path / "e" / "a").read_bytes() == b"the content of e/a"
    os.mkfifo(tmp_path / "new" / "pipe")
    with pytest.raises(OSError, match="this stays"):
        fs.mv(f"{tmp_path}/new", f"{tmp_path}/newer", recursive=True)
    assert (tmp_path / "new" / "pipe").is_fifo()
    assert (tmp_path / "newer" / "sub" / "deep" / "c").read_bytes() == b"the content of d/sub/deep/c"
