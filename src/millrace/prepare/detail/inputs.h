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
#include "millrace/storage/url.h"

namespace millrace::prepare {

struct Input {
  Location location;
  int64_t size = 0;
  std::string version;
};

// Opens each of `urls` once, so that a missing or unreadable one is found before any work is done.
[[nodiscard]] Result<std::vector<Input>> pin_inputs(std::span<const std::string> urls);
int64_t total_bytes(std::span<const Input> inputs);
// Opens those that are tables, so that a missing column or library is found before any work is done.
[[nodiscard]] Status check_tables(std::span<const Input> inputs, const formats::DocumentOptions& options,
                                  const std::stop_token& stop);

// A reader whose read_at answers cancelled once `stop` is set: long checks and scans over it end soon.
class StoppableReader final : public RandomReader {
 public:
  StoppableReader(std::unique_ptr<RandomReader> reader, std::stop_token stop)
      : reader_(std::move(reader)), stop_(std::move(stop)) {}
  std::string_view name() const override { return reader_->name(); }
  int64_t size() const override { return reader_->size(); }
  std::string_view version() const override { return reader_->version(); }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override;

 private:
  std::unique_ptr<RandomReader> reader_;
  std::stop_token stop_;
};

// The pinned version of `input`. Errors: corruption (it changed), those of open_read.
[[nodiscard]] Result<std::unique_ptr<RandomReader>> open_input(const Input& input, std::stop_token stop);

}  // namespace millrace::prepare
