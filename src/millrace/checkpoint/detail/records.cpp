// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/detail/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "millrace/checkpoint/detail/boxes.h"
#include "millrace/checkpoint/detail/keys.h"

namespace millrace::checkpoint {

namespace {

using Json = nlohmann::json;  // keys sorted by their bytes

constexpr std::string_view kPartFormat = "millrace-checkpoint-part";
constexpr std::string_view kManifestFormat = "millrace-checkpoint";
constexpr int64_t kVersion = 1;
constexpr std::string_view kChecksumKey =
    R"("checksum":")";  // quotes inside strings are escaped, so only the key matches
constexpr size_t kHexDigits = 32;

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
  const size_t at = text.find(kChecksumKey);
  if (at == text.npos) return std::nullopt;
  const size_t digits = at + kChecksumKey.size(), tail = digits + kHexDigits + 2;
  if (tail > text.size() || text.substr(tail - 2, 2) != "\",") return std::nullopt;
  return SealedText{text.substr(0, at), text.substr(digits, kHexDigits), text.substr(tail)};
}

std::string seal(Json document, std::string_view format) {
  document["format"] = format;
  document["version"] = kVersion;
  document["checksum"] = std::string(kHexDigits, '0');
  std::string text = document.dump();
  const auto parts = split_sealed(text);
  return text.replace(parts->head.size() + kChecksumKey.size(), kHexDigits, parts->hash());
}

// Fields of one JSON object; the first that is missing or wrong becomes the error, later answers are then empty.
class Fields {
 public:
  Fields(const Json& object, std::string& error) : object_(object), error_(error) {
    if (!object.is_object()) fail_with("is not an object");
  }

  bool has(const char* key) const { return object_.is_object() && object_.contains(key); }

  const Json& at(const char* key) {
    static const Json kNull;
    if (has(key)) return object_[key];
    fail_with(fmt::format("has no \"{}\"", key));
    return kNull;
  }
  int64_t integer(const char* key, int64_t low, int64_t high) { return integer(at(key), key, low, high); }
  std::string text(const char* key) {
    const Json& value = at(key);
    if (value.is_string()) return value.get<std::string>();
    fail_with(fmt::format("\"{}\" is not a string", key));
    return {};
  }
  Hash128 hash(const char* key) { return hash(at(key), key); }
  std::vector<Hash128> hashes(const char* key) {
    std::vector<Hash128> values;
    for (const Json& value : array(key)) values.push_back(hash(value, key));
    return values;
  }
  std::vector<int64_t> integers(const char* key) {
    std::vector<int64_t> values;
    for (const Json& value : array(key)) values.push_back(integer(value, key, 0, INT64_MAX));
    return values;
  }
  const Json& array(const char* key) {
    static const Json kEmpty = Json::array();
    const Json& value = at(key);
    if (value.is_array()) return value;
    fail_with(fmt::format("\"{}\" is not a list", key));
    return kEmpty;
  }

  bool ok() const { return error_.empty(); }
  void fail_with(std::string reason) {
    if (error_.empty()) error_ = std::move(reason);
  }

 private:
  int64_t integer(const Json& value, const char* key, int64_t low, int64_t high) {
    if (value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(high) &&
        value.get<int64_t>() >= low)
      return value.get<int64_t>();
    fail_with(fmt::format("\"{}\" is not a whole number in [{}, {}]", key, low, high));
    return low;
  }
  Hash128 hash(const Json& value, const char* key) {
    const auto hash = value.is_string() ? hash128_from_hex(value.get<std::string>()) : std::nullopt;
    if (!hash) fail_with(fmt::format("\"{}\" is not a hash of {} hexadecimal digits", key, kHexDigits));
    return hash.value_or(Hash128{});
  }

  const Json& object_;
  std::string& error_;
};

