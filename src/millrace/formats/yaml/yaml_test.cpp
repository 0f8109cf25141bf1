// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/yaml/yaml.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace millrace::yaml {
namespace {

const Node& at(const Document& document, std::initializer_list<std::string_view> path) {
  const Node* node = &document.root;
  for (const std::string_view key : path) {
    EXPECT_TRUE(node->find(key) != nullptr) << key;
    node = node->find(key);
  }
  return *node;
}

Problem only_problem(std::string_view text) {
  const Document document = parse(text);
  EXPECT_EQ(document.problems.size(), 1u);
  return document.problems.empty() ? Problem{} : document.problems.front();
}

TEST(Yaml, EveryKeyAndValueHasItsPlace) {
  const Document document = parse("Région: x\nA:\n  - B: 'two'\n    C: [1,  2]\n");
  EXPECT_TRUE(document.problems.empty());
  const Node& list = at(document, {"A"});
  ASSERT_EQ(list.items.size(), 1u);
  EXPECT_EQ(list.items[0].entry("B")->at, (Place{3, 5}));
  EXPECT_EQ(list.items[0].entry("B")->value.at, (Place{3, 8}));
  EXPECT_FALSE(list.items[0].find("B")->plain);
  EXPECT_EQ(list.items[0].find("C")->items[1].at, (Place{4, 13}));
  // Columns count characters.
  EXPECT_EQ(document.root.entry("Région")->value.at, (Place{1, 9}));
}

TEST(Yaml, WindowsLineEndsAndAMarkAtTheStartChangeNothing) {
  const Document document = parse(
      "\xEF\xBB\xBF"
      "A: 1\r\nB:\r\n  C: x # note\r\n");
  EXPECT_TRUE(document.problems.empty());
  EXPECT_EQ(at(document, {"B", "C"}).text, "x");
  EXPECT_EQ(at(document, {"B", "C"}).at, (Place{3, 6}));
  ASSERT_EQ(document.comments.size(), 1u);
  EXPECT_EQ(document.comments[0].text, " note");
}

TEST(Yaml, AliasesAndMergeKeysAreFollowed) {
  const Document document =
      parse("base: &b {a: 1, b: 2}\nmore: &m {c: 3, b: 9}\none: *b\ntwo:\n  <<: [*b, *m]\n  a: 7\n");
  EXPECT_TRUE(document.problems.empty());
  EXPECT_EQ(at(document, {"one", "a"}).text, "1");
  EXPECT_EQ(at(document, {"two", "a"}).text, "7");
  EXPECT_EQ(at(document, {"two", "b"}).text, "2");
  EXPECT_EQ(at(document, {"two", "c"}).text, "3");
  EXPECT_EQ(at(document, {"two"}).find("<<"), nullptr);
}

TEST(Yaml, AliasesThatMultiplyAreRefused) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    std::string aliases;
    for (int j = 0; j < 10; ++j) aliases += fmt::format("{}*a{}", j == 0 ? "" : ", ", i - 1);
    text += fmt::format("a{}: &a{} [{}]\n", i, i, aliases);
  }
  const Problem problem = only_problem(text);
  EXPECT_EQ(problem.kind, Problem::Kind::kSyntax);
  EXPECT_NE(problem.message.find("aliases stand for more than"), std::string::npos) << problem.message;
  EXPECT_NE(only_problem("a: *nobody\n").message.find("refers to nothing"), std::string::npos);
  EXPECT_NE(only_problem("a: &a [*a]\n").message.find("refers to nothing"), std::string::npos);
}

TEST(Yaml, DepthIsLimited) {
  EXPECT_NE(only_problem(std::string(5000, '[')).message.find("levels deep"), std::string::npos);
}

TEST(Yaml, ATabIsNamed) {
  const Problem problem = only_problem("A:\n\tB: 1\n");
  EXPECT_EQ(problem.kind, Problem::Kind::kSyntax);
  EXPECT_EQ(problem.at, (Place{2, 1}));
  EXPECT_NE(problem.message.find("a tab"), std::string::npos) << problem.message;
}

TEST(Yaml, ADuplicateKeyIsNamedAndTheLastCounts) {
  const Document document = parse("A: 1\nB: 2\nA: 3\n");
  ASSERT_EQ(document.problems.size(), 1u);
  EXPECT_EQ(document.problems[0].kind, Problem::Kind::kDuplicateKey);
  EXPECT_EQ(document.problems[0].at, (Place{3, 1}));
  EXPECT_EQ(at(document, {"A"}).text, "3");
}

TEST(Yaml, SyntaxErrorsHaveAPlace) {
  EXPECT_EQ(only_problem("A: [1, 2\nB: 3\n").kind, Problem::Kind::kSyntax);
  EXPECT_EQ(only_problem("A: 1\n---\nB: 2\n").at.line, 2);
  EXPECT_NE(only_problem("A: !Ref x\n").message.find("!Ref"), std::string::npos);
  EXPECT_NE(only_problem("? [a, b]\n: 1\n").message.find("a key must be a word"), std::string::npos);
  EXPECT_TRUE(parse("").root.is_null());
  EXPECT_TRUE(parse("# only a comment\n").problems.empty());
}

