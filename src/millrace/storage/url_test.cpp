// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "millrace/base/testing/helpers.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(OpenUrl, PathsAreKeysOfOneStorage) {
  const auto location = open_url("/tmp/./a/../b//c/");
  ASSERT_TRUE(location);
  EXPECT_EQ(location->key, "tmp/b/c");
  EXPECT_EQ(location->url, "/tmp/./a/../b//c/");
  EXPECT_EQ(location->storage->name(), "file:///");
  EXPECT_EQ(open_url("file:///tmp/b")->storage, location->storage);
  EXPECT_EQ(open_url("file:///tmp/b")->key, "tmp/b");
  EXPECT_EQ(open_url("file://localhost/tmp/b")->key, "tmp/b");
  EXPECT_EQ(open_url("/../..")->key, "");
  const std::string here = std::filesystem::current_path().string().substr(1);
  EXPECT_EQ(open_url("data/x")->key, here + "/data/x");
  EXPECT_EQ(open_url(".")->key, here);
  EXPECT_EQ(open_url("a:b")->key, here + "/a:b");
  EXPECT_EQ(open_url("1://x")->key, here + "/1:/x");
}

TEST(OpenUrl, ReadsAndWritesFiles) {
  const TempDir dir;
  const auto location = open_url(dir.path());
  ASSERT_TRUE(location);
  const Location child = location->child("deep/object");
  EXPECT_EQ(child.url, dir.path() + "/deep/object");
  ASSERT_TRUE(write_object(*child.storage, child.key, "content", {}, Durability::kVisible));
  EXPECT_TRUE(std::filesystem::exists(dir.path() + "/deep/object"));
  EXPECT_EQ(open_url("/")->child("a").key, "a");
  EXPECT_EQ(open_url("/")->child("a").url, "/a");
}

TEST(OpenUrl, MemoryIsSharedByName) {
  const auto location = open_url("mem://shared/dir/object");
  ASSERT_TRUE(location);
  EXPECT_EQ(location->key, "dir/object");
  ASSERT_TRUE(write_object(*location->storage, location->key, "content"));
  EXPECT_EQ(*read_object(*open_url("mem://shared")->storage, "dir/object"), "content");
  EXPECT_NE(open_url("mem://other")->storage, location->storage);
  EXPECT_EQ(open_url("mem:///x").error().code(), ErrorCode::kInvalidArgument);
}

TEST(OpenUrl, BucketsAreShared) {
  const auto location = open_url("s3://a-bucket/dir/./object/");
  ASSERT_TRUE(location) << location.error().to_string();
  EXPECT_EQ(location->key, "dir/./object") << "dots are no directories in S3";
  EXPECT_EQ(location->storage->name(), "s3://a-bucket");
  EXPECT_EQ(open_url("s3://a-bucket")->storage, location->storage);
  EXPECT_EQ(open_url("s3://a-bucket")->key, "");
}

