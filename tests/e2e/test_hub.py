# SPDX-License-Identifier: Apache-2.0
"""hf:// against the tests' Hub: what is read, by whom the token is seen, what fails and how. The server itself is held
against huggingface_hub, the Hub's own client."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import Millrace, visible_files
from hub_server import CDN, Handler, Hub, Seen, git_sha1, pointer

TOKEN = "hf_AbCdEfGhIjKlMnOp"
LARGE = bytes(range(256)) * (36 << 10)  # 9 MiB: more than a piece
FILES = {
    "README.md": b"# a dataset\n",
    "data.txt": b"sorts before data/\n",
    "data/a b+c.jsonl": b'{"text": "one"}\n{"text": "two"}\n',
    "data/train/00000.parquet": LARGE,
    "data/train/00001.parquet": b"small and large at once",
    "empty.txt": b"",
    "ünïcode/ç.txt": "é\n".encode(),
}
SAMPLE = "data/train/00000.parquet"


@pytest.fixture
def repo(hub: Hub):
    hub.page_size = 2
    return hub.add("org/name", FILES)


@pytest.fixture
def at_hub(millrace: Millrace, hub: Hub) -> Millrace:
    kept = {k: v for k, v in millrace.env.items() if not k.startswith(("HF_", "HUGGING_FACE_", "MILLRACE_"))}
    millrace.env = kept | hub.env
    return millrace


# ---- the server, by another client

OTHER_CLIENT = """
import json, sys
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError, EntryNotFoundError

