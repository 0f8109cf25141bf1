# SPDX-License-Identifier: Apache-2.0
"""The real binary, run as its users run it. MILLRACE_BIN names it, else `millrace` on PATH."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def documented_objects() -> dict[str, tuple[set[str], set[str]]]:
    """Required and optional keys of every --json object, as docs/cli.md lists them."""
    text = (REPOSITORY / "docs" / "cli.md").read_text()
    items = re.sub(r"\n  (?=\S)", " ", text.split("## Objects of `--json`")[1])
    objects = {}
    for kind, keys in re.findall(r"^- `(\w+)` \(.*\): (.*)$", items, re.M):
        names = keys.strip().split(", ")
        optional = {name.rstrip("?") for name in names if name.endswith("?")}
        objects[kind] = ({name for name in names if not name.endswith("?")}, optional)
    return objects


DOCUMENTED = documented_objects()


@dataclass
class Ran:
    status: int
    out: str
    err: str

    def objects(self, kind: str | None = None) -> list[dict]:
        """The lines of --json, each checked against docs/cli.md; only those of one type when `kind` is given."""
        found = [json.loads(line) for line in self.out.split("\n") if line]
        for each in found:
            required, optional = DOCUMENTED[each["type"]]
            keys = set(each) - {"type"}
            assert required <= keys <= required | optional, each
        return [each for each in found if kind is None or each["type"] == kind]

    def object(self, kind: str) -> dict:
        (only,) = self.objects(kind)
        return only


class Millrace:
    def __init__(self, binary: str, cwd: Path):
        self.binary = binary
        self.cwd = cwd
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}

    def __call__(self, *args: object, status: int = 0, env: dict[str, str] | None = None) -> Ran:
        """Runs to the end and checks the exit status."""
        done = subprocess.run(
            [self.binary, *map(str, args)],
            cwd=self.cwd,
            env=self.env | (env or {}),
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == status, (args, done)
        return Ran(done.returncode, done.stdout, done.stderr)

    def start(self, *args: object) -> subprocess.Popen:
        return subprocess.Popen(
            [self.binary, *map(str, args)],
            cwd=self.cwd,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
            # Where the tests run in a shell's background job, SIGINT is ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def fails(self, *args: object, status: int = 1, env: dict[str, str] | None = None) -> str:
        """The one line that a failure prints."""
        ran = self(*args, status=status, env=env)
        assert ran.out == "", ran
        lines = [line for line in ran.err.splitlines() if not line.startswith("warning: ")]
        assert len(lines) == 1 and lines[0].startswith("millrace"), ran
        return lines[0]


def kill(process: subprocess.Popen) -> bool:
    """Sends SIGKILL. Returns whether the process was still running; one that had ended proves no point."""
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


# A child's peak memory starts at that of its parent, and pytest's would hide it.
MEASURED = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[2:])
_, status, used = os.wait4(child.pid, 0)
open(sys.argv[1], "w").write(str(used.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def measured(command: Sequence[object], cwd: Path, env: dict[str, str]) -> tuple[str, int]:
    """The output of a program that succeeded, and its peak memory in KiB."""
    with tempfile.NamedTemporaryFile("r") as peak:
        around = [sys.executable, "-S", "-c", MEASURED, peak.name, *map(str, command)]
        done = subprocess.run(around, cwd=cwd, env=env, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout, int(peak.read())


def preloaded(source: str, folder: Path) -> dict[str, str]:
    """The environment of a program that finds the functions of a C source before those of the system."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("c++")
    if not compiler:
        pytest.skip("no compiler to make a library with")
    library = folder / "preloaded.so"
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-o", library, "-", "-ldl"]
    subprocess.run(command, input=source, text=True, check=True)
    return {"LD_PRELOAD": str(library)}


# After some bytes every write says that the disk is full.
FULL_DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/types.h>
#include <unistd.h>
static long left = BYTES;
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
  ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite64");
  if (fd > 2 && __atomic_sub_fetch(&left, (long)size, __ATOMIC_RELAXED) < 0) { errno = ENOSPC; return -1; }
  return real(fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }
