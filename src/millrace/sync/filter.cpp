// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/filter.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "millrace/base/text/strings.h"

namespace millrace::sync {
namespace {

struct NamedClass {
  std::string_view name;
  int (*contains)(int);
};
constexpr std::array<NamedClass, 12> kClasses{{{"alnum", std::isalnum},
                                               {"alpha", std::isalpha},
                                               {"blank", std::isblank},
                                               {"cntrl", std::iscntrl},
                                               {"digit", std::isdigit},
                                               {"graph", std::isgraph},
                                               {"lower", std::islower},
                                               {"print", std::isprint},
                                               {"punct", std::ispunct},
                                               {"space", std::isspace},
                                               {"upper", std::isupper},
                                               {"xdigit", std::isxdigit}}};

tl::unexpected<Error> refuse(std::string_view pattern, std::string_view why) {
  return fail(ErrorCode::kInvalidArgument, "pattern \"{}\": {}", pattern.substr(0, 300), why);
}

// The last `count` components of `path`, or all of it.
std::string_view last_components(std::string_view path, size_t count) {
  size_t begin = path.size();
  for (; count > 0; --count) {
    const size_t slash = begin == 0 ? path.npos : path.rfind('/', begin - 1);
    if (slash == path.npos) return path;
    begin = slash;
  }
  return path.substr(begin + 1);
}

}  // namespace

// `at` is behind the '['; ends behind the ']'.
Status Pattern::add_set(std::string_view text, size_t& at) {
  std::bitset<256> set;
  const bool negated = at < text.size() && (text[at] == '!' || text[at] == '^');
  if (negated) ++at;
  // The next byte of the set, with its '\' taken off; REQUIRES one.
  const auto take = [&] {
    if (text[at] == '\\' && at + 1 < text.size()) ++at;
    return static_cast<unsigned char>(text[at++]);
  };
  bool first = true;
  for (;; first = false) {
    if (at >= text.size()) return refuse(text, "no ']' closes a '['");
    if (text[at] == ']' && !first) break;
    if (text.substr(at).starts_with("[:")) {
      const size_t end = text.find(":]", at + 2);
      const std::string_view name = end == text.npos ? std::string_view() : text.substr(at + 2, end - at - 2);
      const auto* const known =
          std::find_if(kClasses.begin(), kClasses.end(), [&](const NamedClass& each) { return each.name == name; });
      if (known == kClasses.end()) return refuse(text, "an unknown class in \"[:\"");
      for (int byte = 0; byte < 256; ++byte) {
        if (known->contains(byte) != 0) set.set(static_cast<size_t>(byte));
      }
      at = end + 2;
      continue;
    }
    const unsigned char low = take();
    unsigned char high = low;
    if (at + 1 < text.size() && text[at] == '-' && text[at + 1] != ']') {
      ++at;
      high = take();
    }
    if (low == high) set.set(low);
    for (size_t byte = low; byte <= high; ++byte) set.set(byte);
  }
  ++at;
  if (negated) set.flip();
  set.reset('/');
  tokens_.push_back({Token::Kind::kSet, 0, static_cast<uint32_t>(sets_.size())});
  sets_.push_back(set);
  return {};
}

Result<Pattern> Pattern::compile(std::string_view text) {
  if (text.empty()) return refuse(text, "is empty");
  if (text.find('\0') != text.npos) return refuse(text, "contains a NUL byte");
  Pattern pattern;
  std::string_view body = text;
  if (body.size() > 1 && body.ends_with('/')) {
    pattern.folders_only_ = true;
    body.remove_suffix(1);
  }
  const size_t deep = body.find("**");
  pattern.slashes_ = static_cast<size_t>(std::count(body.begin(), body.end(), '/'));
  pattern.deep_ = deep != body.npos;
  pattern.deep_start_ = deep == 0;
  pattern.deepest_end_ = pattern.deep_ && body.ends_with("***");
  if (body.starts_with('/')) {
    pattern.anchored_ = true;
    body.remove_prefix(1);
  }
  const bool wild = body.find_first_of("*?[") != body.npos;
  for (size_t at = 0; at < body.size();) {
    const char c = body[at++];
    if (!wild) {
      pattern.tokens_.push_back({Token::Kind::kByte, c});
    } else if (c == '?') {
      pattern.tokens_.push_back({Token::Kind::kAny});
    } else if (c == '[') {
      RETURN_IF_ERROR(pattern.add_set(body, at));
    } else if (c == '*') {
      const size_t end = std::min(body.find_first_not_of('*', at), body.size());
      pattern.tokens_.push_back({end > at ? Token::Kind::kDeepStar : Token::Kind::kStar});
      at = end;
    } else if (c == '\\') {
      if (at == body.size()) return refuse(text, "ends in a '\\'");
      pattern.tokens_.push_back({Token::Kind::kByte, body[at++]});
    } else {
      pattern.tokens_.push_back({Token::Kind::kByte, c});
    }
  }
  return pattern;
}

// The set of tokens at which a match may stand, moved byte by byte: no pattern makes this slow.
bool Pattern::matches_all(std::string_view text) const {
  const size_t count = tokens_.size();
  std::vector<char> here(count + 1, 0);
  std::vector<char> next(count + 1, 0);
  const auto is_star = [&](size_t i) {
    return i < count && (tokens_[i].kind == Token::Kind::kStar || tokens_[i].kind == Token::Kind::kDeepStar);
  };
  // A star may match nothing, so standing before it is standing behind it too.
  const auto enter = [&](std::vector<char>& states, size_t i) {
    states[i] = 1;
    while (is_star(i)) states[++i] = 1;
  };
  enter(here, 0);
  for (const char c : text) {
    std::fill(next.begin(), next.end(), 0);
    bool any = false;
    for (size_t i = 0; i < count; ++i) {
      if (here[i] == 0) continue;
      const Token& token = tokens_[i];
      bool takes = false;
      switch (token.kind) {
        case Token::Kind::kByte:
          takes = c == token.byte;
          break;
        case Token::Kind::kSet:
          takes = sets_[token.set].test(static_cast<unsigned char>(c));
          break;
        case Token::Kind::kDeepStar:
          takes = true;
          break;
        case Token::Kind::kAny:
        case Token::Kind::kStar:
          takes = c != '/';
          break;
      }
      if (!takes) continue;
      any = true;
      enter(next, is_star(i) ? i : i + 1);
    }
    if (!any) return false;
    here.swap(next);
  }
  return here[count] != 0;
}

bool Pattern::matches(std::string_view path, bool is_folder) const {
  if (folders_only_ && !is_folder) return false;
  if (slashes_ == 0 && !deep_) return matches_all(last_components(path, 1));
  // "x/***" is the folder too, and "**/x" may match at the top.
  std::string longer;
  if (deep_start_ || (deepest_end_ && is_folder)) {
    longer = (deep_start_ ? "/" : "") + std::string(path) + (deepest_end_ && is_folder ? "/" : "");
    path = longer;
  }
  if (anchored_ || deep_start_) return matches_all(path);
  if (!deep_) return matches_all(last_components(path, slashes_ + 1));
  for (size_t begin = 0;;) {
    if (matches_all(path.substr(begin))) return true;
    const size_t slash = path.find('/', begin);
    if (slash == path.npos) return false;
    begin = slash + 1;
  }
}

Status Filter::add(std::string_view pattern, bool include) {
  ASSIGN_OR_RETURN(Pattern compiled, Pattern::compile(pattern));
  rules_.push_back({std::move(compiled), include});
  return {};
}

Status Filter::add_lines(std::string_view lines, std::string_view name) {
  for (size_t number = 1; !lines.empty(); ++number) {
    const std::string_view line = take_line(lines);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    const std::string place = fmt::format("{}, line {}", name, number);
    if (!line.starts_with("+ ") && !line.starts_with("- ")) {
      return fail(ErrorCode::kInvalidArgument, "{}: \"{}\" is neither \"+ PATTERN\" nor \"- PATTERN\"", place,
                  line.substr(0, 300));
    }
    RETURN_IF_ERROR(with_context(add(line.substr(2), line.front() == '+'), place));
  }
  return {};
}

bool Filter::allows(std::string_view path, bool is_folder) const {
  for (const Rule& rule : rules_) {
    if (rule.pattern.matches(path, is_folder)) return rule.include;
  }
  return true;
}

bool Filter::passes(std::string_view path) const {
  for (size_t slash = path.find('/'); slash != path.npos; slash = path.find('/', slash + 1)) {
    if (!allows(path.substr(0, slash), true)) return false;
  }
  return allows(path, false);
}

bool FilterWalk::passes(std::string_view path) {
  return passes_folders(path) && filter_.allows(path, false);
}

bool FilterWalk::passes_folders(std::string_view path) {
  if (filter_.empty()) return true;
  if (!excluded_.empty() && path.starts_with(excluded_)) return false;
  // What the path has in common with the last folder that passed, in whole components.
  size_t known = static_cast<size_t>(std::mismatch(path.begin(), path.end(), allowed_.begin(), allowed_.end()).first -
                                     path.begin());
  known = known == 0 ? 0 : path.substr(0, known).rfind('/') + 1;  // npos + 1 is 0
  for (size_t slash = path.find('/', known); slash != path.npos; slash = path.find('/', slash + 1)) {
    if (filter_.allows(path.substr(0, slash), true)) continue;
    excluded_ = path.substr(0, slash + 1);
    return false;
  }
  allowed_ = path.substr(0, path.rfind('/') + 1);
  return true;
}

}  // namespace millrace::sync
