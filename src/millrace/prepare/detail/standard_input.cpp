// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/standard_input.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "millrace/base/io/standard_input.h"
#include "millrace/base/io/unnamed_file.h"
#include "millrace/base/text/units.h"

namespace millrace::prepare {

namespace {

constexpr std::string_view kName = "standard input";
constexpr size_t kPieceBytes = 1 << 20;

class SpoolFile final : public RandomReader {
 public:
  explicit SpoolFile(UnnamedFile file) : file_(std::move(file)) {}

  std::string_view name() const override { return kName; }
  int64_t size() const override { return size_; }
  std::string_view version() const override { return {}; }

  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
    if (offset + std::ssize(out) > size_) {
      return fail(ErrorCode::kOutOfRange, "read {}: {} bytes at {} are past its end at {}", kName, out.size(), offset,
                  size_);
    }
    return file_.read_at(offset, out);
  }

  // Errors: those of UnnamedFile.
  [[nodiscard]] Status append(std::span<const std::byte> bytes) {
    RETURN_IF_ERROR(file_.write_at(size_, bytes));
    size_ += std::ssize(bytes);
    return {};
  }

 private:
  UnnamedFile file_;
  int64_t size_ = 0;
};

}  // namespace

Result<SpooledInput> spool_standard_input(const std::stop_token& stop) {
  ASSIGN_OR_RETURN(UnnamedFile made, UnnamedFile::create(std::string(kName)));
  const auto file = std::make_shared<SpoolFile>(std::move(made));
  ASSIGN_OR_RETURN(const StandardInput input, StandardInput::open(stop));
  std::vector<std::byte> piece(kPieceBytes);
  Xxh3Stream hash;
  for (;;) {
    ASSIGN_OR_RETURN(const size_t size, input.read(piece));
    if (size == 0) break;
    const auto bytes = std::span(piece).first(size);
    hash.update(bytes);
    RETURN_IF_ERROR(
        with_context(file->append(bytes), fmt::format("after {} of standard input", format_bytes(file->size()))));
  }
  return SpooledInput{file, hash.digest()};
}

}  // namespace millrace::prepare
