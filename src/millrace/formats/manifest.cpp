// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "millrace/base/text/json_fields.h"

namespace millrace::formats {
namespace {

using Json = nlohmann::json;  // its objects keep their keys sorted

constexpr std::string_view kConfigFormat = "millrace.prepare";
constexpr std::string_view kPartFormat = "millrace.part";
constexpr std::string_view kManifestFormat = "millrace.manifest";
constexpr uint64_t kVersion = 1;

constexpr std::array<std::pair<OutputFormat, std::string_view>, 3> kOutputFormats{
    {{OutputFormat::kWebDataset, "webdataset"},
     {OutputFormat::kMegatron, "megatron"},
     {OutputFormat::kTokens, "tokens"}}};

// Input names are whatever the file system gave; JSON is UTF-8.
std::string dump(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Json to_json(const ShardConfig& config) {
  const ShardOptions& options = config.options;
  const DocumentRules& rules = options.rules;
  Json json = {{"tasks", config.tasks},
               {"output", output_format_name(options.format)},
               {"tokenizer_hash", to_hex(config.tokenizer_hash)},
               {"ids_field", config.ids_field},
               {"block_documents", options.block_documents},
               {"text", options.text},
               {"shard_bytes", options.shard_bytes},
               {"documents", document_mode_name(options.documents)},
               {"text_field", options.text_field},
               {"chat", options.chat},
               {"refuse_control_text", options.refuse_control_text},
               {"add_special_tokens", options.add_special_tokens},
               {"bos", options.bos},
               {"eos", options.eos},
               {"on_error", rules.skip_errors ? "skip" : "fail"},
               {"strict_utf8", rules.strict_utf8},
               {"max_document_bytes", rules.max_document_bytes},
               {"dedup", rules.dedup},
               {"min_bytes", rules.min_bytes},
               {"max_bytes", rules.max_bytes},
               {"min_tokens", rules.min_tokens},
               {"max_tokens", rules.max_tokens}};
  if (config.id_limit > 0) json["id_limit"] = config.id_limit;
  if (rules.strip) json["strip"] = true;  // younger than version 1's first files
  if (rules.keep_empty) json["keep_empty"] = true;
  if (options.last_turn_only) json["last_turn_only"] = true;
  return json;
}
DocumentRules read_rules(JsonFields& fields) {
  const std::string on_error = fields.text("on_error");
  fields.check(on_error == "skip" || on_error == "fail", "on_error", "\"fail\" or \"skip\"");
  return {.skip_errors = on_error == "skip",
          .strict_utf8 = fields.boolean("strict_utf8"),
          .max_document_bytes = fields.count("max_document_bytes"),
          .dedup = fields.boolean("dedup"),
          .min_bytes = fields.count("min_bytes"),
          .max_bytes = fields.count("max_bytes"),
          .min_tokens = fields.count("min_tokens"),
          .max_tokens = fields.count("max_tokens"),
          .strip = fields.has("strip") && fields.boolean("strip"),
          .keep_empty = fields.has("keep_empty") && fields.boolean("keep_empty")};
}
ShardOptions read_options(JsonFields& fields) {
  const auto format = parse_output_format(fields.text("output"));
  fields.check(format.has_value(), "output", "\"webdataset\", \"megatron\" or \"tokens\"");
  const auto documents = parse_document_mode(fields.text("documents"));
  fields.check(documents.has_value(), "documents", "\"line\", \"paragraph\", \"file\" or \"jsonl\"");
  return {.format = format.value_or(OutputFormat::kWebDataset),
          .block_documents = fields.count("block_documents"),
          .text = fields.boolean("text"),
          .shard_bytes = fields.count("shard_bytes"),
          .documents = documents.value_or(DocumentMode::kLine),
          .text_field = fields.text("text_field"),
          .chat = fields.text("chat"),
          .refuse_control_text = fields.boolean("refuse_control_text"),
          .last_turn_only = fields.has("last_turn_only") && fields.boolean("last_turn_only"),
          .add_special_tokens = fields.boolean("add_special_tokens"),
          .bos = fields.text("bos"),
          .eos = fields.text("eos"),
          .rules = read_rules(fields)};
}
ShardConfig read_config(JsonFields& fields) {
  ShardConfig config{.tasks = fields.count("tasks"),
                     .tokenizer_hash = fields.hash("tokenizer_hash"),
                     .id_limit = fields.has("id_limit") ? fields.count("id_limit") : 0,
                     .ids_field = fields.text("ids_field"),
                     .options = read_options(fields)};
  fields.check(config.tasks >= 1, "tasks", "at least 1");
  return config;
}

// As dump() writes one of a list, at level 2 of the file.
void append(const ShardEntry& shard, bool is_pretty, std::string& out) {
  const bool is_plain =
      std::ranges::all_of(shard.name, [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  const std::string name = is_plain ? '"' + shard.name + '"' : dump(Json(shard.name), -1);
  const auto key = [&](std::string_view text) {
    out += text.front() == 'h' ? "" : ",";  // the first one is the hash
    out += is_pretty ? "\n      \"" : "\"";
    out += text;
    out += is_pretty ? "\": " : "\":";
  };
  const auto number = [&](std::string_view text, int64_t value) {
    key(text);
    fmt::format_to(std::back_inserter(out), "{}", value);
  };
  const auto hash = [&](std::string_view text, Hash128 value) {
    key(text);
    out += '"' + to_hex(value) + '"';
  };
  out += '{';
  hash("hash", shard.hash);
  hash("index_hash", shard.index_hash);
  key("name");
  out += name;
  number("samples", shard.samples);
  number("size", shard.size);
  number("tokens", shard.tokens);
  out += is_pretty ? "\n    }" : "}";
}
ShardEntry read_shard(JsonFields& fields) {
  ShardEntry shard{.name = fields.text("name"),
                   .size = fields.count("size"),
                   .samples = fields.count("samples"),
                   .tokens = fields.count("tokens"),
                   .hash = fields.hash("hash"),
                   .index_hash = fields.hash("index_hash")};
  // The name is joined to the folder's, so it must not lead out of it.
  const bool plain = !shard.name.empty() && shard.name != "." && shard.name != ".." &&
                     shard.name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
  fields.check(plain, "name", "a plain file name");
  return shard;
}

// A tree of 100,000 shards takes 200 MB and most of the time, so shards are written and read one by one, and only the
// rest as a tree. `body` has an empty list, or none, where `shards` belongs.
std::string dump_with(const Json& body, std::span<const ShardEntry> shards, bool is_pretty) {
  std::string text = dump(body, is_pretty ? 2 : -1);
  if (shards.empty()) return text;
  const std::string_view empty = is_pretty ? "\"shards\": []" : "\"shards\":[]";  // in a string, quotes are escaped
  const size_t at = text.find(empty) + empty.size() - 1;
  std::string list;
  for (const ShardEntry& shard : shards) {
    list += list.empty() ? "" : ",";
    list += is_pretty ? "\n    " : "";
    append(shard, is_pretty, list);
  }
  list += is_pretty ? "\n  " : "";
  return text.insert(at, list);
}

// The file: the body with format, version and the checksum of all that.
std::string seal(Json body, std::string_view format, std::span<const ShardEntry> shards = {}) {
  body["format"] = format;
  body["version"] = kVersion;
  body["checksum"] = to_hex(xxh3_128(dump_with(body, shards, /*is_pretty=*/false)));
  return dump_with(body, shards, /*is_pretty=*/true) + "\n";
}

// The body of a file that `seal` wrote, and its shards.
struct Unsealed {
  Json body;
  std::vector<ShardEntry> shards;
  std::string error;  // what is wrong with a shard
};
Result<Unsealed> unseal(std::string_view text, std::string_view format, std::string_view source) {
  Unsealed file;
  bool is_in_shards = false;
  const auto take_shards = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth == 1 && event == Json::parse_event_t::key) is_in_shards = value == "shards";
    if (!is_in_shards || depth != 2 || event != Json::parse_event_t::object_end) return true;
    JsonFields fields(value, fmt::format("shards[{}].", file.shards.size()));
    file.shards.push_back(read_shard(fields));
    if (file.error.empty()) file.error = fields.error();
    return false;  // it is left out of the tree
  };
  try {
    file.body = Json::parse(text, take_shards);
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kCorruption, "{}: not JSON: {}", source, error.what());
  }
  if (!file.body.is_object()) return fail(ErrorCode::kCorruption, "{}: not a JSON object", source);
  if (const Json is = file.body.value("format", Json()); is != format)
    return fail(ErrorCode::kUnsupported, "{}: format is {}, not \"{}\"", source, dump(is, -1), format);
  if (const Json is = file.body.value("version", Json()); is != kVersion)
    return fail(ErrorCode::kUnsupported,
                "{}: version {} of {}; this build reads version {}, and a newer Millrace reads it", source,
                dump(is, -1), format, kVersion);
  return file;
}

// REQUIRES: `text` is a JSON object.
Status check_checksum(std::string_view text, std::string_view source) {
  Json body = Json::parse(text);
  const Json checksum = body.value("checksum", Json());
  body.erase("checksum");
  if (checksum == to_hex(xxh3_128(dump(body, -1)))) return {};
  return fail(ErrorCode::kCorruption, "{}: the checksum does not match; the file was damaged or edited", source);
}

Json to_json(const InputEntry& input) {
  return {{"name", input.name}, {"size", input.size}, {"version", input.version}};
}
InputEntry read_input(JsonFields& fields) {
  return {.name = fields.text("name"), .size = fields.count("size"), .version = fields.text("version")};
}

template <class T>
Json to_json_list(const std::vector<T>& items) {
  Json list = Json::array();
  for (const T& item : items) list.push_back(to_json(item));
  return list;
}

// Common to parts and the manifest.
template <class T>
Json shared_to_json(const T& record) {
  Json json = {{"config", to_json(record.config)},
               {"shards", Json::array()},
               {"input_bytes", record.input_bytes},
               {"documents", record.documents},
               {"tokens", record.tokens},
               {"invalid_utf8", record.counts.invalid_utf8},
               {"rejected", record.counts.rejected},
               {"duplicates", record.counts.duplicates},
               {"filtered", record.counts.filtered}};
  if (record.counts.empty > 0) json["empty"] = record.counts.empty;  // younger than version 1's first files
  return json;
}
const std::string* repeated_shard(const std::vector<ShardEntry>& shards) {
  std::set<std::string_view> names;
  for (const ShardEntry& shard : shards)
    if (!names.insert(shard.name).second) return &shard.name;
  return nullptr;
}
template <class T>
T read_shared(JsonFields& fields, std::vector<ShardEntry> shards) {
  T record;
  fields.object("config", [&](JsonFields& config) { record.config = read_config(config); });
  fields.check(fields.at("shards") == Json::array(), "shards", "a list of objects");  // unseal took its entries out
  record.shards = std::move(shards);
  record.input_bytes = fields.count("input_bytes");
  record.documents = fields.count("documents");
  record.tokens = fields.count("tokens");
  record.counts = {.invalid_utf8 = fields.count("invalid_utf8"),
                   .rejected = fields.count("rejected"),
                   .duplicates = fields.count("duplicates"),
                   .filtered = fields.count("filtered"),
                   .empty = fields.has("empty") ? fields.count("empty") : 0};
  fields.check(repeated_shard(record.shards) == nullptr, "shards", "free of repeated names");
  return record;
}

// Parses a whole file and holds it against what `serialize` writes for the same value: that leaves no room for a
// flipped byte, an unknown or repeated key, or a number in another form.
template <class Read, class Serialize>
auto parse_sealed(std::string_view text, std::string_view format, std::string_view source, Read read,
                  Serialize serialize) -> Result<std::invoke_result_t<Read, JsonFields&, std::vector<ShardEntry>>> {
  ASSIGN_OR_RETURN(Unsealed file, unseal(text, format, source));
  JsonFields fields(file.body);
  auto value = read(fields, std::move(file.shards));
  const std::string& wrong = file.error.empty() ? fields.error() : file.error;
  if (wrong.empty() && serialize(value) == text) return value;  // so the checksum is right, too
  RETURN_IF_ERROR(check_checksum(text, source));
  if (!wrong.empty()) return fail(ErrorCode::kCorruption, "{}: {}", source, wrong);
  return fail(ErrorCode::kCorruption, "{}: not the bytes that Millrace writes; the file was edited or damaged", source);
}

// "3, 7-9" for what `present` (sorted, distinct) lacks of [0, tasks).
std::string missing_tasks(const std::vector<int64_t>& present, int64_t tasks) {
  std::string text;
  int64_t next = 0;
  const auto gap_before = [&](int64_t task) {
    if (task > next) text += text.empty() ? "" : ", ";
    if (task == next + 1) text += fmt::format("{}", next);
    if (task > next + 1) text += fmt::format("{}-{}", next, task - 1);
    next = task + 1;
  };
  for (const int64_t task : present) gap_before(task);
  gap_before(tasks);
  return text;
}

Status add_count(int64_t& total, int64_t count, std::string_view what) {
  if (__builtin_add_overflow(total, count, &total) || total > JsonFields::kMostCount)
    return fail(ErrorCode::kInvalidArgument, "the parts hold more than 2^53 {}", what);
  return {};
}

// That `parts`, sorted by task, are one each of the tasks they all name.
Status check_parts(const std::vector<const PartRecord*>& parts) {
  const ShardConfig& config = parts.front()->config;
  std::vector<int64_t> present;
  for (const PartRecord* part : parts) {
    if (part->config != config)
      return fail(ErrorCode::kInvalidArgument, "tasks {} and {} were run with different settings: {}",
                  parts.front()->task, part->task, explain_difference(config, part->config));
    if (part->task < 0 || part->task >= config.tasks)
      return fail(ErrorCode::kInvalidArgument, "a part of task {}, but there are {} tasks", part->task, config.tasks);
    if (!present.empty() && present.back() == part->task)
      return fail(ErrorCode::kInvalidArgument, "two parts of task {}", part->task);
    present.push_back(part->task);
  }
  if (const std::string missing = missing_tasks(present, config.tasks); !missing.empty())
    return fail(ErrorCode::kNotFound, "of {} tasks, the parts of these are missing: {} (named like {})", config.tasks,
                missing, part_name(std::stoll(missing), config.tasks));
  return {};
}

}  // namespace

Result<OutputFormat> parse_output_format(std::string_view name) {
  for (const auto& [format, text] : kOutputFormats) {
    if (text == name) return format;
  }
  return fail(ErrorCode::kInvalidArgument, "'{}': shards are written as webdataset, megatron or tokens", name);
}

std::string_view output_format_name(OutputFormat format) {
  return kOutputFormats[static_cast<size_t>(format)].second;
}

DocumentCounts& DocumentCounts::operator+=(const DocumentCounts& more) {
  invalid_utf8 += more.invalid_utf8;
  rejected += more.rejected;
  duplicates += more.duplicates;
  filtered += more.filtered;
  empty += more.empty;
  return *this;
}

std::string serialize_shard_config(const ShardConfig& config) {
  return seal(to_json(config), kConfigFormat);
}

Result<ShardConfig> parse_shard_config(std::string_view json, std::string_view source) {
  const auto read = [](JsonFields& fields, const std::vector<ShardEntry>&) { return read_config(fields); };
  return parse_sealed(json, kConfigFormat, source, read, serialize_shard_config);
}

std::string explain_difference(const ShardConfig& there, const ShardConfig& here) {
  const Json a = to_json(there), b = to_json(here);
  Json all = a;
  all.update(b);
  std::string text;
  for (const auto& [key, unused] : all.items()) {
    const Json was = a.value(key, Json()), is = b.value(key, Json());
    if (was == is) continue;
    text += fmt::format("{}{}: {} there, {} here", text.empty() ? "" : "\n", key, dump(was, -1), dump(is, -1));
  }
  return text;
}

std::string part_name(int64_t task, int64_t tasks) {
  return fmt::format("part-{:05}-of-{:05}.json", task, tasks);
}

std::string serialize_part(const PartRecord& part) {
  Json body = shared_to_json(part);
  body["task"] = part.task;
  body["inputs"] = to_json_list(part.inputs);
  return seal(std::move(body), kPartFormat, part.shards);
}

Result<PartRecord> parse_part(std::string_view json, std::string_view source) {
  const auto read = [](JsonFields& fields, std::vector<ShardEntry> shards) {
    auto part = read_shared<PartRecord>(fields, std::move(shards));
    part.task = fields.count("task");
    fields.each("inputs", [&](JsonFields& input) { part.inputs.push_back(read_input(input)); });
    fields.check(part.task < part.config.tasks, "task", "below config.tasks");
    return part;
  };
  return parse_sealed(json, kPartFormat, source, read, serialize_part);
}

std::string serialize_manifest(const Manifest& manifest) {
  return seal(shared_to_json(manifest), kManifestFormat, manifest.shards);
}

Result<Manifest> parse_manifest(std::string_view json, std::string_view source) {
  return parse_sealed(json, kManifestFormat, source, read_shared<Manifest>, serialize_manifest);
}

Result<Manifest> join_parts(std::span<const PartRecord> parts) {
  if (parts.empty()) return fail(ErrorCode::kNotFound, "no parts");
  std::vector<const PartRecord*> sorted;
  for (const PartRecord& part : parts) sorted.push_back(&part);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->task < b->task; });
  RETURN_IF_ERROR(check_parts(sorted));

  Manifest manifest{.config = sorted.front()->config};
  for (const PartRecord* part : sorted) {
    manifest.shards.insert(manifest.shards.end(), part->shards.begin(), part->shards.end());
    RETURN_IF_ERROR(add_count(manifest.input_bytes, part->input_bytes, "bytes"));
    RETURN_IF_ERROR(add_count(manifest.documents, part->documents, "documents"));
    RETURN_IF_ERROR(add_count(manifest.tokens, part->tokens, "tokens"));
    RETURN_IF_ERROR(add_count(manifest.counts.invalid_utf8, part->counts.invalid_utf8, "ill-formed sequences"));
    RETURN_IF_ERROR(add_count(manifest.counts.rejected, part->counts.rejected, "rejected documents"));
    RETURN_IF_ERROR(add_count(manifest.counts.duplicates, part->counts.duplicates, "duplicates"));
    RETURN_IF_ERROR(add_count(manifest.counts.filtered, part->counts.filtered, "filtered documents"));
    RETURN_IF_ERROR(add_count(manifest.counts.empty, part->counts.empty, "empty documents"));
  }
  if (const std::string* name = repeated_shard(manifest.shards))
    return fail(ErrorCode::kInvalidArgument, "two parts name the shard {}", *name);
  return manifest;
}

}  // namespace millrace::formats
