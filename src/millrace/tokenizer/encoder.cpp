// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "millrace/tokenizer/fast/cached_words.h"
#include "millrace/tokenizer/fast/character_words.h"
#include "millrace/tokenizer/pipeline.h"
#include "millrace/tokenizer/steps/post_process.h"

namespace millrace::tokenizer {
namespace {

// Positions in a word are 32 bits wide.
constexpr size_t kWordLimit = (size_t{1} << 32) - 1;

tl::unexpected<Error> too_long(std::string_view word) {
  return fail(ErrorCode::kUnsupported, "a word of {} bytes is not supported", word.size());
}

// Appends the ids of the pieces that are added tokens, and what `encode(piece, its text)` appends for the others.
template <class Encode>
Status add_pieces(std::span<const Piece> pieces, std::string_view text, std::vector<uint32_t>& ids,
                  const Encode& encode) {
  for (const Piece& piece : pieces) {
    if (piece.id != kNoToken)
      ids.push_back(piece.id);
    else
      RETURN_IF_ERROR(encode(piece, text.substr(piece.begin, piece.end - piece.begin)));
  }
  return {};
}

}  // namespace

// Three ways lead to the same ids. Where nobody asks for offsets, words are looked up in a cache: words of bytes or
// units of text where the file has the shape, else what the steps of the file, one by one, make of the text.
struct Encoder::Impl {
  explicit Impl(std::shared_ptr<const Tokenizer> of) : tokenizer(std::move(of)), parts(*tokenizer->impl_) {}

  // One call of encode: where its results go.
  struct Output {
    std::string_view text;
    std::vector<uint32_t>& ids;
    std::vector<Offset>* offsets;
    bool with_special;
    size_t first_offset = 0;  // index in `offsets` of the text's own first token
  };

  Status split_normalized(std::string_view piece);

  struct ByteWords;
  Status encode_byte_level(Output& out);
  Status encode_normalized_bytes(std::string_view piece, std::vector<uint32_t>& ids);
  Status encode_byte_level_piece(std::string_view piece, const char* readable_end, std::vector<uint32_t>& ids);

  struct Units;
  Status encode_units(Output& out);
  Status encode_units_piece(std::string_view piece, size_t place, UnitPath::Start start, const char* readable_end,
                            std::vector<uint32_t>& ids);
  Status encode_normalized_units(std::string_view piece, std::vector<uint32_t>& ids);
  Status encode_first_unit(std::string_view unit, size_t place, UnitPath::Start start, std::vector<uint32_t>& ids);
  Status encode_unit(std::string_view unit, std::vector<uint32_t>& ids);
  bool is_plain_word(std::string_view unit) {
    return parts.units->plain->is_word(unit, parts.normalizer, plain_scratch);
  }
  Status encode_whole(std::string_view unit, int64_t base, bool tracked, std::vector<uint32_t>& ids);
  Status add_words(std::string_view text, std::span<const Word> places, std::vector<uint32_t>& ids);

  Status encode_general(Output& out);
  Status encode_piece(Piece piece, Output& out);
  Status encode_normalized(size_t begin, size_t end, Output& out);
  struct ModelWords;
  Status encode_cached_words(WordModel& model, std::vector<uint32_t>& ids);
  Status encode_words(Output& out);
  void add_offset(Offset offset, std::string_view token, Output& out) const;
  void add_around(const std::vector<uint32_t>& around, Output& out) const;

