// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes and reads one safetensors file on any storage, the way checkpoints do: in aligned pieces, many under way, in
// bounded memory. The format has no hashes, so bytes read are not verified (Checkpoint verifies them).

#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "millrace/base/status.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/formats/safetensors.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

struct TensorFileOptions {
  std::map<std::string, std::string> metadata;
  Durability durability = Durability::kDurable;
  int threads = 0;  // 0: available_cpus(), at most 8
};

// Writes whole tensors to `at`; each box must be the whole tensor. With at most one metadata entry the file equals
// that of the reference writer, byte for byte. The object appears when it is complete. Errors: invalid_argument
// (names, shapes, metadata), cancelled, those of the storage.
[[nodiscard]] Status save_tensors(const Location& at, std::span<const TensorToSave> tensors,
                                  const TensorFileOptions& options, std::stop_token stop = {});

// An open file. Immutable; thread-safe.
class TensorFile {
 public:
  // Errors: not_found, corruption (the header).
  [[nodiscard]] static Result<std::unique_ptr<TensorFile>> open(const Location& at);

  const formats::SafetensorsHeader& header() const { return header_; }

  // Fills every target. Errors: not_found (a tensor), invalid_argument (a box outside), unsupported (a part of a
  // tensor whose elements are not whole bytes), those of reading.
  [[nodiscard]] Status load(std::span<const TensorToLoad> targets, int threads = 0, std::stop_token stop = {}) const;

 private:
  TensorFile(Location at, std::unique_ptr<RandomReader> file, formats::SafetensorsHeader header)
      : at_(std::move(at)), file_(std::move(file)), header_(std::move(header)) {}

  const Location at_;
  const std::unique_ptr<RandomReader> file_;
  const formats::SafetensorsHeader header_;
};

}  // namespace millrace::checkpoint
