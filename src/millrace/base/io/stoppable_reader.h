// SPDX-License-Identifier: Apache-2.0
#pragma once

// A reader whose reads return cancelled once a stop is set, so that a long scan over it ends soon. Thread-safe.

#include <memory>
#include <span>
#include <stop_token>
#include <string_view>
#include <utility>

#include "millrace/base/io/io.h"

namespace millrace {

class StoppableReader final : public RandomReader {
 public:
  StoppableReader(std::shared_ptr<const RandomReader> reader, std::stop_token stop)
      : reader_(std::move(reader)), stop_(std::move(stop)) {}
  std::string_view name() const override { return reader_->name(); }
  int64_t size() const override { return reader_->size(); }
  std::string_view version() const override { return reader_->version(); }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "read {}: stopped", name());
    return reader_->read_at(offset, out);
  }

 private:
  std::shared_ptr<const RandomReader> reader_;
  std::stop_token stop_;
};

}  // namespace millrace