def name_of(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "no error"

id, folder = sys.argv[1:]
api, kind = HfApi(), {"repo_type": "dataset"}
tree = api.list_repo_tree(id, recursive=True, **kind)
refs = api.list_repo_refs(id, **kind)
print(json.dumps({
    "sha": api.dataset_info(id).sha,
    "expanded": api.dataset_info(id, expand=["sha", "lastModified"]).sha,
    "tree": {e.path: [e.size, e.lfs.sha256 if e.lfs else e.blob_id] for e in tree if hasattr(e, "size")},
    "dates": [str(e.last_commit.date) for e in api.list_repo_tree(id, expand=True, **kind)],
    "refs": {ref.name: ref.target_commit for ref in refs.branches + refs.tags},
    "snapshot": snapshot_download(id, local_dir=folder, **kind),
    "old": open(hf_hub_download(id, "README.md", revision="v1", **kind)).read(),
    "level": sorted(each["name"] for each in HfFileSystem().ls(f"datasets/{id}/data", detail=True)),
    "found": [each.id for each in api.list_datasets(author="org", search="nam")],
    "errors": [
        name_of(lambda: api.dataset_info("org/other")),
        name_of(lambda: api.dataset_info(id, revision="v9")),
        name_of(lambda: hf_hub_download(id, "missing", **kind)),
        name_of(lambda: hf_hub_download("org/gated", "README.md", **kind)),
        name_of(lambda: list(api.list_repo_tree(id, "missing", **kind))),
    ],
}))
"""


def test_huggingface_hub_reads_from_the_server_what_millrace_does(at_hub: Millrace, hub: Hub, repo, tmp_path: Path):
    repo.tags["v1"] = repo.branches["main"]
    now = repo.commit(FILES | {"README.md": b"# changed\n"})
    hub.add("org/gated", FILES, gated=True)
    hub.tokens.add(TOKEN)
    env = os.environ | hub.env | {"HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "home")}
    ran = subprocess.run(
        [sys.executable, "-c", OTHER_CLIENT, repo.id, tmp_path / "theirs"],
        env=env | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    theirs = json.loads(ran.stdout.splitlines()[-1])
    assert theirs["sha"] == theirs["expanded"] == now
    assert theirs["refs"] == {"main": now, "v1": repo.tags["v1"]}
    assert theirs["old"] == "# a dataset\n" and theirs["found"] == ["org/name"]
    assert theirs["level"] == [f"datasets/org/name/data/{name}" for name in ("a b+c.jsonl", "train")]
    assert theirs["errors"] == [
        "RepositoryNotFoundError",
        "RevisionNotFoundError",
        *("RemoteEntryNotFoundError", "GatedRepoError", "RemoteEntryNotFoundError"),
    ]
    assert {seen.token for seen in hub.seen if seen.host == CDN} == {None}

    at_hub("sync", repo.url, "ours")
    ours = visible_files(tmp_path / "ours")
    assert ours == FILES | {"README.md": b"# changed\n"}
    assert {path: (tmp_path / "theirs" / path).read_bytes() for path in ours} == ours
    listed = at_hub("ls", repo.url, "-r", "--json").objects("object")
    assert {each["path"]: [each["bytes"], each["version"]] for each in listed} == theirs["tree"]
    assert theirs["tree"][SAMPLE][1] != git_sha1(pointer(LARGE))


# ---- reading


def test_every_reading_verb_takes_hf(at_hub: Millrace, hub: Hub, repo, tokenizer: Path, tmp_path: Path):
    level = at_hub("ls", f"{repo.url}/data", "--json")
    assert [each["path"] for each in level.objects()] == ["a b+c.jsonl", "train/"]
    assert level.objects("object")[0]["modified"] == "2026-03-04T05:06:07Z"
    everything = at_hub("ls", repo.url, "-r", "--json").objects("object")
    assert [each["path"] for each in everything] == sorted(FILES, key=str.encode)
    assert at_hub("cat", f"{repo.url}/data/a b+c.jsonl").out == FILES["data/a b+c.jsonl"].decode()
    at_hub("cp", f"{repo.url}/{SAMPLE}", "one")
    assert (tmp_path / "one").read_bytes() == LARGE
    at_hub("cp", "-r", f"{repo.url}/data", "data")
    assert visible_files(tmp_path / "data") == {p[5:]: c for p, c in FILES.items() if p.startswith("data/")}
    assert at_hub("verify", f"{repo.url}/data", "data", "--json").object("verify_summary")["by_content"] == 3
    jsonl = (f"{repo.url}/data/*.jsonl", "--documents", "jsonl", "--text-field", "text")
    split = at_hub("split", *jsonl, "--out", "parts", "--parts", 2, "--json").object("split")
    assert split["documents"] == 2
    made = at_hub("prepare", *jsonl, "--tokenizer", tokenizer, "--out", "shards", "--json")
    assert made.object("prepare")["documents"] == 2


def test_shards_are_read_from_the_hub(at_hub: Millrace, hub: Hub, shards: Path):
    hub.add("org/shards", {path: content for path, content in visible_files(shards).items()})
    for verb in ("check", "ls"):
        here = at_hub("shards", verb, shards, "--json").objects()[-1]
        there = at_hub("shards", verb, "hf://datasets/org/shards", "--json").objects()[-1]
        assert here == there


def test_a_second_sync_asks_for_a_listing_only(at_hub: Millrace, hub: Hub, repo, tmp_path: Path):
    at_hub("sync", repo.url, "to")
    before = len(hub.seen)
    again = at_hub("sync", repo.url, "to", "--json").object("transfer_summary")
    assert again["copied_files"] == 0 and again["skipped_files"] == len(FILES)
    assert all("/api/" in seen.path for seen in hub.seen[before:])
    # Without the record, the Hub's hashes prove what is here; an edit of the same size is found.
    (tmp_path / "to" / SAMPLE).write_bytes(LARGE[:-1] + b"!")
    before = len(hub.paths(CDN))
    proven = at_hub("sync", repo.url, "to", "--no-records", "--json").object("transfer_summary")
    assert proven["copied_files"] == 1 and (tmp_path / "to" / SAMPLE).read_bytes() == LARGE
    assert len(hub.paths(CDN)) - before == 2  # two pieces of the one file
    by_hash = at_hub("verify", repo.url, "to", "--recorded", "--json").object("verify_summary")
    assert by_hash["ok"] and by_hash["same"] == len(FILES)


def test_models_and_revisions_are_named_in_the_url(at_hub: Millrace, hub: Hub):
    model = hub.add("org/model", {"config.json": b"1"}, kind="models")
    model.branches["refs/pr/1"] = model.branches["main"]
    model.tags["v1"] = first = model.branches["main"]
    model.commit({"config.json": b"2"})
    for revision, content in [
        ("", "2"),
        ("@v1", "1"),
        (f"@{first}", "1"),
        ("@refs/pr/1", "1"),
        ("@refs%2Fpr%2F1", "1"),
    ]:
        assert at_hub("cat", f"hf://org/model{revision}/config.json").out == content


def test_it_can_only_be_read(at_hub: Millrace, repo, tmp_path: Path):
    (tmp_path / "file").write_text("x")
    assert "hf:// can only be read" in at_hub.fails("cp", "file", f"{repo.url}/file")
    assert "hf:// can only be read" in at_hub("rm", f"{repo.url}/README.md", status=1).err


# ---- the token


def test_only_the_endpoint_gets_the_token(at_hub: Millrace, hub: Hub, tmp_path: Path):
    hub.tokens.add(TOKEN)
    private = hub.add("org/private", FILES, private=True)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    for env in ({"HF_TOKEN": TOKEN}, {"HF_TOKEN_PATH": str(tmp_path / "token")}, {"HF_HOME": str(tmp_path)}):
        hub.seen.clear()
        at_hub("sync", private.url, "to", "--no-records", "--checksum", env=env)
        assert {seen.token for seen in hub.seen if seen.host != CDN} == {TOKEN}
        assert {seen.token for seen in hub.seen if seen.host == CDN} == {None} and hub.paths(CDN)
    assert visible_files(tmp_path / "to") == FILES


def test_a_next_page_on_another_host_gets_no_token(at_hub: Millrace, hub: Hub, repo):
    hub.tokens.add(TOKEN)
    hub.page_size = 1000

    def elsewhere(handler: Handler, seen: Seen) -> bool:
        if "/tree/" not in seen.path or seen.host == CDN:
            return seen.host == CDN and not handler.reply(200, b"[]")
        handler.reply(200, b"[]", Link=f'<{hub.elsewhere}/next>; rel="next"')
        return True

    hub.trouble = elsewhere
    at_hub("ls", repo.url, env={"HF_TOKEN": TOKEN})
    (other,) = [seen for seen in hub.seen if seen.host == CDN]
    assert other.path == "/next" and other.token is None


def test_the_token_is_in_no_output(at_hub: Millrace, hub: Hub, repo, tmp_path: Path):
    hub.tokens.add(TOKEN)
    hub.add("org/gated", FILES, gated=True)
    env = {"HF_TOKEN": TOKEN, "MILLRACE_TIMEOUT": "1"}
    runs = [
        at_hub("sync", repo.url, "to", "--log", "debug", env=env),
        at_hub("lerobot", "download", "org/name", "--log", "debug", "--json", "--out", "to2", env=env),
        at_hub("cat", "hf://datasets/org/gated/README.md", "--log", "debug", status=1, env=env),
        at_hub("ls", "hf://datasets/org/missing", "--log", "debug", status=1, env=env),
    ]
    hub.tokens.clear()
    hub.trouble = lambda handler, _seen: not handler.reply(401, X_Error_Message=f"Invalid token: {TOKEN}")
    runs.append(at_hub("ls", repo.url, "--log", "debug", "--json", status=1, env=env))
    assert "the Hub refuses the token of HF_TOKEN: Invalid token: (the token)" in runs[-1].err
    runs.append(at_hub("ls", repo.url, status=1, env={"HF_TOKEN": f"{TOKEN} {TOKEN}"}))
    for ran in runs:
        assert TOKEN not in ran.out + ran.err
    kept = [path.read_bytes() for folder in ("to", "to2") for path in (tmp_path / folder).rglob("*") if path.is_file()]
    assert kept and not any(TOKEN.encode() in content for content in kept)


# ---- what fails, and how it is said


def test_errors_say_what_is_wrong_and_what_to_do(at_hub: Millrace, hub: Hub, repo):
    repo.tags["v1.0"] = repo.branches["main"]
    hub.add("org/gated", FILES, gated=True)
    hub.add("org/private", FILES, private=True)
    hub.add("org/model", FILES, kind="models")
    hub.tokens.add(TOKEN)
    token = {"HF_TOKEN": TOKEN}

    def said(*args: str, **options) -> str:
        return at_hub.fails(*args, **options)

    assert "or it is private: HF_TOKEN, or a login, shows" in said("ls", "hf://datasets/org/private")
    assert "the token of HF_TOKEN may not see it" in said("ls", "hf://datasets/org/missing", env=token)
    assert "did you mean org/name?" in said("ls", "hf://datasets/org/nmae", env=token)
    assert "there is a dataset: hf://datasets/org/name" in said("ls", "hf://org/name")
    assert "there is a model: hf://org/model" in said("ls", "hf://datasets/org/model")
    assert "no such revision; it has main, v1.0" in said("ls", f"{repo.url}@v2")
    assert "no such file; did you mean README.md?" in said("cat", f"{repo.url}/Readme.txt")
    gated = said("cat", "hf://datasets/org/gated/README.md")
    assert f"ask for it at {hub.endpoint}/datasets/org/gated, then set HF_TOKEN" in gated
    gated = said("cat", "hf://datasets/org/gated/README.md", env=token)
    assert "ask for it at" in gated and "as the user of HF_TOKEN" in gated
    assert "refuses the token of HF_TOKEN" in said("ls", repo.url, env={"HF_TOKEN": "hf_expired"})
    assert "ORG/NAME" in said("ls", "hf://datasets/org")
    assert "HF_HUB_OFFLINE" in said("ls", repo.url, env={"HF_HUB_OFFLINE": "1"})
    hub.granted.add(TOKEN)
    assert at_hub("cat", "hf://datasets/org/gated/README.md", env=token).out == "# a dataset\n"


def first_time_each(refuse) -> object:
    """Trouble that `refuse(handler, seen)` makes the first time that a path and range is asked for."""
    asked: set = set()

    def trouble(handler: Handler, seen: Seen) -> bool:
        key = (seen.host, seen.method, seen.path, seen.range)
        if key in asked:
            return False
        asked.add(key)
        return refuse(handler, seen) is not False

    return trouble


def closed(handler: Handler, _seen: Seen) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def cut(handler: Handler, seen: Seen) -> bool:
    """Half of what was announced, and the connection's end."""
    if seen.host != CDN:
        return False
    handler.reply(206, b"x" * 1000, length=2000, Content_Range=f"bytes 0-1999/{len(LARGE)}")
    handler.close_connection = True
    return True


@pytest.mark.parametrize(
    "refuse",
    [
        pytest.param(lambda handler, _seen: handler.reply(503), id="503"),
        pytest.param(lambda handler, _seen: handler.reply(429, Retry_After="0"), id="429"),
        pytest.param(closed, id="closed"),
        pytest.param(cut, id="cut"),
    ],
)
def test_what_may_pass_is_asked_again(at_hub: Millrace, hub: Hub, repo, tmp_path: Path, refuse):
    hub.trouble = first_time_each(refuse)
    hub.page_size = 4
    done = at_hub("sync", repo.url, "to", "--json").object("transfer_summary")
    assert done["retries"] > 0
    assert visible_files(tmp_path / "to") == FILES


def test_a_limit_of_the_rate_holds_all_requests(at_hub: Millrace, hub: Hub, repo, tmp_path: Path):
    """The pause that the Hub names is kept, longer than the timeout of anything else would allow."""
    limited = threading.Event()

    def limit(handler: Handler, seen: Seen) -> bool:
        if limited.is_set() or "/resolve/" not in seen.path:
            return False
        limited.set()
        handler.reply(429, RateLimit='"resolvers";r=0;t=1', RateLimit_Policy='"fixed window";"resolvers";q=3000;w=300')
        return True

    hub.trouble = limit
    done = at_hub("sync", repo.url, "to", "--json").object("transfer_summary")
    assert done["retries"] == 1 and visible_files(tmp_path / "to") == FILES


def test_a_rate_that_stays_limited_is_an_error(at_hub: Millrace, hub: Hub, repo):
    hub.trouble = lambda handler, _seen: not handler.reply(429, Retry_After="3600")
    said = at_hub.fails("ls", repo.url)
    assert "limits the rate of requests (429)" in said and "HF_TOKEN" in said
    assert len(hub.seen) == 1


@pytest.mark.parametrize("where", ["revision", "Signature"])
def test_a_silent_server_ends_in_an_error(at_hub: Millrace, hub: Hub, repo, where: str):
    released = threading.Event()
    hub.trouble = lambda _handler, seen: where in seen.path and released.wait(30)
    said = at_hub("sync", repo.url, "to", status=1, env={"MILLRACE_TIMEOUT": "1"}).err
    released.set()
    assert "hf://datasets/org/name" in said


def test_ctrl_c_ends_a_read_of_a_silent_server(at_hub: Millrace, hub: Hub, repo):
    released, asked = threading.Event(), threading.Event()

    def silent(_handler: Handler, _seen: Seen) -> bool:
        asked.set()
        return released.wait(30)

    hub.trouble = silent
    running = at_hub.start("cat", f"{repo.url}/README.md")
    assert asked.wait(20)
    running.send_signal(signal.SIGINT)
    assert running.wait(20) == 130
    released.set()
    running.communicate()


@pytest.mark.parametrize("path", [SAMPLE, "data/train/00001.parquet"])
def test_a_flipped_bit_is_found(at_hub: Millrace, hub: Hub, repo, tmp_path: Path, path: str):
    def flip(_path: str, content: bytes) -> bytes:
        middle = len(content) // 2
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]

    hub.bend = flip
    said = at_hub("cp", f"{repo.url}/{path}", "to", status=1).err
    assert "SHA-256" in said and path in said
    assert not (tmp_path / "to").exists()


