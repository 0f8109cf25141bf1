// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "millrace/shell/shell.h"

namespace millrace::shell {

namespace {

using Kind = Statement::Kind;

using See = std::function<void(const Statement&, const Scope&)>;

void visit_block(const Block& block, Scope scope, const See& see);

void visit_substitutions(const Statement& statement, Scope scope, const See& see) {
  scope.substitution = true;
  scope.before = nullptr;
  visit_words(statement, [&](const Word& word) {
    for (const Part& part : word.parts) visit_block(part.commands, scope, see);
  });
}

void visit_statement(const Statement& statement, const Scope& scope, const See& see) {
  see(statement, scope);
  visit_substitutions(statement, scope, see);
  Scope inner = scope;
  if (statement.kind == Kind::kWhile || statement.kind == Kind::kUntil || statement.kind == Kind::kFor)
    inner.loop = &statement;
  if (statement.kind == Kind::kSubshell) inner.subshell = true;
  if (statement.kind == Kind::kFunction) {
    inner = {};
    inner.function = &statement;
  }
  inner.condition = true;  // `$?` in it is of what stands before the whole
  visit_block(statement.condition, inner, see);
  inner.condition = false;
  inner.before = nullptr;
  visit_block(statement.body, inner, see);
  visit_block(statement.otherwise, inner, see);
}

void visit_block(const Block& block, Scope scope, const See& see) {
  for (const Statement& statement : block) {
    visit_statement(statement, scope, see);
    scope.before = &statement;
  }
}

}  // namespace

void visit(const Block& block, const See& see) {
  visit_block(block, {}, see);
}

void visit_words(const Statement& statement, const std::function<void(const Word&)>& see) {
  for (const Assignment& assignment : statement.assignments) {
    see(assignment.value);
    for (const Word& item : assignment.items) see(item);
  }
  for (const Word& word : statement.words) see(word);
  for (const Redirect& redirect : statement.redirects) see(redirect.target);
}

}  // namespace millrace::shell
