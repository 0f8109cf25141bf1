// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "millrace/base/testing.h"
#include "millrace/base/text/json_members.h"
#include "millrace/base/text/sealed_json.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(JsonMembers, OfOthersCountAsMissingWhereTheyAreOfAnotherType) {
  const auto json =
      nlohmann::ordered_json::parse(R"({"a": "x", "n": 3, "f": 1.5, "b": true, "big": 18446744073709551615})");
  EXPECT_EQ(text_or_empty(json, "a"), "x");
  EXPECT_EQ(text_or_empty(json, "n"), "");
  EXPECT_EQ(integer_at(json, "n"), 3);
  EXPECT_EQ(integer_at(json, "f"), std::nullopt);
  EXPECT_EQ(integer_at(json, "big"), std::nullopt);
  EXPECT_EQ(number_at(json, "n"), 3.0);
  EXPECT_EQ(bool_at(json, "b"), true);
  EXPECT_EQ(bool_at(json, "n"), std::nullopt);
  EXPECT_EQ(member(json.at("a"), "a"), nullptr);
}

std::string error_of(std::string_view text, const std::function<void(JsonFields&)>& read) {
  const auto document = JsonDocument::parse(text);
  if (!document) return document.error().message();
  JsonFields fields(*document);
  read(fields);
  return fields.error();
}

TEST(JsonFields, NameTheFirstThatIsWrongWithItsPath) {
  const auto entry_error = [](std::string_view text) {
    return error_of(text, [](JsonFields& fields) {
      fields.each("list", [](JsonFields& entry) {
        entry.object("of", [](JsonFields& of) { EXPECT_GE(of.integer("n", 1) + of.count("n"), 0); });
      });
    });
  };
  EXPECT_EQ(entry_error(R"({"list": [{"of": {"n": 1}}]})"), "");
  EXPECT_EQ(entry_error(R"({"list": [{"of": {"n": 1}}, {"of": {"n": 0}}, 1]})"),
            "list[1].of.n is not a whole number from 1");
  EXPECT_EQ(entry_error(R"({"list": [{"name": "x", "of": {"n": "1"}}]})"),
            "list[0] 'x': of.n is not a whole number from 1");
  EXPECT_EQ(entry_error(R"({"list": [{}]})"), "list[0].of is missing");
  EXPECT_EQ(entry_error(R"({"list": [{"of": {}}]})"), "list[0].of.n is missing");
  EXPECT_EQ(entry_error(R"({"list": [{"of": []}]})"), "list[0].of is not an object");
  EXPECT_EQ(entry_error(R"({"list": [null]})"), "list[0] is not an object");
  EXPECT_EQ(entry_error(R"({"list": {}})"), "list is not a list");
  EXPECT_EQ(entry_error(R"({})"), "list is missing");
  EXPECT_EQ(error_of(R"({"list": [{"name": "x"}]})",
                     [](JsonFields& fields) {
                       fields.each("list", [](JsonFields& entry) { entry.fail_with("ends behind its file"); });
                       fields.fail_with("a later one");
                     }),
            "list[0] 'x': ends behind its file");
}

TEST(JsonFields, TakeEachTypeAndNoOther) {
  const auto document = JsonDocument::parse(
      R"({"n": 3, "big": 18446744073709551615, "f": 1.0, "t": "\u00e4\u0000", "b": true, "z": null, "l": [1, 2.5],
          "i": [0, 9223372036854775807], "h": ["000000000000000000000000000000ff"], "o": {"k": "v"}})");
  ASSERT_TRUE(document) << document.error().message();
  JsonFields fields(*document);
  EXPECT_EQ(fields.count("n"), 3);
  EXPECT_EQ(fields.integer("n", -1, 3), 3);
  EXPECT_EQ(fields.natural("big"), UINT64_MAX);
  EXPECT_EQ(fields.text("t"), std::string("\u00e4\0", 3));
  EXPECT_TRUE(fields.boolean("b"));
  EXPECT_THAT(fields.numbers("l"), ElementsAre(1, 2.5));
  EXPECT_THAT(fields.integers("i"), ElementsAre(0, INT64_MAX));
  EXPECT_THAT(fields.hashes("h"), ElementsAre(Hash128{0, 255}));
  EXPECT_THAT(fields.texts("o"), ElementsAre(std::pair<std::string, std::string>("k", "v")));
  EXPECT_EQ(fields.size("l"), 2U);
  EXPECT_EQ(fields.size("n"), 0U);
  EXPECT_TRUE(fields.has("z"));
  EXPECT_FALSE(fields.has("y"));
  EXPECT_EQ(fields.json("l"), "[1,2.5]");
  EXPECT_EQ(fields.json("y"), "null");
  EXPECT_EQ(fields.keys().size(), 10U);
  EXPECT_EQ(fields.error(), "");

  using Read = std::function<void(JsonFields&)>;
  const auto wrong = [&](const Read& read) {
    JsonFields again(*document);
    read(again);
    return again.error();
  };
  EXPECT_EQ(wrong([](auto& f) { EXPECT_EQ(f.count("big"), 0); }), "big is not a whole number from 0 to 2^53");
  EXPECT_EQ(wrong([](auto& f) { EXPECT_EQ(f.integer("f", 1, 2), 1); }), "f is not a whole number in [1, 2]");
  EXPECT_EQ(wrong([](auto& f) { EXPECT_EQ(f.natural("f"), 0U); }), "f is not a whole number from 0");
  EXPECT_EQ(wrong([](auto& f) { EXPECT_EQ(f.text("n"), ""); }), "n is not a string");
  EXPECT_EQ(wrong([](auto& f) { EXPECT_FALSE(f.boolean("n")); }), "n is not true or false");
  EXPECT_EQ(wrong([](auto& f) { f.hash("t"); }), "t is not 32 hexadecimal digits");
  EXPECT_EQ(wrong([](auto& f) { f.hashes("l"); }), "l is not a list of 32 hexadecimal digits each");
  EXPECT_EQ(wrong([](auto& f) { f.integers("l"); }), "l is not a list of whole numbers from 0");
  EXPECT_EQ(wrong([](auto& f) { f.numbers("h"); }), "h is not a list of numbers");
  EXPECT_EQ(wrong([](auto& f) { f.texts("z"); }), "z is not an object of strings");
  EXPECT_EQ(wrong([](auto& f) { f.check(f.is("t", "x"), "t", "x"); }), "t is not x");
}

