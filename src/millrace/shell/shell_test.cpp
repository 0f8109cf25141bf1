// SPDX-License-Identifier: Apache-2.0
#include "millrace/shell/shell.h"

#include <gmock/gmock.h>

namespace millrace::shell {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Kind = Statement::Kind;
using Then = Statement::Then;

std::vector<std::string> texts(const std::vector<Word>& words) {
  std::vector<std::string> out;
  for (const Word& word : words) out.push_back(word.text());
  return out;
}

const Statement& only(const Script& script) {
  EXPECT_THAT(script.problems, IsEmpty());
  EXPECT_THAT(script.statements, SizeIs(1));
  return script.statements.at(0);
}

TEST(Shell, WordsKeepQuotesExpansionsAndPlaces) {
  const Script script = parse("  srun  'a b' \"x $Y ${Z:-q}\" pre$1/\\ end $((1 + N))\n");
  const Statement& command = only(script);
  EXPECT_EQ(command.place, (Place{1, 3}));
  ASSERT_THAT(command.words, SizeIs(5));
  EXPECT_EQ(command.words[1].literal(), "a b");
  EXPECT_EQ(command.words[1].place, (Place{1, 9}));
  const Word& expanded = command.words[2];
  EXPECT_EQ(expanded.literal(), std::nullopt);
  ASSERT_THAT(expanded.parts, SizeIs(4));
  EXPECT_EQ(expanded.parts[1].text, "Y");
  EXPECT_TRUE(expanded.parts[1].quoted);
  EXPECT_EQ(expanded.parts[3].text, "Z");
  EXPECT_EQ(expanded.parts[3].operation, ":-q");
  EXPECT_EQ(command.words[3].parts[1].text, "1");
  EXPECT_FALSE(command.words[3].parts[1].quoted);
  EXPECT_EQ(command.words[4].parts[0].kind, Part::Kind::kArithmetic);
}

TEST(Shell, ContinuationsJoinAndBrokenOnesAreKnown) {
  const Script joined = parse("srun a \\\n  b \\\r\n  c\n");
  EXPECT_THAT(texts(only(joined).words), ElementsAre("srun", "a", "b", "c"));
  EXPECT_EQ(only(joined).last_line, 3);
  EXPECT_THAT(joined.broken_continuations, IsEmpty());
  const Script broken = parse("srun a \\  # why\n  -b 8\nsrun x \\ \n y\necho a\\ b\n");
  EXPECT_THAT(broken.broken_continuations, ElementsAre(Place{1, 8}, Place{3, 8}));
  EXPECT_THAT(texts(broken.statements[1].words), ElementsAre("-b", "8"));
}

TEST(Shell, ListsSayWhatJoinsThemAndWhatRunsBehind) {
  const Script script = parse("a && b || c; d | e &\n! f\n");
  ASSERT_THAT(script.statements, SizeIs(6));
  EXPECT_EQ(script.statements[0].then, Then::kAnd);
  EXPECT_EQ(script.statements[1].then, Then::kOr);
  EXPECT_EQ(script.statements[3].then, Then::kPipe);
  EXPECT_TRUE(script.statements[3].background);
  EXPECT_TRUE(script.statements[4].background);
  EXPECT_FALSE(script.statements[2].background);
  EXPECT_TRUE(script.statements[5].negated);
}

TEST(Shell, CompoundCommandsHoldTheirBlocks) {
  const Script script = parse(
      "if a; then b; elif c; then d; else e; fi\n"
      "for i in 1 2; do f $i; done\nfor ((i=0; i<3; i++)); do g; done\n"
      "while h; do i; done < file\nuntil j\ndo\n k\ndone\n"
      "case $x in (a|b) l ;; *) m; n ;; esac\n"
      "p() { q; }\nfunction r { s; }\n( t; u )\n{ v; }\n[[ $a == b* && -f $c ]]\n(( x > 1 ))\n");
  EXPECT_THAT(script.problems, IsEmpty());
  ASSERT_THAT(script.statements, SizeIs(12));
  const Statement& branch = script.statements[0];
  EXPECT_EQ(branch.condition.at(0).name(), "a");
  EXPECT_EQ(branch.body.at(0).name(), "b");
  EXPECT_EQ(branch.otherwise.at(0).body.at(0).name(), "d");
  EXPECT_EQ(branch.otherwise.at(0).otherwise.at(0).name(), "e");
  EXPECT_THAT(texts(script.statements[1].words), ElementsAre("i", "1", "2"));
  EXPECT_EQ(script.statements[3].redirects.at(0).target.text(), "file");
  EXPECT_EQ(script.statements[4].kind, Kind::kUntil);
  EXPECT_EQ(script.statements[4].last_line, 8);
  EXPECT_THAT(script.statements[5].body, SizeIs(3));
  EXPECT_EQ(script.statements[6].kind, Kind::kFunction);
  EXPECT_EQ(script.statements[6].name(), "p");
  EXPECT_EQ(script.statements[7].body.at(0).body.at(0).name(), "s");
  EXPECT_EQ(script.statements[8].kind, Kind::kSubshell);
  EXPECT_EQ(script.statements[10].kind, Kind::kTest);
  EXPECT_EQ(script.statements[11].kind, Kind::kArithmetic);
}

TEST(Shell, AssignmentsAreKnownBeforeCommandsAndInDeclarations) {
  const Script script = parse("A=1 B+=x cmd C=2\nexport D=\"$A\" E\nF=(x \"y z\"\n  w)\nG[2]=q\n");
  ASSERT_THAT(script.statements, SizeIs(4));
  EXPECT_THAT(script.statements[0].assignments, SizeIs(2));
  EXPECT_TRUE(script.statements[0].assignments[1].append);
  EXPECT_THAT(texts(script.statements[0].words), ElementsAre("cmd", "C=2"));
  EXPECT_EQ(script.statements[1].assignments.at(0).name, "D");
  EXPECT_THAT(texts(script.statements[1].words), ElementsAre("export", "E"));
  EXPECT_THAT(texts(script.statements[2].assignments.at(0).items), ElementsAre("x", "y z", "w"));
  EXPECT_EQ(script.statements[3].assignments.at(0).name, "G");
}

TEST(Shell, HereDocumentsAreNoCommands) {
  const Script script = parse("cat <<EOF >out.txt && next\nrm -rf $X\nEOF\ncat <<-'END'\n\tx\n\tEND\nlast\n");
  EXPECT_THAT(script.problems, IsEmpty());
  ASSERT_THAT(script.statements, SizeIs(4));
  EXPECT_EQ(script.here_documents.at(0).body, "rm -rf $X\n");
  EXPECT_TRUE(script.here_documents[0].expands);
  EXPECT_EQ(script.here_documents[0].place.line, 2);
  EXPECT_FALSE(script.here_documents.at(1).expands);
  EXPECT_EQ(script.statements[0].redirects.at(1).op, ">");
  EXPECT_EQ(script.statements[3].name(), "last");
  EXPECT_THAT(parse("cat <<EOF\nx\n").problems.at(0).message, HasSubstr("EOF"));
}

TEST(Shell, SubstitutionsAreReadAndVisitedWithTheirScope) {
  const Script script = parse("f() {\n  x=$(inner a | b `deep`)\n}\nwhile c; do d <(e); done\n");
  EXPECT_THAT(script.problems, IsEmpty());
  std::string seen;
  visit(script.statements, [&](const Statement& statement, const Scope& scope) {
    if (statement.name().empty()) return;
    seen += statement.name() + (scope.substitution ? "$" : "") + (scope.function != nullptr ? "f" : "") +
            (scope.loop != nullptr ? "l" : "") + (scope.condition ? "c" : "") + " ";
  });
  EXPECT_EQ(seen, "f inner$f b$f deep$f clc dl e$l ");
}

TEST(Shell, CommentsAreKeptWithTheirPlace) {
  const Script script = parse("# one\na # two\necho b#c \"# d\" ${#x}\n");
  ASSERT_THAT(script.comments, SizeIs(2));
  EXPECT_TRUE(script.comments[0].alone);
  EXPECT_EQ(script.comments[1].text, "# two");
  EXPECT_EQ(script.comments[1].place, (Place{2, 3}));
  EXPECT_FALSE(script.comments[1].alone);
}

TEST(Shell, ColumnsCountCodePoints) {
  const Script script = parse("echo \"한글\" $X\n");
  EXPECT_EQ(script.statements.at(0).words.at(2).place, (Place{1, 11}));
}

TEST(Shell, WhatItCannotFollowItSays) {
  for (const char* text : {"echo 'open", "echo \"open", "if a; then b", "for i in a; do b", "case x in a) b", "x=$(a",
                           "x=(a", "fi", "a )", "${x", "`a", "(a", "{ a", "[[ a"}) {
    EXPECT_THAT(parse(text).problems, testing::Not(IsEmpty())) << text;
  }
  EXPECT_THAT(parse(std::string(5000, '(')).problems, testing::Not(IsEmpty()));
  EXPECT_THAT(parse("").problems, IsEmpty());
}

TEST(Shell, RedirectionsAreNoWords) {
  const Script script = parse("exec 1> >(tee -a \"$L\") 2>&1\ncmd &>>log <<<word\n");
  EXPECT_THAT(script.problems, IsEmpty());
  ASSERT_THAT(script.statements, SizeIs(2));
  EXPECT_THAT(texts(script.statements[0].words), ElementsAre("exec"));
  EXPECT_EQ(script.statements[0].redirects.at(0).fd, 1);
  EXPECT_EQ(script.statements[1].redirects.at(0).op, "&>>");
}

TEST(Shell, WindowsLineEndsAreNamed) {
  const Script script = parse("a\nb c\r\nd\r\n");
  EXPECT_EQ(script.carriage_return->line, 2);
  EXPECT_THAT(texts(script.statements.at(1).words), ElementsAre("b", "c"));
  EXPECT_THAT(script.lines, ElementsAre("a", "b c", "d"));
}

}  // namespace
}  // namespace millrace::shell
