// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/prepare/testing.h"

namespace millrace::prepare {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Split : public ::testing::Test {
 protected:
  Split() {
    options_.output = at("out");
    options_.text_rules.max_invalid_utf8 = 1;  // random text has many
  }
  std::string at(std::string_view name) const { return root_.path() + "/" + std::string(name); }
  void add_input(const std::string& name, std::string_view text) {
    write_file(at(name), text);
    options_.inputs.push_back(at(name));
  }
  SplitReport done() const {
    auto report = split(options_);
    EXPECT_TRUE(report) << (report ? "" : report.error().to_string());
    return report ? *report : SplitReport{};
  }
  std::vector<std::string> parts() const {
    std::vector<std::string> texts;
    for (const auto& [name, content] : folder_content(at("out"))) texts.push_back(content);
    return texts;
  }

  TempDir root_{TempDir::Place::kMemory};
  SplitOptions options_;
};

std::vector<std::string> documents_of(std::string_view text, formats::DocumentMode mode) {
  const MemoryReader memory(as_bytes(text));
  const auto reader = formats::open_documents(memory, {.mode = mode}).value();
  std::vector<std::string> documents;
  while (const auto chunk = reader->next().value()) {
    for (const formats::DocumentSpan& span : chunk->documents) {
      documents.push_back(chunk->text.substr(span.begin, span.end - span.begin));
    }
  }
  return documents;
}

TEST_F(Split, CutsInFrontOfTheDocumentThatBeginsInTheNextPart) {
  add_input("a.txt", "0123456\n\n89\nbcd\n");  // 16 bytes: parts begin at 0, 4, 8, 12
  options_.parts = 4;
  const SplitReport report = done();
  EXPECT_THAT(parts(), ElementsAre("0123456\n\n", "", "89\n", "bcd\n"));
  EXPECT_EQ(report.parts[2].name, "part-00002.txt");
  EXPECT_EQ(report.parts[2].documents, 1);
  EXPECT_EQ(report.parts[0].bytes, 9);
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.bytes, 16);
}

TEST_F(Split, LeavesPartsThatAreThereUnlessToldToReplaceThem) {
  add_input("a.txt", "one\ntwo\nthree\n");
  options_.parts = 2;
  done();
  const auto before = folder_content(at("out"));
  done();  // the same again
  write_file(at("a.txt"), "ONE\ntwo\nthree\n");
  const auto report = split(options_);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(report.error().message(), AllOf(HasSubstr("part-00000.txt"), HasSubstr("--replace")));
  EXPECT_TRUE(folder_content(at("out")) == before);
  options_.replace = true;
  done();
  EXPECT_EQ(read_file(at("out/part-00000.txt")), "ONE\ntwo\n");
}

TEST_F(Split, OfNoTextIsRefused) {
  add_input("empty.txt", "");
  EXPECT_EQ(split(options_).error().code(), ErrorCode::kInvalidArgument);
  options_.text_rules.max_invalid_utf8 = SplitOptions().text_rules.max_invalid_utf8;
  add_input("a.txt", "BZh91AY&SY and so on");
  EXPECT_THAT(split(options_).error().message(), HasSubstr("bzip2 -d"));
  EXPECT_FALSE(std::filesystem::exists(at("out")));
}

TEST_F(Split, InputsDoNotRunIntoEachOther) {
  options_.replace = true;
  add_input("a.txt", "one");
  add_input("b.txt", "");
  add_input("c.txt", "\xEF\xBB\xBFtwo\n");
  add_input("d.txt", "three");
  done();
  EXPECT_THAT(parts(), ElementsAre("one\ntwo\nthree"));
  options_.documents.mode = formats::DocumentMode::kParagraph;
  done();
  EXPECT_THAT(parts(), ElementsAre("one\n\ntwo\n\nthree"));
}