// The document once its checksum, format and version are right.
Result<Json> unseal(std::string_view text, std::string_view format, std::string_view source) {
  const auto parts = split_sealed(text);
  if (!parts) return fail(ErrorCode::kCorruption, "{}: no checksum in it; cut, or not a {} file", source, format);
  if (parts->hash() != parts->checksum)
    return fail(ErrorCode::kCorruption, "{}: its text does not match its checksum {}", source, parts->checksum);
  Json document = Json::parse(text, nullptr, false);
  std::string error;
  Fields fields(document, error);
  const std::string found = fields.text("format");
  const int64_t version = fields.integer("version", 0, INT64_MAX);
  if (!fields.ok() || found != format)
    return fail(ErrorCode::kCorruption, "{}: not a {} document: {}", source, format, fields.ok() ? found : error);
  if (version != kVersion)
    return fail(ErrorCode::kUnsupported, "{}: version {} of {}; this build knows version {}", source, version, format,
                kVersion);
  return document;
}

void put_box(Json& to, const Box& box, std::span<const int64_t> shape) {
  if (box == whole_box(shape)) return;
  to["box_offset"] = box.offset;
  to["box_shape"] = box.shape;
}

Box take_box(Fields& from, std::span<const int64_t> shape) {
  if (!from.has("box_offset") && !from.has("box_shape")) return whole_box(shape);
  Box box{from.integers("box_offset"), from.integers("box_shape")};
  if (auto inside = check_inside(box, shape); !inside && from.ok()) from.fail_with(inside.error().message());
  return box;
}

formats::Dtype take_dtype(Fields& from) {
  const std::string name = from.text("dtype");
  const auto dtype = formats::dtype_from_name(name);
  if (!dtype) from.fail_with(fmt::format("unknown dtype '{}'", name));
  return dtype.value_or(formats::Dtype::kU8);
}

int64_t take_tensor_bytes(Fields& from, formats::Dtype dtype, std::span<const int64_t> shape) {
  const auto bytes = formats::tensor_bytes(dtype, shape);
  if (!bytes) from.fail_with(bytes.error().message());
  return bytes.value_or(0);
}

// Names must ascend, so that none occurs twice and a lookup can bisect.
template <class T, class Take>
void take_tensors(Fields& document, std::string& error, std::vector<T>& tensors, Take&& take) {
  const Json& list = document.array("tensors");
  tensors.reserve(list.size());
  std::string before;
  for (const Json& entry : list) {
    std::string reason;
    Fields fields(entry, reason);
    std::string name = fields.text("name");
    if (fields.ok() && !tensors.empty() && name <= before) fields.fail_with("is not in the order of names");
    tensors.push_back(take(fields, name));
    if (!fields.ok()) error = fmt::format("tensor '{}' {}", name, reason);
    if (!error.empty()) return;
    before = std::move(name);
  }
}

PartTensor take_part_tensor(Fields& from, const std::string& name, const PartRecord& part) {
  PartTensor tensor{.name = name, .dtype = take_dtype(from), .shape = from.integers("shape")};
  take_tensor_bytes(from, tensor.dtype, tensor.shape);
  tensor.box = take_box(from, tensor.shape);
  tensor.bytes = take_tensor_bytes(from, tensor.dtype, tensor.box.shape);
  tensor.begin = from.integer("begin", 0, part.file_bytes - part.data_offset);
  tensor.hashes = from.hashes("hashes");
  if (tensor.bytes > part.file_bytes - part.data_offset - tensor.begin) from.fail_with("ends behind its file");
  const int64_t chunks = tensor.bytes / part.chunk_bytes + (tensor.bytes % part.chunk_bytes != 0);
  if (static_cast<int64_t>(tensor.hashes.size()) != chunks)
    from.fail_with(fmt::format("has {} hashes for {} chunks", tensor.hashes.size(), chunks));
  return tensor;
}

ManifestTensor take_manifest_tensor(Fields& from, const std::string& name, int64_t parts) {
  ManifestTensor result{{.name = name, .dtype = take_dtype(from), .shape = from.integers("shape")}, {}};
  StoredTensor& tensor = result.tensor;
  tensor.bytes = take_tensor_bytes(from, tensor.dtype, tensor.shape);
  for (const Json& entry : from.array("boxes")) {
    std::string reason;
    Fields fields(entry, reason);
    StoredBox box{fields.integer("part", 0, parts - 1), take_box(fields, tensor.shape)};
    take_tensor_bytes(fields, tensor.dtype, box.box.shape);
    if (!result.boxes.empty() && box.part <= result.boxes.back().part) fields.fail_with("is not in the order of parts");
    if (!fields.ok()) from.fail_with(fmt::format("box {}: {}", result.boxes.size(), reason));
    result.boxes.push_back(std::move(box));
  }
  return result;
}

