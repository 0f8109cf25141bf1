// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/steps/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "millrace/tokenizer/steps/normalizer.h"
#include "millrace/tokenizer/text/byte_map.h"
#include "millrace/tokenizer/text/unicode_tables.h"
#include "millrace/tokenizer/words/word_scanner.h"

namespace millrace::tokenizer {

// Cuts or changes the words of `text`.
class PreTokenizer::Step {
 public:
  virtual ~Step() = default;
  virtual Status apply(CutText& text, Scratch& scratch) const = 0;
};

namespace {

using Parts = std::vector<Part>;
using Words = std::vector<Word>;

void add_word(size_t begin, size_t end, Words& words) {
  if (begin < end) words.push_back({begin, end});
}

// Matches join the part before them, unless that is a match too.
void merge_with_previous(const Parts& parts, size_t base, Words& words) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t begin = parts[i].begin;
    if (!parts[i].matched && i + 1 < parts.size() && parts[i + 1].matched) ++i;
    add_word(base + begin, base + parts[i].end, words);
  }
}

// Matches join the part behind them, unless that is a match too.
void merge_with_next(const Parts& parts, size_t base, Words& words) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t begin = parts[i].begin;
    if (parts[i].matched && i + 1 < parts.size() && !parts[i + 1].matched) ++i;
    add_word(base + begin, base + parts[i].end, words);
  }
}

// Neighbours of one kind become one.
void merge_alike(const Parts& parts, size_t base, Words& words) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t begin = parts[i].begin;
    while (i + 1 < parts.size() && parts[i + 1].matched == parts[i].matched) ++i;
    add_word(base + begin, base + parts[i].end, words);
  }
}

void append_words(const Parts& parts, SplitBehavior behavior, size_t base, Words& words) {
  switch (behavior) {
    case SplitBehavior::kRemoved:
    case SplitBehavior::kIsolated:
      for (const Part& part : parts)
        if (!part.matched || behavior == SplitBehavior::kIsolated) add_word(base + part.begin, base + part.end, words);
      return;
    case SplitBehavior::kMergedWithPrevious:
      return merge_with_previous(parts, base, words);
    case SplitBehavior::kMergedWithNext:
      return merge_with_next(parts, base, words);
    case SplitBehavior::kContiguous:
      return merge_alike(parts, base, words);
  }
}

// Characters for which `matches` is true are a match each.
template <class Matches>
void find_characters(std::string_view text, const Matches& matches, Parts& parts) {
  size_t covered = 0;
  for (Characters c(text); !c.at_end(); c.next()) {
    if (!matches(c.value())) continue;
    if (covered < c.begin()) parts.push_back({covered, c.begin(), false});
    parts.push_back({c.begin(), c.end(), true});
    covered = c.end();
  }
  if (covered < text.size()) parts.push_back({covered, text.size(), false});
}

}  // namespace

struct PreTokenizer::Steps {
  // A step that cuts words and leaves the text as it is.
  struct CuttingStep : Step {
    Status apply(CutText& text, Scratch& scratch) const final {
      Words& words = scratch.spare.words;
      words.clear();
      for (const Word& word : text.words)
        RETURN_IF_ERROR(cut(text.text.text().substr(word.begin, word.end - word.begin), word.begin, scratch, words));
      text.words.swap(words);
      return {};
    }
    // Appends the words of `piece`, which begins at `base`.
    virtual Status cut(std::string_view piece, size_t base, Scratch& scratch, Words& words) const = 0;
  };

  // A step that writes each word anew.
  struct ChangingStep : Step {
    Status apply(CutText& text, Scratch& scratch) const final {
      CutText& out = scratch.spare;
      out.words.clear();
      out.text.clear(text.text.base(), text.text.tracked());
      for (const Word& word : text.words) RETURN_IF_ERROR(change(text.text, word, scratch, out));
      std::swap(text, out);
      return {};
    }
    virtual Status change(const AlignedText& in, Word word, Scratch& scratch, CutText& out) const = 0;
  };

  struct Split : CuttingStep {
    Split(Pattern p, const SplitSpec& spec) : pattern(std::move(p)), behavior(spec.behavior), invert(spec.invert) {}
    Status cut(std::string_view piece, size_t base, Scratch& scratch, Words& words) const override {
      Parts& parts = scratch.parts;
      parts.clear();
      RETURN_IF_ERROR(pattern.find_all(piece, parts));
      if (invert)
        for (Part& part : parts) part.matched = !part.matched;
      append_words(parts, behavior, base, words);
      return {};
    }
    Pattern pattern;
    SplitBehavior behavior;
    bool invert;
  };

