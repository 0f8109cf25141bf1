// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/records/records.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "millrace/checkpoint/io/damage.h"
#include "millrace/checkpoint/records/boxes.h"
#include "millrace/checkpoint/records/json.h"
#include "millrace/checkpoint/records/keys.h"

namespace millrace::checkpoint {

namespace {

constexpr std::string_view kPartFormat = "millrace-checkpoint-part";
constexpr std::string_view kManifestFormat = "millrace-checkpoint";
constexpr int64_t kVersion = 1, kVersionInFolders = 2, kVersionShares = 3;

int64_t version_of(bool in_folders, bool shares) {
  if (shares) return kVersionShares;
  return in_folders ? kVersionInFolders : kVersion;
}
// Version 3 says nothing of folders: their rule is that of new steps.
bool is_in_folders(int64_t version, int64_t world_size) {
  if (version == kVersionShares) return RankPlaces::of_new(world_size).in_folders;
  return version == kVersionInFolders;
}
constexpr std::string_view kChecksumKey =
    R"("checksum":")";  // quotes inside strings are escaped, so only the key matches

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

// Where the checksum comes; seal() fills it in.
void put_checksum(JsonWriter& json) {
  json.key("checksum").text(std::string(kHexDigits, '0'));
}

std::string seal(std::string text) {
  const auto parts = split_sealed(text);
  return text.replace(parts->head.size() + kChecksumKey.size(), kHexDigits, parts->hash());
}

// A document whose checksum, format and version are right. It lives as long as its parser.
Result<Json> unseal(simdjson::dom::parser& parser, std::string_view text, std::string_view format,
                    std::string_view source) {
  const auto parts = split_sealed(text);
  if (!parts) return fail(ErrorCode::kCorruption, "{}: no checksum in it; cut, or not a {} file", source, format);
  if (parts->hash() != parts->checksum)
    return fail(ErrorCode::kCorruption, "{}: its text does not match its checksum {}", source, parts->checksum);
  Json document;
  if (const auto parsed = parser.parse(text.data(), text.size()).get(document); parsed != simdjson::SUCCESS)
    return fail(ErrorCode::kCorruption, "{}: not a {} document: {}", source, format, simdjson::error_message(parsed));
  std::string error;
  Fields fields(document, error);
  const std::string found = fields.text("format");
  const int64_t version = fields.integer("version", 0, INT64_MAX);
  if (!fields.ok() || found != format)
    return fail(ErrorCode::kCorruption, "{}: not a {} document: {}", source, format, fields.ok() ? found : error);
  if (version < kVersion || version > kVersionShares)
    return fail(
        ErrorCode::kUnsupported,
        "{}: version {} of {}; this build knows versions {} to {}: use the Millrace that wrote it, or a later one",
        source, version, format, kVersion, kVersionShares);
  return document;
}

void put_box(JsonWriter& json, const Box& box, std::span<const int64_t> shape) {
  if (box == whole_box(shape)) return;
  json.key("box_offset").numbers(box.offset);
  json.key("box_shape").numbers(box.shape);
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
  const auto list = document.array("tensors");
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
  int64_t data_bytes = part.file_bytes - part.data_offset;
  if (part.shares && from.has("source")) {
    const int64_t source = from.integer("source", 0, std::ssize(part.sources) - 1);
    if (!from.ok()) return tensor;
    tensor.source = static_cast<size_t>(source);
    data_bytes = part.sources[*tensor.source].file_bytes - part.sources[*tensor.source].data_offset;
  }
  tensor.begin = from.integer("begin", 0, data_bytes);
  tensor.hashes = from.hashes("hashes");
  if (tensor.bytes > data_bytes - tensor.begin) from.fail_with("ends behind its file");
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

// Numbers as text: the shortest decimal that reads back as the same double.
void put_metrics(JsonWriter& json, const StepMetrics& metrics) {
  if (metrics.empty()) return;
  json.key("metrics").open('{');
  for (const auto& [name, value] : metrics) json.text_key(name).text(fmt::format("{}", value));
  json.close('}');
}

StepMetrics take_metrics(Fields& from) {
  StepMetrics metrics;
  if (!from.has("metrics")) return metrics;
  for (const auto& [name, text] : from.texts("metrics")) {
    double value = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size() || !std::isfinite(value))
      from.fail_with(fmt::format("metric '{}' is not a number", name));
    metrics.emplace(name, value);
  }
  return metrics;
}

std::string take_attempt(Fields& from) {
  std::string attempt = from.text("attempt");
  if (!restart_of(attempt)) from.fail_with(fmt::format("'{}' is not the name of an attempt", attempt));
  return attempt;
}

void put_commits(JsonWriter& json, std::span<const Ancestor> commits) {
  json.open('[');
  for (const Ancestor& each : commits) {
    json.open('{');
    json.key("attempt").text(each.attempt);
    json.key("step").number(each.step);
    json.close('}');
  }
  json.close(']');
}

// The commits of a list, all below `step`; `what` each of them is.
std::vector<Ancestor> take_commits(Fields& from, const char* key, std::string_view what, int64_t step,
                                   const auto& follows) {
  std::vector<Ancestor> commits;
  for (const Json& entry : from.array(key)) {
    std::string reason;
    Fields fields(entry, reason);
    Ancestor commit{take_attempt(fields), fields.integer("step", 0, INT64_MAX)};
    if (commit.step >= step || (!commits.empty() && !follows(commits.back(), commit)))
      fields.fail_with("is not in the order of steps");
    if (!fields.ok()) from.fail_with(fmt::format("{} {}: {}", what, commits.size(), reason));
    commits.push_back(std::move(commit));
  }
  return commits;
}

void put_sources(JsonWriter& json, std::span<const PartSource> sources) {
  if (sources.empty()) return;
  json.key("sources").open('[');
  for (const PartSource& source : sources) {
    json.open('{');
    json.key("attempt").text(source.attempt);
    json.key("data_offset").number(source.data_offset);
    json.key("file_bytes").number(source.file_bytes);
    json.key("header_hash").text(to_hex(source.header_hash));
    json.key("step").number(source.step);
    json.close('}');
  }
  json.close(']');
}

std::vector<PartSource> take_sources(Fields& from, int64_t step) {
  std::vector<PartSource> sources;
  if (!from.has("sources")) return sources;
  for (const Json& entry : from.array("sources")) {
    std::string reason;
    Fields fields(entry, reason);
    PartSource source{.step = fields.integer("step", 0, INT64_MAX), .attempt = take_attempt(fields)};
    if (source.step >= step) fields.fail_with("is not an earlier step");
    source.file_bytes = fields.integer("file_bytes", 0, INT64_MAX / kMaxWorldSize);
    source.data_offset = fields.integer("data_offset", 0, source.file_bytes);
    source.header_hash = fields.hash("header_hash");
    if (!fields.ok()) from.fail_with(fmt::format("source {}: {}", sources.size(), reason));
    sources.push_back(std::move(source));
  }
  return sources;
}

void put_writer(JsonWriter& json, const std::optional<StepWriter>& writer) {
  if (!writer) return;
  json.key("writer").open('{');
  json.key("host").text(writer->host);
  json.key("user").text(writer->user);
  json.key("version").text(writer->version);
  json.close('}');
}

std::optional<StepWriter> take_writer(Fields& from) {
  if (!from.has("writer")) return std::nullopt;
  StepWriter writer;
  for (const auto& [name, text] : from.texts("writer")) {
    if (name == "host") writer.host = text;
    if (name == "user") writer.user = text;
    if (name == "version") writer.version = text;
  }
  return writer;
}

std::optional<Lineage> take_line(Fields& from, int64_t step) {
  if (!from.has("line")) return std::nullopt;
  return take_commits(from, "line", "ancestor", step,
                      [](const Ancestor& a, const Ancestor& b) { return a.step < b.step; });
}

// Several attempts of one step may have files that are referred to.
std::vector<Ancestor> take_bases(Fields& from, int64_t step) {
  if (!from.has("bases")) return {};
  return take_commits(from, "bases", "base", step, [](const Ancestor& a, const Ancestor& b) {
    return std::pair(a.step, std::string_view(a.attempt)) < std::pair(b.step, std::string_view(b.attempt));
  });
}

}  // namespace