// "2026-01-02T03:04:05.123456789Z"
std::string time_text(std::chrono::sys_time<std::chrono::nanoseconds> time) {
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), clock.hours().count(),
                     clock.minutes().count(), clock.seconds().count(), clock.subseconds().count());
}
std::optional<std::chrono::sys_time<std::chrono::nanoseconds>> parse_time(const std::string& text) {
  int year = 0;
  unsigned month = 0, day = 0;
  int64_t hour = 0, minute = 0, second = 0, nanosecond = 0;
  if (std::sscanf(text.c_str(), "%4d-%2u-%2uT%2ld:%2ld:%2ld.%9ldZ", &year, &month, &day, &hour, &minute, &second,
                  &nanosecond) != 7)
    return std::nullopt;
  const auto ymd = std::chrono::year(year) / std::chrono::month(month) / std::chrono::day(day);
  if (!ymd.ok() || year < 1970 || year > 2200) return std::nullopt;  // nanoseconds in 64 bits end in 2262
  const std::chrono::sys_days date(ymd);
  const std::chrono::sys_time<std::chrono::nanoseconds> time =
      date + std::chrono::hours(hour) + std::chrono::minutes(minute) + std::chrono::seconds(second) +
      std::chrono::nanoseconds(nanosecond);
  if (time_text(time) != text) return std::nullopt;
  return time;
}

std::string take_attempt(Fields& from) {
  std::string attempt = from.text("attempt");
  if (!restart_of(attempt)) from.fail_with(fmt::format("'{}' is not the name of an attempt", attempt));
  return attempt;
}

}  // namespace

const PartTensor* PartRecord::find(std::string_view name) const {
  const auto found = std::lower_bound(tensors.begin(), tensors.end(), name,
                                      [](const PartTensor& tensor, std::string_view key) { return tensor.name < key; });
  return found == tensors.end() || found->name != name ? nullptr : &*found;
}

const StoredBox* ManifestTensor::find_box(int64_t part) const {
  const auto found = std::lower_bound(boxes.begin(), boxes.end(), part,
                                      [](const StoredBox& box, int64_t key) { return box.part < key; });
  return found == boxes.end() || found->part != part ? nullptr : &*found;
}

std::string serialize(const PartRecord& part) {
  Json tensors = Json::array();
  for (const PartTensor& tensor : part.tensors) {
    Json hashes = Json::array();
    for (const Hash128& hash : tensor.hashes) hashes.push_back(to_hex(hash));
    Json entry{{"name", tensor.name},
               {"dtype", formats::dtype_name(tensor.dtype)},
               {"shape", tensor.shape},
               {"begin", tensor.begin},
               {"hashes", std::move(hashes)}};
    put_box(entry, tensor.box, tensor.shape);
    tensors.push_back(std::move(entry));
  }
  return seal({{"step", part.step},
               {"attempt", part.attempt},
               {"rank", part.rank},
               {"world_size", part.world_size},
               {"file_bytes", part.file_bytes},
               {"data_offset", part.data_offset},
               {"header_hash", to_hex(part.header_hash)},
               {"chunk_bytes", part.chunk_bytes},
               {"tensors", std::move(tensors)},
               {"state", part.state}},
              kPartFormat);
}

