# SPDX-License-Identifier: Apache-2.0
"""cp, sync, ls, rm, verify and cat against a real S3 server."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from conftest import Millrace
from test_transfer import actions, make, read

LARGE = 20 << 20  # three blocks


@pytest.fixture
def tree(tmp_path: Path) -> dict[str, bytes]:
    files = {"a": b"1", "d/b.tmp": b"22", "empty": b"", "ä ö%2F#?&+=": b"odd", "large": os.urandom(LARGE)}
    make(tmp_path / "src", files)
    return files


def s3_content(s3, bucket: str, prefix: str) -> dict[str, bytes]:
    """By key, without what Millrace keeps beside the objects."""
    listed = s3.client.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    keys = [each["Key"] for each in listed if ".millrace/" not in each["Key"]]
    return {key: s3.client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}


def test_up_and_down(cloud: Millrace, bucket: str, tree: dict, tmp_path: Path):
    url = f"s3://{bucket}/p"
    up = cloud("sync", "src", url, "--json").object("transfer_summary")
    assert up["copied_files"] == len(tree) and up["moved_bytes"] == sum(map(len, tree.values()))
    again = cloud("sync", "src", url, "--json")
    assert actions(again) == [] and again.object("transfer_summary")["moved_bytes"] == 0
    assert cloud("sync", url, "back", "--json").object("transfer_summary")["copied_files"] == len(tree)
    assert read(tmp_path / "back") == tree
    assert cloud("sync", url, "back", "--json").object("transfer_summary")["moved_bytes"] == 0
    assert {e["path"] for e in cloud("ls", url, "--recursive", "--json").objects("object")} == set(tree)
    assert [e["path"] for e in cloud("ls", f"s3://{bucket}", "--json").objects("folder")] == ["p/"]
    assert cloud("cat", f"{url}/d/b.tmp").out == "22"
    assert cloud("verify", "src", url, "--json").object("verify_summary")["by_content"] == len(tree)
    assert cloud("verify", "src", url, "--recorded", "--json").object("verify_summary")["by_record"] == len(tree)
    proofs = {e["path"]: e["proof"] for e in cloud("verify", "back", url, "--recorded", "--json").objects("compared")}
    assert proofs["large"] == "sidecar" and proofs["a"] == "etag"


def test_what_has_only_new_times_moves_nothing(cloud: Millrace, bucket: str, tree: dict, tmp_path: Path):
    url = f"s3://{bucket}/p"
    cloud("sync", "src", url, "--no-records")
    time.sleep(1.1)  # S3 tells whole seconds
    for path in tree:
        (tmp_path / "src" / path).touch()
    again = cloud("sync", "src", url, "--no-records", "--json").object("transfer_summary")
    assert (again["moved_bytes"], again["copied_files"]) == (0, 0)
    (tmp_path / "src" / "a").write_bytes(bytes(len(tree["a"])))
    assert actions(cloud("sync", "src", url, "--no-records", "--json"))[0] == ("copy", "a")
    cloud("verify", "src", url)


@pytest.mark.parametrize("records", [[], ["--no-records"]], ids=["records", "none"])
@pytest.mark.parametrize("ways", ["down", "up", "within"])
def test_another_checkpoint_of_the_same_sizes(
    cloud: Millrace, bucket: str, tmp_path: Path, ways: str, records: list[str]
):
    trees = {}
    for step in ("100", "200"):
        trees[step] = {"small": os.urandom(1000), "large": os.urandom(LARGE)}
        make(tmp_path / "ck" / step, trees[step])
        if ways != "up":
            cloud("sync", f"ck/{step}", f"s3://{bucket}/ck/{step}")
    source = "ck" if ways == "up" else f"s3://{bucket}/ck"
    target = "nvme" if ways == "down" else f"s3://{bucket}/to"
    for step in ("200", "100", "200", "100"):  # also back to what is older
        cloud("sync", f"{source}/{step}", target, *records)
        if ways != "down":
            cloud("sync", target, f"back{step}", "--checksum")
        assert read(tmp_path / (target if ways == "down" else f"back{step}")) == trees[step]
        again = cloud("sync", f"{source}/{step}", target, *records, "--json").object("transfer_summary")
        assert (again["copied_files"], again["moved_bytes"]) == (0, 0)


def test_a_signed_url_is_told_to_nobody(cloud: Millrace, bucket: str, s3, tmp_path: Path):
    s3.client.put_object(Bucket=bucket, Key="d/x.txt", Body=b"text")
    url = s3.client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "d/x.txt"})
    secret = url.split("?")[1]
    assert "ignature=" in secret
    (tmp_path / "into").mkdir()
    for status, *command in [
        (0, "cp", url, "into/"),
        (0, "cp", url, f"s3://{bucket}/copy/"),
        (0, "cat", url),
        (0, "ls", url, "--summarize"),
        (0, "verify", url, "into/x.txt"),
        (1, "cp", url.replace("ignature=", "ignature=0"), "other"),
        (1, "cp", url, "/proc/none"),
        (1, "sync", url, "tree"),
        (1, "stage", url, f"s3://{bucket}/staged"),
        (1, "rm", url),
    ]:
        for more in ([], ["--json", "--log", "debug"]):
            ran = cloud(*command, *more, status=status)
            told = (ran.out + ran.err).lower()
            assert "signature" not in told and "expires" not in told, (command[0], told)
    assert {path.name for path in (tmp_path / "into").iterdir()} >= {"x.txt"}
    assert cloud("cat", f"s3://{bucket}/copy/x.txt").out == "text"
    for endpoint in ("http://user:Secret@127.0.0.1:1", "ftp://user:Secret@host"):
        assert "Secret" not in cloud("ls", f"s3://{bucket}", "--endpoint-url", endpoint, status=1).err


def test_a_lost_record_fetches_nothing_again(cloud: Millrace, bucket: str, s3, tree: dict, tmp_path: Path):
    """Of an object without block hashes its ETag proves that the file is it."""
    s3.client.put_object(Bucket=bucket, Key="p/other", Body=tree["large"])
    cloud("sync", "src", f"s3://{bucket}/p")
    cloud("sync", f"s3://{bucket}/p", "back")
    for record in (tmp_path / "back/.millrace").glob("sync-*"):
        record.unlink()
    again = cloud("sync", f"s3://{bucket}/p", "back", "--json").object("transfer_summary")
    assert (again["copied_files"], again["moved_bytes"]) == (0, 0)
    (tmp_path / "back/other").write_bytes(bytes(LARGE))
    assert actions(cloud("sync", f"s3://{bucket}/p", "back", "--no-records", "--json"))[0] == ("copy", "other")
    assert (tmp_path / "back/other").read_bytes() == tree["large"]


def test_one_byte_of_a_large_file_with_its_old_time(cloud: Millrace, bucket: str, tree: dict, tmp_path: Path):
    url = f"s3://{bucket}/p"
    cloud("sync", "src", url)
    times = (tmp_path / "src" / "large").stat()
    time.sleep(0.02)
    with (tmp_path / "src" / "large").open("r+b") as file:
        file.seek(LARGE // 2)
        file.write(bytes([tree["large"][LARGE // 2] ^ 1]))
    os.utime(tmp_path / "src" / "large", ns=(times.st_atime_ns, times.st_mtime_ns))
    ran = cloud("sync", "src", url, "--json")
    assert actions(ran) == [("copy", "large")]
    assert ran.object("transfer_summary")["moved_bytes"] <= 8 << 20
    cloud("cp", f"{url}/large", "large")
    assert (tmp_path / "large").read_bytes() == (tmp_path / "src" / "large").read_bytes()


def test_between_buckets_and_delete(cloud: Millrace, bucket: str, tree: dict, tmp_path: Path):
    cloud("sync", "src", f"s3://{bucket}/p")
    inside = cloud("sync", f"s3://{bucket}/p", f"s3://{bucket}/q", "--json").object("transfer_summary")
    assert inside["moved_bytes"] == 0 and inside["server_bytes"] == sum(map(len, tree.values()))
    (tmp_path / "src" / "a").unlink()
    cloud("sync", "src", f"s3://{bucket}/q", "--delete")
    assert {e["path"] for e in cloud("ls", f"s3://{bucket}/q", "--recursive", "--json").objects("object")} == set(
        tree
    ) - {"a"}
    (tmp_path / "nothing").mkdir()
    assert "no files" in cloud("sync", "nothing", f"s3://{bucket}/q", "--delete", status=1).err
    assert cloud("rm", f"s3://{bucket}/q", "--recursive", "--json").object("rm_summary")["failed"] == 0
    assert "no such" in cloud.fails("rm", f"s3://{bucket}/q/", "--recursive").lower()
    assert "--force-root" in cloud.fails("rm", f"s3://{bucket}", "--recursive")
    cloud("rm", f"s3://{bucket}", "--recursive", "--force-root")
    assert cloud("ls", f"s3://{bucket}", "--recursive", "--hidden").out == ""


def test_an_object_and_a_folder_of_one_name(cloud: Millrace, bucket: str, s3, tree: dict, tmp_path: Path):
    url = f"s3://{bucket}/both"
    cloud("sync", "src", url)
    cloud("cp", "src/a", url)
    assert cloud("cat", url).out == "1"
    cloud("cp", url, "one")
    assert (tmp_path / "one").read_bytes() == b"1"
    cloud("cp", url, "all", "-r")
    assert read(tmp_path / "all") == tree
    cloud("verify", "src", url)
    cloud("verify", url, "src")
    cloud("rm", url, "-r")
    assert s3_content(s3, bucket, "both") == {"both": b"1"}


def test_keys_that_are_no_paths(cloud: Millrace, bucket: str, s3, tmp_path: Path):
    for key in ("k/a", "k/a/b", "k/c//d", "k/../e", "k/dir/", "k/x/", "k/ok"):
        s3.client.put_object(Bucket=bucket, Key=key, Body=b"x" if key != "k/dir/" else b"")
    ran = cloud("sync", f"s3://{bucket}/k", "dst", "--json", status=1)
    assert sorted(actions(ran)) == [
        ("copy", "a"),
        ("copy", "ok"),
        ("pass", "dir/"),
        ("refuse", "../e"),
        ("refuse", "a/b"),
        ("refuse", "c//d"),
        ("refuse", "x/"),
    ]
    assert read(tmp_path / "dst") == {"a": b"x", "ok": b"x"}


def test_keys_that_are_no_paths_within_s3(cloud: Millrace, bucket: str, s3, tmp_path: Path):
    """They can be listed, read, copied to other keys, moved and removed; "dir/" with content is an object too."""
    content = {key: key.encode() for key in ("k/a//b", "k/./x", "k/../e", "k//f", "k/dir/", "k/dir/y", "k/ok")}
    for key, body in content.items():
        s3.client.put_object(Bucket=bucket, Key=key, Body=body)
    root = f"s3://{bucket}"
    listed = cloud("ls", f"{root}/k", "--recursive", "--json").objects("object")
    assert sorted(each["path"] for each in listed) == sorted(key[2:] for key in content)
    assert [each["path"] for each in cloud("ls", f"{root}/k/a//", "--json").objects("object")] == ["b"]
    for key, body in content.items():
        assert cloud("cat", f"{root}/{key}").out.encode() == body
    cloud("sync", f"{root}/k", f"{root}/copy")
    assert s3_content(s3, bucket, "copy/") == {key.replace("k/", "copy/", 1): body for key, body in content.items()}
    again = cloud("sync", f"{root}/k", f"{root}/copy", "--json").object("transfer_summary")
    assert (again["copied_files"], again["skipped_files"]) == (0, len(content))
    cloud("verify", f"{root}/k", f"{root}/copy")
    cloud("cp", f"{root}/copy/a//b", "b")
    cloud("cp", f"{root}/copy/dir/", "d")
    assert (tmp_path / "b").read_bytes() == b"k/a//b"
    assert (tmp_path / "d").read_bytes() == b"k/dir/"
    cloud("mv", f"{root}/copy/a//b", f"{root}/copy/./c")
    cloud("rm", f"{root}/copy/dir/")
    cloud("rm", f"{root}/copy/../e")
    left = {"copy/./c", "copy/./x", "copy//f", "copy/dir/y", "copy/ok"}
    assert set(s3_content(s3, bucket, "copy/")) == left
    # What only the target has goes, whatever its key; the source is smaller now.
    cloud("rm", f"{root}/k/a//b")
    cloud("sync", f"{root}/k", f"{root}/copy", "--delete")
    assert {key[5:] for key in s3_content(s3, bucket, "copy/")} == {key[2:] for key in content if key != "k/a//b"}
    cloud("rm", f"{root}/k", "--recursive")
    assert s3_content(s3, bucket, "k/") == {}


def test_mv(cloud: Millrace, bucket: str, s3, tree: dict, tmp_path: Path):
    """Files that arrived are removed at the source. Files that failed or were left out stay, and so do other kinds of
    entries."""
    (tmp_path / "src" / "link").symlink_to("a")
    cloud("mv", "src", f"s3://{bucket}/m", "--recursive", "--dry-run")
    assert read(tmp_path / "src").keys() >= tree.keys()
    ran = cloud("mv", "src", f"s3://{bucket}/m", "-r", "--exclude", "a", "--json").object("transfer_summary")
    assert ran["removed_files"] == ran["copied_files"] == len(tree) - 1
    assert {key[2:]: body for key, body in s3_content(s3, bucket, "m/").items()} == {
        key: body for key, body in tree.items() if key != "a"
    }
    left = sorted(str(path.relative_to(tmp_path / "src")) for path in (tmp_path / "src").rglob("*"))
    assert left == ["a", "link"]
    cloud("mv", "src/a", f"s3://{bucket}/m/")
    assert not (tmp_path / "src" / "a").exists()
    cloud("mv", f"s3://{bucket}/m", "back", "-r")
    assert read(tmp_path / "back") == tree
    assert s3_content(s3, bucket, "m/") == {}
    assert "no such" in cloud.fails("mv", f"s3://{bucket}/m/none", "x").lower()
    assert "same object" in cloud.fails("mv", "back/a", "back/a")
    assert read(tmp_path / "back") == tree


def test_posix_goes_and_comes(cloud: Millrace, bucket: str, tmp_path: Path):
    make(tmp_path / "src", {"a": b"1"})
    (tmp_path / "src" / "a").chmod(0o640)
    os.utime(tmp_path / "src" / "a", ns=(10**18 + 1, 10**18 + 123_456_789))
    cloud("cp", "src/a", f"s3://{bucket}/a", "--posix")
    cloud("cp", f"s3://{bucket}/a", "back", "--posix")
    back = (tmp_path / "back").stat()
    assert (back.st_mode & 0o777, back.st_mtime_ns) == (0o640, 10**18 + 123_456_789)


def test_a_time_of_the_year_2400_goes_and_comes(cloud: Millrace, s3, bucket: str, tmp_path: Path):
    time_ns = 13_569_465_600_123_456_789
    (tmp_path / "x").write_bytes(b"1")
    os.utime(tmp_path / "x", ns=(time_ns, time_ns))
    assert (tmp_path / "x").stat().st_mtime_ns == time_ns, "the file system has no such time"
    cloud("cp", "x", f"s3://{bucket}/x", "--posix")
    head = s3.client.head_object(Bucket=bucket, Key="x")
    assert head["Metadata"]["file-mtime"] == f"{time_ns}ns"
    cloud("cp", f"s3://{bucket}/x", "back", "--posix")
    assert (tmp_path / "back").stat().st_mtime_ns == time_ns


def test_posix_is_kept_as_fsx_does(cloud: Millrace, s3, bucket: str, tmp_path: Path):
    make(tmp_path / "src", {"a": b"1"})
    (tmp_path / "src" / "a").chmod(0o640)
    os.utime(tmp_path / "src" / "a", ns=(10**18 + 1, 10**18 + 123_456_789))
    owner = (tmp_path / "src" / "a").stat()

    def kept() -> dict[str, str]:
        metadata = s3.client.head_object(Bucket=bucket, Key="p/a")["Metadata"]
        return metadata | {"file-atime": metadata["file-atime"][-2:]} if metadata else {}  # it was read meanwhile

    cloud("sync", "src", f"s3://{bucket}/p")
    assert kept() == {}
    cloud("sync", "src", f"s3://{bucket}/p", "--posix")  # though the content is there
    attributes = {
        "file-permissions": "0100640",
        "file-owner": str(owner.st_uid),
        "file-group": str(owner.st_gid),
        "file-atime": "ns",
        "file-mtime": "1000000000123456789ns",
    }
    assert kept() == attributes
    (tmp_path / "src" / "a").chmod(0o600)
    cloud("sync", "src", f"s3://{bucket}/p", "--posix")
    assert kept() == attributes | {"file-permissions": "0100600"}
    # Others keep milliseconds.
    theirs = {"file-permissions": "0100604", "file-owner": "0", "file-group": "0", "file-mtime": "1600000000123"}
    s3.client.put_object(Bucket=bucket, Key="theirs", Body=b"2", Metadata=theirs)
    cloud("cp", f"s3://{bucket}/theirs", "back", "--posix")
    back = (tmp_path / "back").stat()
    assert (back.st_mode & 0o777, back.st_mtime_ns) == (0o604, 1_600_000_000_123_000_000)


def test_folders_are_kept_as_fsx_does(cloud: Millrace, s3, bucket: str, tmp_path: Path):
    make(tmp_path / "src", {"a/b/x": b"1"})
    (tmp_path / "src" / "empty").mkdir()
    modes = {"a": 0o2770, "a/b": 0o711, "empty": 0o1777}
    for second, (name, mode) in enumerate(modes.items()):
        (tmp_path / "src" / name).chmod(mode)
        os.utime(tmp_path / "src" / name, ns=(10**18, 10**18 + second))
    sent = cloud("sync", "src", f"s3://{bucket}/p", "--posix", "--json").object("transfer_summary")
    assert sent["set_folders"] == 3
    owner = (tmp_path / "src" / "a").stat()
    for second, (name, mode) in enumerate(modes.items()):
        head = s3.client.head_object(Bucket=bucket, Key=f"p/{name}/")
        assert head["ContentLength"] == 0
        assert head["Metadata"] == {
            "file-permissions": f"{0o040000 | mode:07o}",
            "file-owner": str(owner.st_uid),
            "file-group": str(owner.st_gid),
            "file-atime": head["Metadata"]["file-atime"],
            "file-mtime": f"{10**18 + second}ns",
        }
    again = cloud("sync", "src", f"s3://{bucket}/p", "--posix", "--delete", "--json")
    summary = again.object("transfer_summary")
    assert summary["set_folders"] == summary["extra_files"] == summary["deleted_files"] == 0 and actions(again) == []
    came = cloud("sync", f"s3://{bucket}/p", "back", "--posix", "--json").object("transfer_summary")
    assert came["set_folders"] == 3 and came["passed"] == 0
    for second, (name, mode) in enumerate(modes.items()):
        stat = (tmp_path / "back" / name).stat()
        assert (stat.st_mode & 0o7777, stat.st_mtime_ns) == (mode, 10**18 + second), name
    # What FSx exported, or another tool made, without all of it.
    for key in ("p/", "p/plain/"):
        s3.client.put_object(Bucket=bucket, Key=key)
    s3.client.put_object(Bucket=bucket, Key="p/theirs/", Metadata={"file-permissions": "0040700"})
    cloud("sync", f"s3://{bucket}/p", "back", "--posix")
    assert (tmp_path / "back" / "theirs").stat().st_mode & 0o777 == 0o700
    cloud("verify", "src", f"s3://{bucket}/p")
    cloud("rm", f"s3://{bucket}/p", "-r")
    assert s3_content(s3, bucket, "p/") == {}


def test_a_public_object_needs_no_key(cloud: Millrace, s3, bucket: str, tmp_path: Path):
    for name, acl in (("open", "public-read"), ("closed", "private")):
        s3.client.put_object(Bucket=bucket, Key=name, Body=b"content", ACL=acl)
    cloud.env = {k: v for k, v in cloud.env.items() if k not in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    cloud("cp", f"s3://{bucket}/open", "back", "--no-sign-request")
    assert (tmp_path / "back").read_bytes() == b"content"
    assert "403" in cloud.fails("cat", f"s3://{bucket}/closed", "--no-sign-request")


def test_a_secret_is_nowhere(cloud: Millrace, s3, bucket: str, tmp_path: Path):
    make(tmp_path / "src", {"a": b"1", "large": os.urandom(LARGE)})
    cloud.env["AWS_SESSION_TOKEN"] = "a-token-that-is-secret"
    said = [
        cloud("sync", "src", f"s3://{bucket}/p", "--json", "--log", "debug"),
        cloud("sync", f"s3://{bucket}/p", "back", "--json", "--log", "debug"),
        cloud("ls", "--recursive", f"s3://{bucket}-no", "--json", "--log", "debug", status=1),
    ]
    kept = [path.read_bytes() for path in (tmp_path / "back" / ".millrace").iterdir()]
    kept += [
        s3.client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read()
        for each in s3.client.list_objects_v2(Bucket=bucket, Prefix="p/.millrace/")["Contents"]
    ]
    assert len(kept) >= 2
    for secret in (s3.secret_key, "a-token-that-is-secret"):
        assert not [ran for ran in said if secret in ran.out + ran.err]
        assert not [content for content in kept if secret.encode() in content]


def test_no_such_bucket(cloud: Millrace, tmp_path: Path):
    make(tmp_path / "src", {"a": b"1"})
    for verb in (["ls", "s3://no-such-bucket-here"], ["cp", "src/a", "s3://no-such-bucket-here/a"]):
        assert "no-such-bucket-here" in cloud.fails(*verb)


def test_stage(cloud: Millrace, bucket: str, tree: dict, tmp_path: Path):
    with tarfile.open(tmp_path / "src" / "sample.tar.gz", "w:gz") as tar:
        for name, content in {"a.json": b"{}", "sub/b.txt": b"text"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    fresh = f"{bucket}-stage"
    url = f"s3://{fresh}/datasets"
    assert "--create-bucket" in cloud("stage", "src", url, status=1).err
    planned = cloud("stage", "src", url, "--create-bucket", "--dry-run", "--json")
    assert [e["step"] for e in planned.objects("stage_step")] == ["bucket", "upload"]
    assert "there is no bucket" in cloud("stage", "src", url, status=1).err, "a dry run makes none"
    ran = cloud("stage", "src", url, "--create-bucket", "--sample-dir", "kept", "--json")
    assert [e["step"] for e in ran.objects("stage_step")] == ["bucket", "upload", "list", "sample", "unpack"]
    report = ran.object("stage_summary")
    assert report["ok"] and report["bucket_made"] and report["objects"] == len(tree) + 1
    assert report["sample"] == "sample.tar.gz" and report["sample_members"] == 2
    assert (tmp_path / "kept" / "sample.tar.gz.unpacked" / "sub" / "b.txt").read_bytes() == b"text"
    again = cloud("stage", "src", url, "--create-bucket", "--json").object("stage_summary")
    assert not again["bucket_made"] and again["moved_bytes"] == 0


def test_a_dry_run_says_what_the_run_does(cloud: Millrace, bucket: str, tree: dict, tmp_path: Path):
    url = f"s3://{bucket}/p"

    def told_and_done(source: str, target: str) -> list[tuple]:
        says, does = (
            cloud("sync", source, target, "--delete", "--all", "--json", *words) for words in (["--dry-run"], [])
        )
        told, done = (
            [(e["action"], e["path"], e["bytes"], e["moved_bytes"], e["reason"]) for e in ran.objects("transfer")]
            for ran in (says, does)
        )
        assert told == done
        sums = ["copied_files", "copied_bytes", "moved_bytes", "server_bytes", "saved_bytes", "deleted_files"]
        summary, after = says.object("transfer_summary"), does.object("transfer_summary")
        assert {name: summary[name] for name in sums} == {name: after[name] for name in sums}
        return done

    def change() -> None:
        time.sleep(1.1)  # S3 tells whole seconds
        with (tmp_path / "src" / "large").open("r+b") as file:
            file.seek(LARGE // 2)
            byte = file.read(1)[0]
            file.seek(LARGE // 2)
            file.write(bytes([byte ^ 1]))
        (tmp_path / "src" / "a").touch()
        (tmp_path / "src" / "d/b.tmp").write_bytes(os.urandom(2))
        (tmp_path / "src" / "empty").unlink(missing_ok=True)
        (tmp_path / "src" / "new").write_bytes(os.urandom(9 << 20))

    assert all(action == "copy" and moved == size for action, _, size, moved, _ in told_and_done("src", url))
    cloud("sync", url, "back")
    change()
    found = {path: (action, moved) for action, path, _, moved, _ in told_and_done("src", url)}
    assert found["a"] == ("skip", 0), "the same content at another time"
    assert found["large"] == ("copy", 8 << 20)
    assert found["empty"][0] == "delete" and found["new"] == ("copy", 9 << 20)
    assert found["d/b.tmp"] == ("copy", 2)
    found = {path: (action, moved) for action, path, _, moved, _ in told_and_done(url, "back")}
    assert found["large"] == ("copy", 8 << 20)
    inside = told_and_done(url, f"s3://{bucket}/q")
    assert sum(moved for *_, moved, _ in inside) == 0, "the server copies"
    assert "8.39 MB of 21.0 MB, other content" in (change(), cloud("sync", "src", url, "--dry-run"))[1].out


def test_what_was_never_finished_is_listed_ended_and_gone_on_with(
    cloud: Millrace, s3, bucket: str, tree: dict, tmp_path: Path
):
    def begin(key: str) -> None:
        s3.client.create_multipart_upload(Bucket=bucket, Key=key)

    def left() -> list[str]:
        return [each["Key"] for each in s3.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]

    for key in ("p/large", "p/x", "p2", "q/y"):
        begin(key)
    listed = cloud("ls", f"s3://{bucket}/p", "--uploads", "--json").objects("upload")
    assert [e["path"] for e in listed] == ["large", "x"]
    assert cloud("ls", f"s3://{bucket}/p/x", "--uploads", "--json").object("upload")["path"] == "x"
    assert "p/x" in cloud("ls", f"s3://{bucket}", "--uploads").out
    would = cloud("rm", f"s3://{bucket}/q", "--uploads", "--dry-run", "--json")
    assert [e["path"] for e in would.objects("removed")] == ["y"] and len(left()) == 4
    assert cloud("rm", f"s3://{bucket}/q", "--uploads", "--json").object("rm_summary")["objects"] == 1
    assert left() == ["p/large", "p/x", "p2"]
    # An upload without a part is used, and the attributes it lacks are set.
    (tmp_path / "src" / "large").chmod(0o640)
    cloud("sync", "src", f"s3://{bucket}/p", "--posix")
    assert left() == ["p/x", "p2"]
    large = s3.client.get_object(Bucket=bucket, Key="p/large")
    assert large["Body"].read() == tree["large"] and large["Metadata"]["file-permissions"] == "0100640"


def test_an_upload_of_another_program_is_left_to_it(cloud: Millrace, s3, bucket: str, tree: dict):
    at = {"Bucket": bucket, "Key": "p/large"}
    upload = s3.client.create_multipart_upload(**at)["UploadId"]
    theirs = os.urandom(6 << 20)  # in a part of a size that is not ours
    etag = s3.client.upload_part(**at, UploadId=upload, PartNumber=1, Body=theirs)["ETag"]
    cloud("sync", "src", f"s3://{bucket}/p")
    assert s3.client.get_object(**at)["Body"].read() == tree["large"]
    whole = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    s3.client.complete_multipart_upload(**at, UploadId=upload, MultipartUpload=whole)
    assert s3.client.get_object(**at)["Body"].read() == theirs


def test_progress_names_files_and_counts_what_failed(cloud: Millrace, bucket: str, tmp_path: Path):
    make(tmp_path / "src", {"big.bin": os.urandom(24 << 20), "d" * 250 + "/" + "/".join(["e" * 250] * 4): b"too long"})
    ours, theirs = pty.openpty()
    command = [cloud.binary, "sync", "src", f"s3://{bucket}/p", "--bwlimit", "10MB"]
    running = subprocess.Popen(command, cwd=cloud.cwd, env=cloud.env, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(ours, 1 << 16):
            shown += piece
    os.close(ours)
    assert running.wait(timeout=60) == 1
    percents = [int(each) for each in re.findall(r"\n  big\.bin (\d+)%", shown.decode())]
    assert percents == sorted(percents) and len(set(percents)) > 2, shown
    lines = [line for line in shown.decode().splitlines() if "sync: copy" in line]
    assert any("1 failed" in line and " of 25.2 MB" in line and "ETA" in line for line in lines), lines


def test_buckets_are_listed(cloud, s3):
    names = [bucket["name"] for bucket in cloud("ls", "s3://", "--json").objects("bucket")]
    assert names == sorted(names) and names
    cloud("ls", f"s3://{names[0]}")