const PartTensor* PartRecord::find(std::string_view name) const {
  const auto found = std::lower_bound(tensors.begin(), tensors.end(), name,
                                      [](const PartTensor& tensor, std::string_view key) { return tensor.name < key; });
  return found == tensors.end() || found->name != name ? nullptr : &*found;
}

int64_t PartRecord::referred_bytes() const {
  int64_t bytes = 0;
  for (const PartTensor& tensor : tensors) bytes += tensor.source ? tensor.bytes : 0;
  return bytes;
}

std::vector<Ancestor> bases_of(std::span<const PartSource> sources) {
  std::vector<Ancestor> bases;
  for (const PartSource& source : sources) bases.push_back({source.attempt, source.step});
  std::ranges::sort(bases, [](const Ancestor& a, const Ancestor& b) {
    return std::pair(a.step, std::string_view(a.attempt)) < std::pair(b.step, std::string_view(b.attempt));
  });
  const auto twice = std::ranges::unique(bases);
  bases.erase(twice.begin(), twice.end());
  return bases;
}

const StoredBox* ManifestTensor::find_box(int64_t part) const {
  const auto found = std::lower_bound(boxes.begin(), boxes.end(), part,
                                      [](const StoredBox& box, int64_t key) { return box.part < key; });
  return found == boxes.end() || found->part != part ? nullptr : &*found;
}

