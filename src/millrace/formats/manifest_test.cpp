// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/manifest.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "millrace/base/testing.h"

namespace millrace::formats {
namespace {

using ::testing::HasSubstr;

ShardConfig sample_config(int64_t tasks = 2) {
  return {.tasks = tasks, .tokenizer_hash = xxh3_128("tokenizer"), .ids_field = "token_ids.npy"};
}

PartRecord sample_part(int64_t task, int64_t tasks = 2) {
  PartRecord part;
  part.task = task;
  part.config = sample_config(tasks);
  part.inputs = {{fmt::format("raw/{}.txt", task), 1000, "v1"}};
  part.shards = {{fmt::format("shard-{:05}.tar", task), 20480, 12, 345, xxh3_128("tar"), xxh3_128("index")}};
  part.input_bytes = 1000;
  part.documents = 12;
  part.tokens = 345;
  return part;
}

// The file with one value replaced and the checksum made right again, so that only the value can be what is wrong.
std::string resealed(std::string_view text, const std::function<void(nlohmann::json&)>& edit) {
  auto body = nlohmann::json::parse(text);
  edit(body);
  body.erase("checksum");
  body["checksum"] = to_hex(xxh3_128(body.dump()));
  return body.dump(2) + "\n";
}

std::string part_error(const std::function<void(nlohmann::json&)>& edit) {
  const auto parsed = parse_part(resealed(serialize_part(sample_part(0)), edit), "p.json");
  if (parsed) return "no error";
  EXPECT_EQ(parsed.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(parsed.error().message(), HasSubstr("p.json: "));
  return parsed.error().message();
}

// The worked examples of docs/format/manifest.md.
TEST(Manifest, TheDocumentedConfig) {
  EXPECT_EQ(serialize_shard_config(sample_config()), R"({
  "add_special_tokens": true,
  "block_documents": 0,
  "bos": "",
  "chat": "",
  "checksum": "42890c1c5ee06be23cb709036201b67a",
  "dedup": false,
  "documents": "line",
  "eos": "",
  "format": "millrace.prepare",
  "ids_field": "token_ids.npy",
  "max_bytes": 0,
  "max_document_bytes": 67108864,
  "max_tokens": 0,
  "min_bytes": 0,
  "min_tokens": 0,
  "on_error": "fail",
  "output": "webdataset",
  "refuse_control_text": false,
  "shard_bytes": 0,
  "strict_utf8": false,
  "tasks": 2,
  "text": true,
  "text_field": "text",
  "tokenizer_hash": "d189135707f48980879388ec2a51e756",
  "version": 1
}
)");
}

TEST(Manifest, TheDocumentedPart) {
  EXPECT_EQ(serialize_part(sample_part(0)), R"({
  "checksum": "36c8a893d3895933e630486a39eb421e",
  "config": {
    "add_special_tokens": true,
    "block_documents": 0,
    "bos": "",
    "chat": "",
    "dedup": false,
    "documents": "line",
    "eos": "",
    "ids_field": "token_ids.npy",
    "max_bytes": 0,
    "max_document_bytes": 67108864,
    "max_tokens": 0,
    "min_bytes": 0,
    "min_tokens": 0,
    "on_error": "fail",
    "output": "webdataset",
    "refuse_control_text": false,
    "shard_bytes": 0,
    "strict_utf8": false,
    "tasks": 2,
    "text": true,
    "text_field": "text",
    "tokenizer_hash": "d189135707f48980879388ec2a51e756"
  },
  "documents": 12,
  "duplicates": 0,
  "filtered": 0,
  "format": "millrace.part",
  "input_bytes": 1000,
  "inputs": [
    {
      "name": "raw/0.txt",
      "size": 1000,
      "version": "v1"
    }
  ],
  "invalid_utf8": 0,
  "rejected": 0,
  "shards": [
    {
      "hash": "0ee726d6f051af0941b0f4b72b120c14",
      "index_hash": "801d9f0bdea1c760ce2022399b066389",
      "name": "shard-00000.tar",
      "samples": 12,
      "size": 20480,
      "tokens": 345
    }
  ],
  "task": 0,
  "tokens": 345,
  "version": 1
}
)");
}

TEST(Manifest, TheDocumentedManifest) {
  EXPECT_EQ(serialize_manifest(*join_parts(std::vector{sample_part(0), sample_part(1)})), R"({
  "checksum": "2a6aa674b9bc5d6cf9d47ad01d1e7370",
  "config": {
    "add_special_tokens": true,
    "block_documents": 0,
    "bos": "",
    "chat": "",
    "dedup": false,
    "documents": "line",
    "eos": "",
    "ids_field": "token_ids.npy",
    "max_bytes": 0,
    "max_document_bytes": 67108864,
    "max_tokens": 0,
    "min_bytes": 0,
    "min_tokens": 0,
    "on_error": "fail",
    "output": "webdataset",
    "refuse_control_text": false,
    "shard_bytes": 0,
    "strict_utf8": false,
    "tasks": 2,
    "text": true,
    "text_field": "text",
    "tokenizer_hash": "d189135707f48980879388ec2a51e756"
  },
  "documents": 24,
  "duplicates": 0,
  "filtered": 0,
  "format": "millrace.manifest",
  "input_bytes": 2000,
  "invalid_utf8": 0,
  "rejected": 0,
  "shards": [
    {
      "hash": "0ee726d6f051af0941b0f4b72b120c14",
      "index_hash": "801d9f0bdea1c760ce2022399b066389",
      "name": "shard-00000.tar",
      "samples": 12,
      "size": 20480,
      "tokens": 345
    },
    {
      "hash": "0ee726d6f051af0941b0f4b72b120c14",
      "index_hash": "801d9f0bdea1c760ce2022399b066389",
      "name": "shard-00001.tar",
      "samples": 12,
      "size": 20480,
      "tokens": 345
    }
  ],
  "tokens": 690,
  "version": 1
}
)");
}

