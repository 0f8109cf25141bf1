// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/steps/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "millrace/base/log.h"
#include "millrace/tokenizer/steps/normalizer.h"
#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {
namespace {

// SAFETY: uint8_t may alias any object.
const uint8_t* as_u8(const char* p) {
  return reinterpret_cast<const uint8_t*>(p);
}

uint8_t class_of(const uint8_t* p, const uint8_t* end) {
  return code_point_classes()[decode_code_point(p, end).value];
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && class_of(as_u8(text.data()), as_u8(text.data() + text.size())) & kWordFlag;
}

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  const uint8_t* end = as_u8(text.data() + text.size());
  return class_of(previous_character(as_u8(text.data()), end), end) & kWordFlag;
}

size_t white_space_at_start(std::string_view text) {
  const uint8_t* const begin = as_u8(text.data());
  const uint8_t* const end = begin + text.size();
  const uint8_t* p = begin;
  while (p < end && class_of(p, end) & kWhiteFlag) p += decode_code_point(p, end).size;
  return static_cast<size_t>(p - begin);
}

size_t without_white_space_at_end(std::string_view text) {
  const uint8_t* const begin = as_u8(text.data());
  const uint8_t* p = begin + text.size();
  while (p > begin) {
    const uint8_t* previous = previous_character(begin, p);
    if (!(class_of(previous, p) & kWhiteFlag)) break;
    p = previous;
  }
  return static_cast<size_t>(p - begin);
}

Result<std::string> normalized(std::string_view content, const Normalizer& normalizer) {
  AlignedText text;
  Normalizer::Scratch scratch;
  text.assign(content, 0, false);
  RETURN_IF_ERROR(normalizer.apply(text, scratch));
  return std::string(text.text());
}

}  // namespace

Result<AddedTokens> AddedTokens::build(std::span<const AddedTokenSpec> tokens, const Vocabulary& vocabulary,
                                       const Normalizer& normalizer) {
  AddedTokens result;
  std::map<uint32_t, const AddedTokenSpec*> by_id;  // what is added last under an id stands
  std::set<std::string, std::less<>> special;
  auto next_id = static_cast<uint32_t>(vocabulary.size());
  for (const AddedTokenSpec& token : tokens) {
    if (token.content.empty()) continue;
    if (token.special) special.insert(token.content);
    uint32_t id = vocabulary.find(token.content);
    if (const auto known = result.ids_.find(token.content); known != result.ids_.end()) id = known->second;
    if (id == kNoToken) {
      id = next_id++;
      ++result.beyond_vocabulary_;
    }
    if (id != token.id)
      log(LogLevel::kWarning,
          "tokenizer: the added token \"{}\" has the id {} in the file and is {}, as in `tokenizers`", token.content,
          token.id, id);
    result.ids_[token.content] = id;
    by_id[id] = &token;
  }
  if (!by_id.empty()) result.index_of_id_.assign(size_t{by_id.rbegin()->first} + 1, kNoToken);
  for (const auto& [id, token] : by_id) {
    std::string content = token->content;
    if (token->normalized) {
      ASSIGN_OR_RETURN(content, normalized(content, normalizer));
    }
    TokenMatcher& matcher = token->normalized ? result.normalized_ : result.raw_;
    if (content.empty() || !matcher.add(content, id, {token->single_word, token->lstrip, token->rstrip}))
      return fail(ErrorCode::kInvalidArgument, "added_tokens: \"{}\" is {} once it is normalized", token->content,
                  content.empty() ? "empty" : "another token");
    result.index_of_id_[id] = static_cast<uint32_t>(result.tokens_.size());
    const bool is_special = special.contains(content);
    result.tokens_.push_back({std::move(content), is_special});
  }
  return result;
}

uint32_t AddedTokens::find(std::string_view content) const {
  const auto found = ids_.find(std::string(content));
  return found == ids_.end() ? kNoToken : found->second;
}

void AddedTokens::split_raw(std::string_view text, std::vector<Piece>& pieces) const {
  raw_.split(text, {0, text.size(), kNoToken}, pieces);
}

void AddedTokens::split_normalized(std::string_view text, std::vector<Piece>& pieces) const {
  normalized_.split(text, {0, text.size(), kNoToken}, pieces);
}

void AddedTokens::split(std::string_view text, std::vector<Piece>& pieces) const {
  if (raw_.empty()) return split_normalized(text, pieces);
  if (normalized_.empty()) return split_raw(text, pieces);
  std::vector<Piece> first_pass;
  split_raw(text, first_pass);
  for (const Piece& piece : first_pass) {
    if (piece.id == kNoToken)
      normalized_.split(text, piece, pieces);
    else
      pieces.push_back(piece);
  }
}