  struct CharacterSplit : CuttingStep {
    explicit CharacterSplit(CharacterSplitSpec s) : spec(s) {}
    Status cut(std::string_view piece, size_t base, Scratch& scratch, Words& words) const override {
      scratch.parts.clear();
      find(piece, scratch.parts);
      append_words(scratch.parts, spec.behavior, base, words);
      return {};
    }
    void find(std::string_view piece, Parts& parts) const {
      find_characters(piece, [&](uint32_t c) { return is_split_at(spec, c); }, parts);
    }
    CharacterSplitSpec spec;
  };

  struct WordsOnly : CuttingStep {
    Status cut(std::string_view piece, size_t base, Scratch&, Words& words) const override {
      const uint8_t* const classes = code_point_classes();
      const auto kind = [&](uint32_t c) { return classes[c] & (kWordFlag | kWhiteFlag); };
      size_t begin = 0;
      int current = kWhiteFlag;
      for (Characters c(piece); !c.at_end(); c.next()) {
        const int next = kind(c.value());
        if (next == current) continue;
        if (!(current & kWhiteFlag)) add_word(base + begin, base + c.begin(), words);
        begin = c.begin();
        current = next;
      }
      if (!(current & kWhiteFlag)) add_word(base + begin, base + piece.size(), words);
      return {};
    }
  };

  // A word begins where the script changes. Characters of any script go with those before them; at the start of a piece
  // there are none, and `tokenizers` loses them.
  struct UnicodeScripts : CuttingStep {
    Status cut(std::string_view piece, size_t base, Scratch&, Words& words) const override {
      size_t begin = 0;
      uint8_t last = kAnyScript;
      for (Characters c(piece); !c.at_end(); c.next()) {
        const uint8_t script = script_of(c.value());
        if (script == kAnyScript || script == last) continue;
        if (last != kAnyScript) add_word(base + begin, base + c.begin(), words);
        begin = c.begin();
        last = script;
      }
      if (last != kAnyScript) add_word(base + begin, base + piece.size(), words);
      return {};
    }
  };

  struct FixedLength : CuttingStep {
    explicit FixedLength(uint64_t l) : length(l) {}
    Status cut(std::string_view piece, size_t base, Scratch&, Words& words) const override {
      size_t begin = 0;
      uint64_t count = 0;
      for (Characters c(piece); !c.at_end(); c.next()) {
        if (++count < length) continue;
        add_word(base + begin, base + c.end(), words);
        begin = c.end();
        count = 0;
      }
      add_word(base + begin, base + piece.size(), words);
      return {};
    }
    uint64_t length;
  };

  struct ByteLevel : ChangingStep {
    ByteLevel(ByteLevelSpec s, std::optional<Pattern> p) : spec(s), pattern(std::move(p)) {}
    Status change(const AlignedText& in, Word word, Scratch& scratch, CutText& out) const override {
      AlignedText& piece = scratch.piece;
      piece.clear(in.base(), in.tracked());
      if (spec.add_prefix_space && in.text()[word.begin] != ' ')
        piece.append_inserted(" ", in, word.begin + Characters(in.text().substr(word.begin)).end());
      piece.append(in, word.begin, word.end);
      scratch.parts.clear();
      if (pattern)
        RETURN_IF_ERROR(pattern->find_all(piece.text(), scratch.parts));
      else
        scratch.parts.push_back({0, piece.text().size(), true});
      for (const Part& part : scratch.parts) {
        const size_t begin = out.text.text().size();
        for (size_t i = part.begin; i < part.end; ++i) {
          const Offset origin = piece.tracked() ? piece.origin(i, i + 1) : Offset{};
          out.text.append(spelled_character(static_cast<uint8_t>(piece.text()[i])), origin);
        }
        add_word(begin, out.text.text().size(), out.words);
      }
      return {};
    }
    ByteLevelSpec spec;
    std::optional<Pattern> pattern;
  };

  // A step behind a ByteLevel cuts words whose bytes are spelled. Here they are not: they are for this step alone.
  struct Spelled : Step {
    explicit Spelled(std::unique_ptr<const Step> s) : step(std::move(s)) {}
    Status apply(CutText& text, Scratch& scratch) const override {
      constexpr size_t kSome = size_t{1} << 16;
      const Words words = std::exchange(text.words, {});
      CutText spelled;
      std::vector<size_t> places;  // in `text`, of each byte of the spelled one
      for (auto word = words.begin(); word != words.end();) {
        spelled.text.clear(0, false);
        spelled.words.clear();
        places.clear();
        for (; word != words.end() && places.size() < kSome; ++word) {
          const size_t begin = places.size();
          for (size_t i = word->begin; i < word->end; ++i) {
            spelled.text.append(spelled_character(static_cast<uint8_t>(text.text.text()[i])), {});
            places.resize(spelled.text.text().size(), i);
          }
          add_word(begin, places.size(), spelled.words);
        }
        RETURN_IF_ERROR(step->apply(spelled, scratch));
        for (const Word& part : spelled.words) text.words.push_back({places[part.begin], places[part.end - 1] + 1});
      }
      return {};
    }
    std::unique_ptr<const Step> step;
  };

