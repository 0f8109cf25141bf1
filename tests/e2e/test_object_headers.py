# SPDX-License-Identifier: Apache-2.0
"""What an object in S3 has beside its bytes: kept in copies within S3, set by flags, guessed for files."""

from __future__ import annotations

import datetime
import json
import mimetypes
import os
import random
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from conftest import Millrace

import millrace as mr

LARGE = 17 << 20  # more than a part
SET = {
    "ContentType": "text/x-prose; charset=utf-8",
    "ContentEncoding": "x-none",
    "ContentLanguage": "de",
    "ContentDisposition": 'attachment; filename="a b.txt"',
    "CacheControl": "max-age=5, private",
    "Expires": datetime.datetime(2031, 2, 3, 4, 5, 6, tzinfo=datetime.UTC),
    "Metadata": {"run": "7", "file-permissions": "0100640", "file-owner": "1000", "file-group": "1000",
                 "file-atime": "5ns", "file-mtime": "6ns"},
}  # fmt: skip
TAGS = {"team": "a b", "k/ey": "v+=:@"}


def beside(s3, bucket: str, key: str) -> tuple[dict, dict]:
    head = s3.client.head_object(Bucket=bucket, Key=key)
    tags = s3.client.get_object_tagging(Bucket=bucket, Key=key).get("TagSet", [])
    found = {name: head.get(name) for name in SET}
    found["Expires"] = found["Expires"] and found["Expires"].replace(tzinfo=datetime.UTC)
    return found, {tag["Key"]: tag["Value"] for tag in tags}


def put(s3, bucket: str, key: str, body: bytes) -> None:
    s3.client.put_object(Bucket=bucket, Key=key, Body=body, Tagging=urlencode(TAGS, quote_via=quote), **SET)


@pytest.mark.parametrize("size", [0, 3, LARGE], ids=["empty", "small", "parts"])
@pytest.mark.parametrize("verb", ["cp", "mv", "sync", "mv-tree"])
def test_copies_within_s3_keep_all(cloud: Millrace, s3, bucket: str, size: int, verb: str):
    other = s3.bucket()
    put(s3, bucket, "from/x", bytes(size))
    if verb in ("cp", "mv"):
        cloud(verb, f"s3://{bucket}/from/x", f"s3://{other}/to/x")
    elif verb == "sync":
        cloud("sync", f"s3://{bucket}/from", f"s3://{other}/to")
    else:
        cloud("mv", f"s3://{bucket}/from", f"s3://{other}/to", "--recursive")
    assert beside(s3, other, "to/x") == (SET, TAGS)
    assert s3.client.get_object(Bucket=other, Key="to/x")["Body"].read() == bytes(size)
    gone = "Contents" not in s3.client.list_objects_v2(Bucket=bucket, Prefix="from/x")
    assert gone == verb.startswith("mv")


def test_an_object_with_block_hashes_that_is_replaced_gets_all(
    cloud: Millrace, s3, bucket: str, seeded: random.Random, tmp_path: Path
):
    """sync.TransferS3 has the copies in parts."""
    old = seeded.randbytes(3 << 23)
    new = bytes([old[0] ^ 1]) + old[1:]
    for name, content in (("old", old), ("new", new)):
        (tmp_path / name).write_bytes(content)
        cloud("cp", name, f"s3://{bucket}/{name}")  # with block hashes
    copied = s3.client.copy_object
    for name in ("old", "new"):
        copied(Bucket=bucket, Key=name, CopySource=f"{bucket}/{name}", MetadataDirective="REPLACE", **SET)
        s3.client.put_object_tagging(
            Bucket=bucket, Key=name, Tagging={"TagSet": [{"Key": k, "Value": v} for k, v in TAGS.items()]}
        )
    s3.client.put_object_tagging(Bucket=bucket, Key="old", Tagging={"TagSet": []})
    cloud("cp", f"s3://{bucket}/new", f"s3://{bucket}/old")
    assert beside(s3, bucket, "old") == (SET, TAGS)
    assert s3.client.get_object(Bucket=bucket, Key="old")["Body"].read() == new


def test_equal_bytes_are_no_reason_to_lose_them(cloud: Millrace, s3, bucket: str, tmp_path: Path):
    """mv removes the only object that has them, so the one that stays gets them."""
    (tmp_path / "x").write_bytes(os.urandom(LARGE))
    cloud("cp", "x", f"s3://{bucket}/a/x")
    cloud("cp", "x", f"s3://{bucket}/b/x")
    cloud("sync", f"s3://{bucket}/a", f"s3://{bucket}/b")  # and a record says so
    s3.client.copy_object(Bucket=bucket, Key="a/x", CopySource=f"{bucket}/a/x", MetadataDirective="REPLACE", **SET)
    cloud("mv", f"s3://{bucket}/a", f"s3://{bucket}/b", "--recursive")
    assert beside(s3, bucket, "b/x")[0] == SET


