// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks that the files of a checkpoint that another program wrote are complete and as long as their headers say. Free
// functions that block; thread-safe.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/io/file_time.h"
#include "millrace/base/status.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

struct ListedFile {
  int64_t size = 0;
  FileTime modified;
};
// The files of one checkpoint, by their path below its folder. A checkpoint that is a single file has the path "".
struct ForeignFiles {
  Location at;  // the folder, or the file
  std::map<std::string, ListedFile, std::less<>> files;

  bool has(std::string_view path) const { return files.find(path) != files.end(); }
  bool has_below(std::string_view prefix) const;  // whether a path begins with `prefix`
  Location place(std::string_view path) const { return path.empty() ? at : at.child(path); }
};

// Returns the integers in the dict that torch.save wrote into `path`; empty when the file is not a zip archive of a
// dict.
// Errors: corruption (cut), those of storage.
[[nodiscard]] Result<std::map<std::string, int64_t, std::less<>>> torch_numbers(const ForeignFiles& of,
                                                                                std::string_view path);

// Each check fails with the first reason why no training can resume from the files. Errors: corruption,
// permission_denied and the other errors of is_unusable() with that reason; those of a storage that does not answer.
[[nodiscard]] Status check_every_file(const ForeignFiles& of);  // also shards, indexes, DCP and DeepSpeed folders in it
[[nodiscard]] Status check_trainer(const ForeignFiles& of, int64_t step);
[[nodiscard]] Status check_megatron(const ForeignFiles& of);
[[nodiscard]] Status check_dcp(const ForeignFiles& of);
[[nodiscard]] Status check_lightning(const ForeignFiles& of);
[[nodiscard]] Status check_deepspeed(const ForeignFiles& of);

// Returns whether the error is about the files, not about a storage that does not answer.
bool is_unusable(const Error& error);

}  // namespace millrace::checkpoint
