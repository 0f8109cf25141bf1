// SPDX-License-Identifier: Apache-2.0
#pragma once

// The layout of samples in a shard's file: the bytes around them, and the files beside it. A layout
// belongs to one shard and one thread.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/prepare/detail/samples.h"

namespace millrace::prepare {

// The next bytes to write, and the offset of each sample in the file.
struct Placement {
  std::string_view bytes;  // valid until the next call of the layout
  std::vector<uint64_t> offsets;
};

class ShardLayout {
 public:
  virtual ~ShardLayout() = default;

  // Bytes at the front that are known at the end only: they are left free, and written by head().
  virtual size_t head_bytes() const { return 0; }
  virtual std::string head(int64_t /*tokens*/) const { return {}; }
  // `bytes` holds exactly what the encoder made of `samples`; the file has `at` bytes.
  [[nodiscard]] virtual Result<Placement> add(std::string_view bytes, std::span<const Sample> samples, uint64_t at) = 0;
  // The bytes behind the last sample; all samples have `tokens` together. Errors: resource_exhausted (more than the
  // format can say).
  [[nodiscard]] virtual Result<std::string> end(int64_t tokens) = 0;
};

std::unique_ptr<ShardLayout> make_layout(const SampleFormat& format);

// "00003.tar" or "00003.bin".
std::string_view shard_suffix(OutputFormat format);
// The name of a Megatron shard's side file.
std::string side_file_name(std::string_view shard);

}  // namespace millrace::prepare
