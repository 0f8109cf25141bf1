// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/normalizer.h"

#include "millrace/tokenizer/byte_map.h"
#include "millrace/tokenizer/charsmap.h"
#include "millrace/tokenizer/pattern.h"
#include "millrace/tokenizer/unicode_tables.h"

namespace millrace::tokenizer {

Normalizer::Scratch::Scratch() = default;
Normalizer::Scratch::~Scratch() = default;

// Writes to `out`, which is empty, what becomes of `in`. False: nothing changes, `out` is not used.
class Normalizer::Step {
 public:
  virtual ~Step() = default;
  virtual Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const = 0;
};

namespace {

using Chars = std::vector<NormalizedChar>;

uint32_t as_it_is(uint32_t c) {
  return c;
}

bool is_no_accent(uint32_t c) {
  return !is_combining_mark(c);
}

bool is_no_mark(uint32_t c) {
  return !is_nonspacing_mark(c);
}

bool bert_keeps(uint32_t c) {
  return !is_bert_removed(c);
}

uint32_t bert_map(uint32_t c) {
  return is_bert_white_space(c) ? ' ' : c;
}

bool nmt_keeps(uint32_t c) {
  return !((c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F);
}

uint32_t nmt_map(uint32_t c) {
  const bool space = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                     c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  return space ? ' ' : c;
}

void append_lower(uint32_t c, Chars& chars) {
  uint32_t lower[2];
  const int count = to_lower(c, lower);
  for (int i = 0; i < count; ++i) chars.push_back({lower[i], i > 0});
}

bool is_ascii(std::string_view text) {
  for (const char c : text)
    if (static_cast<uint8_t>(c) >= 0x80) return false;
  return true;
}

}  // namespace

struct Normalizer::Steps {
  struct Form : Step {
    explicit Form(NormalForm f) : form(f) {}
    Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const override {
      if (is_surely_normal(form, in.text())) return false;
      scratch.chars.clear();
      normalize(form, in.text(), scratch.chars);
      out.append_changed(scratch.chars, in, 0, 0);
      return true;
    }
    NormalForm form;
  };

  struct Lowercase : Step {
    Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const override {
      scratch.chars.clear();
      for (Characters c(in.text()); !c.at_end(); c.next()) append_lower(c.value(), scratch.chars);
      out.append_changed(scratch.chars, in, 0, 0);
      return true;
    }
  };

  struct Strip : Step {
    explicit Strip(StripSpec s) : spec(s) {}
    Result<bool> apply(const AlignedText& in, Scratch&, AlignedText& out) const override {
      size_t begin = in.text().size(), end = 0;
      for (Characters c(in.text()); !c.at_end(); c.next()) {
        if (is_white_space(c.value())) continue;
        if (end == 0) begin = c.begin();
        end = c.end();
      }
      if (!spec.left) begin = 0;
      if (!spec.right) end = in.text().size();
      if (begin == 0 && end == in.text().size()) return false;
      if (begin < end) out.append(in, begin, end);
      return true;
    }
    StripSpec spec;
  };

  // Leaves out the characters that kKeeps does not want and changes the others by kMap.
  template <bool (*kKeeps)(uint32_t), uint32_t (*kMap)(uint32_t), bool kAsciiStays>
  struct Filter : Step {
    Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const override {
      if (kAsciiStays && is_ascii(in.text())) return false;
      size_t skipped = 0;  // bytes before the first that stays
      Chars& chars = scratch.chars;
      chars.clear();
      for (Characters c(in.text()); !c.at_end(); c.next()) {
        if (kKeeps(c.value()))
          chars.push_back({kMap(c.value()), 0});
        else if (chars.empty())
          skipped = c.end();
        else
          --chars.back().change;
      }
      out.append_changed(chars, in, 0, skipped);
      return true;
    }
  };
  using StripAccents = Filter<is_no_accent, as_it_is, true>;
  using Nmt = Filter<nmt_keeps, nmt_map, false>;
  using BertCleanText = Filter<bert_keeps, bert_map, false>;
  using BertStripMarks = Filter<is_no_mark, as_it_is, true>;

  struct Replace : Step {
    Replace(Pattern p, std::string c) : pattern(std::move(p)), content(std::move(c)) {}
    Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const override {
      RETURN_IF_ERROR(replace_matches(pattern, content, in, scratch.parts, out));
      return true;
    }
    Pattern pattern;
    std::string content;
  };

  struct Prepend : Step {
    explicit Prepend(std::string t) : text(std::move(t)) {}
    Result<bool> apply(const AlignedText& in, Scratch&, AlignedText& out) const override {
      if (in.text().empty()) return false;
      const size_t first_end = Characters(in.text()).end();
      out.append_inserted(text, in, first_end);
      // When nothing is put before it, `tokenizers` takes the first character for inserted.
      out.append_inserted(in.text().substr(0, first_end), in, text.empty() ? 0 : first_end);
      out.append(in, first_end, in.text().size());
      return true;
    }
    std::string text;
  };

