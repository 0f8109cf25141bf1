# SPDX-License-Identifier: Apache-2.0
"""The results of the package's functions: plain dicts with these keys. The values are bytes, seconds and counts."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class DocumentCounts(TypedDict):
    invalid_utf8: int
    rejected: int
    duplicates: int
    filtered: int
    empty: int


class ShardResult(TypedDict):
    name: str
    size: int
    samples: int
    tokens: int


class Forecast(TypedDict, total=False):
    """The keys that a dry run adds. They are estimated from a sample."""

    expected_documents: int
    expected_tokens: int
    expected_output_bytes: int
    sampled_bytes: int


class PrepareResult(DocumentCounts, Forecast):
    """The result of millrace.prepare."""

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
    """The result of millrace.finish."""

    shards: int
    documents: int
    tokens: int
    input_bytes: int


class ProposedModality(TypedDict, total=False):
    """The key that millrace.lerobot.convert adds."""

    proposed: list[str]


class MadeDatasetResult(ProposedModality):
    """The result of the functions of millrace.lerobot that make one dataset."""

    output: str
    version: str
    episodes: int
    frames: int
    files: int
    reused: int
    cut_episodes: int
    copied_videos: int
    encoded_videos: int
    min_psnr_db: float
    inherited: list[str]


class LeRobotDiffResult(TypedDict):
    """The result of millrace.lerobot.diff. The keys of each entry are those of `millrace lerobot diff --json`
    (docs/lerobot.md)."""

    a: dict[str, Any]
    b: dict[str, Any]
    differences: int
    info: list[dict[str, Any]]
    tasks: list[dict[str, Any]]
    episodes: list[dict[str, Any]]
    features: list[dict[str, Any]]
    stats: list[dict[str, Any]]
    cameras: list[dict[str, Any]]
    not_compared: list[str]


class SplitPart(TypedDict):
    """One file that millrace.split wrote."""

    name: str
    bytes: int
    documents: int


class TransferResult(TypedDict):
    """The result of millrace.cp, millrace.mv and millrace.sync."""

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
    made_folders: int
    set_folders: int
    passed: int
    refused: int
    retries: int
    seconds: float


class DownloadResult(TypedDict):
    """The result of millrace.lerobot.download."""

    repo: str
    revision: str
    commit: str
    output: str
    copied_files: int
    copied_bytes: int
    moved_bytes: int
    resumed_bytes: int
    skipped_files: int
    skipped_bytes: int
    deleted_files: int
    retries: int
    seconds: float
    warnings: list[str]


class StageResult(TransferResult):
    """The result of millrace.stage."""

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
    """The result of millrace.rm."""

    objects: int
    bytes: int


class VerifyResult(TypedDict):
    """The result of millrace.verify."""

    ok: bool
    files: int
    bytes: int
    same: int
    extra: int
    differences: list[str]


class FailedEpisode(TypedDict):
    """A CSV file that could not be converted, and why."""

    file: str
    error: str


class EpisodeKind(TypedDict):
    """Files with the same columns. `first` is one of these files."""

    columns: list[str]
    text_columns: list[str]
    files: int
    first: str


class RoundedColumn(TypedDict):
    """A column with values of 2^24 or more that float32 has rounded, with the position of the first such value."""

    column: str
    file: str
    row: int
    files: int


class EpisodesResult(TypedDict):
    """The result of millrace.episodes.convert."""

    output: str
    files: int
    converted: int
    kept: int
    rows: int
    input_bytes: int
    output_bytes: int
    failed: list[FailedEpisode]
    kinds: list[EpisodeKind]
    rounded: list[RoundedColumn]


class StepInfo(TypedDict):
    """A committed step of a checkpoint folder."""

    step: int
    attempt: str
    world_size: int
    tensors: int
    bytes: int
    referred_bytes: int
    bases: list[tuple[str, int]]
    metrics: dict[str, float]
    committed: float
    line: list[tuple[str, int]] | None
    left_behind: bool
    damage: str | None
    newer: bool


class LinkConflict(TypedDict):
    path: str
    time: int
    reason: str
    outcome: str


class LinkProblem(TypedDict):
    path: str
    since: int
    error: str


class LinkStatusResult(TypedDict):
    """The result of millrace.link.status; times are seconds since 1970."""

    name: str
    directory: str
    url: str
    running: bool
    doing: str
    behind_s: int
    silent_since: int | None
    files: int
    bytes: int
    proven: int
    released: int
    released_bytes: int
    unfinished: int
    passed: int
    waiting: int
    last_sweep: int | None
    error: str
    not_deleted: str
    conflicts: int
    problems: int
    latest_conflicts: list[LinkConflict]
    latest_problems: list[LinkProblem]


class LinkWaitResult(TypedDict):
    """The result of millrace.link.wait."""

    files: int
    bytes: int
    proofs: dict[str, int]
    seconds: float


class LinkReleaseResult(TypedDict):
    """The result of millrace.link.release."""

    files: int
    bytes: int
    left: int
    reasons: dict[str, str]
    free_share: float


class LinkRestoreResult(TypedDict):
    """The result of millrace.link.restore."""

    files: int
    bytes: int
