# SPDX-License-Identifier: Apache-2.0
"""fsspec's own tests of a file system, on local paths and on S3."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("millrace.fsspec")  # registers the protocol
abstract = pytest.importorskip("fsspec.tests.abstract")


class OurFixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return fsspec.filesystem("millrace")

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(str(part).rstrip("/") if part is not parts[-1] else str(part) for part in parts)


class OnLocalPaths(OurFixtures):
    @pytest.fixture
    def fs_path(self, tmp_path: Path) -> str:
        (tmp_path / "fs").mkdir()
        return str(tmp_path / "fs")

    @pytest.fixture
    def local_path(self, tmp_path: Path) -> str:
        (tmp_path / "local").mkdir()
        return str(tmp_path / "local")


class OnS3(OurFixtures):
    @pytest.fixture(scope="class")
    def shared_bucket(self, s3) -> str:
        return s3.bucket()

    @pytest.fixture
    def fs_path(self, request: pytest.FixtureRequest, s3, shared_bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
        # Minutes of requests, for patterns that do not depend on what is below.
        if "glob_edge_cases" in request.node.name and not os.environ.get("MILLRACE_TEST_LONG"):
            pytest.skip("MILLRACE_TEST_LONG is not set: patterns are tried on local paths")
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in s3.env.items():
            monkeypatch.setenv(name, value)
        return f"s3://{shared_bucket}/{uuid.uuid4().hex}/at"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopyOnLocalPaths(abstract.AbstractCopyTests, OnLocalPaths):
    pass


class TestGetOnLocalPaths(abstract.AbstractGetTests, OnLocalPaths):
    pass


class TestPutOnLocalPaths(abstract.AbstractPutTests, OnLocalPaths):
    pass


class TestOpenOnLocalPaths(abstract.AbstractOpenTests, OnLocalPaths):
    pass


class TestPipeOnLocalPaths(abstract.AbstractPipeTests, OnLocalPaths):
    pass


class TestCopyOnS3(abstract.AbstractCopyTests, OnS3):
    pass


class TestGetOnS3(abstract.AbstractGetTests, OnS3):
    pass


class TestPutOnS3(abstract.AbstractPutTests, OnS3):
    pass


class TestOpenOnS3(abstract.AbstractOpenTests, OnS3):
    pass


class TestPipeOnS3(abstract.AbstractPipeTests, OnS3):
    pass