// What one JSON library takes and another does not ends as an error or as the same values.
TEST(JsonDocument, RefusesWhatIsNoObjectOfJson) {
  const std::string deep = "{\"a\":" + std::string(5000, '[') + std::string(5000, ']') + "}";
  for (const std::string_view text :
       {std::string_view(""), std::string_view("{"), std::string_view("{}{}"), std::string_view("{\"a\":1,}"),
        std::string_view("{\"a\":01}"), std::string_view("{\"a\":1e999}"), std::string_view("{\"a\":NaN}"),
        std::string_view("{\"a\":18446744073709551616}"), std::string_view("{\"a\":\"\xff\"}"),
        std::string_view("{\"a\":\"\\ud800\"}"), std::string_view("{\"a\":\"\n\"}"), std::string_view("{'a':1}"),
        std::string_view("{\"a\":\"\0\"}", 9), std::string_view(deep), std::string_view("\xef\xbb\xbf")}) {
    const auto document = JsonDocument::parse(text);
    ASSERT_FALSE(document) << text;
    EXPECT_EQ(document.error().code(), ErrorCode::kCorruption);
    EXPECT_THAT(document.error().message(), HasSubstr("not JSON: ")) << text;
  }
  for (const std::string_view text : {"[]", "1", "null", "\"a\""})
    EXPECT_EQ(JsonDocument::parse(text).error().message(), "not a JSON object") << text;
}

TEST(JsonDocument, AreEqualWhenTheirValuesAre) {
  const auto equal = [](std::string_view a, std::string_view b) {
    return *JsonDocument::parse(a) == *JsonDocument::parse(b);
  };
  EXPECT_TRUE(equal(R"({"a": 1, "b": [true, null, "x"]})", R"({"b":[true,null,"\u0078"],"a":1.0})"));
  EXPECT_TRUE(equal(R"({"a": -0.0})", R"({"a": 0})"));
  EXPECT_FALSE(equal(R"({"a": 1})", R"({"a": 1, "b": 1})"));
  EXPECT_FALSE(equal(R"({"a": 1})", R"({"a": 1, "a": 1})"));
  EXPECT_FALSE(equal(R"({"a": 1, "b": 1})", R"({"a": 1, "a": 1})"));
  EXPECT_FALSE(equal(R"({"a": 1})", R"({"a": true})"));
  EXPECT_FALSE(equal(R"({"a": 1})", R"({"a": "1"})"));
  EXPECT_FALSE(equal(R"({"a": [1]})", R"({"a": [1, 2]})"));
  EXPECT_FALSE(equal(R"({"a": 9223372036854775807})", R"({"a": 9223372036854775808})"));
}

std::string some_bytes(std::mt19937_64& random) {
  // More often than chance would: quotes, escapes, and the bytes of sequences that end too early.
  static constexpr std::string_view kOften = "\"\\/\b\x7f\xc3\xa9\xe0\xa0\x80\xed\xf0\x9f\x98\xf4\x90";
  std::string bytes(random() % 12, '\0');
  for (char& c : bytes) c = random() % 2 == 0 ? kOften[random() % kOften.size()] : static_cast<char>(random());
  return bytes;
}

