// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/log.h"
#include "millrace/formats/npy.h"
#include "millrace/prepare/detail/prepare_task.h"
#include "millrace/prepare/testing.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::prepare {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Prepare : public ::testing::Test {
 protected:
  Prepare() {
    write_file(at("tokenizer.json"), small_tokenizer_json());
    options_.tokenizer = at("tokenizer.json");
    options_.output = at("out");
    options_.threads = 2;
    options_.text_rules.max_invalid_utf8 = 1;  // random text has many
  }
  std::string at(std::string_view name) const { return root_.path() + "/" + std::string(name); }
  void add_input(const std::string& name, std::string_view text) {
    write_file(at(name), text);
    options_.inputs.push_back(at(name));
  }
  std::string out(const std::string& name) const { return read_file(at("out/" + name)); }
  std::vector<std::string> out_names() const { return names_of(folder_content(at("out"))); }
  std::vector<ReadSample> samples(const std::string& name) const {
    auto read = read_shard(out(name), name);
    EXPECT_TRUE(read) << (read ? "" : read.error().to_string());
    return read ? *read : std::vector<ReadSample>();
  }
  PrepareReport done() const {
    auto report = prepare(options_);
    EXPECT_TRUE(report) << (report ? "" : report.error().to_string());
    return report ? *report : PrepareReport{};
  }
  Error refused() const {
    auto report = prepare(options_);
    EXPECT_FALSE(report);
    return report ? Error(ErrorCode::kInternal, "not refused") : report.error();
  }

  TempDir root_{TempDir::Place::kMemory};
  PrepareOptions options_;
};

std::vector<uint32_t> ids_of(const ReadSample& sample) {
  std::vector<uint32_t> ids;
  for (const auto& [field, data] : sample.fields) {
    Status parsed;
    if (field == "token_ids.npy") parsed = formats::parse_npy_ids(as_bytes(data), ids, field);
    if (field == "token_ids.json") parsed = formats::parse_json_ids(data, ids, field);
    EXPECT_TRUE(parsed);
  }
  return ids;
}

TEST_F(Prepare, WritesEveryDocumentAsASample) {
  add_input("raw/b.txt", "the other\r\n\n  \ncaf\xC3\xA9 then");
  add_input("raw/a.txt", "\xEF\xBB\xBFin the error\n");
  const PrepareReport report = done();
  EXPECT_THAT(out_names(), ElementsAre("00000.tar", "00000.tar.index", "part-00000-of-00001.json", "prepare.json"));
  const auto read = samples("00000.tar");
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0].key, "00000-000000000");
  EXPECT_EQ(read[2].key, "00000-000000002");
  EXPECT_EQ(read[0].fields.at("text.txt"), "in the error");
  EXPECT_EQ(read[1].fields.at("text.txt"), "the other");
  EXPECT_EQ(read[2].fields.at("text.txt"), "caf\xC3\xA9 then");

  const auto tokenizer = tokenizer::Tokenizer::from_json(small_tokenizer_json(), "small").value();
  tokenizer::Encoder encoder(tokenizer);
  int64_t tokens = 0;
  for (const ReadSample& sample : read) {
    std::vector<uint32_t> ids;
    ASSERT_TRUE(encoder.encode(sample.fields.at("text.txt"), {}, ids));
    EXPECT_EQ(ids_of(sample), ids);
    EXPECT_EQ(ids.front(), tokenizer->token_to_id("<|bos|>"));
    tokens += static_cast<int64_t>(ids.size());
  }
  EXPECT_EQ(report.part.documents, 3);
  EXPECT_EQ(report.part.tokens, tokens);
  EXPECT_EQ(report.part.input_bytes, 41);
  EXPECT_EQ(report.output_bytes, std::ssize(out("00000.tar")));
  EXPECT_EQ(report.part, formats::parse_part(out("part-00000-of-00001.json"), "part").value());

  const auto index = formats::parse_shard_index(as_bytes(out("00000.tar.index")), "index").value();
  EXPECT_EQ(index.total_tokens(), tokens);
  EXPECT_EQ(index.tokenizer_hash, tokenizer->hash());
  const auto check = check_visible(at("out"));
  EXPECT_TRUE(check) << (check ? "" : check.error().to_string());
}

