# SPDX-License-Identifier: Apache-2.0
"""All verbs: help, completion, usage, configuration files, pipes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import DOCUMENTED, REPOSITORY, Millrace

VERBS = [
    ["cp"],
    ["mv"],
    ["sync"],
    ["ls"],
    ["rm"],
    ["verify"],
    ["stage"],
    ["cat"],
    ["split"],
    ["prepare"],
    ["shards", "ls"],
    ["shards", "check"],
    ["shards", "index"],
    ["shards", "cat"],
    ["ckpt", "ls"],
    ["ckpt", "show"],
    ["ckpt", "verify"],
    ["ckpt", "diff"],
    ["ckpt", "export"],
    ["ckpt", "import"],
    ["ckpt", "restore"],
    ["ckpt", "prune"],
    ["ckpt", "follow"],
    ["ckpt", "last-good"],
    ["ckpt", "advise"],
    ["plan", "gpus"],
    ["plan", "batch"],
    ["plan", "effective-batch"],
    ["plan", "eta"],
    ["plan", "nodes"],
    ["plan", "pack"],
    ["plan", "checkpoint"],
    ["plan", "advise"],
    ["cluster", "new"],
    ["cluster", "lint"],
    ["job", "new"],
    ["job", "lint"],
    ["job", "check"],
    ["job", "submit"],
    ["job", "ls"],
    ["job", "show"],
    ["job", "wait"],
    ["job", "cancel"],
    ["job", "requeue"],
    ["job", "logs"],
    ["job", "why"],
    *(["runs", verb] for verb in ("ls", "show", "diff", "note", "export")),
    ["env", "lint"],
    *(["link", verb] for verb in ("add", "join", "run", "guard", "status", "wait", "release", "restore", "rm")),
    ["monitor"],
    ["doctor"],
    ["bench", "loader"],
    ["bench", "checkpoint"],
    ["bench", "tokenizer"],
    ["bench", "storage"],
    ["layout", "apply"],
    ["layout", "show"],
    ["layout", "clean"],
    ["lerobot", "inspect"],
    ["lerobot", "validate"],
    ["lerobot", "diff"],
    ["lerobot", "stats"],
    ["lerobot", "repair"],
    ["lerobot", "convert"],
    ["lerobot", "modality"],
    ["lerobot", "split"],
    ["lerobot", "merge"],
    ["lerobot", "delete"],
    ["lerobot", "demo"],
    ["lerobot", "download"],
    ["episodes", "convert"],
    ["tokenizer", "inspect"],
    ["completion"],
]
EVERYWHERE = {"--help", "--json", "--quiet", "--log", "--config", "--endpoint-url", "--no-sign-request"}


def verb_name(verb: list[str]) -> str:
    return "-".join(verb)


def flags_in(help_text: str) -> set[str]:
    """Flags as the option list has them, at the start of a line."""
    return set(re.findall(r"^\s+(?:-\w,)?(--[a-z-]+)", help_text.split("Examples:")[0], re.M))


def verbs_in(help_text: str) -> list[str]:
    return re.findall(r"^  ([a-z-]+) ", help_text.split("Verbs:")[1], re.M)


def test_every_verb_is_listed(millrace: Millrace):
    listed = []
    for name in verbs_in(millrace("--help").out):
        text = millrace(name, "--help").out
        listed += [[name, below] for below in verbs_in(text)] if "Verbs:" in text else [[name]]
    assert listed == VERBS


@pytest.mark.parametrize("verb", VERBS, ids=verb_name)
def test_help_has_three_examples_that_parse(millrace: Millrace, verb: list[str], tmp_path: Path):
    text = millrace(*verb, "--help").out
    assert flags_in(text) >= EVERYWHERE
    examples = [line.strip() for line in text.split("Examples:\n")[1].splitlines() if line.strip()]
    assert len(examples) == 3
    for example in examples:
        words = shlex.split(re.split(" [<>] ", example)[0])
        assert words[: 1 + len(verb)] == ["millrace", *verb]
        # The files of the examples do not exist here; a usage error would be 2.
        # No verb asks a service, or waits for credentials.
        nowhere = {
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "HF_HUB_OFFLINE": "1",
            "XDG_STATE_HOME": str(tmp_path / "state"),  # no link of this user is run
        }
        env = millrace.env | nowhere
        done = subprocess.run(
            [millrace.binary, *words[1:]], cwd=tmp_path, input="", capture_output=True, text=True, env=env
        )
        assert done.returncode in (0, 1), (example, done)


def test_version(millrace: Millrace):
    project = re.search(r"project\(millrace VERSION (\S+)", (REPOSITORY / "CMakeLists.txt").read_text())
    assert millrace("--version").out == f"millrace {project.group(1)}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_valid_and_complete(millrace: Millrace, shell: str):
    script = millrace("completion", shell).out
    assert millrace("completion", shell, "--json").object("completion")["script"] == script
    for verb in VERBS:
        assert all(re.search(rf"\b{word}\b", script) for word in verb)
        for flag in flags_in(millrace(*verb, "--help").out):
            assert re.search(rf"{flag}\b" if shell != "fish" else rf"-l {flag[2:]}\b", script), (verb, flag)
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
        assert checked.returncode == 0 and checked.stderr == "", checked


def complete_in_bash(millrace: Millrace, words: list[str]) -> list[str]:
    """What bash offers for the last of `words`."""
    script = millrace("completion", "bash").out
    ask = f"COMP_WORDS=({' '.join(map(shlex.quote, words))}) COMP_CWORD={len(words) - 1}\n_millrace\n"
    done = subprocess.run(
        ["bash", "-c", script + ask + 'printf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_bash_completes(millrace: Millrace):
    assert complete_in_bash(millrace, ["millrace", "sp"]) == ["split"]
    assert complete_in_bash(millrace, ["millrace", "shards", ""])[:4] == ["ls", "check", "index", "cat"]
    assert complete_in_bash(millrace, ["millrace", "split", "--doc"]) == ["--documents"]
    assert complete_in_bash(millrace, ["millrace", "split", "--documents", "p"]) == ["paragraph"]
    assert complete_in_bash(millrace, ["millrace", "ckpt", "verify", "--a"]) == ["--all"]
    # No answer: bash offers file names.
    assert complete_in_bash(millrace, ["millrace", "split", "--out", "a"]) == []


@pytest.mark.parametrize(
    "args",
    [[], ["nope"], ["shards"], ["shards", "nope"], ["split"], ["split", "--nope"], ["prepare", "x", "--task", "9"]],
    ids=" ".join,
)
def test_wrong_usage_is_two(millrace: Millrace, args: list[str]):
    assert "--help" in millrace.fails(*args, status=2)
    error = millrace(*args, "--json", status=2).object("error")
    assert error["code"] == "invalid_argument"


def test_config_file(millrace: Millrace, raw: Path, tokenizer: Path, tmp_path: Path):
    config = tmp_path / "run.toml"
    config.write_text(
        f"""
        [split]
        input = ["{raw}/a.txt", "{raw}/b.txt"]
        out = "parts"
        parts = 2

        [prepare]
        input = ["parts"]
        tokenizer = "{tokenizer}"
        out = "shards"
        ids = "json"
        no-text = true
        json = true
        """
    )
    millrace("split", "--config", config)
    assert millrace("prepare", "--config", config).object("manifest")["documents"] == 9
    assert "token_ids.json" in millrace("shards", "cat", "shards", "--fields", "--limit", 1).out
    # The command line wins.
    millrace("prepare", "--config", config, "--out", "other", "--ids", "npy")
    assert "token_ids.npy" in millrace("shards", "cat", "other", "--fields", "--limit", 1).out
    assert "no flag of 'shards-ls'" not in millrace("shards", "ls", "shards", "--config", config).err


def test_help_says_what_does_not_go_together(millrace: Millrace):
    text = millrace("rm", "--help").out
    uploads = re.search(r"^  --uploads (.*(?:\n {8,}.*)*)", text, re.M).group(1)
    assert uploads.endswith("; not with --recursive")
    assert "Excludes" not in text


@pytest.mark.parametrize("text", ["nope = 1", "[split]\nparts = 'many'", "[split]\nconfig = 'again.toml'"])
def test_bad_config_is_wrong_usage(millrace: Millrace, tmp_path: Path, text: str):
    (tmp_path / "bad.toml").write_text(text)
    millrace.fails("split", "x", "--out", "y", "--config", "bad.toml", status=2)


def test_head_is_quiet(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    (tmp_path / "many.txt").write_text("the same line again and again\n" * 20000)
    millrace("prepare", "many.txt", "--tokenizer", tokenizer, "--out", "shards")
    for flags in ("", "--json"):
        pipe = f"set -o pipefail; {shlex.quote(millrace.binary)} shards cat shards {flags} | head -n 1"
        done = subprocess.run(["bash", "-c", pipe], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (141, "", 1)


def test_a_full_stdout_is_a_failure(millrace: Millrace, shards: Path):
    with open("/dev/full", "w") as full:
        done = subprocess.run([millrace.binary, "shards", "ls", shards], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "standard output" in done.stderr and done.stderr.count("\n") == 1


def test_the_docs_list_every_object():
    printed = set()
    source_root = REPOSITORY / "src" / "millrace"
    for source in [
        *(source_root / "cli").glob("*.cpp"),
        source_root / "lint" / "findings.cpp",
        source_root / "monitor" / "sinks.cpp",
        source_root / "bench" / "storage_bench.cpp",
    ]:
        # What html_report.cpp writes goes to the program that draws the page.
        if not source.name.endswith("_test.cpp") and source.name != "html_report.cpp":
            printed |= set(re.findall(r'\{"type", "(\w+)"\}', source.read_text()))
    assert printed == set(DOCUMENTED)
