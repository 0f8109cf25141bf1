// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checkpoints to and from the safetensors files that inference loads: model.safetensors, or model-00001-of-0000N with
// model.safetensors.index.json as transformers writes them. No process ever holds a whole model: both ways go by ranges
// of bounded size. Functions block; thread-safe.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

// Renames tensors. `from` is a name, or the beginning of names when it ends in '*'; `to` then ends in '*' too, which
// stands for the rest. No `to`: these tensors are left out.
struct NameRule {
  std::string from;
  std::optional<std::string> to;
};
class NameMap {
 public:
  NameMap() = default;
  // Errors: invalid_argument (a '*' elsewhere than at the end, or only in one of both).
  [[nodiscard]] static Result<NameMap> create(std::vector<NameRule> rules);
  // By the rule with the longest `from`; the name itself when no rule fits, nullopt when it is left out.
  std::optional<std::string> operator()(std::string_view name) const;

 private:
  std::vector<NameRule> rules_;  // the longest `from` first, a name before a beginning
};

struct ExportOptions {
  // The tensors "ENTRY.name" of the checkpoint become "name". Empty: all tensors, with their names.
  std::string entry = "model";
  NameMap names;                              // applied behind the entry
  int64_t max_file_bytes = 5'000'000'000;     // most bytes of tensors in one file, unless one tensor has more
  int64_t buffer_bytes = int64_t{512} << 20;  // memory that the export takes
  std::optional<formats::Dtype> dtype{};      // dtype of the floating-point tensors (F64, F32, F16, BF16) in the files
  bool single_file = false;                   // `at` is the file, not the folder
  int threads = 0;                            // 0: available_cpus(), at most 8
};
struct ExportedFile {
  std::string name;  // in the folder; empty for a single file
  int64_t tensors = 0;
  int64_t bytes = 0;  // size of the file
};
// Writes the tensors to `at`, those of integers, booleans and narrower floats as they are; each byte that is read is
// verified. Each file appears when it is complete, the index last. Files of an earlier export in the folder are
// removed; when the export fails, the folder holds the earlier one whole, or no index. Errors: not_found (no tensor of
// this entry, naming those that there are), invalid_argument (two tensors that get one name, a dtype to which nothing
// is cast), those of Checkpoint::load and of writing.
[[nodiscard]] Result<std::vector<ExportedFile>> export_safetensors(const Checkpoint& checkpoint, const Location& at,
                                                                   const ExportOptions& options,
                                                                   std::stop_token stop = {},
                                                                   Progress* progress = nullptr);

// Copies what lies beside the weights of a model folder: config, tokenizer, generation settings, README. Returns their
// names. Errors: not_found (nothing but weights), out_of_range (a file over 256 MiB), those of storage.
[[nodiscard]] Result<std::vector<std::string>> copy_companions(const Location& from, const Location& to);

struct ImportOptions {
  std::string entry = "model";  // see ExportOptions: "name" becomes "ENTRY.name"
  NameMap names;
  int64_t step = 0;
  int64_t part_bytes = int64_t{1} << 30;  // bytes of tensors in one part; the import takes twice as much memory
  int threads = 0;
};
// Writes one step whose parts hold the tensors of `files`, and whose state is what millrace.torch.Checkpointer restores
// into {ENTRY: module}. Errors: invalid_argument (two tensors that get one name; no tensors), already_exists (the step
// is committed), those of reading and of saving.
[[nodiscard]] Result<StepInfo> import_safetensors(std::span<const Location> files, const Location& root,
                                                  const ImportOptions& options, std::stop_token stop = {},
                                                  Progress* progress = nullptr);

// The safetensors files that `at` names: the file itself, or those of a folder: of its index, when it has one. Errors:
// not_found, invalid_argument naming what else is there (a DeepSpeed checkpoint, pickled weights), corruption (index).
[[nodiscard]] Result<std::vector<Location>> find_safetensors(const Location& at);

}  // namespace millrace::checkpoint
