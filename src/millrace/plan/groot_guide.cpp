// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/groot_guide.h"

namespace millrace::plan {

namespace {

constexpr double kBaseGib = 5, kOverheadGib = 2, kPerSampleGib = 1.2;
constexpr const char* kSource = "GPU strategy guide (GR00T), its constants";

}  // namespace

MemoryModel groot_guide_model() {
  MemoryModel model{.basis = "GR00T guide",
                    .fixed_gib = Range::point(kBaseGib),
                    .per_sample_gib = Range::point(kPerSampleGib),
                    .overhead_gib = kOverheadGib,
                    .confidence = "low"};
  model.why.terms = {{"fixed", model.fixed_gib, "GiB", kSource},
                     {"per_sample", model.per_sample_gib, "GiB", kSource},
                     {"overhead", Range::point(model.overhead_gib), "GiB", kSource}};
  model.why.notes.emplace_back(
      "the guide's constants are GR00T's, and its 5 GiB are weights alone: full fine-tuning with AdamW needs 16 to 18 "
      "bytes a parameter besides (--preset full-adamw); measure three batches and give them with --measured");
  return model;
}

}  // namespace millrace::plan