TEST_F(Prepare, WritesJsonIdsAndLeavesTheTextOut) {
  add_input("a.txt", "the in\n");
  options_.ids_format = "json";
  options_.shards.text = false;
  options_.shards.add_special_tokens = false;
  done();
  const auto read = samples("00000.tar");
  ASSERT_EQ(read.size(), 1u);
  EXPECT_THAT(read[0].fields, ElementsAre(::testing::Key("token_ids.json")));
  std::vector<uint32_t> ids;
  tokenizer::Encoder encoder(tokenizer::Tokenizer::from_json(small_tokenizer_json(), "small").value());
  ASSERT_TRUE(encoder.encode("the in", {.add_special_tokens = false}, ids));
  EXPECT_EQ(ids_of(read[0]), ids);
}

TEST_F(Prepare, TakesDocumentsOfEveryMode) {
  add_input("a.txt", "one\ntwo\n \t\nthree\n");
  options_.shards.documents = formats::DocumentMode::kParagraph;
  done();
  auto read = samples("00000.tar");
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].fields.at("text.txt"), "one\ntwo");

  options_.shards.documents = formats::DocumentMode::kFile;
  options_.output = at("files");
  done();
  EXPECT_EQ(read_shard(read_file(at("files/00000.tar")), "").value()[0].fields.at("text.txt"),
            "one\ntwo\n \t\nthree\n");

  write_file(at("a.jsonl"), "{\"meta\": {\"body\": \"the \\u00e9\\ud83d\\ude00\"}}\n{\"meta\": {\"body\": \"\"}}\n");
  options_.inputs = {at("a.jsonl")};
  options_.shards.documents = formats::DocumentMode::kJsonl;
  options_.shards.text_field = "meta.body";
  options_.output = at("out2");
  done();
  read = read_shard(read_file(at("out2/00000.tar")), "").value();
  ASSERT_EQ(read.size(), 1u);  // an empty text is no document, unless it was asked for
  EXPECT_EQ(read[0].fields.at("text.txt"), "the \xC3\xA9\xF0\x9F\x98\x80");
  options_.shards.rules.keep_empty = true;
  options_.output = at("out3");
  done();
  read = read_shard(read_file(at("out3/00000.tar")), "").value();
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[1].fields.at("text.txt"), "");
}

TEST_F(Prepare, BytesDependOnNothingButInputsAndSettings) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 5; ++i) add_input(fmt::format("raw/{}.txt", i), random_text(random, 300));
  options_.shards.shard_bytes = 500'000;
  options_.threads = 1;
  done();
  const auto expected = folder_content(at("out"));
  EXPECT_GT(expected.size(), 10u);
  for (const int threads : {2, 5}) {
    for (int turn = 0; turn < 4; ++turn) {
      PipelineOptions pipeline;
      pipeline.chunk_bytes = 1 + static_cast<int64_t>(random() % 20'000);
      pipeline.slice_documents = 1 + random() % 100;
      options_.threads = threads;
      options_.output = at(fmt::format("out-{}-{}", threads, turn));
      ASSERT_TRUE(prepare_task(options_, pipeline, {}, nullptr, nullptr));
      EXPECT_TRUE(folder_content(options_.output) == expected) << options_.output;
    }
  }
}

