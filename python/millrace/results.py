# SPDX-License-Identifier: Apache-2.0
"""What the functions of the package answer: plain dicts with these keys. Bytes, seconds and counts."""

from __future__ import annotations

from typing import Literal, TypedDict


class DocumentCounts(TypedDict):
    invalid_utf8: int
    rejected: int
    duplicates: int
    filtered: int


class ShardResult(TypedDict):
    name: str
    size: int
    samples: int
    tokens: int


class Forecast(TypedDict, total=False):
    """What a dry run adds, told from a sample."""

    expected_documents: int
    expected_tokens: int
    expected_output_bytes: int
    sampled_bytes: int


class PrepareResult(DocumentCounts, Forecast):
    """Of millrace.prepare."""

    task: int
    tasks: int
    shards: list[ShardResult]
    input_bytes: int
    output_bytes: int
    documents: int
    tokens: int
    shards_reused: int
    read_seconds: float
    encode_seconds: float
    write_seconds: float
    limited_by: str
    seconds: float
    cpu_seconds: float


class FinishResult(DocumentCounts):
    """Of millrace.finish."""

    shards: int
    documents: int
    tokens: int
    input_bytes: int


class SplitPart(TypedDict):
    """One file that millrace.split wrote."""

    name: str
    bytes: int
    documents: int


class TransferResult(TypedDict):
    """Of millrace.cp, millrace.mv and millrace.sync."""

    copied_files: int
    copied_bytes: int
    moved_bytes: int
    server_bytes: int
    resumed_bytes: int
    saved_bytes: int
    skipped_files: int
    skipped_bytes: int
    deleted_files: int
    deleted_bytes: int
    extra_files: int
    removed_files: int
    passed: int
    refused: int
    retries: int
    seconds: float


class StageResult(TransferResult):
    """Of millrace.stage."""

    bucket_made: bool
    objects: int
    bytes: int
    sample: str
    sample_bytes: int
    sample_members: int


class ListEntry(TypedDict):
    """One entry of millrace.ls."""

    path: str
    type: Literal["object", "folder", "other"]
    size: int
    modified: float
    version: str


class RemoveResult(TypedDict):
    """Of millrace.rm."""

    objects: int
    bytes: int


class VerifyResult(TypedDict):
    """Of millrace.verify."""

    ok: bool
    files: int
    bytes: int
    same: int
    extra: int
    differences: list[str]


class StepInfo(TypedDict):
    """A committed step of a checkpoint folder."""

    step: int
    attempt: str
    world_size: int
    tensors: int
    bytes: int
    committed: float
    damage: str | None