TEST_F(Split, KeepsEveryByteInOrderAndEveryDocumentWhole) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int turn = 0; turn < 30; ++turn) {
    std::filesystem::remove_all(root_.path() + "/out");
    std::filesystem::remove_all(root_.path() + "/raw");
    options_.inputs.clear();
    const auto mode = turn % 2 == 0 ? formats::DocumentMode::kLine : formats::DocumentMode::kParagraph;
    std::string joined;
    std::vector<std::string> documents;
    size_t longest = 0;
    const auto files = 1 + random() % 5;
    for (uint64_t i = 0; i < files; ++i) {
      const std::string text = random_text(random, static_cast<int>(random() % 300)) + "\n\n";
      add_input(fmt::format("raw/{}.txt", i), text);
      joined += text;
      for (std::string& document : documents_of(text, mode)) {
        longest = std::max(longest, document.size());
        documents.push_back(std::move(document));
      }
    }
    options_.documents.mode = mode;
    options_.parts = 1 + static_cast<int64_t>(random() % 12);
    const SplitReport report = done();
    ASSERT_EQ(std::ssize(parts()), options_.parts);
    std::string kept;
    std::vector<std::string> kept_documents;
    for (const std::string& part : parts()) {
      kept += part;
      for (std::string& document : documents_of(part, mode)) kept_documents.push_back(std::move(document));
      // Blank text goes with the document before it, so a part may also miss or have what lies between two documents.
      const double share = static_cast<double>(joined.size()) / static_cast<double>(options_.parts);
      EXPECT_LE(std::abs(static_cast<double>(part.size()) - share), static_cast<double>(longest) + 64) << part.size();
    }
    EXPECT_TRUE(kept == joined);
    EXPECT_TRUE(kept_documents == documents);
    EXPECT_EQ(report.documents, std::ssize(documents));
    EXPECT_EQ(report.bytes, std::ssize(joined));
  }
}

TEST_F(Split, OfManyChunksKeepsEveryByte) {
  std::mt19937_64 random(5);
  std::string text;
  while (text.size() < (5u << 20)) text += random_text(random, 1000);
  add_input("a.txt", text);
  options_.parts = 7;
  const SplitReport report = done();
  std::string kept;
  for (const std::string& part : parts()) kept += part;
  EXPECT_TRUE(kept == text);
  for (const SplitReport::Part& part : report.parts)
    EXPECT_NEAR(static_cast<double>(part.bytes), text.size() / 7.0, 30'000);
}

TEST_F(Split, IsTheSameAgainAndRefusesPartsOfAnother) {
  add_input("a.txt", "one\ntwo\nthree\nfour\n");
  options_.parts = 4;
  done();
  const auto before = folder_content(at("out"));
  done();
  EXPECT_EQ(folder_content(at("out")), before);
  options_.parts = 2;
  auto report = split(options_);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(report.error().message(), HasSubstr("part-00002.txt, part-00003.txt"));
  EXPECT_EQ(folder_content(at("out")), before);
  options_.parts = 4;
  options_.documents.mode = formats::DocumentMode::kJsonl;
  EXPECT_FALSE(split(options_));
}

TEST_F(Split, NeverReplacesAnInput) {
  add_input("out/part-00000.txt", "one\ntwo\n");
  const auto report = split(options_);
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().message(), HasSubstr("is an input"));
  EXPECT_EQ(read_file(at("out/part-00000.txt")), "one\ntwo\n");
}

TEST_F(Split, RefusesWhatItCannotDo) {
  add_input("a.txt", "one\n" + std::string(5000, 'x') + "\n");
  const SplitOptions good = options_;
  options_.parts = 0;
  EXPECT_EQ(split(options_).error().code(), ErrorCode::kInvalidArgument);
  options_ = good;
  options_.documents.mode = formats::DocumentMode::kFile;
  EXPECT_EQ(split(options_).error().code(), ErrorCode::kInvalidArgument);
  options_ = good;
  options_.documents.max_document_bytes = 1000;
  EXPECT_THAT(split(options_).error().message(), HasSubstr("line 2"));
  EXPECT_THAT(folder_content(at("out")), ::testing::IsEmpty());
  options_ = good;
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(split(options_, stop.get_token()).error().code(), ErrorCode::kCancelled);
  EXPECT_THAT(folder_content(at("out")), ::testing::IsEmpty());
}

TEST_F(Split, ADryRunCountsAndWritesNothing) {
  add_input("a.jsonl", "{}\n{}\n{}\n");
  options_.documents.mode = formats::DocumentMode::kJsonl;
  options_.parts = 3;
  options_.dry_run = true;
  const SplitReport report = done();
  EXPECT_EQ(report.parts[2].name, "part-00002.jsonl");
  EXPECT_EQ(report.parts[2].documents, 1);
  EXPECT_FALSE(std::filesystem::exists(at("out")));
}

}  // namespace
}  // namespace millrace::prepare