  std::shared_ptr<const Tokenizer> tokenizer;
  const Tokenizer::Impl& parts;
  std::vector<Piece> pieces;
  std::optional<CachedWords> words;  // of each way without offsets
  // For the fast paths.
  MergeScratch merge_scratch;
  std::string prefixed;  // a piece or unit with the space that the file puts before it
  PlainWords::Scratch plain_scratch;
  std::optional<CharacterWords> character_words;
  // For the general path.
  AlignedText normalized;
  Normalizer::Scratch normalizer_scratch;
  std::vector<Piece> normalized_pieces;
  CutText cut;
  PreTokenizer::Scratch pre_tokenizer_scratch;
  Model::Scratch model_scratch;
  std::vector<ModelToken> tokens;
};

Encoder::Encoder(std::shared_ptr<const Tokenizer> tokenizer) : impl_(std::make_unique<Impl>(std::move(tokenizer))) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

Status Encoder::encode(std::string_view text, const EncodeOptions& options, std::vector<uint32_t>& ids,
                       std::vector<Offset>* offsets) {
  const PostProcessorSpec& post = impl_->parts.post_processor;
  Impl::Output out{text, ids, offsets, options.add_special_tokens};
  if (options.add_special_tokens) impl_->add_around(post.before, out);
  if (offsets != nullptr) out.first_offset = offsets->size();
  if (impl_->parts.byte_level && offsets == nullptr)
    RETURN_IF_ERROR(impl_->encode_byte_level(out));
  else if (impl_->parts.units && offsets == nullptr && text.size() <= kWordLimit)
    RETURN_IF_ERROR(impl_->encode_units(out));
  else
    RETURN_IF_ERROR(impl_->encode_general(out));
  if (options.add_special_tokens) impl_->add_around(post.after, out);
  return {};
}

void Encoder::Impl::add_around(const std::vector<uint32_t>& around, Output& out) const {
  out.ids.insert(out.ids.end(), around.begin(), around.end());
  if (out.offsets != nullptr) out.offsets->resize(out.offsets->size() + around.size());
}

// Normalizes a piece of raw text and splits it at the added tokens of the second pass; without offsets.
Status Encoder::Impl::split_normalized(std::string_view piece) {
  normalized.assign(piece, 0, false);
  RETURN_IF_ERROR(parts.normalizer.apply(normalized, normalizer_scratch));
  normalized_pieces.clear();
  parts.added_tokens.split_normalized(normalized.text(), normalized_pieces);
  return {};
}

// ---- the byte-level way

struct Encoder::Impl::ByteWords : WordModel {
  explicit ByteWords(Impl& i) : impl(i) {}
  Status encode_words(std::span<WordRequest> requests, std::vector<uint32_t>& ids) override {
    impl.parts.byte_level->model.encode_words(requests, impl.merge_scratch, ids);
    return {};
  }
  Impl& impl;
};

Status Encoder::Impl::encode_byte_level(Output& out) {
  if (!words) words.emplace(*parts.shared_words);
  const char* const readable_end = out.text.data() + out.text.size();
  const bool normalizes = !parts.normalizer.empty();
  pieces.clear();
  if (normalizes)
    parts.added_tokens.split_raw(out.text, pieces);
  else
    parts.added_tokens.split(out.text, pieces);
  return add_pieces(pieces, out.text, out.ids, [&](const Piece&, std::string_view text) {
    return normalizes ? encode_normalized_bytes(text, out.ids) : encode_byte_level_piece(text, readable_end, out.ids);
  });
}

Status Encoder::Impl::encode_normalized_bytes(std::string_view piece, std::vector<uint32_t>& ids) {
  RETURN_IF_ERROR(split_normalized(piece));
  const std::string_view text = normalized.text();
  return add_pieces(normalized_pieces, text, ids, [&](const Piece&, std::string_view part) {
    return encode_byte_level_piece(part, text.data() + text.size(), ids);
  });
}

Status Encoder::Impl::encode_byte_level_piece(std::string_view piece, const char* readable_end,
                                              std::vector<uint32_t>& ids) {
  if (parts.byte_level->add_prefix_space && piece[0] != ' ') {
    prefixed.assign(1, ' ').append(piece);
    piece = prefixed;
    readable_end = prefixed.data() + prefixed.size();
  }
  ByteWords model(*this);
  if (const auto* pre_tokenizer = std::get_if<PreTokenizer>(&parts.byte_level->words)) {
    cut.text.assign(piece, 0, false);
    cut.words.assign(1, {0, piece.size()});
    RETURN_IF_ERROR(pre_tokenizer->apply(cut, pre_tokenizer_scratch));
    return encode_cached_words(model, ids);
  }
  // Words lie side by side: each begins where the one before it ends.
  std::array<size_t, CachedWords::kBatch + 1> bounds;
  size_t* const ends = bounds.data() + 1;
  WordScannerChain::Cursor cursor(std::get<WordScannerChain>(parts.byte_level->words), piece);
  bounds[0] = 0;
  while (const size_t count = cursor.next({ends, CachedWords::kBatch})) {
    RETURN_IF_ERROR(words->add({piece.data(), bounds.data(), ends, count, readable_end}, model, ids));
    bounds[0] = bounds[count];
  }
  return {};
}

// ---- the units way

struct Encoder::Impl::Units : WordModel {
  explicit Units(Impl& i) : impl(i) {}
  Status encode_words(std::span<WordRequest> requests, std::vector<uint32_t>& ids) override {
    if (const auto& bpe = impl.parts.units->bpe) {
      bpe->encode_words(requests, impl.merge_scratch, ids);
      return {};
    }
    const WordPiece* const word_piece = impl.parts.units->pieces;
    for (WordRequest& request : requests) {
      const size_t first = ids.size();
      if (word_piece != nullptr && word_piece->takes(request.word) && impl.is_plain_word(request.word))
        word_piece->encode_short(request.word, ids);
      else
        RETURN_IF_ERROR(impl.encode_unit(request.word, ids));
      request.first = static_cast<uint32_t>(first);
      request.count = static_cast<uint32_t>(ids.size() - first);
    }
    return {};
  }
  Impl& impl;
};

Status Encoder::Impl::encode_units(Output& out) {
  const UnitPath& path = *parts.units;
  if (!words) {
    if (path.pieces != nullptr) character_words.emplace(*path.pieces, *path.plain, parts.normalizer);
    words.emplace(*parts.shared_words, character_words ? &*character_words : nullptr);
  }
  const char* const readable_end = out.text.data() + out.text.size();
  pieces.clear();
  if (parts.normalizer.empty())
    parts.added_tokens.split(out.text, pieces);
  else
    parts.added_tokens.split_raw(out.text, pieces);
  return add_pieces(pieces, out.text, out.ids, [&](const Piece& piece, std::string_view text) {
    return path.may_have_added_token(text) ? encode_normalized_units(text, out.ids)
                                           : encode_units_piece(text, piece.begin, path.start, readable_end, out.ids);
  });
}

// Units are the same in text that is already normalized, since normalizing is idempotent.
Status Encoder::Impl::encode_normalized_units(std::string_view piece, std::vector<uint32_t>& ids) {
  RETURN_IF_ERROR(split_normalized(piece));
  const std::string_view text = normalized.text();
  return add_pieces(normalized_pieces, text, ids, [&](const Piece& part, std::string_view source) {
    return encode_units_piece(source, part.begin, UnitPath::Start::kNothing, text.data() + text.size(), ids);
  });
}

// `place`: where the piece begins in the text.
Status Encoder::Impl::encode_units_piece(std::string_view piece, size_t place, UnitPath::Start start,
                                         const char* readable_end, std::vector<uint32_t>& ids) {
  std::array<CachedWords::Bounds, CachedWords::kBatch> units;
  Units model(*this);
  const UnitScanner& scanner = parts.units->scanner;
  size_t begin = 0;
  if (start != UnitPath::Start::kNothing) {
    scanner.next_units(piece, 0, std::span(units).first(1));
    begin = units[0].end;
    RETURN_IF_ERROR(encode_first_unit(piece.substr(0, begin), place, start, ids));
  }
  while (const size_t count = scanner.next_units(piece, begin, units)) {
    RETURN_IF_ERROR(words->add(piece, std::span(units).first(count), readable_end, model, ids));
    begin = units[count - 1].end;
  }
  return {};
}

Status Encoder::Impl::encode_first_unit(std::string_view unit, size_t place, UnitPath::Start start,
                                        std::vector<uint32_t>& ids) {
  using Start = UnitPath::Start;
  if (start == Start::kGeneral)
    return encode_whole(unit, static_cast<int64_t>(place), parts.pre_tokenizer.needs_origins(), ids);
  const bool is_there = unit[0] == ' ' || unit.starts_with(kMetaSymbol);
  const bool is_put = start == Start::kSpace || (!is_there && (start == Start::kSpaceUnlessThere || place == 0));
  prefixed.assign(is_put ? " " : "").append(unit);
  Units model(*this);
  const size_t begin = 0, end = prefixed.size();
  return words->add({prefixed.data(), &begin, &end, 1, prefixed.data() + end}, model, ids);
}

Status Encoder::Impl::encode_unit(std::string_view unit, std::vector<uint32_t>& ids) {
  const auto& plain = parts.units->plain;
  if (plain && plain->cut(unit, parts.normalizer, plain_scratch))
    return add_words(plain_scratch.text, plain_scratch.words, ids);
  // A Metaspace that asks for the begin of the text sees the space at the begin of the unit before that.
  return encode_whole(unit, 0, false, ids);
}

// The general way for a text without added tokens and offsets.
Status Encoder::Impl::encode_whole(std::string_view unit, int64_t base, bool tracked, std::vector<uint32_t>& ids) {
  cut.text.assign(unit, base, tracked);
  RETURN_IF_ERROR(parts.normalizer.apply(cut.text, normalizer_scratch));
  if (cut.text.text().empty()) return {};
  cut.words.assign(1, {0, cut.text.text().size()});
  RETURN_IF_ERROR(parts.pre_tokenizer.apply(cut, pre_tokenizer_scratch));
  return add_words(cut.text.text(), cut.words, ids);
}

Status Encoder::Impl::add_words(std::string_view text, std::span<const Word> places, std::vector<uint32_t>& ids) {
  for (const Word& place : places) {
    tokens.clear();
    const std::string_view word = text.substr(place.begin, place.end - place.begin);
    if (word.size() > kWordLimit) return too_long(word);
    RETURN_IF_ERROR(parts.model->encode_word(word, model_scratch, tokens));
    for (const ModelToken& token : tokens) ids.push_back(token.id);
  }
  return {};
}

// ---- the general way

Status Encoder::Impl::encode_general(Output& out) {
  pieces.clear();
  parts.added_tokens.split_raw(out.text, pieces);
  for (const Piece& piece : pieces) {
    if (piece.id == kNoToken) {
      RETURN_IF_ERROR(encode_piece(piece, out));
      continue;
    }
    out.ids.push_back(piece.id);
    add_offset({static_cast<int64_t>(piece.begin), static_cast<int64_t>(piece.end)},
               out.text.substr(piece.begin, piece.end - piece.begin), out);
  }
  return {};
}

Status Encoder::Impl::encode_piece(Piece piece, Output& out) {
  const bool tracked = out.offsets != nullptr || parts.pre_tokenizer.needs_origins();
  normalized.assign(out.text.substr(piece.begin, piece.end - piece.begin), static_cast<int64_t>(piece.begin), tracked);
  RETURN_IF_ERROR(parts.normalizer.apply(normalized, normalizer_scratch));
  normalized_pieces.clear();
  parts.added_tokens.split_normalized(normalized.text(), normalized_pieces);
  for (const Piece& part : normalized_pieces) {
    if (part.id == kNoToken) {
      RETURN_IF_ERROR(encode_normalized(part.begin, part.end, out));
      continue;
    }
    out.ids.push_back(part.id);
    if (out.offsets != nullptr)
      add_offset(normalized.origin(part.begin, part.end), normalized.text().substr(part.begin, part.end - part.begin),
                 out);
  }
  return {};
}

Status Encoder::Impl::encode_normalized(size_t begin, size_t end, Output& out) {
  cut.text.clear(normalized.base(), normalized.tracked());
  cut.text.append(normalized, begin, end);
  cut.words.assign(1, {0, end - begin});
  RETURN_IF_ERROR(parts.pre_tokenizer.apply(cut, pre_tokenizer_scratch));
  return encode_words(out);
}

struct Encoder::Impl::ModelWords : WordModel {
  explicit ModelWords(Impl& i) : impl(i) {}
  Status encode_words(std::span<WordRequest> requests, std::vector<uint32_t>& ids) override {
    for (WordRequest& request : requests) {
      const size_t first = ids.size();
      if (request.word.size() > kWordLimit) return too_long(request.word);
      impl.tokens.clear();
      RETURN_IF_ERROR(impl.parts.model->encode_word(request.word, impl.model_scratch, impl.tokens));
      for (const ModelToken& token : impl.tokens) ids.push_back(token.id);
      request.first = static_cast<uint32_t>(first);
      request.count = static_cast<uint32_t>(ids.size() - first);
    }
    return {};
  }
  Impl& impl;
};

// The words of `cut` through the cache, where nobody asks for offsets.
Status Encoder::Impl::encode_cached_words(WordModel& model, std::vector<uint32_t>& ids) {
  if (!words) words.emplace(*parts.shared_words);
  const std::string_view text = cut.text.text();
  std::array<size_t, CachedWords::kBatch> begins, ends;
  for (size_t at = 0; at < cut.words.size();) {
    const size_t count = std::min(cut.words.size() - at, CachedWords::kBatch);
    for (size_t i = 0; i < count; ++i) {
      begins[i] = cut.words[at + i].begin;
      ends[i] = cut.words[at + i].end;
    }
    RETURN_IF_ERROR(
        words->add({text.data(), begins.data(), ends.data(), count, text.data() + text.size()}, model, ids));
    at += count;
  }
  return {};
}

Status Encoder::Impl::encode_words(Output& out) {
  // A cache of units has other ids: text that is too long for the units way is not looked up in it.
  if (out.offsets == nullptr && !parts.units) {
    ModelWords model(*this);
    return encode_cached_words(model, out.ids);
  }
  for (const Word& place : cut.words) {
    const std::string_view word = cut.text.text().substr(place.begin, place.end - place.begin);
    if (word.size() > kWordLimit) return too_long(word);
    tokens.clear();
    RETURN_IF_ERROR(parts.model->encode_word(word, model_scratch, tokens));
    for (const ModelToken& token : tokens) {
      out.ids.push_back(token.id);
      // Tokens of characters that are longer than the word's own have no place in it: `tokenizers` says what the model
      // said.
      const Offset offset = token.end > word.size() || token.begin >= token.end
                                ? Offset{token.begin, token.end}
                                : cut.text.origin(place.begin + token.begin, place.begin + token.end);
      add_offset(offset, parts.model->text_of(token, word), out);
    }
  }
  return {};
}

void Encoder::Impl::add_offset(Offset offset, std::string_view token, Output& out) const {
  if (out.offsets == nullptr) return;
  const bool is_first = out.offsets->size() == out.first_offset;
  const auto& trims = parts.post_processor.trims;
  if (!trims.empty()) offset = trim_offset(out.text, offset, margins_of(token), is_first, out.with_special, trims);
  out.offsets->push_back(offset);
}

}  // namespace millrace::tokenizer