def test_small_files_are_checked_by_gits_hash(at_hub: Millrace, hub: Hub, repo, tmp_path: Path):
    def another(handler: Handler, seen: Seen) -> bool:
        if seen.method != "GET" or "/resolve-cache/" not in seen.path:
            return False
        handler.reply(200, b"# a dataSet\n")
        return True

    hub.trouble = another
    assert "Git SHA-1" in at_hub("cp", f"{repo.url}/README.md", "to", status=1).err
    assert not (tmp_path / "to").exists()


def test_a_branch_that_moves_meanwhile_is_not_followed(at_hub: Millrace, hub: Hub, repo, tmp_path: Path):
    moved = threading.Event()

    def move(_handler: Handler, seen: Seen) -> None:
        if "/tree/" in seen.path and not moved.is_set():
            moved.set()
            repo.commit({path: content[::-1] + b"!" for path, content in FILES.items()})

    hub.trouble = move
    at_hub("sync", repo.url, "to")
    assert moved.is_set() and visible_files(tmp_path / "to") == FILES


def test_a_server_without_ranges_is_told(at_hub: Millrace, hub: Hub, repo):
    hub.has_ranges = False
    assert at_hub("cat", f"{repo.url}/README.md").out == "# a dataset\n"
    assert "does not answer ranges" in at_hub("cp", f"{repo.url}/{SAMPLE}", "to", status=1).err


