# SPDX-License-Identifier: Apache-2.0
"""Finds out, with another client than ours, what an S3 server makes of conditions and checksums. Tests expect no more
of it.

    python tests/services/s3_probe.py

asks the endpoint MILLRACE_TEST_S3 (with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION) and prints

    MILLRACE_TEST_S3_ATOMIC=1     of PUTs that race with the same If-Match, or with If-None-Match, one succeeds (else 0)
    MILLRACE_TEST_S3_CHECKSUMS=1  a body that is not what x-amz-checksum-crc32c says is refused (else 0)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from botocore.client import BaseClient
from botocore.exceptions import ClientError
from s3_fixture import S3

RACES, RACERS = 30, 4
REFUSED = (409, 412)


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
    server = S3.of_environment()
    name, client = server.bucket(), server.client
    wrong = is_put(client, Bucket=name, Key="wrong", Body=b"123456789", ChecksumCRC32C="AAAAAA==")
    print(f"MILLRACE_TEST_S3_ATOMIC={int(is_atomic(client, name))}")
    print(f"MILLRACE_TEST_S3_CHECKSUMS={int(not wrong)}")
    server.remove_buckets()


if __name__ == "__main__":
    main()
