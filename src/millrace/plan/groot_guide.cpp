// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/groot_guide.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "millrace/plan/detail/levels.h"
#include "millrace/plan/detail/table.h"

namespace millrace::plan {

namespace {

constexpr double kBaseGib = 5, kOverheadGib = 2, kPerSampleGib = 1.2;
constexpr const char* kSource = "GPU strategy guide (GR00T), its constants";

}  // namespace

MemoryModel groot_guide_model() {
  MemoryModel model{.basis = kGrootGuideBasis,
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

std::span<const GrootGuideRow> groot_guide_table() {
  static const std::vector<GrootGuideRow> kTable = [] {
    std::vector<GrootGuideRow> table;
    for (const data::Row& row :
         data::rows_of(data::k_groot_guide_batches, "gpu,name,gb,conservative,recommended,aggressive")) {
      table.push_back(
          {row[0], row[1], data::number(row[2]), {data::whole(row[3]), data::whole(row[4]), data::whole(row[5])}});
    }
    return table;
  }();
  return kTable;
}

std::vector<std::string> groot_guide_notes(std::string_view gpu_id) {
  std::vector<std::string> notes;
  const std::span<const GrootGuideRow> table = groot_guide_table();
  const auto row =
      std::find_if(table.begin(), table.end(), [&](const GrootGuideRow& each) { return each.gpu_id == gpu_id; });
  if (row == table.end()) return notes;
  const int64_t most = largest_batch(row->gib - kOverheadGib, kBaseGib, kPerSampleGib);
  notes.push_back(
      fmt::format("the guide's own formula gives floor(({:.0f} - 5 - 2) / 1.2) = {} for the {:.0f} GB on the box ({}); "
                  "its table says {} / {} / {}",
                  row->gib, most, row->gib, row->name, row->batches[0], row->batches[1], row->batches[2]));
  for (size_t i = 0; i < kLevels.size(); ++i) {
    const int64_t batch = row->batches[i];
    const double used = kOverheadGib + kBaseGib + kPerSampleGib * static_cast<double>(batch);
    const std::string sum = fmt::format("the table's {} batch {}: 5 + 2 + {} x 1.2 = {:.1f} of {:.0f} GB ({:.0f} %)",
                                        kLevels[i].name, batch, batch, used, row->gib, 100 * used / row->gib);
    if (batch > most) notes.push_back(sum + ": it does not fit");
    if (i + 1 == kLevels.size() && batch < most)
      notes.push_back(fmt::format("{}: {} samples are left unused", sum, most - batch));
  }
  return notes;
}

std::span<const VlaGuideRow> vla_guide_table() {
  static const std::vector<VlaGuideRow> kTable = [] {
    std::vector<VlaGuideRow> table;
    for (const data::Row& row : data::rows_of(data::k_vla_guide_batches, "gpu,name,gb,batch"))
      table.push_back({row[0], row[1], data::number(row[2]), data::whole(row[3])});
    return table;
  }();
  return kTable;
}

std::vector<std::string> vla_guide_notes(std::string_view gpu_id) {
  const std::span<const VlaGuideRow> table = vla_guide_table();
  const auto row = std::ranges::find(table, gpu_id, &VlaGuideRow::gpu_id);
  if (row == table.end()) return {};
  const int64_t most = largest_batch(row->gib - kOverheadGib, kBaseGib, kPerSampleGib);
  return {fmt::format("the VLA guide's table says {} for the {}; by the GR00T guide's formula {} fit into {:.0f} GB{}",
                      row->batch, row->name, most, row->gib,
                      row->batch > most ? ", so it holds for another model" : "")};
}

}  // namespace millrace::plan