def test_over_tls(millrace: Millrace, tls_hub: Hub, tmp_path: Path):
    millrace.env |= tls_hub.env
    repo = tls_hub.add("org/name", FILES)
    millrace("sync", repo.url, "to")
    assert visible_files(tmp_path / "to") == FILES
    refused = millrace.fails("ls", repo.url, env={"SSL_CERT_FILE": "", "MILLRACE_TIMEOUT": "1"})
    assert "certificate" in refused


def test_a_killed_copy_of_a_large_file_continues(at_hub: Millrace, hub: Hub, tmp_path: Path):
    content = os.urandom(1 << 20) * 40
    repo = hub.add("org/large", {"x.bin": content})
    killed = threading.Event()

    def no_end(_handler: Handler, seen: Seen) -> None:
        if seen.host == CDN and seen.range and int(seen.range[6:].split("-")[0]) >= 16 << 20:
            killed.wait(100)

    hub.trouble = no_end
    running = at_hub.start("cp", f"{repo.url}/x.bin", "x.bin")
    end = time.monotonic() + 100
    while not any(tmp_path.rglob("*-note.x.bin")):  # written behind the first part
        assert time.monotonic() < end
        time.sleep(0.02)
    running.kill()
    running.communicate()
    killed.set()
    hub.trouble = lambda _handler, _seen: None
    hub.seen.clear()
    done = at_hub("cp", f"{repo.url}/x.bin", "x.bin", "--json").object("transfer_summary")
    assert (tmp_path / "x.bin").read_bytes() == content
    assert done["resumed_bytes"] + done["moved_bytes"] == len(content) and done["resumed_bytes"] >= 8 << 20
