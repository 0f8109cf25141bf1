// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/file/tokenizer_json_lists.h"

#include <simdjson.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "millrace/base/thread/sync.h"
#include "millrace/tokenizer/file/load_threads.h"

namespace millrace::tokenizer {
namespace {

using MergeTexts = MergesSpec::value_type;

// The character that a backslash and this one stand for; 0: an escape that is refused here, such as \u.
constexpr std::array<char, 256> kEscapes = [] {
  std::array<char, 256> escapes{};
  for (const auto& [character, meaning] :
       {std::pair{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', '\b'}, {'f', '\f'}, {'n', '\n'}, {'r', '\r'}, {'t', '\t'}})
    escapes[static_cast<uint8_t>(character)] = meaning;
  return escapes;
}();

// Reads values one after another. A function returns false when the text is not what tools write; the reader's position
// is then meaningless.
class ValueReader {
 public:
  ValueReader(std::string_view text, std::deque<std::string>& unescaped)
      : at_(text.data()), end_(text.data() + text.size()), unescaped_(unescaped) {}

  const char* at() const { return at_; }
  void go_to(const char* at) { at_ = at; }

  // Skips white space and returns the next character; 0 at the end.
  char next() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
    return at_ < end_ ? *at_ : '\0';
  }

  bool take(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }

  bool take_string(std::string_view& text) {
    if (!take('"')) return false;
    const char* const begin = at_;
    char c = stop();
    while (c == ' ') {
      ++at_;
      c = stop();
    }
    return c == '"' ? take_quote(begin, text) : take_escapes(begin, c, text);
  }

  // Reads one merge, "left right".
  bool take_merge(MergeTexts& merge) {
    if (!take('"')) return false;
    const char* const begin = at_;
    char c = stop();
    if (c == ' ') {
      merge.first = {begin, static_cast<size_t>(at_ - begin)};
      ++at_;
      c = stop();
      if (c == '"') return take_quote(merge.first.end() + 1, merge.second) && !merge.first.starts_with(kComment);
    }
    std::string_view text;
    if (!take_escapes(begin, c, text)) return false;
    const size_t space = text.find(' ');
    if (space == text.npos || text.find(' ', space + 1) != text.npos || text.starts_with(kComment)) return false;
    merge = {text.substr(0, space), text.substr(space + 1)};
    return true;
  }

  bool take_id(uint32_t& id) {
    const bool has_leading_zero = next() == '0';
    const char* const begin = at_;
    for (id = 0; at_ < end_ && *at_ >= '0' && *at_ <= '9' && at_ - begin <= kMostDigits; ++at_)
      id = id * 10 + static_cast<uint32_t>(*at_ - '0');
    const auto digits = at_ - begin;
    return digits > 0 && digits <= (has_leading_zero ? 1 : kMostDigits);
  }

  // Skips a value, up to the comma or bracket after it. Understands only its strings.
  bool skip_value() {
    for (size_t depth = 0;; ++at_) {
      const char c = next();
      if (c == '\0' || (depth == 0 && (c == ',' || c == '}' || c == ']'))) return c != '\0';
      depth += c == '{' || c == '[';
      depth -= c == '}' || c == ']';
      if (c != '"') continue;
      for (++at_; stop() != '"'; ++at_) {
        at_ += stop() == '\\';
        if (at_ >= end_) return false;
      }
    }
  }

 private:
  static constexpr std::string_view kComment = "#version";  // the start of old merge lists
  static constexpr ptrdiff_t kMostDigits = 9;

  // Goes to the next character that is not plain string content and returns it; 0 at the end.
  char stop() {
    for (; static_cast<size_t>(end_ - at_) >= kBlock; at_ += kBlock) {
      const size_t offset = find_stop(at_);
      if (offset == kBlock) continue;
      at_ += offset;
      return *at_;
    }
    for (; at_ < end_; ++at_)
      if (static_cast<uint8_t>(*at_) <= ' ' || *at_ == '"' || *at_ == '\\') return *at_;
    return '\0';
  }

  // The offset of such a character among the kBlock bytes at `text`, or kBlock.
#if defined(__SSE2__)
  static constexpr size_t kBlock = 16;
  static size_t find_stop(const char* text) {
    __m128i bytes;
    std::memcpy(&bytes, text, sizeof bytes);
    const __m128i space = _mm_set1_epi8(' '), quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\');
    const __m128i stops = _mm_or_si128(_mm_cmpeq_epi8(_mm_max_epu8(bytes, space), space),
                                       _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash)));
    return static_cast<size_t>(std::countr_zero(static_cast<uint32_t>(_mm_movemask_epi8(stops)) | 1u << kBlock));
  }
#else
  static constexpr size_t kBlock = 8;
  static size_t find_stop(const char* text) {
    constexpr uint64_t kOnes = ~uint64_t{0} / 0xFF, kHigh = kOnes << 7;
    // Sets the high bit of bytes below the limit, and perhaps of bytes after the first such byte.
    const auto below = [](uint64_t bytes, uint64_t limit) { return (bytes - kOnes * limit) & ~bytes & kHigh; };
    uint64_t bytes;
    std::memcpy(&bytes, text, sizeof bytes);
    const uint64_t stops =
        below(bytes, ' ' + 1) | below(bytes ^ kOnes * uint64_t{'"'}, 1) | below(bytes ^ kOnes * uint64_t{'\\'}, 1);
    return static_cast<size_t>(std::countr_zero(stops)) / 8;
  }
#endif

  // Takes the string that began at `begin`. The reader is at its closing quote.
  bool take_quote(const char* begin, std::string_view& text) {
    text = {begin, static_cast<size_t>(at_ - begin)};
    ++at_;
    return true;
  }

  // Takes a string with escapes that began at `begin`. The reader is at `c` within it.
  bool take_escapes(const char* begin, char c, std::string_view& text) {
    if (c != '\\') return false;
    std::string& out = unescaped_.emplace_back(begin, at_);
    while (c != '"') {
      if (c == '\\' && ++at_ < end_)
        c = kEscapes[static_cast<uint8_t>(*at_)];
      else if (c != ' ')
        return false;
      if (c == '\0') return false;
      out.push_back(c);
      const char* const from = ++at_;
      c = stop();
      out.append(from, at_);
    }
    ++at_;
    text = out;
    return true;
  }

  const char* at_;
  const char* const end_;
  std::deque<std::string>& unescaped_;
};

bool read_merges(ValueReader& values, MergesSpec& merges) {
  if (!values.take('[')) return false;
  const bool as_pairs = values.next() == '[';
  const auto read_pair = [&](MergeTexts& merge) {
    return values.take('[') && values.take_string(merge.first) && values.take(',') &&
           values.take_string(merge.second) && values.take(']');
  };
  do {
    MergeTexts& merge = merges.emplace_back();
    if (!(as_pairs ? read_pair(merge) : values.take_merge(merge))) return false;
  } while (values.take(','));
  return values.take(']');
}

// Reads the merges of a large file on a second thread, while the first reads the vocabulary before them. Their start is
// a guess, which end_of() compares with the real one.
class MergesAhead {
 public:
  MergesAhead(std::string_view json, LongLists& lists) : json_(json), lists_(lists) {
    if (load_threads(likely_count(json.size())) > 1) thread_ = Thread("mr-load", [this] { run(); });
  }