TEST(Manifest, RoundTrips) {
  const ShardConfig config = sample_config();
  EXPECT_EQ(*parse_shard_config(serialize_shard_config(config), "c"), config);
  const PartRecord part = sample_part(1);
  EXPECT_EQ(*parse_part(serialize_part(part), "p"), part);
  const auto manifest = join_parts(std::vector{sample_part(0), sample_part(1)});
  ASSERT_TRUE(manifest);
  EXPECT_EQ(*parse_manifest(serialize_manifest(*manifest), "m"), *manifest);
  EXPECT_EQ(part_name(3, 10), "part-00003-of-00010.json");
}

TEST(Manifest, AnyNameIsWrittenAsByATree) {
  Manifest manifest{.config = sample_config()};
  manifest.config.options.bos = R"("shards": [])";
  for (const std::string_view name : {"plain.tar", "a \"quote\".tar", "back\\slash.tar", R"("shards": [])",
                                      "\u00e4.tar", "tab\t.tar", "\x01.tar", "\x7f.tar", "~ .tar"}) {
    manifest.shards.push_back({std::string(name), 20480, 12, 345, xxh3_128(name), xxh3_128("index")});
  }
  const std::string text = serialize_manifest(manifest);
  EXPECT_EQ(resealed(text, [](nlohmann::json&) {}), text);
  const auto parsed = parse_manifest(text, "m.json");
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  EXPECT_EQ(*parsed, manifest);
}

// How files were written first: a tree whose objects sort their keys, dumped twice.
nlohmann::json tree_of(const ShardConfig& config) {
  const auto& [format, block_documents, text, shard_bytes, documents, text_field, chat, refuse_control_text,
               last_turn_only, add_special_tokens, bos, eos, rules] = config.options;
  nlohmann::json tree = {{"tasks", config.tasks},
                         {"output", output_format_name(format)},
                         {"tokenizer_hash", to_hex(config.tokenizer_hash)},
                         {"ids_field", config.ids_field},
                         {"block_documents", block_documents},
                         {"text", text},
                         {"shard_bytes", shard_bytes},
                         {"documents", document_mode_name(documents)},
                         {"text_field", text_field},
                         {"chat", chat},
                         {"refuse_control_text", refuse_control_text},
                         {"add_special_tokens", add_special_tokens},
                         {"bos", bos},
                         {"eos", eos},
                         {"on_error", rules.skip_errors ? "skip" : "fail"},
                         {"strict_utf8", rules.strict_utf8},
                         {"max_document_bytes", rules.max_document_bytes},
                         {"dedup", rules.dedup},
                         {"min_bytes", rules.min_bytes},
                         {"max_bytes", rules.max_bytes},
                         {"min_tokens", rules.min_tokens},
                         {"max_tokens", rules.max_tokens}};
  if (config.id_limit > 0) tree["id_limit"] = config.id_limit;
  if (rules.strip) tree["strip"] = true;
  if (rules.keep_empty) tree["keep_empty"] = true;
  if (last_turn_only) tree["last_turn_only"] = true;
  return tree;
}
nlohmann::json tree_of(const auto& record) {
  nlohmann::json tree = {{"config", tree_of(record.config)},
                         {"shards", nlohmann::json::array()},
                         {"input_bytes", record.input_bytes},
                         {"documents", record.documents},
                         {"tokens", record.tokens},
                         {"invalid_utf8", record.counts.invalid_utf8},
                         {"rejected", record.counts.rejected},
                         {"duplicates", record.counts.duplicates},
                         {"filtered", record.counts.filtered}};
  if (record.counts.empty > 0) tree["empty"] = record.counts.empty;
  for (const ShardEntry& shard : record.shards)
    tree["shards"].push_back({{"hash", to_hex(shard.hash)},
                              {"index_hash", to_hex(shard.index_hash)},
                              {"name", shard.name},
                              {"samples", shard.samples},
                              {"size", shard.size},
                              {"tokens", shard.tokens}});
  return tree;
}
std::string dumped(nlohmann::json tree, std::string_view format) {
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  tree["format"] = format;
  tree["version"] = 1;
  tree["checksum"] = to_hex(xxh3_128(tree.dump(-1, ' ', false, kReplace)));
  return tree.dump(2, ' ', false, kReplace) + "\n";
}

