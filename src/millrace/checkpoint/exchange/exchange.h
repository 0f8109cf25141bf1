// SPDX-License-Identifier: Apache-2.0
#pragma once

// Converts checkpoints to and from the safetensors files that inference loads: model.safetensors, or
// model-00001-of-0000N with model.safetensors.index.json as transformers writes them. No process ever holds a whole
// model: export and import work on ranges of bounded size. Functions block; thread-safe.

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

// Renames tensors. `from` is a whole name, or a prefix of names followed by '*'. With a prefix, `to` is the new prefix
// followed by '*'. Without `to` these tensors are left out.
struct NameRule {
  std::string from;
  std::optional<std::string> to;
};
class NameMap {
 public:
  NameMap() = default;
  // Errors: invalid_argument (a '*' that is not at the end, or in only one of `from` and `to`).
  [[nodiscard]] static Result<NameMap> create(std::vector<NameRule> rules);
  // Renames by the rule with the longest `from`. Returns `name` itself when no rule fits, nullopt when a rule leaves
  // it out.
  std::optional<std::string> operator()(std::string_view name) const;

 private:
  std::vector<NameRule> rules_;  // the longest `from` first, a name before a prefix
};

struct ExportOptions {
  // Exports the tensors "ENTRY.name" of the checkpoint under "name". Empty: exports all tensors under their own names.
  std::string entry = "model";
  NameMap names;                              // applied to the name after "ENTRY."
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
// Writes the tensors to `at`. Tensors of integers, booleans and narrower floats keep their dtype. Every byte read is
// verified. Each file appears when it is complete, the index last. Files of an earlier export in the folder are
// removed. When the export fails, the folder holds the earlier export whole, or no index. Errors: not_found (no tensor
// of this entry; names the entries that exist), invalid_argument (two tensors get one name, a dtype that cast() cannot
// convert to), those of Checkpoint::load and of writing.
[[nodiscard]] Result<std::vector<ExportedFile>> export_safetensors(const Checkpoint& checkpoint, const Location& at,
                                                                   const ExportOptions& options,
                                                                   std::stop_token stop = {},
                                                                   Progress* progress = nullptr);

// Copies the files of a model folder other than the weights: config, tokenizer, generation settings, README. Returns
// their names. Errors: not_found (only weights), out_of_range (a file over 256 MiB), those of storage.
[[nodiscard]] Result<std::vector<std::string>> copy_companions(const Location& from, const Location& to);

struct ImportOptions {
  std::string entry = "model";  // see ExportOptions: "name" becomes "ENTRY.name"
  NameMap names;
  int64_t step = 0;
  int64_t part_bytes = int64_t{1} << 30;  // bytes of tensors per part; the import takes twice as much memory
  int threads = 0;
};
// Writes one step whose parts hold the tensors of `files`. Its state lets millrace.torch.Checkpointer restore it into
// {ENTRY: module}. Errors: invalid_argument (two tensors get one name; no tensors), already_exists (the step is
// committed), those of reading and of saving.
[[nodiscard]] Result<StepInfo> import_safetensors(std::span<const Location> files, const Location& root,
                                                  const ImportOptions& options, std::stop_token stop = {},
                                                  Progress* progress = nullptr);

// Finds the safetensors files at `at`. A file is returned itself. For a folder with an index the files of the index
// are returned, for a folder without one all its safetensors files. Errors: not_found, invalid_argument naming the
// other contents (a DeepSpeed checkpoint, pickled weights), corruption (index).
[[nodiscard]] Result<std::vector<Location>> find_safetensors(const Location& at);

}  // namespace millrace::checkpoint
