// SPDX-License-Identifier: Apache-2.0
#pragma once

// The inputs of one run, pinned: what they were when it began is what is read, or reading fails. Values; thread-safe to
// read.

#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/io.h"
#include "millrace/formats/documents.h"
#include "millrace/formats/text_check.h"
#include "millrace/prepare/prepare.h"
#include "millrace/storage/url.h"

namespace millrace::prepare {

// What "-" among the inputs stands for.
inline constexpr std::string_view kStandardInput = "-";

struct Input {
  Location location;  // of standard input its url alone
  int64_t size = 0;
  std::string version;  // pinned: what is read
  // What tells a restart and the records of the folder which file it was, wherever it lies and however it was spelled:
  // the name below the folder that all inputs of the run share, and the time of the last change (nanoseconds) on a file
  // system, elsewhere the version (an ETag); of standard input the hash of its content.
  std::string name, identity;
  std::shared_ptr<const RandomReader> held;  // standard input's content
};

// Opens those of `urls`, all inputs of the run, that `task` has (number i belongs to task i mod count) once, so that a
// missing or unreadable one is found before any work is done. Standard input is read to its end, into a file.
// Errors: those of opening; invalid_argument (standard input for one task of many); cancelled.
[[nodiscard]] Result<std::vector<Input>> pin_inputs(std::span<const std::string> urls, const Task& task,
                                                    const std::stop_token& stop);
int64_t total_bytes(std::span<const Input> inputs);
// Looks into the front of each, so that a missing column or library and a file that is no text are found before any
// work is done. Errors: those of open_documents and check_text.
[[nodiscard]] Status check_inputs(std::span<const Input> inputs, const formats::DocumentOptions& options,
                                  const formats::TextRules& rules, const std::stop_token& stop);

// A reader whose read_at answers cancelled once `stop` is set: long checks and scans over it end soon.
class StoppableReader final : public RandomReader {
 public:
  StoppableReader(std::shared_ptr<const RandomReader> reader, std::stop_token stop)
      : reader_(std::move(reader)), stop_(std::move(stop)) {}
  std::string_view name() const override { return reader_->name(); }
  int64_t size() const override { return reader_->size(); }
  std::string_view version() const override { return reader_->version(); }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override;

 private:
  std::shared_ptr<const RandomReader> reader_;
  std::stop_token stop_;
};

// The pinned version of `input`. Errors: corruption (it changed), those of open_read.
[[nodiscard]] Result<std::unique_ptr<RandomReader>> open_input(const Input& input, std::stop_token stop);

}  // namespace millrace::prepare