TEST(Manifest, RandomFilesAreWrittenAsByATree) {
  SCOPED_TRACE(test_seed());
  std::mt19937_64 random(test_seed());
  const auto yes = [&] { return random() % 2 == 0; };
  const auto number = [&] { return yes() ? 0 : static_cast<int64_t>(random() >> (11 + random() % 50)); };
  const auto bytes = [&](size_t most) {
    std::string some(random() % most, '\0');
    for (char& c : some) c = static_cast<char>(yes() ? random() % 128 : random());
    return some;
  };
  for (int round = 0; round < rounds(1000); ++round) {
    PartRecord part{.task = number(), .input_bytes = number(), .documents = number(), .tokens = number()};
    part.config = {.tasks = part.task + 1, .tokenizer_hash = xxh3_128(bytes(9)), .ids_field = bytes(9)};
    part.config.id_limit = number();
    part.config.options = {
        .format = static_cast<OutputFormat>(random() % 3),
        .block_documents = number(),
        .text = yes(),
        .shard_bytes = number(),
        .documents = static_cast<DocumentMode>(random() % 4),
        .text_field = bytes(9),
        .chat = bytes(9),
        .refuse_control_text = yes(),
        .last_turn_only = yes(),
        .add_special_tokens = yes(),
        .bos = bytes(9),
        .eos = bytes(9),
        .rules = {yes(), yes(), number(), yes(), number(), number(), number(), number(), yes(), yes()}};
    part.counts = {number(), number(), number(), number(), number()};
    for (uint64_t i = random() % 4; i > 0; --i) part.inputs.push_back({bytes(20), number(), bytes(9)});
    for (uint64_t i = random() % 4; i > 0; --i)
      part.shards.push_back({fmt::format("{}\x7f\t\"{}", i, i % 2 == 0 ? "" : bytes(9)), number(), number(), number(),
                             xxh3_128(bytes(9)), xxh3_128(bytes(9))});
    const Manifest manifest{part.config, part.shards, part.input_bytes, part.documents, part.tokens, part.counts};
    nlohmann::json tree = tree_of(part);
    tree["task"] = part.task;
    tree["inputs"] = nlohmann::json::array();
    for (const InputEntry& input : part.inputs)
      tree["inputs"].push_back({{"name", input.name}, {"size", input.size}, {"version", input.version}});
    ASSERT_EQ(serialize_part(part), dumped(tree, "millrace.part"));
    ASSERT_EQ(serialize_manifest(manifest), dumped(tree_of(manifest), "millrace.manifest"));
    ASSERT_EQ(serialize_shard_config(part.config), dumped(tree_of(part.config), "millrace.prepare"));
    const auto config = parse_shard_config(serialize_shard_config(part.config), "c");
    ASSERT_TRUE(config) << config.error().to_string();
    ASSERT_EQ(serialize_shard_config(*config), serialize_shard_config(part.config));
  }
}

TEST(Manifest, NamesThatAreNotUtf8AreWrittenWithReplacements) {
  PartRecord part = sample_part(0);
  part.inputs[0].name = "caf\xe9.txt";
  const auto parsed = parse_part(serialize_part(part), "p");
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  EXPECT_EQ(parsed->inputs[0].name, "caf\xef\xbf\xbd.txt");
}

