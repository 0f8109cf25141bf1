// SPDX-License-Identifier: Apache-2.0
#pragma once

// The layout of samples in a shard's file: the bytes around them and the files beside the shard. A layout belongs to
// one shard and one thread.

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

  // Returns the number of bytes at the front of the file whose content is known only at the end.
  virtual size_t head_bytes() const { return 0; }
  // Returns the content of these bytes, which stay free until then.
  virtual std::string head(int64_t /*tokens*/) const { return {}; }
  // Lays out `samples`. `bytes` holds exactly the encoder's output for them. `at`: bytes in the file so far.
  [[nodiscard]] virtual Result<Placement> add(std::string_view bytes, std::span<const Sample> samples, uint64_t at) = 0;
  // Returns the bytes after the last sample. `tokens`: the sum over all samples. Errors: resource_exhausted (more than
  // the format can express).
  [[nodiscard]] virtual Result<std::string> end(int64_t tokens) = 0;
};

std::unique_ptr<ShardLayout> make_layout(const SampleFormat& format);

// Returns the suffix of a shard's name: ".tar" or ".bin".
std::string_view shard_suffix(OutputFormat format);
// Returns the name of a Megatron shard's side file.
std::string side_file_name(std::string_view shard);

}  // namespace millrace::prepare