Result<PartRecord> parse_part(std::string_view text, std::string_view source) {
  ASSIGN_OR_RETURN(const Json document, unseal(text, kPartFormat, source));
  std::string error;
  Fields fields(document, error);
  PartRecord part;
  part.step = fields.integer("step", 0, INT64_MAX);
  part.attempt = take_attempt(fields);
  part.world_size = fields.integer("world_size", 1, kMaxWorldSize);
  part.rank = fields.integer("rank", 0, part.world_size - 1);
  part.file_bytes = fields.integer("file_bytes", 0, INT64_MAX);
  part.data_offset = fields.integer("data_offset", 0, part.file_bytes);
  part.header_hash = fields.hash("header_hash");
  part.chunk_bytes = fields.integer("chunk_bytes", 8, kChunkBytes);
  part.state = fields.text("state");
  if (fields.ok()) {
    take_tensors(fields, error, part.tensors,
                 [&](Fields& from, const std::string& name) { return take_part_tensor(from, name, part); });
  }
  if (!fields.ok()) return fail(ErrorCode::kCorruption, "{}: {}", source, error);
  return part;
}

std::string serialize(const Manifest& manifest) {
  Json parts = Json::array();
  for (const ManifestPart& part : manifest.parts)
    parts.push_back({{"bytes", part.bytes}, {"hash", to_hex(part.hash)}, {"file_bytes", part.file_bytes}});
  Json tensors = Json::array();
  for (const auto& [tensor, boxes] : manifest.tensors) {
    Json places = Json::array();
    for (const StoredBox& box : boxes) {
      Json place{{"part", box.part}};
      put_box(place, box.box, tensor.shape);
      places.push_back(std::move(place));
    }
    tensors.push_back({{"name", tensor.name},
                       {"dtype", formats::dtype_name(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"boxes", std::move(places)}});
  }
  return seal({{"step", manifest.step},
               {"attempt", manifest.attempt},
               {"created", time_text(manifest.created)},
               {"world_size", manifest.world_size()},
               {"parts", std::move(parts)},
               {"tensors", std::move(tensors)},
               {"state", manifest.state}},
              kManifestFormat);
}

Result<Manifest> parse_manifest(std::string_view text, std::string_view source) {
  ASSIGN_OR_RETURN(const Json document, unseal(text, kManifestFormat, source));
  std::string error;
  Fields fields(document, error);
  Manifest manifest;
  manifest.step = fields.integer("step", 0, INT64_MAX);
  manifest.attempt = take_attempt(fields);
  const auto created = parse_time(fields.text("created"));
  if (!created) fields.fail_with("\"created\" is not a time");
  manifest.created = created.value_or(manifest.created);
  const int64_t world_size = fields.integer("world_size", 1, kMaxWorldSize);
  for (const Json& entry : fields.array("parts")) {
    Fields part(entry, error);
    manifest.parts.push_back({part.integer("bytes", 0, kMaxRecordBytes), part.hash("hash"),
                              part.integer("file_bytes", 0, INT64_MAX / kMaxWorldSize)});
  }
  if (manifest.world_size() != world_size) fields.fail_with("\"parts\" does not have one entry a rank");
  manifest.state = fields.text("state");
  if (fields.ok()) {
    take_tensors(fields, error, manifest.tensors,
                 [&](Fields& from, const std::string& name) { return take_manifest_tensor(from, name, world_size); });
  }
  if (!fields.ok()) return fail(ErrorCode::kCorruption, "{}: {}", source, error);
  return manifest;
}

Status check_tiling(const ManifestTensor& tensor) {
  std::vector<const Box*> boxes;
  for (const StoredBox& box : tensor.boxes) boxes.push_back(&box.box);
  return with_context(check_tiling(tensor.tensor.shape, boxes), fmt::format("tensor '{}'", tensor.tensor.name));
}

Result<StoredManifest> read_manifest(const Location& root, int64_t step) {
  const Location at = step_location(root, step).child(kManifestName);
  ASSIGN_OR_RETURN(const auto reader, at.storage->open_read(at.key));
  ASSIGN_OR_RETURN(const std::string text, read_all(*reader, kMaxRecordBytes));
  ASSIGN_OR_RETURN(Manifest manifest, parse_manifest(text, reader->name()));
  if (manifest.step != step)
    return fail(ErrorCode::kCorruption, "{}: it is the manifest of step {}", reader->name(), manifest.step);
  return StoredManifest{std::move(manifest), std::string(reader->version())};
}

}  // namespace millrace::checkpoint