// Writes a random value in both ways. Keys are valid UTF-8, in the order of their bytes.
nlohmann::json write_some(JsonWriter& json, std::mt19937_64& random, int depth) {
  const auto kind = random() % (depth == 0 ? 3 : 5);
  if (kind == 0) {
    const auto value = static_cast<int64_t>(random());
    json.number(value);
    return value;
  }
  if (kind == 1) {
    const bool value = random() % 2 == 0;
    json.boolean(value);
    return value;
  }
  if (kind == 2) {
    const std::string value = some_bytes(random);
    json.repaired_text(value);
    return value;
  }
  nlohmann::json value = kind == 3 ? nlohmann::json::array() : nlohmann::json::object();
  json.open(kind == 3 ? '[' : '{');
  const auto members = random() % 4;
  for (uint64_t i = 0; i < members; ++i) {
    const std::string key = fmt::format("{}\t\u00e4", i);
    if (kind == 3)
      value.push_back(write_some(json, random, depth - 1));
    else
      value[key] = write_some(json.text_key(key), random, depth - 1);
  }
  json.close(kind == 3 ? ']' : '}');
  return value;
}

TEST(JsonWriter, WritesWhatNlohmannDumps) {
  SCOPED_TRACE(test_seed());
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < rounds(4000); ++round) {
    JsonWriter json;
    const auto tree = write_some(json, random, 4);
    const std::string text = json.take();
    constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
    ASSERT_EQ(text, tree.dump(-1, ' ', false, kReplace));
    ASSERT_EQ(indented(text), tree.dump(2, ' ', false, kReplace));
    ASSERT_EQ(compact(indented(text)), text);
  }
}

TEST(JsonWriter, CompactLeavesWhatIsNoJsonToTheParser) {
  EXPECT_EQ(compact(" { \"a b\" : [ 1 ,\n2 ] }\r\n"), R"({"a b":[1,2]})");
  EXPECT_EQ(compact(""), "");
  for (const std::string_view text : {"{\"a", "{\"a\\", "nonsense \"", "{ \"a\": \"\\\" }"})
    EXPECT_FALSE(JsonDocument::parse(compact(text))) << text;
}

std::string sealed(std::string_view format, int64_t version) {
  JsonWriter json;
  json.open('{');
  json.key("a").text(R"("checksum":"0123456789abcdef0123456789abcdef",)");
  put_checksum(json);
  json.key("format").text(format);
  json.key("version").number(version);
  json.close('}');
  return seal(json.take());
}

TEST(SealedJson, AnotherProgramCanCheckTheChecksum) {
  const std::string text = sealed("f", 1);
  auto document = nlohmann::json::parse(text);
  document.erase("checksum");
  EXPECT_THAT(text, HasSubstr(to_hex(xxh3_128(document.dump()))));
}

TEST(SealedJson, SaysWhatIsWrong) {
  const SealedFormat format{.name = "f", .oldest = 2, .newest = 3, .other = ErrorCode::kUnsupported};
  const auto opened = [&](std::string_view text) { return unseal(text, format, "x.json"); };
  const auto says = [&](std::string_view text, ErrorCode code) {
    const auto document = opened(text);
    if (document) return std::string("nothing");
    EXPECT_EQ(document.error().code(), code);
    EXPECT_THAT(document.error().message(), HasSubstr("x.json: "));
    return document.error().message();
  };
  const std::string good = sealed("f", 2);
  EXPECT_TRUE(opened(good));
  EXPECT_TRUE(opened(sealed("f", 3)));
  EXPECT_THAT(
      says(sealed("f", 4), ErrorCode::kUnsupported),
      HasSubstr("version 4 of f; this build reads versions 2 to 3: use the Millrace that wrote it, or a later one"));
  EXPECT_THAT(says(sealed("f", 1), ErrorCode::kUnsupported), HasSubstr("version 1 of f"));
  EXPECT_THAT(says(sealed("g", 2), ErrorCode::kUnsupported), HasSubstr("format is \"g\", not \"f\""));
  EXPECT_THAT(says("{}", ErrorCode::kUnsupported), HasSubstr("format is null, not \"f\""));
  EXPECT_THAT(says(R"({"format":"f","version":2})", ErrorCode::kCorruption), HasSubstr("no checksum in it"));
  EXPECT_THAT(says("", ErrorCode::kCorruption), HasSubstr("not a f document: not JSON: it is empty"));
  for (size_t at = 0; at < good.size(); ++at) {
    EXPECT_NE(says(good.substr(0, at), ErrorCode::kCorruption), "nothing") << at;
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = good;
      flipped[at] = static_cast<char>(flipped[at] ^ 1 << bit);
      EXPECT_FALSE(opened(flipped)) << at << " " << bit;
    }
  }
  JsonWriter json;
  json.open('{');
  put_checksum(json);
  json.key("format").text("f");
  json.key("version").text("2");
  json.close('}');
  EXPECT_THAT(says(seal(json.take()), ErrorCode::kCorruption), HasSubstr("version is not a whole number"));
}

}  // namespace
}  // namespace millrace
