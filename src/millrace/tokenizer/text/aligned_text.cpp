// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/text/aligned_text.h"

#include "millrace/base/text/utf8.h"

namespace millrace::tokenizer {

void AlignedText::clear(int64_t base, bool tracked) {
  text_.clear();
  origins_.clear();
  base_ = base;
  tracked_ = tracked;
}

void AlignedText::assign(std::string_view text, int64_t base, bool tracked) {
  clear(base, tracked);
  text_ = text;
  if (!tracked) return;
  for (Characters c(text); !c.at_end(); c.next())
    origins_.resize(c.end(), {base + static_cast<int64_t>(c.begin()), base + static_cast<int64_t>(c.end())});
}

void AlignedText::append(char byte, Offset origin) {
  text_ += byte;
  if (tracked_) origins_.push_back(origin);
}

void AlignedText::append(uint32_t code_point, Offset origin) {
  append_utf8(code_point, text_);
  if (tracked_) origins_.resize(text_.size(), origin);
}

void AlignedText::append(const AlignedText& from, size_t begin, size_t end) {
  text_.append(from.text_, begin, end - begin);
  if (!tracked_) return;
  const auto first = from.origins_.begin();
  origins_.insert(origins_.end(), first + static_cast<ptrdiff_t>(begin), first + static_cast<ptrdiff_t>(end));
}

void AlignedText::append_inserted(std::string_view content, const AlignedText& from, size_t before) {
  text_ += content;
  if (tracked_) origins_.resize(text_.size(), from.origin_before(before));
}

void AlignedText::append_changed(std::span<const NormalizedChar> chars, const AlignedText& from, size_t begin,
                                 size_t skipped) {
  if (!tracked_) {
    for (const NormalizedChar& c : chars) append_utf8(c.c, text_);
    return;
  }
  Characters source(from.text().substr(begin + skipped));
  const size_t start = begin + skipped;
  for (const NormalizedChar& c : chars) {
    const size_t at = source.at_end() ? from.text_.size() : start + source.begin();
    if (c.change > 0 || source.at_end()) {
      append(c.c, from.origin_before(at));
      continue;
    }
    append(c.c, from.origins_[at]);
    for (int32_t i = c.change; i <= 0 && !source.at_end(); ++i) source.next();
  }
}

}  // namespace millrace::tokenizer
