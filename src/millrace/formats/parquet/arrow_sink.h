// SPDX-License-Identifier: Apache-2.0
#pragma once

// Lets Arrow write Parquet files to a ByteSink. For one thread.

#include <arrow/api.h>
#include <arrow/io/interfaces.h>
#include <parquet/arrow/writer.h>
#include <parquet/properties.h>

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

class ArrowSink final : public arrow::io::OutputStream {
 public:
  explicit ArrowSink(ByteSink& out) : out_(out) {}
  arrow::Status Close() override {
    closed_ = true;
    return {};
  }
  bool closed() const override { return closed_; }
  arrow::Result<int64_t> Tell() const override { return at_; }
  arrow::Status Write(const void* data, int64_t bytes) override {
    // SAFETY: the caller gives `bytes` bytes at `data`.
    const auto written = out_.append(std::span(static_cast<const std::byte*>(data), static_cast<size_t>(bytes)));
    if (!written) {
      error = written.error();
      return arrow::Status::IOError(written.error().message());
    }
    at_ += bytes;
    return {};
  }

  std::optional<Error> error;  // the error of the sink, which Arrow would lose

 private:
  ByteSink& out_;
  int64_t at_ = 0;
  bool closed_ = false;
};

// Opens a writer with the properties of all our tables: Snappy, and Arrow's schema inside.
inline arrow::Result<std::unique_ptr<parquet::arrow::FileWriter>> open_writer(const arrow::Schema& schema,
                                                                              const std::shared_ptr<ArrowSink>& out) {
  const auto properties = parquet::WriterProperties::Builder().compression(parquet::Compression::SNAPPY)->build();
  const auto arrow_properties = parquet::ArrowWriterProperties::Builder().store_schema()->build();
  return parquet::arrow::FileWriter::Open(schema, arrow::default_memory_pool(), out, properties, arrow_properties);
}

// Runs `call`, which may return an error or throw one, as Arrow's Parquet code does. Returns the error's text, nullopt
// on success.
template <class Call>
std::optional<std::string> message_of(const Call& call) {
  try {
    const arrow::Status status = call();
    if (status.ok()) return std::nullopt;
    return status.message();
  } catch (const std::exception& thrown) {
    return thrown.what();
  }
}

}  // namespace millrace::formats
