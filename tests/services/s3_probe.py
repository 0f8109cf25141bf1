# SPDX-License-Identifier: Apache-2.0
"""What an S3 server makes of conditions and checksums, asked with another client than ours: tests expect no more of it.

    python tests/services/s3_probe.py

asks the endpoint MILLRACE_TEST_S3 (with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION) and prints

    MILLRACE_TEST_S3_ATOMIC=1     of PUTs that race with the same If-Match, or with If-None-Match, one succeeds (else 0)
    MILLRACE_TEST_S3_CHECKSUMS=1  a body that is not what x-amz-checksum-crc32c says is refused (else 0)
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import botocore.session
from botocore.client import BaseClient, Config
from botocore.exceptions import ClientError

RACES, RACERS = 30, 4
REFUSED = (409, 412)


def client() -> BaseClient:
    session = botocore.session.Session(session_vars={"config_file": (None, None, os.devnull, None)})
    config = Config(
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=RACERS,
        retries={"total_max_attempts": 1},
    )
    region = os.environ.get("AWS_REGION", "us-east-1")
    return session.create_client("s3", endpoint_url=os.environ["MILLRACE_TEST_S3"], region_name=region, config=config)


@contextlib.contextmanager
def bucket(s3: BaseClient) -> Iterator[str]:
    name = f"millrace-probe-{uuid.uuid4().hex[:16]}"
    s3.create_bucket(Bucket=name)
    yield name
    for each in s3.list_objects_v2(Bucket=name).get("Contents", []):
        s3.delete_object(Bucket=name, Key=each["Key"])
    s3.delete_bucket(Bucket=name)


def is_put(s3: BaseClient, **request: object) -> bool:
    try:
        s3.put_object(**request)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] not in (*REFUSED, 400):
            raise
        return False
    return True


def is_atomic(s3: BaseClient, name: str) -> bool:
    with ThreadPoolExecutor(RACERS) as pool:
        for race in range(RACES):
            key = f"race-{race}"
            conditions: list[dict[str, str]] = [{"IfNoneMatch": "*"}]
            if race % 2:
                conditions = [{"IfMatch": s3.put_object(Bucket=name, Key=key, Body=b"before")["ETag"]}]
            won = pool.map(
                lambda i, key=key, condition=conditions[0]: is_put(
                    s3, Bucket=name, Key=key, Body=b"%d" % i, **condition
                ),
                range(RACERS),
            )
            if sum(won) != 1:
                return False
    return True


def main() -> None:
    s3 = client()
    with bucket(s3) as name:
        wrong = is_put(s3, Bucket=name, Key="wrong", Body=b"123456789", ChecksumCRC32C="AAAAAA==")
        print(f"MILLRACE_TEST_S3_ATOMIC={int(is_atomic(s3, name))}")
        print(f"MILLRACE_TEST_S3_CHECKSUMS={int(not wrong)}")


if __name__ == "__main__":
    main()