TEST_F(Prepare, ShardsRollOverAtSampleBounds) {
  std::mt19937_64 random(7);
  add_input("a.txt", random_text(random, 1000));
  done();
  const auto whole = samples("00000.tar");
  options_.output = at("rolled");
  options_.shards.shard_bytes = 100'000;
  const PrepareReport report = done();
  ASSERT_GT(report.part.shards.size(), 5u);
  std::vector<ReadSample> joined;
  for (size_t k = 0; k < report.part.shards.size(); ++k) {
    const formats::ShardEntry& shard = report.part.shards[k];
    EXPECT_EQ(shard.name, fmt::format("00000-{:05}.tar", k));
    const std::string index_bytes = read_file(at("rolled/" + shard.name + ".index"));
    const auto index = formats::parse_shard_index(as_bytes(index_bytes), "index").value();
    if (k + 1 < report.part.shards.size()) {
      EXPECT_GE(index.offset.back() + index.size.back(), 100'000u);
      EXPECT_LT(index.offset.back(), 100'000u);
    }
    const std::vector<ReadSample> read = read_shard(read_file(at("rolled/" + shard.name)), "").value();
    joined.insert(joined.end(), read.begin(), read.end());
  }
  EXPECT_EQ(joined, whole);
}

TEST_F(Prepare, TasksShareTheInputsAndFinishJoinsThem) {
  for (int i = 0; i < 5; ++i) add_input(fmt::format("raw/{}.txt", i), fmt::format("in the {}\nthen {}\n", i, i));
  options_.inputs = {at("raw")};
  options_.task = {0, 3};
  EXPECT_EQ(done().part.documents, 4);  // 0.txt, 3.txt
  options_.task = {2, 3};
  EXPECT_EQ(done().part.documents, 2);
  auto manifest = finish(at("out"));
  ASSERT_FALSE(manifest);
  EXPECT_EQ(manifest.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(manifest.error().to_string(), HasSubstr("part-00001-of-00003.json"));
  options_.task = {1, 3};
  EXPECT_EQ(done().part.inputs[1].name, "4.txt");
  manifest = finish(at("out"));
  ASSERT_TRUE(manifest) << manifest.error().to_string();
  EXPECT_EQ(manifest->documents, 10);
  EXPECT_EQ(manifest->shards.size(), 3u);
  const auto before = folder_content(at("out"));
  ASSERT_TRUE(finish(at("out")));
  EXPECT_EQ(folder_content(at("out")), before);

  std::filesystem::rename(at("out/00000.tar.index"), at("kept"));
  EXPECT_THAT(finish(at("out")).error().to_string(), HasSubstr("00000.tar.index"));
  std::filesystem::rename(at("kept"), at("out/00000.tar.index"));
  std::filesystem::resize_file(at("out/00001.tar"), 1024);
  EXPECT_EQ(finish(at("out")).error().code(), ErrorCode::kCorruption);
  std::filesystem::remove(at("out/00001.tar"));
  EXPECT_THAT(finish(at("out")).error().to_string(), HasSubstr("00001.tar"));
  EXPECT_EQ(finish(at("nothing")).error().code(), ErrorCode::kNotFound);
}

TEST_F(Prepare, FinishMissesWhatLiesBesideAShard) {
  add_input("a.txt", "the\n");
  options_.shards.format = OutputFormat::kMegatron;
  done();
  ASSERT_TRUE(finish(at("out")));
  std::filesystem::remove(at("out/00000.idx"));
  EXPECT_THAT(finish(at("out")).error().to_string(), HasSubstr("00000.idx"));
}

TEST_F(Prepare, ATaskWithoutInputsLeavesAnEmptyPart) {
  add_input("a.txt", "the\n");
  options_.task = {3, 4};
  const PrepareReport report = done();
  EXPECT_THAT(report.part.shards, IsEmpty());
  EXPECT_THAT(out_names(), ElementsAre("part-00003-of-00004.json", "prepare.json"));
}

TEST_F(Prepare, AnEmptyFileIsNoDocument) {
  add_input("a.txt", "");
  add_input("b.txt", " \n\n");
  EXPECT_EQ(done().part.documents, 0);
  EXPECT_THAT(out_names(), ElementsAre("part-00000-of-00001.json", "prepare.json"));
}

TEST_F(Prepare, RepairsIllFormedUtf8AndCountsIt) {
  add_input("a.txt", "the\nin \xFF\xC3\nthen \xE4\xB8\n");
  options_.shards.shard_bytes = 1;  // every sample in its own shard
  Metrics metrics;
  const auto report = prepare(options_, {}, nullptr, &metrics);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->part.counts.invalid_utf8, 3);
  EXPECT_EQ(metrics.count(Metric::kInvalidUtf8), 3);
  EXPECT_EQ(metrics.count(Metric::kSamples), 3);
  EXPECT_EQ(samples("00000-00001.tar")[0].fields.at("text.txt"), "in \xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(samples("00000-00002.tar")[0].fields.at("text.txt"), "then \xEF\xBF\xBD");
  EXPECT_EQ(done().part.counts.invalid_utf8, 3);  // also from shards that were kept
}

TEST_F(Prepare, StrictNamesTheFirstIllFormedByte) {
  add_input("a.txt", "the\n\nin \xFF\nthen \xE4\xB8\n");
  options_.shards.rules.strict_utf8 = true;
  const Error error = refused();
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.to_string(), AllOf(HasSubstr("a.txt"), HasSubstr("line 3, offset 5"),
                                       HasSubstr("byte 3 of the document"), HasSubstr("0xff")));
  EXPECT_THAT(out_names(), IsEmpty());
}

TEST_F(Prepare, ARunThatFailedAtOnceIsMendedWithOtherSettings) {
  add_input("a.txt", "the\nin \xFF\n");
  options_.shards.rules.strict_utf8 = true;
  EXPECT_EQ(refused().code(), ErrorCode::kInvalidArgument);
  options_.shards.rules.strict_utf8 = false;
  EXPECT_EQ(done().part.documents, 2);
}

TEST_F(Prepare, ALineThatIsNotJsonIsNamed) {
  add_input("a.jsonl", "{\"text\": \"the\"}\n{\"text\": 3}\n");
  options_.shards.documents = formats::DocumentMode::kJsonl;
  EXPECT_THAT(refused().to_string(), AllOf(HasSubstr("a.jsonl"), HasSubstr("line 2, offset 16")));
}

TEST_F(Prepare, JsonEscapesCannotSmuggleInIllFormedText) {
  add_input("a.jsonl", "{\"text\": \"x\\udc00y\"}\n");
  options_.shards.documents = formats::DocumentMode::kJsonl;
  const auto report = prepare(options_);
  EXPECT_TRUE(!report || is_utf8(samples("00000.tar")[0].fields.at("text.txt")));
}

TEST_F(Prepare, ADocumentOverTheLimitIsNamedAndNothingIsLeft) {
  add_input("a.txt", "the\nin\n" + std::string(300'000, 'x') + "\n");
  options_.shards.rules.max_document_bytes = 100'000;
  const Error error = refused();
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(error.to_string(), AllOf(HasSubstr("a.txt"), HasSubstr("line 3"), HasSubstr("offset 7")));
  EXPECT_THAT(out_names(), IsEmpty());
}

TEST_F(Prepare, HalfASurrogatePairIsRepairedAndCounted) {
  add_input("a.jsonl", R"({"text": "a\ud800b \ud83d\ude00 \udc00\ud800 \\ud800 c", "other": "\udfff"})"
                       "\n");
  options_.shards.documents = formats::DocumentMode::kJsonl;
  const PrepareReport report = done();
  EXPECT_EQ(report.part.counts.invalid_utf8, 4);
  EXPECT_EQ(read_shard(out("00000.tar"), "00000.tar").value().at(0).fields.at("text.txt"),
            "a\xEF\xBF\xBD"
            "b \xF0\x9F\x98\x80 \xEF\xBF\xBD\xEF\xBF\xBD \\ud800 c");
  options_.output = at("strict");
  options_.shards.rules.strict_utf8 = true;
  EXPECT_THAT(refused().to_string(), AllOf(HasSubstr("a.jsonl"), HasSubstr("line 1"), HasSubstr("half a surrogate")));
}

TEST_F(Prepare, StrippedIsAsPythonStrips) {
  // What str.isspace() is true for, each at both ends; and what looks like it (zero width space, BOM) stays.
  std::string spaces = "\t\v\f\r\x1c\x1d\x1e\x1f \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000";
  for (uint32_t c = 0x2000; c <= 0x200A; ++c) append_utf8(c, spaces);
  EXPECT_EQ(stripped(spaces + "a " + spaces + "b" + spaces), "a " + spaces + "b");
  EXPECT_EQ(stripped(spaces), "");
  EXPECT_EQ(stripped(""), "");
  for (const std::string kept : {"\u200b", "\ufeff", "\u00e0", "\u2010", "\u3001"}) EXPECT_EQ(stripped(kept), kept);
  add_input("a.txt", "  the in \t\n\u3000\u3000\nx\n");
  options_.shards.rules.strip = true;
  const PrepareReport report = done();
  EXPECT_EQ(report.part.counts.empty, 1);
  EXPECT_EQ(report.part.counts.filtered, 0);
  const auto samples = read_shard(out("00000.tar"), "00000.tar").value();
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_EQ(samples[0].fields.at("text.txt"), "the in");
  options_.shards.rules.strip = false;
  EXPECT_THAT(refused().to_string(), HasSubstr("strip: true there"));
}

TEST_F(Prepare, OtherSettingsInOneFolderAreRefused) {
  add_input("a.txt", "the\n");
  done();
  const auto before = folder_content(at("out"));
  const PrepareOptions first = options_;
  options_.task = {0, 2};
  EXPECT_THAT(refused().message(), AllOf(HasSubstr("tasks"), HasSubstr("another folder")));
  options_ = first;
  options_.ids_format = "json";
  options_.shards.text = false;
  EXPECT_THAT(refused().message(), AllOf(HasSubstr("ids_field"), HasSubstr("text: ")));
  options_ = first;
  std::string other = small_tokenizer_json();
  write_file(at("tokenizer.json"), other + "\n");
  EXPECT_THAT(refused().message(), HasSubstr("tokenizer_hash"));
  EXPECT_EQ(folder_content(at("out")), before);
}

TEST_F(Prepare, WhatCannotBeDoneIsRefusedBeforeAnythingIsWritten) {
  add_input("a.txt", "the\n");
  const PrepareOptions good = options_;
  const auto expect_refused = [&](ErrorCode code, const char* text) {
    const Error error = refused();
    EXPECT_EQ(error.code(), code) << error.to_string();
    EXPECT_THAT(error.to_string(), HasSubstr(text));
    EXPECT_THAT(out_names(), IsEmpty());
    options_ = good;
  };
  options_.inputs = {at("a.txt"), at("missing.txt")};
  expect_refused(ErrorCode::kNotFound, "missing.txt");
  options_.tokenizer = at("missing.json");
  expect_refused(ErrorCode::kNotFound, "missing.json");
  options_.tokenizer = root_.path();
  expect_refused(ErrorCode::kInvalidArgument, "tokenizer");
  options_.tokenizer = at("a.txt");
  expect_refused(ErrorCode::kInvalidArgument, "a.txt");
  options_.task = {2, 2};
  expect_refused(ErrorCode::kInvalidArgument, "2/2");
  options_.ids_format = "bin";
  expect_refused(ErrorCode::kInvalidArgument, "bin");
  options_.threads = -1;
  expect_refused(ErrorCode::kInvalidArgument, "threads");
  options_.shards.rules.max_document_bytes = 0;
  expect_refused(ErrorCode::kInvalidArgument, "max document bytes");
  // Sparse, and larger than any disk this runs on.
  std::ofstream(at("huge.txt")).close();
  std::filesystem::resize_file(at("huge.txt"), uint64_t{15} << 40);
  options_.inputs = {at("huge.txt")};
  expect_refused(ErrorCode::kResourceExhausted, "free");
  write_file(at("file"), "");
  options_.output = at("file");
  EXPECT_FALSE(prepare(options_));
}

TEST_F(Prepare, ADryRunWritesNothing) {
  add_input("a.txt", "the\nin\n");
  options_.dry_run = true;
  EXPECT_EQ(done().part.input_bytes, 7);
  EXPECT_FALSE(std::filesystem::exists(at("out")));
  options_.dry_run = false;
  done();
  options_.dry_run = true;
  EXPECT_EQ(done().shards_reused, 1);
  options_.shards.text = false;
  EXPECT_EQ(refused().code(), ErrorCode::kInvalidArgument);
}

TEST_F(Prepare, ADryRunForetellsWhatComes) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 20; ++i) add_input(fmt::format("{}.txt", i), random_text(random, 500));
  for (const OutputFormat format : {OutputFormat::kWebDataset, OutputFormat::kMegatron, OutputFormat::kTokens}) {
    options_.shards.format = format;
    options_.output = at(output_format_name(format));
    options_.dry_run = true;
    const Estimate expected = done().estimate.value();
    options_.dry_run = false;
    const PrepareReport found = done();
    EXPECT_FALSE(found.estimate);
    // 16 of the 20 files are looked at, each from its front to its end.
    EXPECT_LT(expected.sampled_bytes, found.part.input_bytes);
    int64_t written = 0;
    for (const auto& [name, content] : folder_content(options_.output)) {
      if (!name.ends_with(".json")) written += std::ssize(content);
    }
    const auto near = [](int64_t a, int64_t b) { return std::abs(a - b) <= b / 10; };
    EXPECT_TRUE(near(expected.documents, found.part.documents)) << expected.documents;
    EXPECT_TRUE(near(expected.tokens, found.part.tokens)) << expected.tokens;
    EXPECT_TRUE(near(expected.output_bytes, written)) << expected.output_bytes << " " << written;
  }
}

TEST_F(Prepare, ADryRunOfLittleIsExact) {
  add_input("a.txt", "the\nin\nthen\n");
  options_.dry_run = true;
  const Estimate expected = done().estimate.value();
  options_.dry_run = false;
  const PrepareReport found = done();
  EXPECT_EQ(expected.sampled_bytes, found.part.input_bytes);
  EXPECT_EQ(expected.documents, found.part.documents);
  EXPECT_EQ(expected.tokens, found.part.tokens);
}

TEST_F(Prepare, ShardsMuchLargerThanTheirTextAreToldAndHowToAvoidThem) {
  std::string text;
  while (text.size() < (3u << 20) / 2) text += "a short line\n";
  add_input("a.txt", text);
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); }, LogLevel::kWarning);
  done();
  EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr("158 times"), HasSubstr("--block"), HasSubstr("--no-text"))));
  options_.dry_run = true;
  EXPECT_THAT(done().estimate->advice, HasSubstr("--block"));
  lines.clear();
  options_.dry_run = false;
  options_.shards.block_documents = 100;
  options_.output = at("blocks");
  done();
  EXPECT_THAT(lines, IsEmpty());
  set_log_sink({}, LogLevel::kWarning);
}

