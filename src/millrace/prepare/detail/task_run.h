// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs one task, from its inputs to its part record. The shards in the folder are its journal. Shard k is good if its
// index says that it begins where shard k - 1 ended, and its bytes match the index. Any other shard is written again.
// Belongs to one thread.

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/prepare/detail/estimate.h"
#include "millrace/prepare/detail/inputs.h"
#include "millrace/prepare/detail/pipeline.h"
#include "millrace/prepare/detail/shard.h"
#include "millrace/prepare/detail/text_set.h"
#include "millrace/prepare/prepare.h"

namespace millrace::prepare {

// The inputs and outputs of a task, opened and checked.
struct TaskSetup {
  Location folder;
  std::vector<Input> inputs;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  SampleFormat format;
  formats::ShardConfig config;
};

class TaskRun {
 public:
  // `options`, `setup`, `progress` and `metrics` must outlive the run.
  TaskRun(const PrepareOptions& options, const TaskSetup& setup, const PipelineOptions& pipeline, std::stop_token stop,
          Progress& progress, Metrics& metrics);

  // Runs the task. Returns a report without times. With options.dry_run, writes nothing.
  [[nodiscard]] Result<PrepareReport> run();

 private:
  bool at_end() const { return at_.input == static_cast<int64_t>(inputs_.size()); }
  Position end_of_inputs() const { return {.input = static_cast<int64_t>(inputs_.size()), .document = at_.document}; }
  std::string shard_name(size_t number) const;
  void move_to(const Position& position, std::optional<int64_t> file_bytes = {});

  // Checking and cleaning the folder.
  [[nodiscard]] Result<bool> compare_config();
  [[nodiscard]] Status settle_config();
  bool is_own_file(std::string_view name) const;
  [[nodiscard]] Status abort_leftovers();
  [[nodiscard]] Result<std::optional<formats::PartRecord>> finished_from_other_inputs();
  [[nodiscard]] Status refuse_other_inputs();
  [[nodiscard]] Status forget_other_inputs();
  [[nodiscard]] Status remove_other_shards();

  // Reusing finished shards.
  [[nodiscard]] Result<bool> keep_finished_shard();
  [[nodiscard]] Status keep_finished_shards();
  void add_shard(const FinishedShard& shard);

  // Writing shards.
  [[nodiscard]] Status check_room();
  [[nodiscard]] Status write_what_is_missing();
  [[nodiscard]] Status write_shards();
  [[nodiscard]] Status remember_kept_texts();
  [[nodiscard]] Result<bool> write_batch(const Batch& batch);
  [[nodiscard]] Result<std::vector<bool>> find_duplicates(std::span<const Sample> samples);
  [[nodiscard]] Status open_shard();
  [[nodiscard]] Status drop(const Dropped& dropped, const Slice& slice);
  void drop_empties(int64_t count);
  [[nodiscard]] Status count_text(const Batch& batch);
  bool full(int64_t bytes) const { return options_.shards.shard_bytes > 0 && bytes >= options_.shards.shard_bytes; }
  [[nodiscard]] Status end_shard();

  const PrepareOptions& options_;
  const PipelineOptions pipeline_;
  const Location& folder_;
  const std::vector<Input>& inputs_;
  const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer_;
  const SampleFormat& format_;
  const std::stop_token stop_;
  Progress& progress_;
  Metrics& metrics_;

  std::vector<int64_t> input_begin_;  // first byte of each input when laid end to end, then the end of all
  std::string run_, part_name_;
  formats::PartRecord part_;
  int64_t shards_reused_ = 0;
  int64_t progress_bytes_ = 0;
  Position at_;           // everything before it is in a shard, finished or being written
  Position shard_begin_;  // where the shard being written begins
  std::unique_ptr<ShardWriter> shard_;
  chat::MaskTrouble trouble_;
  struct {
    int64_t input = -1;
    int64_t bytes = 0, invalid_utf8 = 0;
  } counted_;      // of the current input, by this run
  SizeSeen seen_;  // by this run
  bool size_reported_ = false;
  int64_t empties_ = 0;   // documents without text before the next shard
  int64_t rejected_ = 0;  // rejected documents in shards of the task, finished or being written
  TextSet texts_;         // used when duplicates are removed
  Position remembered_;   // all texts before it are in texts_
};

}  // namespace millrace::prepare
