# SPDX-License-Identifier: Apache-2.0
"""split and prepare: the happy path, bad input, and being stopped or killed."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from conftest import LINES, Millrace, expected_ids, kill, tokenizer_json, visible_files

DOCUMENTS = [line for line in LINES if line] + [f"line {i} of the other file" for i in range(5)]


def samples(millrace: Millrace, shards: Path) -> list[dict]:
    return millrace("shards", "cat", shards, "--json").objects("sample")


def test_split(millrace: Millrace, raw: Path, tmp_path: Path):
    ran = millrace("split", raw, "--out", "parts", "--parts", 3, "--json")
    parts, total = ran.objects("split_part"), ran.object("split")
    assert [part["name"] for part in parts] == [f"part-{i:05}.txt" for i in range(3)]
    assert total["documents"] == sum(part["documents"] for part in parts) == len(DOCUMENTS)
    assert total["bytes"] == sum(part["bytes"] for part in parts)
    joined = b"".join((tmp_path / "parts" / part["name"]).read_bytes() for part in parts)
    assert [line for line in joined.decode().splitlines() if line] == DOCUMENTS
    before = visible_files(tmp_path / "parts")
    assert "3 parts" in millrace("split", raw, "--out", "parts", "--parts", 3).out
    assert visible_files(tmp_path / "parts") == before


def test_dry_runs_write_nothing(millrace: Millrace, raw: Path, tokenizer: Path, tmp_path: Path):
    assert millrace("split", raw, "--out", "parts", "--parts", 3, "--dry-run", "--json").object("split")["dry_run"]
    dry = ("prepare", raw, "--tokenizer", tokenizer, "--out", "shards", "--dry-run")
    assert millrace(*dry, "--json").object("prepare")["dry_run"]
    assert "would read" in millrace(*dry).out
    assert not (tmp_path / "parts").exists() and not (tmp_path / "shards").exists()


def test_prepare(millrace: Millrace, raw: Path, tokenizer: Path, tmp_path: Path):
    ran = millrace("prepare", raw, "--tokenizer", tokenizer, "--out", "shards", "--json")
    report = ran.object("prepare")
    assert report["documents"] == len(DOCUMENTS)
    assert report["tokens"] == sum(len(expected_ids(text)) for text in DOCUMENTS)
    assert report["input_bytes"] == sum(path.stat().st_size for path in raw.iterdir())
    assert ran.object("manifest")["tokens"] == report["tokens"]
    found = samples(millrace, tmp_path / "shards")
    assert [sample["text"] for sample in found] == DOCUMENTS
    assert [sample["ids"] for sample in found] == [expected_ids(text) for text in DOCUMENTS]
    (tar,) = (tmp_path / "shards").glob("*.tar")
    with tarfile.open(tar) as archive:
        assert len(archive.getnames()) == 2 * len(DOCUMENTS)
    # Again: no work is done and no file changes.
    before = visible_files(tmp_path / "shards")
    again = millrace("prepare", raw, "--tokenizer", tokenizer, "--out", "shards", "--json").object("prepare")
    assert again["shards_reused"] == again["shards"] == 1
    assert visible_files(tmp_path / "shards") == before
    text = millrace("prepare", raw, "--tokenizer", tokenizer, "--out", "text").out
    assert "documents" in text and "complete" in text and "B/s" in text


def test_tasks_and_finish(millrace: Millrace, raw: Path, tokenizer: Path, tmp_path: Path):
    prepare = ("prepare", raw, "--tokenizer", tokenizer, "--out", "shards")
    assert "--finish shards" in millrace(*prepare, "--task", "0/2").err
    assert "00001" in millrace.fails("prepare", "--finish", "shards")
    # The second task as Slurm starts it.
    array = {"ID": "7", "MIN": "5", "MAX": "7", "STEP": "2", "COUNT": "2"}
    millrace(*prepare, env={f"SLURM_ARRAY_TASK_{key}": value for key, value in array.items()})
    # All parts are there, so the folder is complete already.
    assert millrace("shards", "ls", "shards", "--json").object("total")["samples"] == len(DOCUMENTS)
    manifest = millrace("prepare", "--finish", "shards", "--json").object("manifest")
    assert (manifest["tasks"], manifest["documents"]) == (2, len(DOCUMENTS))
    assert [s["text"] for s in samples(millrace, tmp_path / "shards")] == DOCUMENTS
    # One of them again, as an array of one number.
    (tmp_path / "shards/part-00001-of-00002.json").unlink()
    lone = {"ID": "1", "MIN": "1", "MAX": "1", "STEP": "1", "COUNT": "1"}
    again = millrace(*prepare, "--json", env={f"SLURM_ARRAY_TASK_{key}": value for key, value in lone.items()})
    report = again.object("prepare")
    assert (report["task"], report["tasks"], report["shards_reused"]) == (1, 2, 1)
    assert (tmp_path / "shards/part-00001-of-00002.json").exists()
    # Another number of tasks, or tokenizer, does not mix in.
    assert "tasks" in millrace.fails(*prepare, "--task", "0/3")
    other = tmp_path / "other.json"
    other.write_text(tokenizer.read_text() + "\n")
    assert "tokenizer" in millrace.fails("prepare", raw, "--tokenizer", other, "--out", "shards", "--task", "0/2")


def test_documents(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    texts = ["one\ntwo", "three"]
    (tmp_path / "p.txt").write_text("\n\n".join(texts) + "\n")
    (tmp_path / "j.jsonl").write_text("".join(json.dumps({"meta": {"body": text}}) + "\n" for text in texts))
    base = ("--tokenizer", tokenizer, "--quiet")
    millrace("prepare", "p.txt", *base, "--out", "p", "--documents", "paragraph")
    millrace("prepare", "j.jsonl", *base, "--out", "j", "--documents", "jsonl", "--text-field", "meta.body")
    millrace("prepare", "p.txt", *base, "--out", "f", "--documents", "file")
    for folder in ("p", "j"):
        assert [s["text"].strip() for s in samples(millrace, tmp_path / folder)] == texts
    assert len(samples(millrace, tmp_path / "f")) == 1


# Bad input: one clear line, nothing half-written.


@pytest.mark.parametrize("verb", ["split", "prepare"])
def test_missing_input(millrace: Millrace, tokenizer: Path, verb: str, tmp_path: Path):
    flags = ("--parts", 2) if verb == "split" else ("--tokenizer", tokenizer)
    assert "gone.txt" in millrace.fails(verb, "gone.txt", "--out", "out", *flags)
    assert "no*.txt" in millrace.fails(verb, "no*.txt", "--out", "out", *flags)
    assert not (tmp_path / "out").exists()


def test_missing_tokenizer(millrace: Millrace, raw: Path, tmp_path: Path):
    assert "gone.json" in millrace.fails("prepare", raw, "--tokenizer", "gone.json", "--out", "out")
    assert not (tmp_path / "out").exists()


def test_empty_file(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    (tmp_path / "empty.txt").touch()
    assert "empty" in millrace.fails("prepare", "empty.txt", "--tokenizer", tokenizer, "--out", "out")
    assert "no text" in millrace.fails("split", "empty.txt", "--out", "parts", "--parts", 2)
    assert not (tmp_path / "out").exists() and not (tmp_path / "parts").exists()
    (tmp_path / "blank.txt").write_text("\n\n")
    assert (
        "no task wrote a document"
        in millrace("prepare", "blank.txt", "--tokenizer", tokenizer, "--out", "out", status=1).err
    )
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_invalid_utf8(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    data = b"fine\nbad \xff\xfe and \xe2\x82 here\nfine\n"
    (tmp_path / "bad.txt").write_bytes(data)
    ran = millrace("prepare", "bad.txt", "--tokenizer", tokenizer, "--out", "out", "--json")
    assert ran.object("prepare")["invalid_utf8"] == 3
    assert samples(millrace, tmp_path / "out")[1]["text"] == data.splitlines()[1].decode(errors="replace")
    line = millrace.fails("prepare", "bad.txt", "--tokenizer", tokenizer, "--out", "strict", "--strict")
    assert "bad.txt: line 2, offset 5: byte 4 of the document" in line
    assert not list((tmp_path / "strict").glob("*.tar"))


def test_a_line_of_200_mb(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    with open(tmp_path / "long.txt", "wb") as file:
        file.write(b"short\n")
        for _ in range(200):
            file.write(b"a" * 1_000_000)
    line = millrace.fails("prepare", "long.txt", "--tokenizer", tokenizer, "--out", "out")
    assert "long.txt" in line and "line 2" in line
    assert not list((tmp_path / "out").glob("*.tar"))
    millrace.fails("split", "long.txt", "--out", "parts", "--parts", 2)
    (tmp_path / "long.txt").unlink()


def test_a_directory_where_a_file_should_be(millrace: Millrace, raw: Path, tokenizer: Path, tmp_path: Path):
    assert "raw" in millrace.fails("prepare", raw, "--tokenizer", raw, "--out", "out")
    assert "tokenizer.json" in millrace.fails("prepare", raw, "--tokenizer", tokenizer, "--out", tokenizer)
    (tmp_path / "nothing").mkdir()
    assert "nothing" in millrace.fails("prepare", "nothing", "--tokenizer", tokenizer, "--out", "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_no_permission(millrace: Millrace, raw: Path, tokenizer: Path, tmp_path: Path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert "ermission" in millrace.fails("prepare", raw, "--tokenizer", tokenizer, "--out", closed / "out")
    (raw / "a.txt").chmod(0)
    assert "a.txt" in millrace.fails("prepare", raw, "--tokenizer", tokenizer, "--out", "out")


def test_no_space_left(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        (tmp_path / "big.txt").write_text("the same line again and again\n" * 100_000)
        line = millrace.fails("prepare", "big.txt", "--tokenizer", tokenizer, "--out", small / "out")
        assert "space" in line
        assert not tars(visible_files(small))
        assert "space" in millrace.fails("split", "big.txt", "--out", small / "parts", "--parts", 2)
        # The output counts: tar members of tiny documents are refused before one is written,
        (tmp_path / "tiny.txt").write_text("ab\n" * 30_000)
        line = millrace.fails("prepare", "tiny.txt", "--tokenizer", tokenizer, "--out", small / "tiny")
        assert "it needs" in line and "are free" in line
        assert not visible_files(small)
        # and text of which little is taken is not.
        (tmp_path / "long.txt").write_text("the " * 500 + "\n" + "the same line again and again\n" * 100_000)
        words = ("--tokenizer", tokenizer, "--format", "megatron", "--min-bytes", "1000")
        report = millrace("prepare", "long.txt", *words, "--out", small / "long", "--json").object("prepare")
        assert report["documents"] == 1
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (tokenizer_json("Trigram"), "unsupported"),
        ("{}", "invalid_argument"),
        ("not json", "invalid_argument"),
        ("", "invalid_argument"),
    ],
    ids=["unknown model", "empty object", "no json", "empty"],
)
def test_bad_tokenizer(millrace: Millrace, raw: Path, tmp_path: Path, content: str, code: str):
    (tmp_path / "bad.json").write_text(content)
    assert "bad.json" in millrace.fails("prepare", raw, "--tokenizer", "bad.json", "--out", "out")
    ran = millrace("prepare", raw, "--tokenizer", "bad.json", "--out", "out", "--json", status=1)
    assert ran.object("error")["code"] == code
    assert not (tmp_path / "out").exists()


# Stopped and killed.


@pytest.fixture(scope="module")
def long_work(binary: str, tmp_path_factory: pytest.TempPathFactory):
    """Work of some tenths of a second, its arguments, and the bytes it ends with."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "tokenizer.json").write_text(tokenizer_json())
    words = ["the", "quick", "brown", "fox", "jumps", "over", "their", "lazy", "dogs", "thinking", "of", "nothing"]
    with open(folder / "long.txt", "w") as file:
        for i in range(160_000):
            file.write(" ".join(words[(i * j) % len(words)] + str(i % 7919) for j in range(1, 12)) + "\n")
    args = ["prepare", "long.txt", "--tokenizer", "tokenizer.json", "--shard-size", "4MB", "--threads", 1]
    millrace = Millrace(binary, folder)
    started = time.monotonic()
    millrace(*args, "--out", "whole")
    return folder, args, visible_files(folder / "whole"), time.monotonic() - started


