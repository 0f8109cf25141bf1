// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/words/pattern.h"

#include <algorithm>
#include <array>
#include <optional>

#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/text/unicode_tables.h"
#include "millrace/tokenizer/words/digit_groups.h"
#include "millrace/tokenizer/words/oniguruma_library.h"
#include "millrace/tokenizer/words/pattern_automaton.h"
#include "millrace/tokenizer/words/word_scanner.h"

namespace millrace::tokenizer {

class Pattern::Engine {
 public:
  virtual ~Engine() = default;
  virtual std::string_view name() const = 0;
  virtual bool is_linear() const = 0;
  virtual Status find_all(std::string_view text, std::vector<Part>& parts) const = 0;
};

namespace {

struct Found {
  size_t begin = 0, end = 0;
};

// Covers `text` with what `search(from)` finds, one match after another. An empty match right behind another match
// counts for nothing: the search goes on one character further.
template <class Search>
Status cover(std::string_view text, const Search& search, std::vector<Part>& parts) {
  size_t from = 0, covered = 0;
  std::optional<size_t> last_end;
  while (from <= text.size()) {
    ASSIGN_OR_RETURN(const std::optional<Found> found, search(from));
    if (!found) break;
    if (found->begin == found->end && last_end == found->end) {
      // SAFETY: uint8_t may alias any object.
      const auto at = reinterpret_cast<const uint8_t*>(text.data()) + from;
      from += from < text.size() ? decode_code_point(at, at + (text.size() - from)).size : 1;
      continue;
    }
    if (covered != found->begin) parts.push_back({covered, found->begin, false});
    parts.push_back({found->begin, found->end, true});
    from = covered = found->end;
    last_end = found->end;
  }
  if (covered != text.size()) parts.push_back({covered, text.size(), false});
  return {};
}

}  // namespace

class Pattern::Literal final : public Engine {
 public:
  explicit Literal(std::string text) : text_(std::move(text)) {}
  std::string_view name() const override { return "text"; }
  bool is_linear() const override { return true; }
  Status find_all(std::string_view text, std::vector<Part>& parts) const override {
    const auto search = [&](size_t from) -> Result<std::optional<Found>> {
      const size_t at = text.find(text_, from);
      if (at == std::string_view::npos) return std::nullopt;
      return Found{at, at + text_.size()};
    };
    return cover(text, search, parts);
  }

 private:
  std::string text_;
};

class Pattern::Automaton final : public Engine {
 public:
  explicit Automaton(std::shared_ptr<const PatternAutomaton> automaton) : automaton_(std::move(automaton)) {}
  std::string_view name() const override { return "table"; }
  bool is_linear() const override { return automaton_->is_linear(); }
  Status find_all(std::string_view text, std::vector<Part>& parts) const override {
    // SAFETY: uint8_t may alias any object.
    const auto begin = reinterpret_cast<const uint8_t*>(text.data());
    const uint8_t* const end = begin + text.size();
    size_t covered = 0;
    if (automaton_->looks_around()) {
      LookAroundMemory memory;
      while (const auto found = automaton_->find_next(text, memory)) {
        if (covered != found->begin) parts.push_back({covered, found->begin, false});
        parts.push_back({found->begin, found->end, true});
        covered = found->end;
      }
      if (covered != text.size()) parts.push_back({covered, text.size(), false});
      return {};
    }
    // No match is empty.
    for (const uint8_t* p = automaton_->find_start(begin, end); p < end; p = automaton_->find_start(p, end)) {
      const uint8_t* const matched = automaton_->match(p, end);
      if (matched == nullptr) {
        p += decode_code_point(p, end).size;
        continue;
      }
      const auto at = static_cast<size_t>(p - begin);
      if (covered != at) parts.push_back({covered, at, false});
      covered = static_cast<size_t>(matched - begin);
      parts.push_back({at, covered, true});
      p = matched;
    }
    if (covered != text.size()) parts.push_back({covered, text.size(), false});
    return {};
  }

 private:
  std::shared_ptr<const PatternAutomaton> automaton_;
};

class Pattern::Scanner final : public Engine {
 public:
  explicit Scanner(WordScanner words) : words_(words) {}
  std::string_view name() const override { return "scanner"; }
  bool is_linear() const override { return true; }
  Status find_all(std::string_view text, std::vector<Part>& parts) const override {
    std::array<size_t, 256> ends;
    LookAroundMemory memory;
    size_t begin = 0;
    while (const size_t count = words_.next_words(text, begin, ends, memory)) {
      for (size_t i = 0; i < count; ++i) {
        parts.push_back({begin, ends[i], true});
        begin = ends[i];
      }
    }
    return {};
  }

