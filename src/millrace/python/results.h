// SPDX-License-Identifier: Apache-2.0
#pragma once

// The results of the package's functions: dicts. python/millrace/results.py declares their keys for type checkers.

#include <nanobind/nanobind.h>

namespace millrace::python {

namespace nb = nanobind;

class PrepareResult : public nb::dict {
  NB_OBJECT_DEFAULT(PrepareResult, nb::dict, "PrepareResult", PyDict_Check)
};
class FinishResult : public nb::dict {
  NB_OBJECT_DEFAULT(FinishResult, nb::dict, "FinishResult", PyDict_Check)
};
class SplitPart : public nb::dict {
  NB_OBJECT_DEFAULT(SplitPart, nb::dict, "SplitPart", PyDict_Check)
};
class TransferResult : public nb::dict {
  NB_OBJECT_DEFAULT(TransferResult, nb::dict, "TransferResult", PyDict_Check)
};
class DownloadResult : public nb::dict {
  NB_OBJECT_DEFAULT(DownloadResult, nb::dict, "DownloadResult", PyDict_Check)
};
class ListEntry : public nb::dict {
  NB_OBJECT_DEFAULT(ListEntry, nb::dict, "ListEntry", PyDict_Check)
};
class RemoveResult : public nb::dict {
  NB_OBJECT_DEFAULT(RemoveResult, nb::dict, "RemoveResult", PyDict_Check)
};
class VerifyResult : public nb::dict {
  NB_OBJECT_DEFAULT(VerifyResult, nb::dict, "VerifyResult", PyDict_Check)
};
class StageResult : public nb::dict {
  NB_OBJECT_DEFAULT(StageResult, nb::dict, "StageResult", PyDict_Check)
};
class LeRobotDiffResult : public nb::dict {
  NB_OBJECT_DEFAULT(LeRobotDiffResult, nb::dict, "LeRobotDiffResult", PyDict_Check)
};
class MadeDatasetResult : public nb::dict {
  NB_OBJECT_DEFAULT(MadeDatasetResult, nb::dict, "MadeDatasetResult", PyDict_Check)
};
class EpisodesResult : public nb::dict {
  NB_OBJECT_DEFAULT(EpisodesResult, nb::dict, "EpisodesResult", PyDict_Check)
};
class LinkStatusResult : public nb::dict {
  NB_OBJECT_DEFAULT(LinkStatusResult, nb::dict, "LinkStatusResult", PyDict_Check)
};
class LinkWaitResult : public nb::dict {
  NB_OBJECT_DEFAULT(LinkWaitResult, nb::dict, "LinkWaitResult", PyDict_Check)
};
class LinkReleaseResult : public nb::dict {
  NB_OBJECT_DEFAULT(LinkReleaseResult, nb::dict, "LinkReleaseResult", PyDict_Check)
};
class LinkRestoreResult : public nb::dict {
  NB_OBJECT_DEFAULT(LinkRestoreResult, nb::dict, "LinkRestoreResult", PyDict_Check)
};
class StepInfo : public nb::dict {
  NB_OBJECT_DEFAULT(StepInfo, nb::dict, "StepInfo", PyDict_Check)
};

}  // namespace millrace::python
