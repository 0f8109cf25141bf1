// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/text/sealed_json.h"

#include <fmt/format.h>

#include <optional>

#include "millrace/base/hash/hash.h"
#include "millrace/base/io/io.h"

namespace millrace {
namespace {

constexpr size_t kHexDigits = 32;
constexpr std::string_view kKey = R"("checksum":")";  // quotes inside strings are escaped, so only the key matches

// The text without the member "checksum", which a comma always follows: `head` + `tail`.
struct SealedText {
  std::string_view head, checksum, tail;

  std::string hash() const {
    Xxh3Stream stream;
    stream.update(as_bytes(head));
    stream.update(as_bytes(tail));
    return to_hex(stream.digest());
  }
};

std::optional<SealedText> split_sealed(std::string_view text) {
  const size_t at = text.find(kKey);
  if (at == text.npos) return std::nullopt;
  const size_t digits = at + kKey.size(), tail = digits + kHexDigits + 2;
  if (tail > text.size() || text.substr(tail - 2, 2) != "\",") return std::nullopt;
  return SealedText{text.substr(0, at), text.substr(digits, kHexDigits), text.substr(tail)};
}

}  // namespace

void put_checksum(JsonWriter& json) {
  json.key("checksum").text(std::string(kHexDigits, '0'));
}

std::string seal(std::string text) {
  const auto parts = split_sealed(text);
  text.replace(parts->head.size() + kKey.size(), kHexDigits, parts->hash());
  return text;
}

Result<JsonDocument> unseal(std::string_view text, const SealedFormat& format, std::string_view source) {
  const auto parts = split_sealed(text);
  if (parts && parts->hash() != parts->checksum)
    return fail(ErrorCode::kCorruption, "{}: its text does not match its checksum {}; the file was damaged or edited",
                source, parts->checksum);
  auto document = JsonDocument::parse(text);
  if (!document)
    return fail(ErrorCode::kCorruption, "{}: not a {} document: {}", source, format.name, document.error().message());
  JsonFields fields(*document);
  if (!fields.is("format", format.name))
    return fail(format.other, "{}: format is {}, not \"{}\"", source, fields.json("format"), format.name);
  const int64_t version = fields.integer("version", INT64_MIN);
  if (!fields.ok()) return fail(ErrorCode::kCorruption, "{}: {}", source, fields.error());
  if (version >= format.oldest && version <= format.newest) {
    if (parts) return document;
    return fail(ErrorCode::kCorruption, "{}: no checksum in it; the file was damaged or edited", source);
  }
  const bool is_one = format.oldest == format.newest;
  return fail(ErrorCode::kUnsupported,
              "{}: version {} of {}; this build reads version{}: use the Millrace that wrote it, or a later one",
              source, version, format.name,
              is_one ? fmt::format(" {}", format.newest) : fmt::format("s {} to {}", format.oldest, format.newest));
}

}  // namespace millrace