 private:
  WordScanner words_;
};

class Pattern::DigitGroups final : public Engine {
 public:
  std::string_view name() const override { return "scanner"; }
  bool is_linear() const override { return true; }
  Status find_all(std::string_view text, std::vector<Part>& parts) const override {
    for_each_digit_group(text, [&](size_t begin, size_t end, bool matched) { parts.push_back({begin, end, matched}); });
    return {};
  }
};

Result<const Oniguruma*> Oniguruma::open() {
  static const Result<Oniguruma> library = load_oniguruma();
  if (!library) return tl::unexpected(library.error());
  return &*library;
}

class Pattern::Regex final : public Engine {
 public:
  static Result<std::unique_ptr<const Engine>> build(std::string_view pattern) {
    ASSIGN_OR_RETURN(const Oniguruma* const onig,
                     with_context(Oniguruma::open(), fmt::format("the regular expression {}", pattern)));
    ASSIGN_OR_RETURN(const ExpandedPattern expanded, expand_classes(pattern));
    ASSIGN_OR_RETURN(auto regex, compile(*onig, expanded.text, pattern));
    for (const std::string& set : expanded.folded_sets) {
      ASSIGN_OR_RETURN(const auto members, compile(*onig, set, pattern));
      const auto contains = [&](uint32_t c) {
        std::string text;
        append_utf8(c, text);
        return members->matches(text);
      };
      if (const auto lone = lone_young_letter(contains))
        return fail(ErrorCode::kUnsupported,
                    "U+{:04X} without its other case in a set under (?i) in the regular expression {}", *lone, pattern);
    }
    // Such a set becomes all or nothing in the one that it is in, by how the engine keeps what it is made of.
    for (const std::string& set : expanded.negated_sets) {
      ASSIGN_OR_RETURN(const auto members, compile(*onig, set, pattern));
      static const std::string all = beyond_ascii();
      if (!members->matches(all))
        return fail(ErrorCode::kUnsupported, "a negated set of nothing beyond ASCII in the regular expression {}",
                    pattern);
    }
    return std::unique_ptr<const Engine>(std::move(regex));
  }
  ~Regex() override { onig_.release(regex_); }
  Regex(const Regex&) = delete;

  std::string_view name() const override { return "Oniguruma"; }
  bool is_linear() const override { return false; }
  Status find_all(std::string_view text, std::vector<Part>& parts) const override {
    const auto free_region = [&](OnigRegion* region) { onig_.free_region(region, 1); };
    const std::unique_ptr<OnigRegion, decltype(free_region)> region(onig_.new_region(), free_region);
    const OnigUChar* const begin = bytes(text);
    const OnigUChar* const end = begin + text.size();
    const auto search = [&](size_t from) -> Result<std::optional<Found>> {
      const auto rc = onig_.search(regex_, begin, end, begin + from, end, region.get(), ONIG_OPTION_NONE);
      if (rc == ONIG_MISMATCH) return std::nullopt;
      if (rc < 0)
        return fail(ErrorCode::kResourceExhausted, "the regular expression {} gave up after too many steps", source_);
      return Found{static_cast<size_t>(region->beg[0]), static_cast<size_t>(region->end[0])};
    };
    return cover(text, search, parts);
  }

 private:
  static Result<std::unique_ptr<const Regex>> compile(const Oniguruma& onig, std::string_view text,
                                                      std::string_view source) {
    regex_t* regex = nullptr;
    OnigErrorInfo info;
    const OnigUChar* begin = bytes(text);
    const int rc = onig.compile(&regex, begin, begin + text.size(), ONIG_OPTION_NONE, onig.utf8, onig.syntax, &info);
    if (rc != ONIG_NORMAL) {
      std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> message{};
      const int size = onig.error_text(message.data(), rc, &info);
      return fail(ErrorCode::kInvalidArgument, "the regular expression {}: {}", source,
                  std::string(message.begin(), message.begin() + size));
    }
    return std::unique_ptr<const Regex>(new Regex(onig, regex, std::string(source)));
  }
  static std::string beyond_ascii() {
    std::string text;
    for (uint32_t c = 0x80; c < 0x110000; ++c)
      if (c < 0xD800 || c >= 0xE000) append_utf8(c, text);
    return text;
  }
  bool matches(std::string_view text) const {
    const OnigUChar* const begin = bytes(text);
    const OnigUChar* const end = begin + text.size();
    return onig_.search(regex_, begin, end, begin, end, nullptr, ONIG_OPTION_NONE) >= 0;
  }

  Regex(const Oniguruma& onig, regex_t* regex, std::string source)
      : onig_(onig), regex_(regex), source_(std::move(source)) {}
  // SAFETY: unsigned char may alias any object.
  static const OnigUChar* bytes(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

  const Oniguruma& onig_;
  regex_t* regex_;
  std::string source_;
};

Pattern::Pattern(std::unique_ptr<const Engine> engine) : engine_(std::move(engine)) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Result<Pattern> Pattern::build(const PatternSpec& spec) {
  if (!spec.is_regex) return Pattern(std::make_unique<Literal>(spec.text));
  if (const auto words = WordScanner::find_scanner(spec.text); words && !spec.text.empty())
    return Pattern(std::make_unique<Scanner>(*words));
  if (spec.text == kDigitGroupsPattern) return Pattern(std::make_unique<DigitGroups>());
  if (auto automaton = PatternAutomaton::compile(spec.text))
    return Pattern(std::make_unique<Automaton>(std::move(automaton)));
  return build_with_oniguruma(spec.text);
}

Result<Pattern> Pattern::build_with_oniguruma(std::string_view pattern) {
  ASSIGN_OR_RETURN(auto engine, Regex::build(pattern));
  return Pattern(std::move(engine));
}

std::string_view Pattern::engine() const {
  return engine_->name();
}

bool Pattern::is_linear() const {
  return engine_->is_linear();
}

Status Pattern::find_all(std::string_view text, std::vector<Part>& parts) const {
  return text.empty() ? Status() : engine_->find_all(text, parts);
}

}  // namespace millrace::tokenizer