def tars(names) -> list[str]:
    return [name for name in names if name.endswith(".tar")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly(binary: str, long_work, number: int):
    folder, args, whole, _ = long_work
    millrace = Millrace(binary, folder)
    out = folder / f"stopped-{number}"
    process = millrace.start(*args, "--out", out)
    while process.poll() is None and not (out.exists() and tars(visible_files(out))):
        time.sleep(0.005)
    process.send_signal(number)
    printed, err = process.communicate(timeout=30)
    assert (process.returncode, printed) == (128 + number, "")
    assert err.endswith(f"stopped by {signal.Signals(number).name}\n")
    left = visible_files(out)
    assert 0 < len(tars(left)) < len(tars(whole))
    for name, content in left.items():
        assert content == whole[name], name
    assert set(left) == {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert millrace(*args, "--out", out, "--json").object("prepare")["shards_reused"] > 0
    assert visible_files(out) == whole


def test_killed_at_random_moments(binary: str, long_work, seeded):
    folder, args, whole, seconds = long_work
    millrace = Millrace(binary, folder)
    out = folder / "killed"
    killed = 0
    for _ in range(8):
        process = millrace.start(*args, "--out", out)
        time.sleep(seeded.uniform(0, 0.5 * seconds))
        killed += kill(process)
        for name, content in visible_files(out).items() if out.exists() else ():
            assert content == whole[name], name
    assert killed > 0
    millrace(*args, "--out", out)
    assert visible_files(out) == whole
    millrace("shards", "check", out)


def test_progress_is_one_line_on_a_terminal(binary: str, long_work):
    folder, args, _, _ = long_work
    control, terminal = pty.openpty()
    with subprocess.Popen(
        [binary, *map(str, args), "--out", "watched"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=terminal,
    ):
        os.close(terminal)
        drawn = b""
        # Reading a terminal whose other end is closed is an error.
        with contextlib.suppress(OSError):
            while piece := os.read(control, 65536):
                drawn += piece
    os.close(control)
    # The lines are short, and the shards much larger: that is a line by itself.
    text = re.sub(r"warning: the shards are [^\n]*\n", "", drawn.decode())
    frames = text.split("\r\x1b[K")
    assert len(frames) > 1 and "\n" not in text
    # A frame that is drawn before the first byte is done has no rate yet.
    begun = [frame for frame in frames[:-1] if "%" in frame and " 0 B of" not in frame]
    assert frames[-1] == "" and begun and all(re.match(r"prepare.*B/s", frame) for frame in begun), frames
    assert any("[=" in frame and "ETA" in frame for frame in frames)
