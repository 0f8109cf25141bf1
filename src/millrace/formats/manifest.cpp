// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <type_traits>
#include <utility>

#include "millrace/base/text/sealed_json.h"

namespace millrace::formats {
namespace {

constexpr std::string_view kConfigFormat = "millrace.prepare";
constexpr std::string_view kPartFormat = "millrace.part";
constexpr std::string_view kManifestFormat = "millrace.manifest";
constexpr int64_t kVersion = 1;

constexpr std::array<std::pair<OutputFormat, std::string_view>, 3> kOutputFormats{
    {{OutputFormat::kWebDataset, "webdataset"},
     {OutputFormat::kMegatron, "megatron"},
     {OutputFormat::kTokens, "tokens"}}};

// The settings, or with a format the file of them. Texts may be any bytes, as names of files are; JSON is UTF-8.
void put_config(JsonWriter& json, const ShardConfig& config, std::string_view format = {}) {
  const ShardOptions& options = config.options;
  const DocumentRules& rules = options.rules;
  json.open('{');
  json.key("add_special_tokens").boolean(options.add_special_tokens);
  json.key("block_documents").number(options.block_documents);
  json.key("bos").repaired_text(options.bos);
  json.key("chat").repaired_text(options.chat);
  if (!format.empty()) put_checksum(json);
  json.key("dedup").boolean(rules.dedup);
  json.key("documents").text(document_mode_name(options.documents));
  json.key("eos").repaired_text(options.eos);
  if (!format.empty()) json.key("format").text(format);
  if (config.id_limit > 0) json.key("id_limit").number(config.id_limit);
  json.key("ids_field").repaired_text(config.ids_field);
  if (rules.keep_empty) json.key("keep_empty").boolean(true);  // younger than version 1's first files
  if (options.last_turn_only) json.key("last_turn_only").boolean(true);
  json.key("max_bytes").number(rules.max_bytes);
  json.key("max_document_bytes").number(rules.max_document_bytes);
  json.key("max_tokens").number(rules.max_tokens);
  json.key("min_bytes").number(rules.min_bytes);
  json.key("min_tokens").number(rules.min_tokens);
  json.key("on_error").text(rules.skip_errors ? "skip" : "fail");
  json.key("output").text(output_format_name(options.format));
  json.key("refuse_control_text").boolean(options.refuse_control_text);
  json.key("shard_bytes").number(options.shard_bytes);
  json.key("strict_utf8").boolean(rules.strict_utf8);
  if (rules.strip) json.key("strip").boolean(true);
  json.key("tasks").number(config.tasks);
  json.key("text").boolean(options.text);
  json.key("text_field").repaired_text(options.text_field);
  json.key("tokenizer_hash").text(to_hex(config.tokenizer_hash));
  if (!format.empty()) json.key("version").number(kVersion);
  json.close('}');
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

void put_shard(JsonWriter& json, const ShardEntry& shard) {
  json.open('{');
  json.key("hash").text(to_hex(shard.hash));
  json.key("index_hash").text(to_hex(shard.index_hash));
  json.key("name").repaired_text(shard.name);
  json.key("samples").number(shard.samples);
  json.key("size").number(shard.size);
  json.key("tokens").number(shard.tokens);
  json.close('}');
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

void put_input(JsonWriter& json, const InputEntry& input) {
  json.open('{');
  json.key("name").repaired_text(input.name);
  json.key("size").number(input.size);
  json.key("version").repaired_text(input.version);
  json.close('}');
}
InputEntry read_input(JsonFields& fields) {
  return {.name = fields.text("name"), .size = fields.count("size"), .version = fields.text("version")};
}

void put_list(JsonWriter& json, std::string_view key, const auto& items, const auto& put) {
  json.key(key).open('[');
  for (const auto& item : items) put(json, item);
  json.close(']');
}

std::string file_of(JsonWriter& json) {
  return indented(seal(json.take())) + "\n";
}

// A part or the manifest.
template <class T>
std::string file_of(const T& record, std::string_view format) {
  constexpr bool kIsPart = std::is_same_v<T, PartRecord>;
  JsonWriter json;
  json.open('{');
  put_checksum(json);
  put_config(json.key("config"), record.config);
  json.key("documents").number(record.documents);
  json.key("duplicates").number(record.counts.duplicates);
  if (record.counts.empty > 0) json.key("empty").number(record.counts.empty);  // younger than version 1's first files
  json.key("filtered").number(record.counts.filtered);
  json.key("format").text(format);
  json.key("input_bytes").number(record.input_bytes);
  if constexpr (kIsPart) put_list(json, "inputs", record.inputs, put_input);
  json.key("invalid_utf8").number(record.counts.invalid_utf8);
  json.key("rejected").number(record.counts.rejected);
  put_list(json, "shards", record.shards, put_shard);
  if constexpr (kIsPart) json.key("task").number(record.task);
  json.key("tokens").number(record.tokens);
  json.key("version").number(kVersion);
  json.close('}');
  return file_of(json);
}

const std::string* repeated_shard(const std::vector<ShardEntry>& shards) {
  std::set<std::string_view> names;
  for (const ShardEntry& shard : shards)
    if (!names.insert(shard.name).second) return &shard.name;
  return nullptr;
}
// What parts and the manifest have.
template <class T>
T read_shared(JsonFields& fields) {
  T record;
  fields.object("config", [&](JsonFields& config) { record.config = read_config(config); });
  record.shards.reserve(fields.size("shards"));
  fields.each("shards", [&](JsonFields& shard) { record.shards.push_back(read_shard(shard)); });
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

// Parses a whole file and holds it against what `serialize` writes for the same value: that leaves no room for an
// unknown or repeated key, or a number in another form.
template <class Read, class Serialize>
auto parse_sealed(std::string_view text, std::string_view format, std::string_view source, Read read,
                  Serialize serialize) -> Result<std::invoke_result_t<Read, JsonFields&>> {
  std::optional<std::invoke_result_t<Read, JsonFields&>> value;
  {
    ASSIGN_OR_RETURN(const JsonDocument document,
                     unseal(compact(text), {.name = format, .other = ErrorCode::kUnsupported}, source));
    JsonFields fields(document);
    value = read(fields);
    if (!fields.ok()) return fail(ErrorCode::kCorruption, "{}: {}", source, fields.error());
  }
  if (serialize(*value) == text) return *std::move(value);
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
  JsonWriter json;
  put_config(json, config, kConfigFormat);
  return file_of(json);
}

Result<ShardConfig> parse_shard_config(std::string_view json, std::string_view source) {
  return parse_sealed(json, kConfigFormat, source, read_config, serialize_shard_config);
}

std::string explain_difference(const ShardConfig& there, const ShardConfig& here) {
  const auto document_of = [](const ShardConfig& config) {
    JsonWriter json;
    put_config(json, config);
    return JsonDocument::parse(json.take());
  };
  const auto a = document_of(there), b = document_of(here);
  const JsonFields was(*a), is(*b);
  std::set<std::string_view> keys;
  for (const JsonFields* fields : {&was, &is})
    for (const std::string_view key : fields->keys()) keys.insert(key);
  std::string text;
  for (const std::string_view key : keys) {
    const std::string before = was.json(key), after = is.json(key);
    if (before != after) text += fmt::format("{}{}: {} there, {} here", text.empty() ? "" : "\n", key, before, after);
  }
  return text;
}

std::string part_name(int64_t task, int64_t tasks) {
  return fmt::format("part-{:05}-of-{:05}.json", task, tasks);
}

std::string serialize_part(const PartRecord& part) {
  return file_of(part, kPartFormat);
}

Result<PartRecord> parse_part(std::string_view json, std::string_view source) {
  const auto read = [](JsonFields& fields) {
    auto part = read_shared<PartRecord>(fields);
    part.task = fields.count("task");
    fields.each("inputs", [&](JsonFields& input) { part.inputs.push_back(read_input(input)); });
    fields.check(part.task < part.config.tasks, "task", "below config.tasks");
    return part;
  };
  return parse_sealed(json, kPartFormat, source, read, serialize_part);
}

std::string serialize_manifest(const Manifest& manifest) {
  return file_of(manifest, kManifestFormat);
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
