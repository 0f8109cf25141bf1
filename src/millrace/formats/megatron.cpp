// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/megatron.h"

#include <bit>
#include <string_view>

#include "millrace/formats/detail/raw_bytes.h"

namespace millrace::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in the file");

constexpr std::string_view kMegatronMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kMegatronVersion = 1;
constexpr uint8_t kInt32 = 4, kUint16 = 8;  // Megatron's codes of dtypes

}  // namespace

std::string serialize_megatron_index(std::span<const uint32_t> tokens, size_t width) {
  std::string out;
  out.reserve(34 + 20 * tokens.size() + 8);
  out.append(kMegatronMagic);
  put(out, kMegatronVersion);
  put(out, width == 2 ? kUint16 : kInt32);
  put(out, static_cast<uint64_t>(tokens.size()));
  put(out, static_cast<uint64_t>(tokens.size()) + 1);  // bounds of documents
  for (const uint32_t count : tokens) put(out, static_cast<int32_t>(count));
  int64_t offset = 0;
  for (const uint32_t count : tokens) {
    put(out, offset);
    offset += static_cast<int64_t>(count * width);
  }
  for (size_t i = 0; i <= tokens.size(); ++i) put(out, static_cast<int64_t>(i));
  return out;
}

}  // namespace millrace::formats
