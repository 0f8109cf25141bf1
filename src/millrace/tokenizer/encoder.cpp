// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "millrace/tokenizer/pipeline.h"
#include "millrace/tokenizer/post_process.h"
#include "millrace/tokenizer/word_cache.h"

namespace millrace::tokenizer {
namespace {

// Words between the finding of their ends and of their ids.
constexpr size_t kBatch = 256;
// Positions in a word are 32 bits wide.
constexpr size_t kWordLimit = (size_t{1} << 32) - 1;

}  // namespace

// Two ways lead to the same ids: the byte-level one where the file has that shape and nobody asks for offsets, and the
// general one, step by step as the file describes it.
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

  void encode_byte_level(Output& out);
  void encode_byte_level_piece(std::string_view piece, const char* readable_end, std::vector<uint32_t>& ids);
  void add_words(std::string_view piece, size_t begin, std::span<const size_t> ends, const char* readable_end,
                 std::vector<uint32_t>& ids);
  bool learn_words();
  void add_slow_word(std::string_view word, const WordKey& key, const WordCache::Slot* found,
                     std::vector<uint32_t>& ids);

  Status encode_general(Output& out);
  Status encode_piece(Piece piece, Output& out);
  Status encode_normalized(size_t begin, size_t end, Output& out);
  Status encode_words(Output& out);
  void add_offset(Offset offset, std::string_view token, Output& out) const;
  void add_around(const std::vector<uint32_t>& around, Output& out) const;

  std::shared_ptr<const Tokenizer> tokenizer;
  const Tokenizer::Impl& parts;
  std::vector<Piece> pieces;
  // Of the byte-level way
  std::optional<WordCache> cache;
  MergeScratch merge_scratch;
  std::vector<ByteBpe::Request> requests;  // words of a batch that the cache does not have
  std::vector<uint32_t> word_ids;          // of them
  std::string prefixed;                    // a piece with the space that add_prefix_space put before it
  // Of the general way
  AlignedText normalized;
  Normalizer::Scratch normalizer_scratch;
  std::vector<Piece> normalized_pieces;
  CutText cut;
  Cutter::Scratch cutter_scratch;
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
    impl_->encode_byte_level(out);
  else
    RETURN_IF_ERROR(impl_->encode_general(out));
  if (options.add_special_tokens) impl_->add_around(post.after, out);
  return {};
}

void Encoder::Impl::add_around(const std::vector<uint32_t>& around, Output& out) const {
  out.ids.insert(out.ids.end(), around.begin(), around.end());
  if (out.offsets != nullptr) out.offsets->resize(out.offsets->size() + around.size());
}

// ---- the byte-level way

void Encoder::Impl::encode_byte_level(Output& out) {
  if (!cache) cache.emplace();
  pieces.clear();
  parts.added_tokens.split(out.text, pieces);
  for (const Piece& piece : pieces) {
    if (piece.id != kNoToken) {
      out.ids.push_back(piece.id);
      continue;
    }
    const std::string_view source = out.text.substr(piece.begin, piece.end - piece.begin);
    if (parts.byte_level->add_prefix_space && source[0] != ' ') {
      prefixed.assign(1, ' ').append(source);
      encode_byte_level_piece(prefixed, prefixed.data() + prefixed.size(), out.ids);
    } else {
      encode_byte_level_piece(source, out.text.data() + out.text.size(), out.ids);
    }
  }
}

void Encoder::Impl::encode_byte_level_piece(std::string_view piece, const char* readable_end,
                                            std::vector<uint32_t>& ids) {
  std::array<size_t, kBatch> ends;
  size_t begin = 0;
  while (const size_t count = parts.byte_level->words.next_words(piece, begin, ends)) {
    add_words(piece, begin, std::span(ends).first(count), readable_end, ids);
    begin = ends[count - 1];
  }
}

// First the places of all words in the cache, so that memory brings them while the others are computed; then the words
// that are not there; then the ids, of which nearly all words have at most kInlineIds: these are written without asking
// how many they are.
void Encoder::Impl::add_words(std::string_view piece, size_t begin, std::span<const size_t> ends,
                              const char* readable_end, std::vector<uint32_t>& ids) {
  constexpr uint32_t kInlineIds = WordCache::kInlineIds;
  std::array<WordKey, kBatch> keys;
  std::array<const WordCache::Slot*, kBatch> buckets;
  std::array<uint32_t, kBatch * kInlineIds> written;
  size_t from = begin;
  for (size_t i = 0; i < ends.size(); ++i) {
    keys[i] = WordKey::of(piece.substr(from, ends[i] - from), readable_end);
    buckets[i] = cache->bucket(keys[i]);
    from = ends[i];
  }
  requests.clear();
  from = begin;
  for (size_t i = 0; i < ends.size(); ++i) {
    if (WordCache::find(buckets[i], keys[i]) == nullptr)
      requests.push_back({piece.substr(from, ends[i] - from), keys[i]});
    from = ends[i];
  }
  if (!requests.empty() && learn_words())
    for (size_t i = 0; i < ends.size(); ++i) buckets[i] = cache->bucket(keys[i]);
  from = begin;
  size_t count = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    const WordCache::Slot* const found = WordCache::find(buckets[i], keys[i]);
    if (found != nullptr && found->count <= kInlineIds) {
      std::memcpy(&written[count], found->ids, sizeof(found->ids));
      count += found->count;
    } else {
      ids.insert(ids.end(), written.begin(), written.begin() + static_cast<ptrdiff_t>(count));
      count = 0;
      add_slow_word(piece.substr(from, ends[i] - from), keys[i], found, ids);
    }
    from = ends[i];
  }
  ids.insert(ids.end(), written.begin(), written.begin() + static_cast<ptrdiff_t>(count));
}

// Puts the words of `requests` into the cache. True when it has grown, and its buckets are elsewhere.
bool Encoder::Impl::learn_words() {
  const size_t old_buckets = cache->bucket_count();
  word_ids.clear();
  parts.byte_level->model.encode_words(requests, merge_scratch, word_ids);
  for (const ByteBpe::Request& request : requests) {
    // A word that the batch has twice is here twice.
    if (WordCache::find(cache->bucket(request.key), request.key) != nullptr) continue;
    cache->insert(request.key, request.word, std::span(word_ids).subspan(request.first, request.count));
  }
  return cache->bucket_count() != old_buckets;
}

// A word that has many ids or is long, or that others have driven out of the cache.
void Encoder::Impl::add_slow_word(std::string_view word, const WordKey& key, const WordCache::Slot* found,
                                  std::vector<uint32_t>& ids) {
  std::span<const uint32_t> known;
  if (found != nullptr && cache->stored_ids(*found, word, known)) {
    ids.insert(ids.end(), known.begin(), known.end());
  } else {
    parts.byte_level->model.encode_word(word, key, merge_scratch, ids);
  }
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
  const bool tracked = out.offsets != nullptr || parts.cutter.needs_origins();
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
  RETURN_IF_ERROR(parts.cutter.apply(cut, cutter_scratch));
  return encode_words(out);
}

Status Encoder::Impl::encode_words(Output& out) {
  for (const Word& place : cut.words) {
    const std::string_view word = cut.text.text().substr(place.begin, place.end - place.begin);
    if (word.size() > kWordLimit)
      return fail(ErrorCode::kUnsupported, "a word of {} bytes is not supported", word.size());
    tokens.clear();
    RETURN_IF_ERROR(parts.model->encode_word(word, model_scratch, tokens));
    for (const ModelToken& token : tokens) {
      out.ids.push_back(token.id);
      if (out.offsets == nullptr) continue;
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