TEST(OpenUrl, SaysWhatItCannotOpen) {
  for (const char* url : {"gs://b/x", "ftp://host/x"}) {
    const auto location = open_url(url);
    ASSERT_FALSE(location) << url;
    EXPECT_EQ(location.error().code(), ErrorCode::kUnsupported) << url;
    EXPECT_THAT(location.error().to_string(), HasSubstr(url));
  }
  EXPECT_THAT(open_url("gs://b/k").error().to_string(), HasSubstr("gs:// is not supported yet by this version"));
  EXPECT_EQ(open_url("s3://").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(open_url("s3://no bucket/k").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(open_url("").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(open_url("file://host/x").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(open_url(std::string_view("a\0b", 3)).error().code(), ErrorCode::kInvalidArgument);
}

TEST(OpenUrl, TakesASchemeWithoutSlashesForAMistake) {
  for (const char* url : {"s3:/bucket/key", "s3:bucket/key", "s3:", "hf:/datasets/a/b", "https:/host/x", "file:/x"}) {
    const auto location = open_url(url);
    ASSERT_FALSE(location) << url;
    EXPECT_EQ(location.error().code(), ErrorCode::kInvalidArgument) << url;
    EXPECT_THAT(location.error().to_string(), HasSubstr(":// takes two slashes")) << url;
    EXPECT_THAT(location.error().to_string(), HasSubstr("\"./" + std::string(url) + "\"")) << url;
  }
  for (const char* path : {"./s3:/bucket", "/tmp/s3:/x", "s3", "s3/x", "s33:/x", "a:b", "14:30:00.log"}) {
    EXPECT_TRUE(open_url(path)) << path;
  }
}

// Answers of the Python package braceexpand 0.1.7, which webdataset uses.
TEST(ExpandBraces, AnswersAsThePackage) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"shard-{00000..00003}.tar", {"shard-00000.tar", "shard-00001.tar", "shard-00002.tar", "shard-00003.tar"}},
      {"{a,b}/x", {"a/x", "b/x"}},
      {"a{b,c{1..2},d}e", {"abe", "ac1e", "ac2e", "ade"}},
      {"{0..10..2}", {"0", "2", "4", "6", "8", "10"}},
      {"{10..0..5}", {"10", "5", "0"}},
      {"{01..3}", {"01", "02", "03"}},
      {"{-2..1}", {"-2", "-1", "0", "1"}},
      {"{-02..1}", {"-02", "-01", "000", "001"}},
      {"{a..e..2}", {"a", "c", "e"}},
      {"{e..a}", {"e", "d", "c", "b", "a"}},
      {"{Z..b}", {"Z", "a", "b"}},
      {"{b..Y}", {"b", "a", "Z", "Y"}},
      {"{A..A}", {"A"}},
      {"{}", {"{}"}},
      {"{a}", {"{a}"}},
      {"x{}y", {"x{}y"}},
      {"{,a}", {"", "a"}},
      {"{a,}", {"a", ""}},
      {"{,}", {"", ""}},
      {"{a,b}{1,2}", {"a1", "a2", "b1", "b2"}},
      {"a\\{b,c\\}{1,2}", {"a{b,c}1", "a{b,c}2"}},
      {"{a\\,b,c}", {"a,b", "c"}},
      {"{1..2}{3..4}", {"13", "14", "23", "24"}},
      {"{{1..2},x}", {"1", "2", "x"}},
      {"{1..2,x}", {"1..2", "x"}},
      {"{a..2}", {"{a..2}"}},
      {"{1..}", {"{1..}"}},
      {"{..1}", {"{..1}"}},
      {"}{", {"}{"}},
      {"a}b{", {"a}b{"}},
      {"{1..3..0}", {"1", "2", "3"}},
      {"{1..3..-2}", {"1", "3"}},
      {"{3..1..-1}", {"3", "2", "1"}},
      {"{5..5}", {"5"}},
      {"{05..5}", {"05"}},
      {"{-0..2}", {"0", "1", "2"}},
      {"{0..-0}", {"0"}},
      {"s3://b/{train,val}/{0..1}.tar",
       {"s3://b/train/0.tar", "s3://b/train/1.tar", "s3://b/val/0.tar", "s3://b/val/1.tar"}},
      {"{a{b}c}", {"{a{b}c}"}},
      {"{a{b}c,d}", {"a{b}c", "d"}},
      {"{1...3}", {"{1...3}"}},
      {"{1..2..3..4}", {"{1..2..3..4}"}},
      {"{a,b}\\", {"a\\", "b\\"}},
      {"\\{x", {"{x"}},
      {"{aa..b}", {"{aa..b}"}},
      {"{+1..3}", {"{+1..3}"}},
      {"{1.. 3}", {"{1.. 3}"}},
  };
  for (const auto& [pattern, names] : cases) {
    const auto expanded = expand_braces(pattern);
    ASSERT_TRUE(expanded) << pattern << ": " << expanded.error().to_string();
    EXPECT_EQ(*expanded, names) << pattern;
  }
  EXPECT_EQ(expand_braces("{c..A}")->back(), "A");
}

TEST(ExpandBraces, APatternWithoutBracesIsItself) {
  EXPECT_THAT(*expand_braces("plain.tar"), ElementsAre("plain.tar"));
  EXPECT_THAT(*expand_braces("back\\slash"), ElementsAre("back\\slash"));
  EXPECT_THAT(*expand_braces(""), ElementsAre(""));
}

TEST(ExpandBraces, RefusesWhatIsUnbalancedOrTooMuch) {
  for (const char* bad : {"{", "}", "{a,b", "a,b}", "{1{2,3}", "{a,{b}"}) {
    EXPECT_EQ(expand_braces(bad).error().code(), ErrorCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(expand_braces("{0..99}{0..9}", 1000)->size(), 1000u);
  EXPECT_THAT(expand_braces("{0..100}{0..9}", 1000).error().to_string(), HasSubstr("more than 1000 names"));
  EXPECT_FALSE(expand_braces("{0..999999999999}"));
  EXPECT_FALSE(expand_braces("{-9223372036854775808..9223372036854775807}"));
  EXPECT_FALSE(expand_braces("{0..99999999999999999999999}"));
  EXPECT_FALSE(expand_braces("{a,b,c}", 2));
  std::string bomb;
  for (int i = 0; i < 100; ++i) bomb += "{a,b}";
  EXPECT_FALSE(expand_braces(bomb, 1000));
  const std::string deep(100'000, '{');
  EXPECT_FALSE(expand_braces(deep + std::string(100'000, '}')));
}

}  // namespace
}  // namespace millrace