TEST_F(Prepare, WithoutADocumentIsNotFinished) {
  add_input("empty.txt", "");
  EXPECT_THAT(refused().message(), HasSubstr("empty"));
  EXPECT_THAT(out_names(), IsEmpty());

  options_.inputs.clear();
  add_input("blank.txt", "\n  \n");
  done();
  const auto manifest = finish(at("out"));
  ASSERT_FALSE(manifest);
  EXPECT_EQ(manifest.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(at("out/manifest.json")));
}

TEST_F(Prepare, ATaskWithoutTextIsOneOfMany) {
  add_input("a.txt", "the\n");
  add_input("empty.txt", "");
  for (int64_t task = 0; task < 3; ++task) {
    options_.task = {task, 3};
    done();
  }
  EXPECT_EQ(finish(at("out")).value().documents, 1);
}

TEST_F(Prepare, WhatIsNoTextIsRefusedBeforeAnythingIsWritten) {
  options_.text_rules.max_invalid_utf8 = PrepareOptions().text_rules.max_invalid_utf8;
  const auto expect_refused = [&](std::string_view content, const char* text) {
    options_.inputs.clear();
    add_input("good.txt", "the\n");
    add_input("odd.txt", content);
    EXPECT_THAT(refused().to_string(), AllOf(HasSubstr("odd.txt"), HasSubstr(text)));
    EXPECT_THAT(out_names(), IsEmpty());
  };
  expect_refused("PAR1 and no end", "cut");
  expect_refused("{\"text\": \"the\"}\n", "--documents jsonl");
  std::string latin;
  while (latin.size() < 10'000) latin += "caf\xE9 cr\xE8me\n";
  expect_refused(latin, "iconv");
}

TEST_F(Prepare, ATextThatTurnsIntoAnotherIsFoundOnTheWay) {
  options_.text_rules.max_invalid_utf8 = PrepareOptions().text_rules.max_invalid_utf8;
  std::string text;
  while (text.size() < (1u << 20)) text += "caffe creme\n";
  while (text.size() < (2u << 20)) text += "caf\xE9 cr\xE8me\n";
  add_input("a.txt", text);
  EXPECT_THAT(refused().to_string(), AllOf(HasSubstr("a.txt"), HasSubstr("iconv")));
  EXPECT_FALSE(std::filesystem::exists(at("out/part-00000-of-00001.json")));
}

TEST_F(Prepare, ProgressAndMetricsAddUp) {
  std::mt19937_64 random(3);
  add_input("a.txt", random_text(random, 500));
  add_input("b.txt", "\xEF\xBB\xBF\n\n");
  add_input("c.txt", "\n\n" + random_text(random, 500));
  options_.shards.shard_bytes = 50'000;
  for (const bool again : {false, true}) {
    Progress progress;
    Metrics metrics;
    const auto report = prepare(options_, {}, &progress, &metrics);
    ASSERT_TRUE(report);
    EXPECT_EQ(progress.snapshot().total_bytes, report->part.input_bytes);
    EXPECT_EQ(progress.snapshot().bytes, report->part.input_bytes);
    EXPECT_EQ(progress.snapshot().items, report->part.documents);
    EXPECT_EQ(metrics.count(Metric::kSamples), again ? 0 : report->part.documents);
    EXPECT_EQ(metrics.count(Metric::kTokens), again ? 0 : report->part.tokens);
    EXPECT_EQ(metrics.count(Metric::kWriteBytes), again ? 0 : report->output_bytes);
  }
}

TEST(PrepareMemory, IsReservedUnderTheCapAndTakesWhatIsLeft) {
  constexpr int64_t kMiB = 1 << 20;
  PipelineOptions options{.threads = 2};
  MemoryBudget large(1024 * kMiB);
  {
    const auto memory = reserve_memory(options, large);
    ASSERT_TRUE(memory);
    EXPECT_EQ(options.bytes_in_flight, 16 * kMiB);
    EXPECT_GE(large.reserved_bytes(), 9 * options.bytes_in_flight);
  }
  EXPECT_EQ(large.reserved_bytes(), 0);

  MemoryBudget small(64 * kMiB);
  const auto loader = BufferPool::reserve(small, "loader", 46 * kMiB);
  ASSERT_TRUE(loader);
  const auto memory = reserve_memory(options, small);
  ASSERT_TRUE(memory) << memory.error().to_string();
  EXPECT_EQ(options.bytes_in_flight, 2 * kMiB);
  EXPECT_LE(small.reserved_bytes(), small.cap_bytes());

  const auto second = reserve_memory(options, small);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(second.error().message(), ::testing::HasSubstr("loader"));
}

}  // namespace
}  // namespace millrace::prepare