  // The end of the list that begins at `begin`; nullptr, and no merges, when the thread did not read that list to its
  // end.
  const char* end_of(const char* begin) {
    if (!thread_.joinable()) return nullptr;
    thread_.join();
    if (begin == begin_ && end_ != nullptr) return end_;
    lists_.merges.clear();
    return nullptr;
  }

 private:
  void run() {
    constexpr std::string_view kKey = "\"merges\"";
    for (size_t at = json_.size() / 4; (at = json_.find(kKey, at)) != json_.npos;) {
      at += kKey.size();
      ValueReader values(json_.substr(at), lists_.unescaped_merges);
      if (!values.take(':') || values.next() != '[') continue;
      begin_ = values.at();
      lists_.merges.reserve(likely_count(json_.size()));
      if (read_merges(values, lists_.merges)) end_ = values.at();
      return;
    }
  }

  const std::string_view json_;
  LongLists& lists_;
  const char* begin_ = nullptr;
  const char* end_ = nullptr;
  Thread thread_;  // writes lists_.merges and unescaped_merges until it is joined
};

class ListReader {
 public:
  ListReader(std::string_view json, LongLists& lists)
      : json_(json), lists_(lists), values_(json, lists.unescaped), copied_(json.data()), ahead_(json, lists) {}

  bool read() {
    const bool plain =
        read_fields([&](std::string_view key) { return key == "model" ? read_model() : values_.skip_value(); });
    if (!merges_came_) static_cast<void>(ahead_.end_of(nullptr));
    lists_.rest.append(copied_, json_.data() + json_.size());
    return plain && !lists_.vocab.empty();
  }

 private:
  // Reads an object; read_value(key) reads each value.
  template <class ReadValue>
  bool read_fields(const ReadValue& read_value) {
    if (!values_.take('{')) return false;
    do {
      std::string_view key;
      if (!values_.take_string(key) || !values_.take(':') || !read_value(key)) return false;
    } while (values_.take(','));
    return values_.take('}');
  }

  bool read_model() {
    return read_fields([&](std::string_view key) {
      if (key == "vocab") return cut_out("{}", [&] { return read_vocab(); });
      if (key == "merges") return cut_out("[]", [&] { return read_merges(); });
      return values_.skip_value();
    });
  }

  template <class Read>
  bool cut_out(std::string_view instead, const Read& read) {
    values_.next();
    const char* const begin = values_.at();
    lists_.rest.append(copied_, begin).append(instead);
    if (!read()) return false;
    copied_ = values_.at();
    return simdjson::validate_utf8(begin, static_cast<size_t>(copied_ - begin));
  }

  bool read_vocab() {
    if (!lists_.vocab.empty()) return false;
    lists_.vocab.reserve(likely_count(json_.size()));
    return read_fields([&](std::string_view token) {
      auto& entry = lists_.vocab.emplace_back(token, 0);
      return values_.take_id(entry.second);
    });
  }

  bool read_merges() {
    if (merges_came_) return false;
    merges_came_ = true;
    if (const char* const end = ahead_.end_of(values_.at())) {
      values_.go_to(end);
      return true;
    }
    lists_.merges.reserve(likely_count(json_.size()));
    return tokenizer::read_merges(values_, lists_.merges);
  }

  std::string_view json_;
  LongLists& lists_;
  ValueReader values_;
  const char* copied_;  // the text before this is in `rest`, without the two lists
  bool merges_came_ = false;
  MergesAhead ahead_;
};

}  // namespace

std::optional<LongLists> read_long_lists(std::string_view json) {
  LongLists lists;
  if (json.size() > std::numeric_limits<uint32_t>::max() || !ListReader(json, lists).read()) return std::nullopt;
  return lists;
}

}  // namespace millrace::tokenizer
