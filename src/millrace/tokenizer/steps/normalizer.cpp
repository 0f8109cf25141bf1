// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/steps/normalizer.h"

#include <cstring>

#include "millrace/tokenizer/text/byte_map.h"
#include "millrace/tokenizer/text/precompiled.h"
#include "millrace/tokenizer/text/unicode_tables.h"
#include "millrace/tokenizer/words/pattern.h"

namespace millrace::tokenizer {

Normalizer::Scratch::Scratch() = default;
Normalizer::Scratch::~Scratch() = default;

// Writes the normalized form of `in` to `out`, which is empty. False: `in` is normalized already, `out` is unused.
class Normalizer::Step {
 public:
  virtual ~Step() = default;
  virtual Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const = 0;
};

namespace {

using Chars = std::vector<NormalizedChar>;

// What one character becomes: none, itself or up to three others; writes them and returns how many.
using Mapping = int (*)(uint32_t c, uint32_t out[3]);

int without_accent(uint32_t c, uint32_t out[3]) {
  out[0] = c;
  return !is_combining_mark(c);
}

int without_mark(uint32_t c, uint32_t out[3]) {
  out[0] = c;
  return !is_nonspacing_mark(c);
}

int bert_clean(uint32_t c, uint32_t out[3]) {
  out[0] = is_bert_white_space(c) ? ' ' : c;
  return !is_bert_removed(c);
}

int nmt(uint32_t c, uint32_t out[3]) {
  const bool space = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                     c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  out[0] = space ? ' ' : c;
  return !((c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F);
}

int with_spaces(uint32_t c, uint32_t out[3]) {
  out[0] = c;
  if (!is_bert_chinese(c)) return 1;
  out[0] = out[2] = ' ';
  out[1] = c;
  return 3;
}

int lower(uint32_t c, uint32_t out[3]) {
  return to_lower(c, out);
}

// The first byte from `at` on that is not ASCII, or the end of `text`.
size_t behind_ascii(std::string_view text, size_t at) {
  for (uint64_t bytes = 0; at + sizeof(bytes) <= text.size(); at += sizeof(bytes)) {
    std::memcpy(&bytes, text.data() + at, sizeof(bytes));
    if (bytes & 0x8080808080808080u) break;
  }
  while (at < text.size() && static_cast<uint8_t>(text[at]) < 0x80) ++at;
  return at;
}

// A to Z as a to z, eight at a time.
std::string_view lower_ascii(std::string_view text, std::string& out) {
  out.assign(text);
  constexpr uint64_t kOnes = 0x0101010101010101u, kHigh = kOnes * 0x80;
  size_t at = 0;
  for (uint64_t bytes = 0; at + sizeof(bytes) <= out.size(); at += sizeof(bytes)) {
    std::memcpy(&bytes, out.data() + at, sizeof(bytes));
    const uint64_t low = bytes & ~kHigh;
    const uint64_t from_a = low + kOnes * (0x80 - 'A'), behind_z = low + kOnes * (0x80 - 'Z' - 1);
    bytes |= (from_a & ~behind_z & ~bytes & kHigh) >> 2;
    std::memcpy(out.data() + at, &bytes, sizeof(bytes));
  }
  for (; at < out.size(); ++at)
    if (out[at] >= 'A' && out[at] <= 'Z') out[at] = static_cast<char>(out[at] | 0x20);
  return out;
}

// Appends `text` to `out` with what each character becomes. False: each stays what it is, and nothing was appended.
template <Mapping kMap, bool kAsciiStays>
bool append_mapped(std::string_view text, AlignedText& out) {
  size_t written = 0;
  for (size_t at = 0;;) {
    if (kAsciiStays) at = behind_ascii(text, at);
    if (at == text.size()) break;
    const Characters c(text.substr(at));
    const size_t end = at + c.end();
    uint32_t becomes[3];
    const int count = kMap(c.value(), becomes);
    if (count != 1 || becomes[0] != c.value()) {
      out.append(text.substr(written, at - written));
      for (int i = 0; i < count; ++i) out.append(becomes[i], {});
      written = end;
    }
    at = end;
  }
  if (written == 0) return false;
  out.append(text.substr(written));
  return true;
}

// The same for text whose origins are kept.
template <Mapping kMap>
void change_mapped(const AlignedText& in, Chars& chars, AlignedText& out) {
  size_t skipped = 0;  // bytes before the first that stays
  chars.clear();
  for (Characters c(in.text()); !c.at_end(); c.next()) {
    uint32_t becomes[3];
    const int count = kMap(c.value(), becomes);
    for (int i = 0; i < count; ++i) chars.push_back({becomes[i], i > 0});
    if (count > 0) continue;
    if (chars.empty())
      skipped = c.end();
    else
      --chars.back().change;
  }
  out.append_changed(chars, in, 0, skipped);
}

}  // namespace

struct Normalizer::Steps {
  struct Form : Step {
    explicit Form(NormalForm f) : form(f) {}
    Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const override {
      if (!in.tracked()) return append_normalized(in.text(), scratch.chars, out);
      if (is_surely_normal(form, in.text())) return false;
      scratch.chars.clear();
      normalize(form, in.text(), scratch.chars);
      out.append_changed(scratch.chars, in, 0, 0);
      return true;
    }
    // Only what may change is normalized. False: nothing may.
    bool append_normalized(std::string_view text, Chars& chars, AlignedText& out) const {
      size_t written = 0;
      for (;;) {
        const Segment next = next_unsure(form, text, written);
        if (next.begin == next.end && written == 0) return false;
        out.append(text.substr(written, next.begin - written));
        if (next.begin == next.end) return true;
        chars.clear();
        normalize(form, text.substr(next.begin, next.end - next.begin), chars);
        for (const NormalizedChar& c : chars) out.append(c.c, {});
        written = next.end;
      }
    }
    NormalForm form;
  };