TEST(Manifest, EveryFlipAndTruncationIsFound) {
  const std::string files[] = {serialize_shard_config(sample_config()), serialize_part(sample_part(0)),
                               serialize_manifest(*join_parts(std::vector{sample_part(0), sample_part(1)}))};
  const auto code = [&](size_t file, std::string_view text) {
    const auto code_of = [](const auto& parsed) { return parsed ? std::optional<ErrorCode>() : parsed.error().code(); };
    return file == 0   ? code_of(parse_shard_config(text, "f"))
           : file == 1 ? code_of(parse_part(text, "f"))
                       : code_of(parse_manifest(text, "f"));
  };
  for (size_t file = 0; file < 3; ++file) {
    ASSERT_EQ(code(file, files[file]), std::nullopt);
    for (const size_t at : places_to_damage(files[file].size())) {
      EXPECT_EQ(code(file, files[file].substr(0, at)), ErrorCode::kCorruption) << at;
      for (int bit = 0; bit < 8; ++bit) {
        std::string flipped = files[file];
        flipped[at] = static_cast<char>(flipped[at] ^ 1 << bit);
        const auto found = code(file, flipped);
        ASSERT_TRUE(found == ErrorCode::kCorruption || found == ErrorCode::kUnsupported)
            << "byte " << at << " bit " << bit;
      }
    }
  }
}

TEST(Manifest, RefusesOtherFormatsAndVersions) {
  const std::string part = serialize_part(sample_part(0));
  const auto newer = parse_part(resealed(part, [](auto& j) { j["version"] = 2; }), "p.json");
  ASSERT_FALSE(newer);
  EXPECT_EQ(newer.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(newer.error().message(), HasSubstr("version 2 of millrace.part; this build reads version 1"));
  const auto other = parse_manifest(part, "p.json");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(other.error().message(), HasSubstr("format is \"millrace.part\", not \"millrace.manifest\""));
  EXPECT_EQ(parse_part("{}", "p.json").error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(parse_part("[]", "p.json").error().code(), ErrorCode::kCorruption);
  EXPECT_EQ(parse_part("", "p.json").error().code(), ErrorCode::kCorruption);
}

TEST(Manifest, RefusesWrongValuesThoughTheChecksumIsRight) {
  EXPECT_EQ(part_error([](auto&) {}), "no error");
  EXPECT_THAT(part_error([](auto& j) { j["tokens"] = -1; }), HasSubstr("tokens is not a whole number"));
  EXPECT_THAT(part_error([](auto& j) { j["tokens"] = 1.0; }), HasSubstr("tokens is not a whole number"));
  EXPECT_THAT(part_error([](auto& j) { j["tokens"] = (uint64_t{1} << 53) + 1; }), HasSubstr("tokens is not"));
  EXPECT_THAT(part_error([](auto& j) { j["tokens"] = "345"; }), HasSubstr("tokens is not a whole number"));
  EXPECT_THAT(part_error([](auto& j) { j.erase("documents"); }), HasSubstr("documents is missing"));
  EXPECT_THAT(part_error([](auto& j) { j["task"] = 2; }), HasSubstr("task is not below config.tasks"));
  EXPECT_THAT(part_error([](auto& j) { j["config"] = 1; }), HasSubstr("config is not an object"));
  EXPECT_THAT(part_error([](auto& j) { j["config"]["tasks"] = 0; }), HasSubstr("config.tasks is not at least 1"));
  EXPECT_THAT(part_error([](auto& j) { j["config"]["text"] = 1; }), HasSubstr("config.text is not true or false"));
  EXPECT_THAT(part_error([](auto& j) { j["config"]["output"] = "zip"; }),
              HasSubstr("config.output is not \"webdataset"));
  EXPECT_THAT(part_error([](auto& j) { j["config"]["documents"] = "page"; }), HasSubstr("config.documents is not"));
  EXPECT_THAT(part_error([](auto& j) { j["shards"] = 1; }), HasSubstr("shards is not a list"));
  EXPECT_THAT(part_error([](auto& j) { j["shards"][0] = 1; }), HasSubstr("shards[0] is not an object"));
  EXPECT_THAT(part_error([](auto& j) { j["shards"][0]["hash"] = "xyz"; }),
              HasSubstr("shards[0] 'shard-00000.tar': hash is not 32 hex"));
  EXPECT_THAT(part_error([](auto& j) { j["shards"].push_back(j["shards"][0]); }), HasSubstr("repeated names"));
  for (const char* name : {"", ".", "..", "../x.tar", "/x.tar", "a/b"})
    EXPECT_THAT(part_error([&](auto& j) { j["shards"][0]["name"] = name; }),
                HasSubstr("name is not a plain file name"));
  EXPECT_THAT(part_error([](auto& j) { j["shards"][0]["name"] = std::string("a\0b", 3); }),
              HasSubstr("plain file name"));
  EXPECT_THAT(part_error([](auto& j) { j["new"] = 1; }), HasSubstr("not the bytes that Millrace writes"));
}

TEST(Manifest, JoinsInTheOrderOfTasks) {
  std::vector<PartRecord> parts;
  for (const int64_t task : {2, 0, 1}) parts.push_back(sample_part(task, 3));
  parts[1].shards.push_back({.name = "shard-00000-1.tar"});
  parts[2].counts = {.invalid_utf8 = 4};
  const auto manifest = join_parts(parts);
  ASSERT_TRUE(manifest) << manifest.error().to_string();
  std::vector<std::string> names;
  for (const auto& shard : manifest->shards) names.push_back(shard.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"shard-00000.tar", "shard-00000-1.tar", "shard-00001.tar", "shard-00002.tar"}));
  EXPECT_EQ(manifest->input_bytes, 3000);
  EXPECT_EQ(manifest->documents, 36);
  EXPECT_EQ(manifest->tokens, 3 * 345);
  EXPECT_EQ(manifest->counts.invalid_utf8, 4);
}

