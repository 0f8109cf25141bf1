// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/file/tokenizer_json_lists.h"

#include <gtest/gtest.h>

#include <random>

#include "millrace/tokenizer/testing.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {
namespace {

void replace_first(std::string& text, std::string_view what, std::string_view by) {
  if (const size_t at = text.find(what); at != text.npos) text.replace(at, what.size(), by);
}

// A key that the reader of long lists does not read: so the whole file goes through the JSON parser.
std::string as_document(std::string text) {
  replace_first(text, "\"model\"", R"("mod\u0065l")");
  return text;
}

// All that there is to know of the model, or what is wrong with the file.
std::string summary(const std::string& text) {
  const auto spec = parse_tokenizer_json(text);
  if (!spec) return spec.error().to_string();
  const auto* model = std::get_if<BpeSpec>(&spec->model);
  if (model == nullptr) return "another model";
  std::string result = fmt::format("{}\n", model->unk_token.value_or("none"));
  for (const auto& [token, id] : model->vocab) result += fmt::format("{} {}\n", token, id);
  for (const auto& [left, right] : model->merges) result += fmt::format("{}|{}\n", left, right);
  const auto tokenizer = Tokenizer::from_json(text, "file");
  return result + (tokenizer ? "good" : tokenizer.error().to_string());
}

std::vector<std::string> files() {
  Json json = small_tokenizer(byte_level(), {"a\\\"b", "\"\\", "/\b\f\n\r\t/", "two  words here and then some more"});
  std::vector<std::string> files = {json.dump(), json.dump(3), json.dump(1, '\t')};
  Json pairs = Json::array();
  for (const std::string merge : json["model"]["merges"])
    pairs.push_back({merge.substr(0, merge.find(' ')), merge.substr(merge.find(' ') + 1)});
  json["model"]["merges"] = pairs;
  files.push_back(json.dump());
  files.push_back(json.dump(2));
  return files;
}

TEST(LongLists, AreWhatTheDocumentSays) {
  for (const std::string& file : files()) {
    ASSERT_TRUE(read_long_lists(file)) << file;
    ASSERT_FALSE(read_long_lists(as_document(file)));
    EXPECT_EQ(summary(file), summary(as_document(file)));
    EXPECT_TRUE(summary(file).ends_with("good")) << summary(file);
  }
}

// Large enough for two threads, of which one guesses where the merges begin.
std::string large_file(bool as_pairs, std::string_view before_model, std::string_view behind_merges) {
  std::string vocab, merges;
  for (int i = 0; i < 20'000; ++i) {
    const std::string left = fmt::format("{}\\n", i), right = fmt::format("x{}", i);
    vocab += fmt::format(R"("{}":{},"{}":{},"{}{}":{},)", left, 3 * i, right, 3 * i + 1, left, right, 3 * i + 2);
    merges += as_pairs ? fmt::format(R"(["{}","{}"],)", left, right) : fmt::format(R"("{} {}",)", left, right);
  }
  vocab.pop_back();
  merges.pop_back();
  return fmt::format(R"({{"version":"1.0",{}"model":{{"type":"BPE","vocab":{{{}}},"merges" : [{}]{}}}}})", before_model,
                     vocab, merges, behind_merges);
}

TEST(LongLists, OfLargeFilesAreTheSameOnTwoThreads) {
  for (const bool as_pairs : {false, true}) {
    const std::string file = large_file(as_pairs, "", "");
    ASSERT_GT(file.size(), 1'000'000u);
    const auto lists = read_long_lists(file);
    ASSERT_TRUE(lists);
    EXPECT_EQ(lists->merges.size(), 20'000u);
    EXPECT_EQ(lists->vocab.size(), 60'000u);
    EXPECT_TRUE(summary(file) == summary(as_document(file)));
    EXPECT_TRUE(summary(file).ends_with("good"));
  }
  // Other lists of that name, of which the first is what is guessed, and a list that does not end.
  const std::string padding = "\"padding\":[\"" + std::string(1'500'000, 'x') + "\"],";
  for (const std::string_view trap :
       {R"("other":{"merges":["a b"]},)", R"("other":{"merges":["a b"},)", R"("merges":[],)"}) {
    const std::string file = large_file(false, padding + std::string(trap), "");
    EXPECT_EQ(summary(file).substr(0, 200), summary(as_document(file)).substr(0, 200)) << trap;
  }
  for (const std::string_view behind : {R"(,"merges":["x0 x1"])", R"(,"merges":[])", ",", "]", R"(,"x":"y")"}) {
    const std::string file = large_file(false, "", behind);
    EXPECT_TRUE(summary(file) == summary(as_document(file))) << behind;
  }
  std::string cut = large_file(false, "", "");
  cut.resize(cut.size() - 20);
  EXPECT_TRUE(summary(cut) == summary(as_document(cut)));
}

TEST(LongLists, StrangeFilesAreLeftToTheDocument) {
  const std::string head = R"({"version":"1.0","model":{"type":"BPE","vocab":)", tail = R"(,"merges":["a b"]}})";
  for (const char* vocab :
       {R"({})", R"([])", R"({"a":01,"b":1,"ab":2})", R"({"a":-0,"b":1,"ab":2})", R"({"a":0.0,"b":1,"ab":2})",
        R"({"a":1e0,"b":1,"ab":2})", R"({"a":0,"b":1,"ab":2,})", R"({"a":0,"b":1 "ab":2})", R"({"a":4294967296,"b":1})",
        R"({"a":99999999999999999999})", R"({"\u0061":0,"b":1,"ab":2})", R"({"a":0,"b":1,"ab":2,"\x":3})",
        "{\"a\":0,\"b\":1,\"ab\":2,\"\n\":3}", "{\"a\":0,\"b\":1,\"ab\":2,\"\xC3\":3}", R"({"a":0,"b":1,"ab":2]})",
        R"({"a":0,"b":1,"ab":2},"vocab":{"a":0})"}) {
    const std::string file = head + vocab + tail;
    EXPECT_EQ(summary(file), summary(as_document(file))) << vocab;
  }
  const std::string start =
      R"({"version":"1.0","model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"\\":3,"\\a":4},"merges":)";
  for (const char* merges : {R"([])",
                             R"({})",
                             R"(["a  b"])",
                             R"(["ab"])",
                             R"(["a b c"])",
                             R"(["a b",["a","b"]])",
                             R"([["a","b"],"a b"])",
                             R"([["a","b","b"]])",
                             R"([["a"]])",
                             R"(["#version 0.2","a b"])",
                             R"(["#version: 0.2 - x","a b"])",
                             R"(["\\ a"])",
                             R"(["a \\"])",
                             R"(["\\ a b"])",
                             R"(["a \u0062"])",
                             R"(["a b",])",
                             R"(["a b")",
                             R"(["a b)",
                             R"(["a b\)",
                             R"(["a )",
                             R"([" b"])",
                             R"(["a "])"}) {
    const std::string file = start + merges + "}}";
    EXPECT_EQ(summary(file), summary(as_document(file))) << merges;
  }
}

TEST(LongLists, DamagedFilesGiveTheSameErrors) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const std::vector<std::string> originals = files();
  constexpr std::string_view kBytes = "\"\\{}[]:, \n0a9eu-.\x01\xC4\xFF";
  for (int i = 0; i < 3000; ++i) {
    std::string file = originals[random() % originals.size()];
    // Where the model begins, half of the time: damage there is rarer else.
    const size_t model = file.find("\"model\"");
    for (size_t changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % 2 == 0 ? random() % file.size() : model + 10 + random() % 60;
      if (random() % 4 == 0)
        file.erase(at, 1 + random() % 3);
      else
        file[at] = kBytes[random() % kBytes.size()];
    }
    if (file.find("\"model\"") != model) continue;
    ASSERT_EQ(summary(file), summary(as_document(file))) << file;
  }
}

}  // namespace
}  // namespace millrace::tokenizer
