// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "millrace/prepare/detail/prepare_task.h"
#include "millrace/prepare/testing.h"

namespace millrace::prepare {
namespace {

// Lines of JSON: good ones, many of them twice, broken ones, long ones, and text that is not UTF-8.
std::string random_jsonl(std::mt19937_64& random, int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    switch (random() % 12) {
      case 0:
        text += "{\"text\": 5}";
        break;
      case 1:
        text += "nonsense \xFF";
        break;
      case 2:
        text += nlohmann::json{{"text", std::string(3000, 'x')}}.dump();
        break;
      default: {
        std::string content;
        for (auto words = random() % 6; words > 0; --words) content += random() % 2 == 0 ? "the " : "caf\xC3\xA9 ";
        if (random() % 3 != 0) content += std::to_string(random() % 1000);
        text += nlohmann::json{{"text", content}}.dump();
      }
    }
    text += "\n";
  }
  return text;
}

PrepareOptions random_options(std::mt19937_64& random) {
  PrepareOptions options;
  options.shards.documents = formats::DocumentMode::kJsonl;
  options.shards.format = static_cast<OutputFormat>(random() % 3);
  options.shards.text = random() % 2 == 0;
  if (options.shards.format == OutputFormat::kWebDataset && random() % 2 == 0) {
    options.shards.block_documents = 1 + static_cast<int64_t>(random() % 20);
  } else if (options.shards.format == OutputFormat::kWebDataset) {
    options.ids_format = std::vector<std::string>{"", "npy", "json", "raw"}[random() % 4];
  }
  options.shards.rules.strip = random() % 2 == 0;
  options.shards.shard_bytes = random() % 4 == 0 ? 0 : 2'000 + static_cast<int64_t>(random() % 30'000);
  options.shards.rules.skip_errors = true;
  options.text_rules.max_invalid_utf8 = 1;
  options.shards.rules.max_document_bytes = random() % 2 == 0 ? 1000 : 64 << 20;
  options.shards.rules.dedup = random() % 2 == 0;
  if (random() % 2 == 0) options.shards.rules.min_bytes = 3;
  if (random() % 2 == 0) options.shards.rules.max_tokens = 30;
  if (random() % 2 == 0) options.shards.eos = "<|bos|>";
  return options;
}

class Options : public ::testing::Test {
 protected:
  std::string at(std::string_view name) const { return root_.path() + "/" + std::string(name); }

  TempDir root_{TempDir::Place::kMemory};
};

TEST_F(Options, OfEveryKindGiveTheSameBytesHoweverTheRunGoes) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  write_file(at("tokenizer.json"), small_tokenizer_json());
  int64_t rejected = 0, duplicates = 0, filtered = 0;
  const auto has_met_all = [&] { return rejected > 0 && duplicates > 0 && filtered > 0; };
  for (int turn = 0; turn < rounds(25) || (!has_met_all() && turn < 200); ++turn) {
    PrepareOptions options = random_options(random);
    options.tokenizer = at("tokenizer.json");
    for (int i = 0; i < 3; ++i) {
      write_file(at(fmt::format("raw/{}.jsonl", i)), random_jsonl(random, static_cast<int>(random() % 400)));
    }
    options.inputs = {at("raw")};
    options.output = at(fmt::format("expected-{}", turn));
    options.threads = 1;
    const auto first = prepare(options);
    ASSERT_TRUE(first) << first.error().to_string();
    rejected += first->part.counts.rejected;
    duplicates += first->part.counts.duplicates;
    filtered += first->part.counts.filtered;
    const auto expected = folder_content(options.output);

    options.output = at(fmt::format("out-{}", turn));
    for (int again = 0; again < 5; ++again) {
      PipelineOptions pipeline;
      pipeline.chunk_bytes = 1 + static_cast<int64_t>(random() % 20'000);
      pipeline.slice_documents = 1 + random() % 100;
      options.threads = 1 + static_cast<int>(random() % 4);
      const auto report = prepare_task(options, pipeline, {}, nullptr, nullptr);
      ASSERT_TRUE(report) << report.error().to_string();
      ASSERT_EQ(report->part, first->part);
      const auto written = folder_content(options.output);
      ASSERT_EQ(names_of(written), names_of(expected));
      for (const auto& [name, content] : expected) ASSERT_TRUE(written.at(name) == content) << name;
      // Whatever is missing or damaged comes again as it was.
      for (const auto& [name, content] : written) {
        if (random() % 4 != 0 || name == "prepare.json") continue;
        if (random() % 2 == 0 || content.empty()) {
          std::filesystem::remove(options.output + "/" + name);
        } else {
          std::string damaged = content;
          damaged[random() % damaged.size()] ^= 1;
          write_file(options.output + "/" + name, damaged);
        }
      }
    }
  }
  EXPECT_TRUE(has_met_all()) << rejected << " " << duplicates << " " << filtered;
}

TEST_F(Options, ThatContradictEachOtherAreRefused) {
  write_file(at("tokenizer.json"), small_tokenizer_json());
  write_file(at("a.txt"), "the\n");
  const auto refused = [&](const std::function<void(PrepareOptions&)>& change) {
    PrepareOptions options;
    options.inputs = {at("a.txt")};
    options.tokenizer = at("tokenizer.json");
    options.output = at("out");
    change(options);
    const auto report = prepare(options);
    EXPECT_FALSE(std::filesystem::exists(at("out")));
    return report ? "not refused" : report.error().to_string();
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refused([](auto& o) { o.ids_format = "csv"; }), HasSubstr("npy, json or raw"));
  EXPECT_THAT(refused([](auto& o) { o.ids_format = "npy", o.shards.format = OutputFormat::kTokens; }),
              HasSubstr("tokens have their own form"));
  EXPECT_THAT(refused([](auto& o) { o.ids_format = "raw", o.shards.block_documents = 8; }),
              HasSubstr("blocks of documents"));
  EXPECT_THAT(refused([](auto& o) { o.shards.block_documents = -1; }), HasSubstr("negative"));
  EXPECT_THAT(refused([](auto& o) { o.shards.rules.min_bytes = 5, o.shards.rules.max_bytes = 4; }),
              HasSubstr("5 to 4"));
  EXPECT_THAT(refused([](auto& o) { o.shards.rules.max_tokens = -1; }), HasSubstr("0 to -1"));
  EXPECT_THAT(refused([](auto& o) { o.max_errors = -1; }), HasSubstr("negative"));
  EXPECT_THAT(refused([](auto& o) { o.shards.bos = "<|bos|>"; }), HasSubstr("post-processor puts it there already"));
  EXPECT_THAT(refused([](auto& o) { o.shards.eos = "nope"; }), HasSubstr("no such token"));
  EXPECT_THAT(refused([](auto& o) { o.shards.chat = "chatml"; }), HasSubstr("lines of jsonl"));
  EXPECT_THAT(refused([](auto& o) {
                o.shards.chat = "chatml";
                o.shards.documents = formats::DocumentMode::kJsonl;
              }),
              HasSubstr("<|im_start|>"));
}

}  // namespace
}  // namespace millrace::prepare
