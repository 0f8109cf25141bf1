// SPDX-License-Identifier: Apache-2.0
#pragma once

// The inputs of one run. Opening an input pins its version: the run reads exactly that version, or reading fails.
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
  Location location;  // only its url for standard input
  int64_t size = 0;
  std::string version;  // the pinned version
  // How a restart and the records of the folder recognise the file, wherever it is stored and however its URL was
  // spelled. `name`: its name below the folder that all inputs of the run share. `identity`: on a file system the time
  // of its last change (nanoseconds), elsewhere its version (an ETag), for standard input the hash of its content.
  std::string name, identity;
  bool table = false;   // a Parquet file
  bool packed = false;  // gzip or zstd
  Status front;         // the result of reading its front, for check_fronts()
  // The open file, for open_input(). Empty if the file must be opened again.
  std::shared_ptr<const RandomReader> reader;
};

// An input that was found, with the facts from the listing or stat that found it, so that opening it needs no further
// request.
struct FoundInput {
  Location location;  // only its url for standard input
  int64_t size = 0;
  std::string version;  // "": unknown
};

// Expands files, folders, patterns and lists of them, as prepare and split take them. Returns the files sorted by
// name, without duplicates. Errors: not_found (a pattern without a match, a missing file), invalid_argument, those of
// open_url.
[[nodiscard]] Result<std::vector<FoundInput>> find_inputs(const std::vector<std::string>& inputs);

// Opens the inputs of `task` among `all` inputs of the run (number i belongs to task i mod count) and reads the front
// of each, so that a missing file is found before any work is done. Opens each input once, up to kOpenedAtOnce at a
// time. Copies standard input to a file, to its end. Errors, of the first input that has one: those of open_read;
// invalid_argument (standard input for one task of many); cancelled.
[[nodiscard]] Result<std::vector<Input>> open_inputs(std::span<const FoundInput> all, const Task& task,
                                                     const formats::DocumentOptions& options,
                                                     const formats::TextRules& rules, const std::stop_token& stop);
inline constexpr int kOpenedAtOnce = 16;  // hides 15 of 16 round trips to a bucket; more would crowd a disk
// Inputs beyond this number are closed after the check and opened again to be read: by default a process may have 1024
// files open.
inline constexpr size_t kKeptOpen = 256;

// Fails when the front of an input shows a missing column or library, or that the file is not text. Errors, of the
// first such input: those of open_documents and check_text.
[[nodiscard]] Status check_fronts(std::span<const Input> inputs);
int64_t total_bytes(std::span<const Input> inputs);

// Returns a reader of the pinned version of `input`. Errors: corruption (it changed), those of open_read.
[[nodiscard]] Result<std::unique_ptr<RandomReader>> open_input(const Input& input, std::stop_token stop);

}  // namespace millrace::prepare
