// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/filter.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include "millrace/base/testing/helpers.h"

namespace millrace::sync {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Filter made(const std::vector<std::string>& rules) {
  Filter filter;
  for (const std::string& rule : rules) EXPECT_TRUE(filter.add_lines(rule, "rule"));
  return filter;
}

bool matched(std::string_view pattern, std::string_view path, bool is_folder = false) {
  const auto compiled = Pattern::compile(pattern);
  EXPECT_TRUE(compiled) << pattern;
  return compiled && compiled->matches(path, is_folder);
}

// Answers of rsync 3.5.0, kept for machines without it.
TEST(PatternTest, MatchesAsRsync) {
  EXPECT_TRUE(matched("*.o", "a/b.o"));
  EXPECT_TRUE(matched("foo", "a/foo"));
  EXPECT_FALSE(matched("/foo", "a/foo"));
  EXPECT_TRUE(matched("/foo", "foo"));
  EXPECT_FALSE(matched("foo/", "foo"));
  EXPECT_TRUE(matched("foo/", "a/foo", true));
  EXPECT_TRUE(matched("a/b", "x/a/b"));
  EXPECT_FALSE(matched("a/b", "xa/b"));
  EXPECT_FALSE(matched("a*b", "a/b"));
  EXPECT_TRUE(matched("a**b", "x/a/y/b"));
  EXPECT_TRUE(matched("**/foo", "foo"));
  EXPECT_FALSE(matched("a/**/b", "a/b"));
  EXPECT_TRUE(matched("a/**", "a/b/c"));
  EXPECT_FALSE(matched("a/**", "a", true));
  EXPECT_TRUE(matched("a/***", "a", true));
  EXPECT_TRUE(matched("a/***", "a/b"));
  EXPECT_FALSE(matched("a/***", "a"));
  EXPECT_FALSE(matched("?", "ab"));
  EXPECT_FALSE(matched("a?b", "a/b"));
  EXPECT_TRUE(matched("[]a]x", "]x"));
  EXPECT_TRUE(matched("[!a-c]", "d"));
  EXPECT_FALSE(matched("[^a-c]", "b"));
  EXPECT_TRUE(matched("[[:digit:]][[:alpha:]-]", "7-"));
  EXPECT_TRUE(matched("\\**", "*x"));
  EXPECT_FALSE(matched("\\**", "x"));
  EXPECT_TRUE(matched("a\\b", "a\\b"));
  EXPECT_TRUE(matched("a\\[*", "a[1"));
}

TEST(PatternTest, WhatCannotMatchIsRefused) {
  for (const char* text : {"", "[a", "*\\", "[[:nope:]]", "[[:alpha"}) {
    EXPECT_EQ(Pattern::compile(text).error().code(), ErrorCode::kInvalidArgument) << text;
  }
}

TEST(PatternTest, NoPatternIsSlow) {
  std::string pattern;
  for (int i = 0; i < 500; ++i) pattern += "a*";
  EXPECT_FALSE(matched(pattern + "b", std::string(20'000, 'a')));
}

TEST(FilterTest, TheFirstRuleThatMatchesDecides) {
  const Filter filter = made({"+ keep.tmp", "- *.tmp", "- /logs/", "+ *"});
  EXPECT_TRUE(filter.passes("a/keep.tmp"));
  EXPECT_FALSE(filter.passes("a/other.tmp"));
  EXPECT_FALSE(filter.passes("logs/keep.tmp"));
  EXPECT_TRUE(filter.passes("a/logs/x"));
}

TEST(FilterTest, LinesOfAFile) {
  Filter filter;
  ASSERT_TRUE(filter.add_lines("# a comment\n\n; another\r\n+ a b\r\n- *", "rules"));
  EXPECT_TRUE(filter.passes("a b"));
  EXPECT_FALSE(filter.passes("c"));
  EXPECT_THAT(filter.add_lines("- x\nexclude y", "rules").error().to_string(), HasSubstr("rules, line 2"));
  EXPECT_THAT(filter.add_lines("- [x", "rules").error().to_string(), HasSubstr("rules, line 1"));
}

class RandomRules {
 public:
  explicit RandomRules(uint64_t seed) : random_(seed) {}
  size_t below(size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(random_); }
  std::string name() {
    static const std::vector<std::string> names{"a", "b", "ab", "a.b", "ba", "a-b", "*", "a*", "[a]", "a]", "a\\b"};
    return names[below(names.size())];
  }
  std::string path() {
    std::string path = name();
    while (below(2) == 0) path += "/" + name();
    return path;
  }
  std::string pattern() {
    static const std::vector<std::string> pieces{"a", "b", ".",  "*",      "**",  "?",   "/",  "[ab]", "[!a]",
                                                 "-", "]", "\\", "[^b-z]", "***", "/**", "/*", "ab",   "[]a]"};
    std::string pattern = below(3) == 0 ? "/" : "";
    for (size_t i = 1 + below(5); i > 0; --i) pattern += pieces[below(pieces.size())];
    if (below(4) == 0) pattern += "/";
    if (below(8) == 0) pattern += "/***";
    return pattern;
  }
  // Rules that compile.
  std::vector<std::string> rules() {
    std::vector<std::string> rules;
    while (rules.empty() || below(3) != 0) {
      const std::string text = pattern();
      if (Pattern::compile(text)) rules.push_back((below(2) == 0 ? "+ " : "- ") + text);
    }
    return rules;
  }

 private:
  std::mt19937_64 random_;
};

TEST(FilterTest, AWalkIsTheFilter) {
  SCOPED_TRACE(test_seed());
  RandomRules random(test_seed());
  for (int round = 0; round < 300; ++round) {
    const Filter filter = made(random.rules());
    std::set<std::string> paths;
    for (int i = 0; i < 60; ++i) paths.insert(random.path());
    FilterWalk walk(filter);
    for (const std::string& path : paths) EXPECT_EQ(walk.passes(path), filter.passes(path)) << path;
  }
}

class RsyncTest : public testing::Test {
 protected:
  // What rsync would send of `from`.
  std::vector<std::string> sent(const std::string& from) const {
    const std::string command = "rsync -rn --out-format=%n --filter='merge " + dir_.path() + "/rules' '" + from +
                                "/' '" + dir_.path() + "/empty/'";
    std::vector<std::string> names;
    FILE* const pipe = popen(command.c_str(), "r");
    std::string all;
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) all += static_cast<char>(c);
    EXPECT_EQ(pclose(pipe), 0);
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = all.find('\n', begin);
      names.push_back(all.substr(begin, end - begin));
      begin = end + 1;
    }
    names.erase(std::remove_if(names.begin(), names.end(), [](const std::string& name) { return name.ends_with('/'); }),
                names.end());
    std::sort(names.begin(), names.end());
    return names;
  }
  TempDir dir_;
};

TEST_F(RsyncTest, TheSameFilesPass) {
  if (std::system("rsync --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "rsync is not installed";
  SCOPED_TRACE(test_seed());
  RandomRules random(test_seed());
  std::filesystem::create_directories(dir_.path() + "/empty");
  for (int tree = 0; tree < 5; ++tree) {
    const std::string from = dir_.path() + "/" + std::to_string(tree);
    std::set<std::string> files;
    for (int i = 0; i < 60; ++i) {
      const std::string path = random.path();
      std::error_code error;
      std::filesystem::create_directories(std::filesystem::path(from + "/" + path).parent_path(), error);
      if (!error && !std::filesystem::exists(from + "/" + path) && std::ofstream(from + "/" + path)) files.insert(path);
    }
    for (int round = 0; round < 15; ++round) {
      const std::vector<std::string> rules = random.rules();
      std::ofstream file(dir_.path() + "/rules");
      for (const std::string& rule : rules) file << rule << "\n";
      file.close();
      const Filter filter = made(rules);
      std::vector<std::string> ours;
      std::copy_if(files.begin(), files.end(), std::back_inserter(ours),
                   [&](const std::string& path) { return filter.passes(path); });
      EXPECT_EQ(ours, sent(from)) << testing::PrintToString(rules);
    }
  }
}

}  // namespace
}  // namespace millrace::sync