  // Each character becomes what kMap says.
  template <Mapping kMap, bool kAsciiStays>
  struct Map : Step {
    Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const override {
      if (!in.tracked()) return append_mapped<kMap, kAsciiStays>(in.text(), out);
      if (kAsciiStays && behind_ascii(in.text(), 0) == in.text().size()) return false;
      change_mapped<kMap>(in, scratch.chars, out);
      return true;
    }
  };
  using StripAccents = Map<without_accent, true>;
  using Nmt = Map<nmt, false>;
  using BertCleanText = Map<bert_clean, false>;
  using BertStripMarks = Map<without_mark, true>;
  using BertChineseChars = Map<with_spaces, true>;

  struct Lowercase : Step {
    Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const override {
      if (in.tracked()) {
        change_mapped<lower>(in, scratch.chars, out);
        return true;
      }
      const std::string_view text = lower_ascii(in.text(), scratch.bytes);
      if (!append_mapped<lower, true>(text, out)) out.append(text);
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

  struct Replace : Step {
    Replace(Pattern p, ReplaceSpec s) : pattern(std::move(p)), spec(std::move(s)) {}
    Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const override {
      if (in.tracked()) {
        RETURN_IF_ERROR(replace_matches(pattern, spec.content, in, scratch.parts, out));
        return true;
      }
      const std::string_view text = in.text();
      size_t written = 0;
      const auto replace = [&](size_t begin, size_t end) {
        out.append(text.substr(written, begin - written));
        out.append(spec.content);
        written = end;
      };
      if (!spec.pattern.is_regex && !spec.pattern.text.empty()) {
        const std::string& wanted = spec.pattern.text;
        for (size_t found; (found = text.find(wanted, written)) != std::string_view::npos;)
          replace(found, found + wanted.size());
      } else {
        scratch.parts.clear();
        RETURN_IF_ERROR(pattern.find_all(text, scratch.parts));
        // Most of what \s+ finds is one space, which it becomes again.
        for (const Part& part : scratch.parts)
          if (part.matched && text.substr(part.begin, part.end - part.begin) != spec.content)
            replace(part.begin, part.end);
      }
      if (out.text().empty() && written == 0) return false;
      out.append(text.substr(written));
      return true;
    }
    Pattern pattern;
    ReplaceSpec spec;
  };

  struct Prepend : Step {
    explicit Prepend(std::string t) : text(std::move(t)) {}
    Result<bool> apply(const AlignedText& in, Scratch&, AlignedText& out) const override {
      if (in.text().empty()) return false;
      const size_t first_end = Characters(in.text()).end();
      out.append_inserted(text, in, first_end);
      // Without a prefix, `tokenizers` counts the first character as inserted.
      out.append_inserted(in.text().substr(0, first_end), in, text.empty() ? 0 : first_end);
      out.append(in, first_end, in.text().size());
      return true;
    }
    std::string text;
  };

  struct Precompiled : Step {
    explicit Precompiled(PrecompiledMap c) : map(std::move(c)) {}
    Result<bool> apply(const AlignedText& in, Scratch& scratch, AlignedText& out) const override {
      if (map.is_surely_normal(in.text())) return false;
      scratch.chars.clear();
      map.normalize(in.text(), scratch.chars);
      out.append_changed(scratch.chars, in, 0, 0);
      return true;
    }
    PrecompiledMap map;
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
      return add<Replace>(std::move(pattern), spec);
    }
    Status operator()(const PrecompiledSpec& spec) {
      ASSIGN_OR_RETURN(auto map, PrecompiledMap::parse(spec.map));
      return add<Precompiled>(std::move(map));
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