StepInfo step_info(const Manifest& manifest) {
  StepInfo info{.step = manifest.step,
                .attempt = manifest.attempt,
                .world_size = manifest.world_size(),
                .tensors = static_cast<int64_t>(manifest.tensors.size()),
                .metrics = manifest.metrics,
                .committed = manifest.created,
                .line = manifest.line,
                .writer = manifest.writer,
                .bases = manifest.bases,
                .shares = manifest.shares};
  for (const ManifestPart& part : manifest.parts) {
    info.bytes += part.file_bytes;
    info.referred_bytes += part.referred_bytes;
  }
  return info;
}

std::string serialize(const PartRecord& part) {
  JsonWriter json;
  json.open('{');
  json.key("attempt").text(part.attempt);
  put_checksum(json);
  json.key("chunk_bytes").number(part.chunk_bytes);
  json.key("data_offset").number(part.data_offset);
  json.key("file_bytes").number(part.file_bytes);
  json.key("format").text(kPartFormat);
  json.key("header_hash").text(to_hex(part.header_hash));
  json.key("rank").number(part.rank);
  put_sources(json, part.sources);
  json.key("state").text(part.state);
  json.key("step").number(part.step);
  json.key("tensors").open('[');
  for (const PartTensor& tensor : part.tensors) {
    json.open('{');
    json.key("begin").number(tensor.begin);
    put_box(json, tensor.box, tensor.shape);
    json.key("dtype").text(formats::dtype_name(tensor.dtype));
    json.key("hashes").open('[');
    for (const Hash128& hash : tensor.hashes) json.text(to_hex(hash));
    json.close(']');
    json.key("name").text(tensor.name);
    json.key("shape").numbers(tensor.shape);
    if (tensor.source) json.key("source").number(static_cast<int64_t>(*tensor.source));
    json.close('}');
  }
  json.close(']');
  json.key("version").number(version_of(part.in_folders, part.shares));
  json.key("world_size").number(part.world_size);
  json.close('}');
  return seal(json.take());
}