"""


def full_disk(after_bytes: int, folder: Path) -> dict[str, str]:
    """The environment of a program whose disk is full after that many bytes."""
    return preloaded(FULL_DISK.replace("BYTES", str(after_bytes)), folder)


# A process that is gone at its n-th rename or link, before it or behind it: a kill -9 between two files.
KILLED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static int seen;
static int at(const char *when) {
  const char *value = getenv("KILLED_AT"), *which = getenv("KILLED_WHEN");
  return value && which && which[0] == when[0] ? atoi(value) : -1;
}
static void count(const char *when, int rc) {
  if (rc == 0 && at(when) > 0 && __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST) == at(when)) kill(getpid(), SIGKILL);
}
#define HOOK(name, arguments, passed) \\
  int name arguments { \\
    int (*real) arguments = dlsym(RTLD_NEXT, #name); \\
    count("before", 0); \\
    int rc = real passed; \\
    count("after", rc); \\
    return rc; \\
  }
HOOK(rename, (const char *from, const char *to), (from, to))
HOOK(renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))
HOOK(link, (const char *from, const char *to), (from, to))
HOOK(linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
"""


class Killer:
    """Runs a program that ends with SIGKILL at one of the files that it names."""

    def __init__(self, folder: Path):
        self.env = preloaded(KILLED, folder)

    def run(self, millrace: Millrace, when: str, number: int, *args: object) -> bool:
        """`when`: before or after. Returns whether it was killed; it did its work otherwise."""
        env = millrace.env | self.env | {"KILLED_AT": str(number), "KILLED_WHEN": when}
        command = [millrace.binary, *map(str, args)]
        ended = subprocess.run(command, cwd=millrace.cwd, env=env, capture_output=True, text=True, timeout=100)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        return ended.returncode != 0


@pytest.fixture
def millrace(binary: str, tmp_path: Path) -> Millrace:
    return Millrace(binary, tmp_path)


@pytest.fixture
def cloud(millrace: Millrace, s3) -> Millrace:
    """For s3:// on the server of the tests."""
    millrace.env = {k: v for k, v in millrace.env.items() if not k.startswith("AWS_")} | s3.env
    return millrace


def byte_alphabet() -> list[str]:
    """The characters that byte-level BPE writes the bytes 0 to 255 as."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def tokenizer_json(model_type: str = "BPE") -> str:
    """A byte-level BPE with one id a byte and one merge: "th" is 256; "<|end|>" is 257."""
    alphabet = byte_alphabet()
    vocab = {character: i for i, character in enumerate(alphabet)} | {"th": 256}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": 257, "content": "<|end|>", "special": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    model = {
        "type": model_type,
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocab,
        "merges": ["t h"],
    }
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [end | flags],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": byte_level,
            "decoder": byte_level,
            "model": model,
        }
    )


def expected_ids(text: str) -> list[int]:
    ids: list[int] = []
    data = text.encode()
    i = 0
    while i < len(data):
        pair = data[i : i + 2] == b"th"
        ids.append(256 if pair else data[i])
        i += 2 if pair else 1
    return ids


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json())
    return path


LINES = ["the first line", "another one with thorns", "naïve café", "", "last\tline — done"]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A folder of two small text files; nine documents of three kinds of character."""
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(LINES) + "\n")
    (folder / "b.txt").write_text("\n".join(f"line {i} of the other file" for i in range(5)) + "\n")
    return folder


@pytest.fixture
def shards(millrace: Millrace, raw: Path, tokenizer: Path, tmp_path: Path) -> Path:
    out = tmp_path / "shards"
    millrace("prepare", raw, "--tokenizer", tokenizer, "--out", out)
    return out


def visible_files(folder: Path) -> dict[str, bytes]:
    """What a listing shows: everything but dot files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }
