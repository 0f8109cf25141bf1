// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "millrace/tokenizer/byte_map.h"
#include "millrace/tokenizer/pipeline.h"
#include "millrace/tokenizer/post_process.h"
#include "millrace/tokenizer/unicode_tables.h"
#include "millrace/tokenizer/word_cache.h"

namespace millrace::tokenizer {

struct Encoder::Impl {
  explicit Impl(std::shared_ptr<const Tokenizer> of) : tokenizer(std::move(of)), parts(*tokenizer->impl_) {}

  // One call of encode: where its results go.
  struct Output {
    std::string_view text;
    std::vector<uint32_t>& ids;
    std::vector<Offset>* offsets;
    size_t first_offset;  // index in `offsets` of the text's own first token
  };

  void encode_piece(Piece piece, Output& out);
  void add_word(std::string_view word, const char* readable_end, std::vector<uint32_t>& ids);
  void add_word_offsets(Piece piece, std::string_view source, size_t begin, size_t first_id, Output& out);
  void add_offset(Offset offset, Margins margins, Output& out) const;
  void add_around(const std::vector<uint32_t>& around, Output& out) const;

  std::shared_ptr<const Tokenizer> tokenizer;
  const Tokenizer::Impl& parts;
  WordCache cache;
  Bpe::Scratch scratch;
  std::vector<Piece> pieces;
  std::vector<uint32_t> word_ids;
  std::string prefixed;  // a piece with the space that add_prefix_space put before it
};

Encoder::Encoder(std::shared_ptr<const Tokenizer> tokenizer) : impl_(std::make_unique<Impl>(std::move(tokenizer))) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

void Encoder::encode(std::string_view text, const EncodeOptions& options, std::vector<uint32_t>& ids,
                     std::vector<Offset>* offsets) {
  const PostProcessorSpec& post = impl_->parts.post_processor;
  Impl::Output out{text, ids, offsets, 0};
  if (options.add_special_tokens) impl_->add_around(post.before, out);
  if (offsets != nullptr) out.first_offset = offsets->size();
  impl_->pieces.clear();
  impl_->parts.added_tokens.split(text, impl_->pieces);
  for (const Piece& piece : impl_->pieces) {
    if (piece.id == kNoToken) {
      impl_->encode_piece(piece, out);
      continue;
    }
    ids.push_back(piece.id);
    if (offsets != nullptr) {
      const Margins margins = margins_of_text(text.substr(piece.begin, piece.end - piece.begin));
      impl_->add_offset({static_cast<int64_t>(piece.begin), static_cast<int64_t>(piece.end)}, margins, out);
    }
  }
  if (options.add_special_tokens) impl_->add_around(post.after, out);
}

void Encoder::Impl::add_around(const std::vector<uint32_t>& around, Output& out) const {
  out.ids.insert(out.ids.end(), around.begin(), around.end());
  if (out.offsets != nullptr) out.offsets->resize(out.offsets->size() + around.size());
}

void Encoder::Impl::encode_piece(Piece piece, Output& out) {
  std::string_view source = out.text.substr(piece.begin, piece.end - piece.begin);
  const char* readable_end = out.text.data() + out.text.size();
  if (parts.add_prefix_space && source[0] != ' ') {
    prefixed.assign(1, ' ').append(source);
    source = prefixed;
    readable_end = source.data() + source.size();
  }
  std::array<size_t, 512> ends;
  size_t begin = 0;
  while (const size_t count = parts.pretokenizer.next_words(source, begin, ends)) {
    for (size_t i = 0; i < count; ++i) {
      const size_t first_id = out.ids.size();
      add_word(source.substr(begin, ends[i] - begin), readable_end, out.ids);
      if (out.offsets != nullptr) add_word_offsets(piece, source, begin, first_id, out);
      begin = ends[i];
    }
  }
}

inline void Encoder::Impl::add_word(std::string_view word, const char* readable_end, std::vector<uint32_t>& ids) {
  const WordKey key = WordKey::of(word, readable_end);
  std::span<const uint32_t> known;
  if (!cache.find(key, word, known)) {
    word_ids.clear();
    parts.model.encode_word(word, scratch, word_ids);
    cache.insert(key, word, word_ids);
    known = word_ids;
  }
  if (known.size() == 1)
    ids.push_back(known[0]);
  else
    ids.insert(ids.end(), known.begin(), known.end());
}

// `tokenizers` lays the tokens of a word side by side over its spelling, which is not over the same bytes when some
// vanished, and widens each to whole characters. `source` is the piece, perhaps behind a space that is not in the text
// and shares the offset of the first character.
void Encoder::Impl::add_word_offsets(Piece piece, std::string_view source, size_t begin, size_t first_id, Output& out) {
  const size_t added = source.size() - (piece.end - piece.begin);
  // SAFETY: uint8_t may alias any object.
  const auto text = reinterpret_cast<const uint8_t*>(out.text.data());
  const uint8_t* const piece_begin = text + piece.begin;
  const auto character_at = [&](size_t i) {
    return i < added ? piece_begin : previous_character(piece_begin, piece_begin + (i - added) + 1);
  };
  size_t at = begin;
  int64_t taken = 0;  // spelled bytes of source[at] that belong to the token before
  for (size_t i = first_id; i < out.ids.size(); ++i) {
    const std::string_view bytes = parts.model.vocabulary().bytes(out.ids[i]);
    const uint8_t* const first = character_at(at);
    size_t last = at;
    int64_t left = 0;
    for (const char b : bytes) left += spelled_size(static_cast<uint8_t>(b));
    while (left > 0) {
      const int64_t available = spelled_size(static_cast<uint8_t>(source[at])) - taken;
      last = at;
      if (left < available)
        taken += left;
      else
        ++at, taken = 0;
      left -= available;
    }
    const uint8_t* const final = character_at(last);
    const size_t final_size = decode_code_point(final, text + piece.end).size;
    add_offset({first - text, final - text + static_cast<int64_t>(final_size)}, margins_of_bytes(bytes), out);
  }
}

void Encoder::Impl::add_offset(Offset offset, Margins margins, Output& out) const {
  const bool is_first = out.offsets->size() == out.first_offset;
  out.offsets->push_back(trim_offset(out.text, offset, margins, is_first, parts.post_processor.trims));
}

}  // namespace millrace::tokenizer
