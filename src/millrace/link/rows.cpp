// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/rows.h"

#include "millrace/sync/fields.h"

namespace millrace::link {

namespace {

using sync::append_number;
using sync::append_text;

constexpr std::string_view kRowsMagic = "MRLINK\x01\n";
// What is forgotten is a row without content.
constexpr uint8_t kForgotten = 0, kKnown = 1, kWithHash = 2;

}  // namespace

std::string encode_rows(const std::vector<Learned>& rows) {
  std::string payload;
  for (const Learned& row : rows) {
    append_text(payload, row.path);
    const uint8_t kind = !row.file ? kForgotten : row.file->hash ? kKnown | kWithHash : kKnown;
    append_number(payload, kind);
    if (!row.file) continue;
    const LinkFile& file = *row.file;
    append_number(payload, file.size);
    append_text(payload, file.here.version);
    append_number(payload, file.here.changed_ns);
    append_text(payload, file.there);
    if (file.hash) {
      append_number(payload, file.hash->high);
      append_number(payload, file.hash->low);
    }
    append_number(payload, static_cast<uint8_t>(file.state));
    append_number(payload, file.mode);
    append_text(payload, file.proof);
  }
  std::string bytes(kRowsMagic);
  append_number(bytes, xxh3_64(payload));
  return bytes + payload;
}

Result<std::vector<Learned>> decode_rows(std::string_view bytes, const std::string& name) {
  const auto damaged = [&] { return fail(ErrorCode::kCorruption, "{} is damaged, or of another version", name); };
  if (!bytes.starts_with(kRowsMagic)) return damaged();
  bytes.remove_prefix(kRowsMagic.size());
  sync::Fields header(bytes);
  const auto hash = header.number<uint64_t>();
  if (!header.good()) return damaged();
  bytes.remove_prefix(sizeof hash);
  if (xxh3_64(bytes) != hash) return damaged();
  std::vector<Learned> rows;
  for (sync::Fields fields(bytes); fields.left() > 0;) {
    Learned row{fields.text(), std::nullopt};
    const auto kind = fields.number<uint8_t>();
    if ((kind & kKnown) != 0) {
      LinkFile& file = row.file.emplace();
      file.path = row.path;
      file.size = fields.number<int64_t>();
      file.here.version = fields.text();
      file.here.changed_ns = fields.number<int64_t>();
      file.there = fields.text();
      if ((kind & kWithHash) != 0) {
        const auto high = fields.number<uint64_t>();
        file.hash = Hash128{high, fields.number<uint64_t>()};
      }
      file.state = static_cast<LinkFile::State>(fields.number<uint8_t>());
      file.mode = fields.number<uint32_t>();
      file.proof = fields.text();
      if (file.state > LinkFile::State::kGoneThere) return damaged();
    }
    if (!fields.good()) return damaged();
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace millrace::link
