// SPDX-License-Identifier: Apache-2.0
#pragma once

// The inputs of one run. Each is pinned when it is opened: a run reads the version that it found, or reading fails.
// Values; thread-safe to read.

#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/formats/documents.h"
#include "millrace/formats/text_check.h"
#include "millrace/prepare/prepare.h"
#include "millrace/storage/url.h"

namespace millrace::prepare {

// The name of standard input.
inline constexpr std::string_view kStandardInput = "-";

struct Input {
  Location location;  // of standard input its url alone
  int64_t size = 0;
  std::string version;  // the version that is read
  // How a restart and the records of the folder recognise the file, wherever it lies and however it was spelled: by its
  // name below the folder that all inputs of the run share, and by the time of its last change (nanoseconds) on a file
  // system, elsewhere by its version (an ETag); standard input by the hash of its content.
  std::string name, identity;
  bool table = false;   // a Parquet file
  bool packed = false;  // gzip or zstd
  Status front;         // the result of reading its front: check_fronts
  // The open file, of which open_input() gives readers; empty where it must be opened again.
  std::shared_ptr<const RandomReader> reader;
};

// An input that was found, and what the listing or the question for it told: then no request is needed to open it.
struct FoundInput {
  Location location;  // of standard input its url alone
  int64_t size = 0;
  std::string version;  // "": not known
};

// Files, folders, patterns and lists of them, as prepare and split take them: expanded, sorted by name, without
// duplicates. Errors: not_found (a pattern without a match, a missing file), invalid_argument, those of open_url.
[[nodiscard]] Result<std::vector<FoundInput>> find_inputs(const std::vector<std::string>& inputs);

// Opens the inputs of `task`, of `all` inputs of the run (number i belongs to task i mod count), each once and up to
// kOpenedAtOnce at the same time, so that a missing file is found before any work is done, and reads the front of each.
// Reads standard input to its end, into a file. Errors, of the first input that has one: those of open_read;
// invalid_argument (standard input for one task of many); cancelled.
[[nodiscard]] Result<std::vector<Input>> open_inputs(std::span<const FoundInput> all, const Task& task,
                                                     const formats::DocumentOptions& options,
                                                     const formats::TextRules& rules, const std::stop_token& stop);
inline constexpr int kOpenedAtOnce = 16;  // hides 15 of 16 round trips to a bucket; more would crowd a disk
// Inputs beyond this number are closed again after the check, and opened once more when they are read: a process may
// have 1024 files open by default.
inline constexpr size_t kKeptOpen = 256;

// Fails when the front of an input shows a missing column or library, or that the file is not text. Errors, of the
// first such input: those of open_documents and check_text.
[[nodiscard]] Status check_fronts(std::span<const Input> inputs);
int64_t total_bytes(std::span<const Input> inputs);

// The pinned version of `input`. Errors: corruption (it changed), those of open_read.
[[nodiscard]] Result<std::unique_ptr<RandomReader>> open_input(const Input& input, std::stop_token stop);

}  // namespace millrace::prepare