  struct Metaspace : ChangingStep {
    explicit Metaspace(MetaspaceSpec s) : spec(std::move(s)) {}
    Status change(const AlignedText& in, Word word, Scratch&, CutText& out) const override {
      size_t begin = out.text.text().size();
      const auto cut_here = [&] {
        if (!spec.split) return;
        add_word(begin, out.text.text().size(), out.words);
        begin = out.text.text().size();
      };
      const std::string_view text = in.text().substr(0, word.end);
      if (prepends(in, word))
        out.text.append_inserted(spec.replacement, in, word.begin + Characters(text.substr(word.begin)).end());
      for (size_t at = word.begin; at < word.end;) {
        const size_t size = Characters(text.substr(at)).end();
        const bool space = text[at] == ' ';
        if (space || text.substr(at, size) == spec.replacement) cut_here();
        if (space)
          out.text.append_inserted(spec.replacement, in, at + 1);
        else
          out.text.append(in, at, at + size);
        at += size;
      }
      add_word(begin, out.text.text().size(), out.words);
      return {};
    }
    bool prepends(const AlignedText& in, Word word) const {
      const std::string_view piece = in.text().substr(word.begin, word.end - word.begin);
      if (spec.prepend == PrependScheme::kNever || piece[0] == ' ' || piece.starts_with(spec.replacement)) return false;
      return spec.prepend == PrependScheme::kAlways || in.origin(word.begin, word.end).begin == 0;
    }
    MetaspaceSpec spec;
  };

  // Adds what one component of the file does.
  struct Builder {
    PreTokenizer& pre_tokenizer;

    template <class T, class... Arguments>
    Status add(Arguments&&... arguments) {
      pre_tokenizer.steps_.push_back(std::make_unique<T>(std::forward<Arguments>(arguments)...));
      return {};
    }
    Status operator()(const CharacterSplitSpec& spec) { return add<CharacterSplit>(spec); }
    Status operator()(const WordsSpec&) { return add<WordsOnly>(); }
    Status operator()(const UnicodeScriptsSpec&) { return add<UnicodeScripts>(); }
    Status operator()(const FixedLengthSpec& spec) { return add<FixedLength>(spec.length); }
    Status operator()(const SplitSpec& spec) {
      ASSIGN_OR_RETURN(auto pattern, Pattern::build(spec.pattern));
      return add<Split>(std::move(pattern), spec);
    }
    Status operator()(const ByteLevelSpec& spec) {
      if (!spec.use_regex) return add<ByteLevel>(spec, std::nullopt);
      ASSIGN_OR_RETURN(auto pattern, Pattern::build({std::string(kByteLevelPattern), true}));
      return add<ByteLevel>(spec, std::move(pattern));
    }
    Status operator()(const MetaspaceSpec& spec) {
      pre_tokenizer.needs_origins_ |= spec.prepend == PrependScheme::kFirst;
      return add<Metaspace>(spec);
    }
  };
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Result<PreTokenizer> PreTokenizer::build(std::span<const PreTokenizerSpec> specs) {
  PreTokenizer pre_tokenizer;
  for (const PreTokenizerSpec& spec : specs)
    RETURN_IF_ERROR(with_context(std::visit(Steps::Builder{pre_tokenizer}, spec), "pre_tokenizer"));
  return pre_tokenizer;
}

Result<PreTokenizer> PreTokenizer::build_of_bytes(std::span<const PreTokenizerSpec> specs) {
  PreTokenizer pre_tokenizer;
  bool spelled = false;
  for (const PreTokenizerSpec& spec : specs) {
    const auto* bytes = std::get_if<ByteLevelSpec>(&spec);
    if (std::holds_alternative<MetaspaceSpec>(spec) || (bytes != nullptr && (spelled || bytes->add_prefix_space)))
      return fail(ErrorCode::kUnsupported, "a pre-tokenizer that does more than cut");
    if (bytes != nullptr) {
      spelled = true;
      if (bytes->use_regex)
        RETURN_IF_ERROR(Steps::Builder{pre_tokenizer}(
            SplitSpec{{std::string(kByteLevelPattern), true}, SplitBehavior::kIsolated, false}));
      continue;
    }
    RETURN_IF_ERROR(with_context(std::visit(Steps::Builder{pre_tokenizer}, spec), "pre_tokenizer"));
    if (spelled) pre_tokenizer.steps_.back() = std::make_unique<Steps::Spelled>(std::move(pre_tokenizer.steps_.back()));
  }
  return pre_tokenizer;
}

Status PreTokenizer::apply(CutText& text, Scratch& scratch) const {
  for (const auto& step : steps_) RETURN_IF_ERROR(step->apply(text, scratch));
  return {};
}

}  // namespace millrace::tokenizer