TEST(Yaml, LettersThatAreNoUtf8AreNamedAndReadingGoesOn) {
  const Document document = parse("A: x\nB: caf\xE9 # note\n");
  ASSERT_EQ(document.problems.size(), 1u);
  EXPECT_EQ(document.problems[0].kind, Problem::Kind::kEncoding);
  EXPECT_EQ(document.problems[0].at, (Place{2, 7}));
  EXPECT_EQ(at(document, {"B"}).text, "caf\xEF\xBF\xBD");
  EXPECT_NE(only_problem(std::string("A: \x01\n")).message.find("U+0001"), std::string::npos);
  EXPECT_NE(only_problem(std::string("\xFF\xFE"
                                     "A\0",
                                     4))
                .message.find("UTF-16"),
            std::string::npos);
}

TEST(Yaml, MojibakeIsNamedWithWhatTheLineWas) {
  // "# 훈련 노드" in UTF-8, read as cp1254 and stored as UTF-8 again.
  const Document document = parse("# í›ˆë ¨ ë…¸ë“œ\nA: 1\n");
  ASSERT_EQ(document.problems.size(), 1u);
  EXPECT_EQ(document.problems[0].at, (Place{1, 3}));
  EXPECT_NE(document.problems[0].message.find("노드"), std::string::npos) << document.problems[0].message;
  EXPECT_EQ(repaired_mojibake("größe").has_value(), false);
  EXPECT_EQ(repaired_mojibake("naïve café Ørsted İstanbul 훈련").has_value(), false);
  EXPECT_EQ(repaired_mojibake("grÃ¶ÃŸe"), "größe");
  EXPECT_EQ(repaired_mojibake("Ä°stanbul"), "İstanbul");
}

TEST(Yaml, CommentsAreToldFromHashesInText) {
  const Document document = parse("A: x#y # one\nB: \"a # b\" # two\nC: |\n  # text\n  more\n# three\nD: a  #  four\n");
  ASSERT_EQ(document.comments.size(), 4u);
  EXPECT_EQ(document.comments[0].text, " one");
  EXPECT_EQ(document.comments[0].at, (Place{1, 8}));
  EXPECT_EQ(document.comments[1].text, " two");
  EXPECT_EQ(document.comments[2].text, " three");
  EXPECT_TRUE(document.comments[2].alone);
  EXPECT_FALSE(document.comments[3].alone);
}

Type type_of_text(std::string_view text) {
  return type_of(Node{.kind = Node::Kind::kScalar, .text = std::string(text)});
}

TEST(Yaml, PlainWordsHaveTheTypesOfYaml11) {
  for (const char* text : {"yes", "No", "on", "OFF", "true"}) EXPECT_EQ(type_of_text(text), Type::kBool) << text;
  for (const char* text : {"12", "-1", "0o7", "1_000", "0x1F", "0755", "1:30:00", "+5"}) {
    EXPECT_EQ(type_of_text(text), std::string_view(text) == "0o7" ? Type::kText : Type::kInt) << text;
  }
  for (const char* text : {"1.5", ".5", "-2.", "1.0e+5", ".inf"}) EXPECT_EQ(type_of_text(text), Type::kFloat) << text;
  for (const char* text : {"", "~", "null"}) EXPECT_EQ(type_of_text(text), Type::kNull) << text;
  for (const char* text : {"2026-01-31", "2026-01-31 10:00:00"}) EXPECT_EQ(type_of_text(text), Type::kDate) << text;
  for (const char* text : {"1e5", "y", "7:03:99", "08", "3.12.0", "a1", "p5e.48xlarge", "10.0.0.0/16", "03:30", "-"}) {
    EXPECT_EQ(type_of_text(text), Type::kText) << text;
  }
}

TEST(Yaml, NumbersAreReadAsPyYamlReadsThem) {
  const auto number = [](std::string_view text, bool plain = true) {
    return as_int(Node{.kind = Node::Kind::kScalar, .plain = plain, .text = std::string(text)});
  };
  EXPECT_EQ(number("0755"), 493);
  EXPECT_EQ(number("1:30"), 90);
  EXPECT_EQ(number("-7"), -7);
  EXPECT_EQ(number("0755", false), 755);
  EXPECT_EQ(number("99999999999999999999"), std::nullopt);
  EXPECT_EQ(number("x"), std::nullopt);
  EXPECT_EQ(as_number(Node{.kind = Node::Kind::kScalar, .text = "0.25"}), 0.25);
  EXPECT_EQ(as_bool(Node{.kind = Node::Kind::kScalar, .plain = false, .text = "true"}), true);
}

TEST(Yaml, WhatIsWrittenReadsAgain) {
  for (const char* text : {"plain", "yes", "12", "", "a: b", "x # y", "- z", "it's \"so\"", "back\\slash", "1:30",
                           "a\tb", "*all", "s3://b/k", "arn:aws:iam::aws:policy/X", "@at", "x:", "007", "a, b"}) {
    const Document document = parse("k: " + scalar(text) + "\n");
    ASSERT_TRUE(document.problems.empty()) << text << ": " << document.problems.front().message;
    const Node& node = at(document, {"k"});
    EXPECT_EQ(node.text, text);
    EXPECT_EQ(type_of(node), Type::kText) << text;
  }
}

}  // namespace
}  // namespace millrace::yaml