TEST(Manifest, NamesEveryMissingPart) {
  const auto missing = [](std::vector<int64_t> present, int64_t tasks) {
    std::vector<PartRecord> parts;
    for (const int64_t task : present) parts.push_back(sample_part(task, tasks));
    const auto joined = join_parts(parts);
    if (joined) return std::string("no error");
    EXPECT_EQ(joined.error().code(), ErrorCode::kNotFound);
    return joined.error().message();
  };
  EXPECT_EQ(missing({0, 1, 2, 4, 5, 6}, 10),
            "of 10 tasks, the parts of these are missing: 3, 7-9 (named like part-00003-of-00010.json)");
  EXPECT_THAT(missing({1}, 2), HasSubstr("missing: 0 ("));
  EXPECT_THAT(missing({0}, 2), HasSubstr("missing: 1 ("));
  EXPECT_THAT(missing({2, 5}, 8), HasSubstr("missing: 0-1, 3-4, 6-7 ("));
  EXPECT_THAT(missing({0}, int64_t{1} << 53), HasSubstr("missing: 1-9007199254740991 ("));
  EXPECT_EQ(missing({0}, 1), "no error");
  EXPECT_EQ(join_parts({}).error().code(), ErrorCode::kNotFound);
}

TEST(Manifest, RefusesPartsThatDoNotBelongTogether) {
  const auto reason = [](std::vector<PartRecord> parts) {
    const auto joined = join_parts(parts);
    EXPECT_FALSE(joined);
    EXPECT_EQ(joined.error().code(), ErrorCode::kInvalidArgument);
    return joined.error().message();
  };
  EXPECT_THAT(reason({sample_part(0), sample_part(1), sample_part(0)}), HasSubstr("two parts of task 0"));
  EXPECT_THAT(reason({sample_part(0), sample_part(1, 3)}),
              HasSubstr("tasks 0 and 1 were run with different settings: tasks: 2 there, 3 here"));
  EXPECT_THAT(reason({sample_part(0), sample_part(2)}), HasSubstr("a part of task 2, but there are 2 tasks"));
  PartRecord same_shard = sample_part(1);
  same_shard.shards = sample_part(0).shards;
  EXPECT_THAT(reason({sample_part(0), same_shard}), HasSubstr("two parts name the shard shard-00000.tar"));
  PartRecord large = sample_part(0), larger = sample_part(1);
  large.tokens = larger.tokens = int64_t{1} << 53;
  EXPECT_THAT(reason({large, larger}), HasSubstr("2^53 tokens"));
}

TEST(Manifest, ExplainsDifferencesLineByLine) {
  ShardConfig here = sample_config();
  EXPECT_EQ(explain_difference(sample_config(), here), "");
  here.tasks = 8;
  here.options.text_field = "body";
  here.options.text = false;
  EXPECT_EQ(explain_difference(sample_config(), here),
            "tasks: 2 there, 8 here\ntext: true there, false here\ntext_field: \"text\" there, \"body\" here");
}

}  // namespace
}  // namespace millrace::formats