Result<PartRecord> parse_part(std::string_view text, std::string_view source) {
  simdjson::dom::parser parser;
  ASSIGN_OR_RETURN(const Json document, unseal(parser, text, kPartFormat, source));
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
  part.chunk_bytes = fields.integer("chunk_bytes", 8, kMaxChunkBytes);
  part.state = fields.text("state");
  const int64_t version = fields.integer("version", kVersion, kVersionShares);
  part.in_folders = is_in_folders(version, part.world_size);
  part.shares = version == kVersionShares;
  if (part.shares) part.sources = take_sources(fields, part.step);
  if (fields.ok()) {
    take_tensors(fields, error, part.tensors,
                 [&](Fields& from, const std::string& name) { return take_part_tensor(from, name, part); });
  }
  if (!fields.ok()) return fail(ErrorCode::kCorruption, "{}: {}", source, error);
  return part;
}

std::string serialize(const Manifest& manifest) {
  JsonWriter json;
  json.open('{');
  json.key("attempt").text(manifest.attempt);
  if (!manifest.bases.empty()) put_commits(json.key("bases"), manifest.bases);
  put_checksum(json);
  json.key("created").text(time_text(manifest.created));
  json.key("format").text(kManifestFormat);
  if (manifest.line) put_commits(json.key("line"), *manifest.line);
  put_metrics(json, manifest.metrics);
  json.key("parts").open('[');
  for (const ManifestPart& part : manifest.parts) {
    json.open('{');
    json.key("bytes").number(part.bytes);
    json.key("file_bytes").number(part.file_bytes);
    json.key("hash").text(to_hex(part.hash));
    if (part.referred_bytes > 0) json.key("referred_bytes").number(part.referred_bytes);
    json.close('}');
  }
  json.close(']');
  json.key("state").text(manifest.state);
  json.key("step").number(manifest.step);
  json.key("tensors").open('[');
  for (const auto& [tensor, boxes] : manifest.tensors) {
    json.open('{');
    json.key("boxes").open('[');
    for (const StoredBox& box : boxes) {
      json.open('{');
      put_box(json, box.box, tensor.shape);
      json.key("part").number(box.part);
      json.close('}');
    }
    json.close(']');
    json.key("dtype").text(formats::dtype_name(tensor.dtype));
    json.key("name").text(tensor.name);
    json.key("shape").numbers(tensor.shape);
    json.close('}');
  }
  json.close(']');
  json.key("version").number(version_of(manifest.in_folders, manifest.shares));
  json.key("world_size").number(manifest.world_size());
  put_writer(json, manifest.writer);
  json.close('}');
  return seal(json.take());
}

Result<Manifest> parse_manifest(std::string_view text, std::string_view source) {
  simdjson::dom::parser parser;
  ASSIGN_OR_RETURN(const Json document, unseal(parser, text, kManifestFormat, source));
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
    constexpr int64_t kMostBytes = INT64_MAX / kMaxWorldSize;
    manifest.parts.push_back({part.integer("bytes", 0, kMaxRecordBytes), part.hash("hash"),
                              part.integer("file_bytes", 0, kMostBytes),
                              part.has("referred_bytes") ? part.integer("referred_bytes", 0, kMostBytes) : 0});
  }
  if (manifest.world_size() != world_size) fields.fail_with("\"parts\" does not have one entry a rank");
  manifest.state = fields.text("state");
  manifest.metrics = take_metrics(fields);
  manifest.line = take_line(fields, manifest.step);
  manifest.writer = take_writer(fields);
  const int64_t version = fields.integer("version", kVersion, kVersionShares);
  manifest.in_folders = is_in_folders(version, world_size);
  manifest.shares = version == kVersionShares;
  if (manifest.shares) manifest.bases = take_bases(fields, manifest.step);
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
  const auto opened = at.storage->open_read(at.key);
  if (!opened) return tl::unexpected<Error>(as_damage(opened.error(), at));
  const RandomReader* const reader = opened->get();
  ASSIGN_OR_RETURN(const std::string text, read_all(*reader, kMaxRecordBytes));
  ASSIGN_OR_RETURN(Manifest manifest, parse_manifest(text, reader->name()));
  if (manifest.step != step)
    return fail(ErrorCode::kCorruption, "{}: it is the manifest of step {}", reader->name(), manifest.step);
  return StoredManifest{std::move(manifest), std::string(reader->version())};
}

}  // namespace millrace::checkpoint
