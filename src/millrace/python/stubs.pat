_core.__prefix__:
    from millrace.results import (
        DownloadResult,
        EpisodesResult,
        FinishResult,
        LeRobotDiffResult,
        LinkReleaseResult,
        LinkRestoreResult,
        LinkStatusResult,
        LinkWaitResult,
        ListEntry,
        MadeDatasetResult,
        PrepareResult,
        RemoveResult,
        SplitPart,
        StageResult,
        StepInfo,
        TransferResult,
        VerifyResult,
    )

    class CorruptionError(OSError):
        """Bytes are not what they were said to be: a damaged or changed file."""

    class Cancelled(Exception):
        """The operation was stopped, or its object closed."""

    __version__: str

