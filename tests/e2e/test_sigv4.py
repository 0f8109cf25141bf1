# SPDX-License-Identifier: Apache-2.0
"""Our signatures beside botocore's, on random requests with every odd character, through a C++ test that reads them."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import random
import subprocess
from pathlib import Path
from urllib.parse import quote, urlsplit

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from conftest import REPOSITORY

TESTS = REPOSITORY / "build/dev/src/millrace/aws/millrace_aws_tests"
ASCII = "".join(map(chr, range(32, 127)))
ODD = ASCII + "öß€你🏳️\u0301\u200d\x7f\x01\t\n\r"


def text(rng: random.Random, alphabet: str, most: int) -> str:
    return "".join(rng.choices(alphabet, k=rng.randrange(most + 1)))


def random_request(rng: random.Random) -> dict:
    service = rng.choice(["s3", "s3", "s3", "sts"])
    host = rng.choice(["bucket.s3.eu-west-1.amazonaws.com", "127.0.0.1:9000", "[::1]:80", "localhost"])
    names = ["Range", "x-amz-meta-A", "x-amz-meta-b", "Content-Type", "If-Match", "x-amz-copy-source", "Content-MD5"]
    return {
        "method": rng.choice(["GET", "PUT", "POST", "DELETE", "HEAD"]),
        "scheme": rng.choice(["https", "http"]),
        "host": host,
        # Paths of other services are normalised and encoded twice; they are always the root.
        "path": "/" + (text(rng, ODD + "////....", 30) if service == "s3" else ""),
        "query": [
            [text(rng, ODD, 6) or "x", text(rng, ODD, 8)]
            for _ in range(rng.choice([0, 1, 2, 5]))
        ]
        + rng.choice([[], [["uploads", ""]], [["partNumber", "7"], ["uploadId", "a+/=="]], [["a", "2"], ["a", "10"]]]),
        "headers": [[rng.choice(names), text(rng, ASCII + "    \t", 20)] for _ in range(rng.choice([0, 1, 3, 6]))],
        "body": rng.randbytes(rng.choice([0, 1, 1000])),
        "access_key": text(rng, "ABCDEFGHIJ0123456789", 20) or "A",
        "secret_key": text(rng, ASCII, 120),
        "token": rng.choice(["", "", text(rng, ASCII.strip(), 300).strip()]),
        "region": rng.choice(["us-east-1", "eu-central-1", "x"]),
        "service": service,
        "time": rng.randrange(0, 2**32),
    }  # fmt: skip


def signed_by_botocore(each: dict, monkeypatch: pytest.MonkeyPatch) -> dict:
    moment = datetime.datetime.fromtimestamp(each["time"], datetime.UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: moment)
    path = quote(each["path"], safe="/-_.~")
    query = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in each["query"])
    url = f"{each['scheme']}://{each['host']}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method=each["method"], url=url, data=each["body"])
    request.headers["Host"] = urlsplit(url).netloc
    for name, value in each["headers"]:
        request.headers.add_header(name, value)
    signer = botocore.auth.S3SigV4Auth if each["service"] == "s3" else botocore.auth.SigV4Auth
    credentials = Credentials(each["access_key"], each["secret_key"], each["token"] or None)
    signer(credentials, each["service"], each["region"]).add_auth(request)
    body = each.pop("body")
    return each | {
        "encoded_path": path,
        "payload_hash": request.headers.get("X-Amz-Content-SHA256") or hashlib.sha256(body).hexdigest(),
        "authorization": request.headers["Authorization"],
        "date": request.headers["X-Amz-Date"],
    }


@pytest.mark.skipif(not TESTS.exists(), reason="the C++ tests are not built: ./dev build")
def test_signatures_are_those_of_botocore(
    seeded: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = [signed_by_botocore(random_request(seeded), monkeypatch) for _ in range(2000)]
    (tmp_path / "vectors.json").write_text(json.dumps(vectors))
    done = subprocess.run(
        [TESTS, "--gtest_filter=SigV4.AsBotocoreSigns", "--gtest_fail_fast"],
        env=os.environ | {"MILLRACE_SIGV4_VECTORS": str(tmp_path / "vectors.json")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "SKIPPED" not in done.stdout, done.stdout[-3000:]