def test_flags_change_them(cloud: Millrace, s3, bucket: str, tmp_path: Path):
    put(s3, bucket, "x", b"1")
    cloud("cp", f"s3://{bucket}/x", f"s3://{bucket}/y", "--content-type", "a/b", "--cache-control", "no-store",
          "--metadata", "Step=5", "--metadata", "Name=a=b", "--tag", "one=1 2")  # fmt: skip
    headers, tags = beside(s3, bucket, "y")
    assert headers == SET | {
        "ContentType": "a/b",
        "CacheControl": "no-store",
        "Metadata": {"step": "5", "name": "a=b"},
    }
    assert tags == {"one": "1 2"}
    cloud("cp", f"s3://{bucket}/x", f"s3://{bucket}/z", "--no-tags", "--expires", "2040-01-01T00:00:00Z")
    headers, tags = beside(s3, bucket, "z")
    assert tags == {} and headers["ContentType"] == SET["ContentType"]
    assert headers["Expires"] == datetime.datetime(2040, 1, 1, tzinfo=datetime.UTC)

    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "f.json").write_bytes(b"{}")
    cloud("sync", "src", f"s3://{bucket}/up", "--content-encoding", "gzip", "--content-disposition", "inline",
          "--content-language", "en", "--tag", "a=b", "--expires", "2040-01-02")  # fmt: skip
    headers, tags = beside(s3, bucket, "up/f.json")
    assert (headers["ContentType"], headers["ContentEncoding"], headers["ContentDisposition"]) == (
        "application/json", "gzip", "inline",
    )  # fmt: skip
    assert headers["ContentLanguage"] == "en" and tags == {"a": "b"} and headers["Expires"].day == 2
    # The same bytes with another header are not left as they are.
    cloud("cp", "src/f.json", f"s3://{bucket}/up/f.json", "--content-type", "text/json")
    assert beside(s3, bucket, "up/f.json")[0]["ContentType"] == "text/json"
    (tmp_path / "src" / "large.bin").write_bytes(bytes(LARGE))
    cloud("cp", "src/large.bin", f"s3://{bucket}/l")
    cloud("cp", "src/large.bin", f"s3://{bucket}/l", "--content-type", "x/y", "--tag", "n=1")
    headers, tags = beside(s3, bucket, "l")
    assert headers["ContentType"] == "x/y" and tags == {"n": "1"}

    refused = cloud("cp", "src/f.json", "there", "--content-type", "text/json", status=1)
    assert "s3:// only" in refused.err
    assert "NAME=VALUE" in cloud("cp", "src/f.json", f"s3://{bucket}/f", "--tag", "x", status=2).err
    assert "is no time" in cloud("cp", "src/f.json", f"s3://{bucket}/f", "--expires", "soon", status=2).err


def test_python_has_them_too(cloud: Millrace, s3, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    put(s3, bucket, "x", b"1")
    mr.cp(f"s3://{bucket}/x", f"s3://{bucket}/y", headers={"Content-Type": "a/b"}, metadata={}, tags={})
    headers, tags = beside(s3, bucket, "y")
    assert headers == SET | {"ContentType": "a/b", "Metadata": {}} and tags == {}
    with pytest.raises(ValueError, match="Content-Type"):
        mr.cp(f"s3://{bucket}/x", f"s3://{bucket}/y", headers={"X-Other": "a"})


def test_the_type_of_a_file_is_that_of_aws_s3_cp(cloud: Millrace, s3, bucket: str, tmp_path: Path, seeded):
    """Which asks Python's mimetypes. Known endings (other ones each time: each is three requests), coded ones, upper case,
    and names without one."""
    table = mimetypes.MimeTypes(filenames=())
    known = seeded.sample([*table.types_map[True], *table.suffix_map], 30)
    endings = [*known, ".gz", ".Z", ".json.gz", ".tar.bz2", ".JSON", ".Txt.xz", ""]
    names = {f"{i:03}{ending}": ending for i, ending in enumerate(endings)} | {".json": "", "a.b.html": ".html"}
    (tmp_path / "src").mkdir()
    for name in names:
        (tmp_path / "src" / name).write_bytes(b"1")
    cloud("sync", "src", f"s3://{bucket}/up")
    cloud("sync", "src", f"s3://{bucket}/plain", "--no-guess-mime-type")
    wrong = {}
    for name in names:
        found = s3.client.head_object(Bucket=bucket, Key=f"up/{name}").get("ContentType")
        guessed = table.guess_type(name)[0]
        if found != (guessed or "binary/octet-stream"):
            wrong[name] = (found, guessed)
    assert wrong == {}
    assert s3.client.head_object(Bucket=bucket, Key="plain/a.b.html").get("ContentType") == "binary/octet-stream"


def test_tags_that_may_not_be_read_are_an_error_that_names_the_flag(cloud: Millrace, s3, bucket: str, tmp_path: Path):
    (tmp_path / "x").write_bytes(bytes(LARGE))
    cloud("cp", "x", f"s3://{bucket}/x")  # has block hashes, as the next one
    cloud("cp", "x", f"s3://{bucket}/y")
    policy = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "s3:GetObjectTagging",
                       "Resource": f"arn:aws:s3:::{bucket}/*"}],
    }  # fmt: skip
    s3.client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    for source, target in (("x", "y"), ("x", "z")):
        flags = () if source == "x" and target == "y" else ("--content-type", "a/b")
        refused = cloud("cp", f"s3://{bucket}/{source}", f"s3://{bucket}/{target}", *flags, status=1)
        assert "--no-tags" in refused.err and "tags" in refused.err
        cloud("cp", f"s3://{bucket}/{source}", f"s3://{bucket}/{target}", *flags, "--no-tags")
