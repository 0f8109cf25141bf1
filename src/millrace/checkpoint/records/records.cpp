// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/records/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "millrace/base/text/sealed_json.h"
#include "millrace/checkpoint/io/damage.h"
#include "millrace/checkpoint/records/boxes.h"
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

Result<JsonDocument> unseal_record(std::string_view text, std::string_view format, std::string_view source) {
  return unseal(text, {.name = format, .oldest = kVersion, .newest = kVersionShares}, source);
}

void put_box(JsonWriter& json, const Box& box, std::span<const int64_t> shape) {
  if (box == whole_box(shape)) return;
  json.key("box_offset").numbers(box.offset);
  json.key("box_shape").numbers(box.shape);
}

Box take_box(JsonFields& from, std::span<const int64_t> shape) {
  if (!from.has("box_offset") && !from.has("box_shape")) return whole_box(shape);
  Box box{from.integers("box_offset"), from.integers("box_shape")};
  if (auto inside = check_inside(box, shape); !inside) from.fail_with(inside.error().message());
  return box;
}

formats::Dtype take_dtype(JsonFields& from) {
  const std::string name = from.text("dtype");
  const auto dtype = formats::dtype_from_name(name);
  if (!dtype) from.fail_with(fmt::format("unknown dtype '{}'", name));
  return dtype.value_or(formats::Dtype::kU8);
}

int64_t take_tensor_bytes(JsonFields& from, formats::Dtype dtype, std::span<const int64_t> shape) {
  const auto bytes = formats::tensor_bytes(dtype, shape);
  if (!bytes) from.fail_with(bytes.error().message());
  return bytes.value_or(0);
}

// Names must ascend, so that none occurs twice and a lookup can bisect.
template <class T>
void take_tensors(JsonFields& document, std::vector<T>& tensors, const auto& take) {
  tensors.reserve(document.size("tensors"));
  std::string before;
  document.each("tensors", [&](JsonFields& fields) {
    std::string name = fields.text("name");
    if (!tensors.empty() && name <= before) fields.fail_with("is not in the order of names");
    tensors.push_back(take(fields, name));
    before = std::move(name);
  });
}