  struct Precompiled : Step {
    explicit Precompiled(Charsmap c) : charsmap(std::move(c)) {}
    Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const override {
      if (charsmap.is_surely_normal(in.text())) return false;
      scratch.chars.clear();
      charsmap.normalize(in.text(), scratch.chars);
      out.append_changed(scratch.chars, in, 0, 0);
      return true;
    }
    Charsmap charsmap;
  };

  struct ByteMap : Step {
    Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const override {
      scratch.chars.clear();
      for (Characters c(in.text()); !c.at_end(); c.next())
        for (size_t i = c.begin(); i < c.end(); ++i)
          scratch.chars.push_back({spelled_character(static_cast<uint8_t>(in.text()[i])), i > c.begin()});
      out.append_changed(scratch.chars, in, 0, 0);
      return true;
    }
  };

  struct BertChineseChars : Step {
    Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const override {
      if (is_ascii(in.text())) return false;
      scratch.chars.clear();
      for (Characters c(in.text()); !c.at_end(); c.next()) {
        if (!is_bert_chinese(c.value())) {
          scratch.chars.push_back({c.value(), 0});
          continue;
        }
        scratch.chars.insert(scratch.chars.end(), {{' ', 0}, {c.value(), 1}, {' ', 1}});
      }
      out.append_changed(scratch.chars, in, 0, 0);
      return true;
    }
  };

  // Adds what one component of the file does.
  struct Builder {
    std::vector<std::unique_ptr<const Step>>& steps;

    template <class T, class... Arguments>
    Status add(Arguments&&... arguments) {
      steps.push_back(std::make_unique<T>(std::forward<Arguments>(arguments)...));
      return {};
    }
    Status operator()(NormalForm form) { return add<Form>(form); }
    Status operator()(const LowercaseSpec&) { return add<Lowercase>(); }
    Status operator()(const StripSpec& spec) { return spec.left || spec.right ? add<Strip>(spec) : Status(); }
    Status operator()(const StripAccentsSpec&) { return add<StripAccents>(); }
    Status operator()(const PrependSpec& spec) { return add<Prepend>(spec.text); }
    Status operator()(const NmtSpec&) { return add<Nmt>(); }
    Status operator()(const ByteMapSpec&) { return add<ByteMap>(); }
    Status operator()(const ReplaceSpec& spec) {
      ASSIGN_OR_RETURN(auto pattern, Pattern::build(spec.pattern));
      return add<Replace>(std::move(pattern), spec.content);
    }
    Status operator()(const PrecompiledSpec& spec) {
      ASSIGN_OR_RETURN(auto charsmap, Charsmap::parse(spec.charsmap));
      return add<Precompiled>(std::move(charsmap));
    }
    Status operator()(const BertNormalizerSpec& spec) {
      if (spec.clean_text) RETURN_IF_ERROR(add<BertCleanText>());
      if (spec.handle_chinese_chars) RETURN_IF_ERROR(add<BertChineseChars>());
      if (spec.strip_accents) {
        RETURN_IF_ERROR(add<Form>(NormalForm::kNfd));
        RETURN_IF_ERROR(add<BertStripMarks>());
      }
      return spec.lowercase ? add<Lowercase>() : Status();
    }
  };
};

Normalizer::Normalizer() = default;
Normalizer::Normalizer(Normalizer&&) noexcept = default;
Normalizer& Normalizer::operator=(Normalizer&&) noexcept = default;
Normalizer::~Normalizer() = default;

Result<Normalizer> Normalizer::build(std::span<const NormalizerSpec> specs) {
  Normalizer normalizer;
  for (const NormalizerSpec& spec : specs)
    RETURN_IF_ERROR(with_context(std::visit(Steps::Builder{normalizer.steps_}, spec), "normalizer"));
  return normalizer;
}

Status Normalizer::apply(AlignedText& text, Scratch& scratch) const {
  for (const auto& step : steps_) {
    scratch.spare.clear(text.base(), text.tracked());
    ASSIGN_OR_RETURN(const bool changed, step->apply(text, scratch, scratch.spare));
    if (changed) std::swap(text, scratch.spare);
  }
  return {};
}

Status replace_matches(const Pattern& pattern, std::string_view content, const AlignedText& in,
                       std::vector<Part>& parts, AlignedText& out) {
  parts.clear();
  RETURN_IF_ERROR(pattern.find_all(in.text(), parts));
  for (const Part& part : parts) {
    if (part.matched)
      out.append_inserted(content, in, part.end);
    else
      out.append(in, part.begin, part.end);
  }
  return {};
}

}  // namespace millrace::tokenizer