bool TokenMatcher::add(std::string_view content, uint32_t id, Flags flags) {
  const auto start = static_cast<uint8_t>(content[0]);
  if (first_[start] == 0) {
    first_[start] = static_cast<uint32_t>(nodes_.size());
    nodes_.emplace_back();
    starts_ += content[0];
  }
  uint32_t at = first_[start];
  for (const char c : content.substr(1)) {
    const auto byte = static_cast<uint8_t>(c);
    auto& children = nodes_[at].children;
    const auto child = std::ranges::find(children, byte, [](const auto& edge) { return edge.first; });
    if (child != children.end()) {
      at = child->second;
      continue;
    }
    const auto fresh = static_cast<uint32_t>(nodes_.size());
    children.emplace_back(byte, fresh);
    nodes_.emplace_back();
    at = fresh;
  }
  if (nodes_[at].id != kNoToken) return false;
  nodes_[at].id = id;
  nodes_[at].flags = flags;
  return true;
}

size_t TokenMatcher::next_start(std::string_view text, size_t from) const {
  if (starts_.size() == 1) {
    const size_t found = text.find(starts_[0], from);
    return found == std::string_view::npos ? text.size() : found;
  }
#if defined(__SSE2__)
  if (starts_.size() <= kFewStarts) {
    // SAFETY: unaligned loads of 16 bytes that are there.
    for (; from + 16 <= text.size(); from += 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text.data() + from));
      __m128i found = _mm_setzero_si128();
      for (const char start : starts_) found = _mm_or_si128(found, _mm_cmpeq_epi8(bytes, _mm_set1_epi8(start)));
      if (const auto bits = static_cast<uint32_t>(_mm_movemask_epi8(found)))
        return from + static_cast<size_t>(__builtin_ctz(bits));
    }
  }
#endif
  while (from < text.size() && first_[static_cast<uint8_t>(text[from])] == 0) ++from;
  return from;
}

const TokenMatcher::Node* TokenMatcher::longest(std::string_view text, size_t at, size_t& end) const {
  const Node* found = nullptr;
  for (uint32_t next = first_[static_cast<uint8_t>(text[at])]; next != 0;) {
    const Node& node = nodes_[next];
    ++at;
    if (node.id != kNoToken) {
      found = &node;
      end = at;
    }
    if (at == text.size()) break;
    const auto byte = static_cast<uint8_t>(text[at]);
    const auto child = std::ranges::find(node.children, byte, [](const auto& edge) { return edge.first; });
    next = child == node.children.end() ? 0 : child->second;
  }
  return found;
}

bool TokenMatcher::finds_any(std::string_view text) const {
  size_t end = 0;
  if (empty()) return false;
  for (size_t at = next_start(text, 0); at < text.size(); at = next_start(text, at + 1))
    if (longest(text, at, end) != nullptr) return true;
  return false;
}

// The same steps in the same order as `tokenizers`' find_matches, for the strange cases too: a match that single_word
// refuses still hides what overlaps it, and white space that rstrip took can be the start of the next match.
void TokenMatcher::split(std::string_view text, Piece whole, std::vector<Piece>& pieces) const {
  const std::string_view sentence = text.substr(whole.begin, whole.end - whole.begin);
  const auto push = [&](size_t begin, size_t end, uint32_t id) {
    if (begin < end) pieces.push_back({whole.begin + begin, whole.begin + end, id});
  };
  if (empty()) return push(0, sentence.size(), kNoToken);
  size_t covered = 0;
  size_t end = 0;
  size_t white_end = 0;
  for (size_t at = next_start(sentence, 0); at < sentence.size(); at = next_start(sentence, at)) {
    const Node* match = longest(sentence, at, end);
    if (match == nullptr) {
      ++at;
      continue;
    }
    size_t start = at, stop = end;
    at = end;
    if (match->flags.single_word &&
        (ends_with_word(sentence.substr(0, start)) || starts_with_word(sentence.substr(stop))))
      continue;
    if (match->flags.lstrip)
      start =
          start <= covered ? covered : covered + without_white_space_at_end(sentence.substr(covered, start - covered));
    if (match->flags.rstrip) {
      // What the match before took is white up to its end: looking at it once keeps this linear.
      if (stop >= white_end) white_end = stop + white_space_at_start(sentence.substr(stop));
      stop = white_end;
    }
    push(covered, start, kNoToken);
    push(start, stop, match->id);
    covered = stop;
  }
  push(covered, sentence.size(), kNoToken);
}

}  // namespace millrace::tokenizer