PartTensor take_part_tensor(JsonFields& from, const std::string& name, const PartRecord& part) {
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

ManifestTensor take_manifest_tensor(JsonFields& from, const std::string& name, int64_t parts) {
  ManifestTensor result{{.name = name, .dtype = take_dtype(from), .shape = from.integers("shape")}, {}};
  StoredTensor& tensor = result.tensor;
  tensor.bytes = take_tensor_bytes(from, tensor.dtype, tensor.shape);
  from.each("boxes", [&](JsonFields& fields) {
    StoredBox box{fields.integer("part", 0, parts - 1), take_box(fields, tensor.shape)};
    take_tensor_bytes(fields, tensor.dtype, box.box.shape);
    if (!result.boxes.empty() && box.part <= result.boxes.back().part) fields.fail_with("is not in the order of parts");
    result.boxes.push_back(std::move(box));
  });
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

StepMetrics take_metrics(JsonFields& from) {
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

std::string take_attempt(JsonFields& from) {
  std::string attempt = from.text("attempt");
  from.check(restart_of(attempt).has_value(), "attempt", "the name of an attempt");
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

// The commits of a list, all below `step`.
std::vector<Ancestor> take_commits(JsonFields& from, std::string_view key, int64_t step, const auto& follows) {
  std::vector<Ancestor> commits;
  from.each(key, [&](JsonFields& fields) {
    Ancestor commit{take_attempt(fields), fields.integer("step", 0)};
    if (commit.step >= step || (!commits.empty() && !follows(commits.back(), commit)))
      fields.fail_with("is not in the order of steps");
    commits.push_back(std::move(commit));
  });
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

std::vector<PartSource> take_sources(JsonFields& from, int64_t step) {
  std::vector<PartSource> sources;
  if (!from.has("sources")) return sources;
  from.each("sources", [&](JsonFields& fields) {
    PartSource source{.step = fields.integer("step", 0), .attempt = take_attempt(fields)};
    if (source.step >= step) fields.fail_with("is not an earlier step");
    source.file_bytes = fields.integer("file_bytes", 0, INT64_MAX / kMaxWorldSize);
    source.data_offset = fields.integer("data_offset", 0, source.file_bytes);
    source.header_hash = fields.hash("header_hash");
    sources.push_back(std::move(source));
  });
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

std::optional<StepWriter> take_writer(JsonFields& from) {
  if (!from.has("writer")) return std::nullopt;
  StepWriter writer;
  for (const auto& [name, text] : from.texts("writer")) {
    if (name == "host") writer.host = text;
    if (name == "user") writer.user = text;
    if (name == "version") writer.version = text;
  }
  return writer;
}

std::optional<Lineage> take_line(JsonFields& from, int64_t step) {
  if (!from.has("line")) return std::nullopt;
  return take_commits(from, "line", step, [](const Ancestor& a, const Ancestor& b) { return a.step < b.step; });
}

// Several attempts of one step may have files that are referred to.
std::vector<Ancestor> take_bases(JsonFields& from, int64_t step) {
  if (!from.has("bases")) return {};
  return take_commits(from, "bases", step, [](const Ancestor& a, const Ancestor& b) {
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
  ASSIGN_OR_RETURN(const JsonDocument document, unseal_record(text, kPartFormat, source));
  JsonFields fields(document);
  PartRecord part;
  part.step = fields.integer("step", 0);
  part.attempt = take_attempt(fields);
  part.world_size = fields.integer("world_size", 1, kMaxWorldSize);
  part.rank = fields.integer("rank", 0, part.world_size - 1);
  part.file_bytes = fields.integer("file_bytes", 0);
  part.data_offset = fields.integer("data_offset", 0, part.file_bytes);
  part.header_hash = fields.hash("header_hash");
  part.chunk_bytes = fields.integer("chunk_bytes", 8, kMaxChunkBytes);
  part.state = fields.text("state");
  const int64_t version = fields.integer("version", kVersion, kVersionShares);
  part.in_folders = is_in_folders(version, part.world_size);
  part.shares = version == kVersionShares;
  if (part.shares) part.sources = take_sources(fields, part.step);
  if (fields.ok()) {
    take_tensors(fields, part.tensors,
                 [&](JsonFields& from, const std::string& name) { return take_part_tensor(from, name, part); });
  }
  if (!fields.ok()) return fail(ErrorCode::kCorruption, "{}: {}", source, fields.error());
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
  ASSIGN_OR_RETURN(const JsonDocument document, unseal_record(text, kManifestFormat, source));
  JsonFields fields(document);
  Manifest manifest;
  manifest.step = fields.integer("step", 0);
  manifest.attempt = take_attempt(fields);
  const auto created = parse_time(fields.text("created"));
  fields.check(created.has_value(), "created", "a time");
  manifest.created = created.value_or(manifest.created);
  const int64_t world_size = fields.integer("world_size", 1, kMaxWorldSize);
  manifest.parts.reserve(fields.size("parts"));
  fields.each("parts", [&](JsonFields& part) {
    constexpr int64_t kMostBytes = INT64_MAX / kMaxWorldSize;
    manifest.parts.push_back({part.integer("bytes", 0, kMaxRecordBytes), part.hash("hash"),
                              part.integer("file_bytes", 0, kMostBytes),
                              part.has("referred_bytes") ? part.integer("referred_bytes", 0, kMostBytes) : 0});
  });
  fields.check(manifest.world_size() == world_size, "parts", "a list of one entry a rank");
  manifest.state = fields.text("state");
  manifest.metrics = take_metrics(fields);
  manifest.line = take_line(fields, manifest.step);
  manifest.writer = take_writer(fields);
  const int64_t version = fields.integer("version", kVersion, kVersionShares);
  manifest.in_folders = is_in_folders(version, world_size);
  manifest.shares = version == kVersionShares;
  if (manifest.shares) manifest.bases = take_bases(fields, manifest.step);
  if (fields.ok()) {
    take_tensors(fields, manifest.tensors, [&](JsonFields& from, const std::string& name) {
      return take_manifest_tensor(from, name, world_size);
    });
  }
  if (!fields.ok()) return fail(ErrorCode::kCorruption, "{}: {}", source, fields.error());
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
