// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/episode_pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "millrace/formats/detail/raw_bytes.h"

namespace millrace::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are used as they lie in the file");

// Version 1, as docs/format/episode_pack.md draws it.
constexpr std::string_view kHeadMagic = "MLREPISO", kFootMagic = "MLREPEND";
constexpr uint32_t kPackVersion = 1;
constexpr size_t kHeadBytes = 64, kFootBytes = 64, kPackAlignment = 64;
// A window of a few rows checks one block or two: 64 KiB take 5 us, and the hashes 1/8192 of the file.
constexpr size_t kPackBlock = 64 << 10;

template <class T>
T pack_value(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

size_t aligned(size_t at) {
  return (at + kPackAlignment - 1) / kPackAlignment * kPackAlignment;
}

void put_strings(std::string& out, std::span<const std::string> strings) {
  put(out, uint64_t{strings.size()});
  uint64_t end = 0;
  for (const std::string& each : strings) put(out, end += each.size());
  for (const std::string& each : strings) out += each;
}

// Takes an index apart from its front. Its hash was right, so that what does not fit was written wrongly.
class IndexReader {
 public:
  explicit IndexReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool take(uint64_t& value) {
    if (rest_.size() < sizeof value) return false;
    value = pack_value<uint64_t>(rest_, 0);
    rest_ = rest_.subspan(sizeof value);
    return true;
  }
  bool take(std::vector<uint64_t>& values, uint64_t count) {
    if (count > rest_.size() / 8) return false;
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), rest_.data(), count * 8);
    rest_ = rest_.subspan(count * 8);
    return true;
  }
  bool take(std::vector<std::string>& strings) {
    uint64_t count = 0, before = 0;
    std::vector<uint64_t> ends;
    if (!take(count) || !take(ends, count)) return false;
    if (!std::ranges::is_sorted(ends) || (count > 0 && ends.back() > rest_.size())) return false;
    for (const uint64_t end : ends) {
      strings.emplace_back(as_text(rest_.subspan(before, end - before)));
      before = end;
    }
    rest_ = rest_.subspan(before);
    return true;
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace

EpisodePackWriter::EpisodePackWriter(ByteSink& out, EpisodeColumns columns, Hash128 identity)
    : out_(out),
      columns_(std::move(columns)),
      identity_(identity),
      codes_of_(columns_.texts.size()),
      codes_(columns_.texts.size()) {
  head_ = kHeadMagic;
  put(head_, kPackVersion);
  put(head_, static_cast<uint32_t>(columns_.number_bytes()));
  put(head_, uint64_t{columns_.numbers.size()});
  put(head_, identity_.high);
  put(head_, identity_.low);
  head_.resize(kHeadBytes, '\0');
}

Status EpisodePackWriter::write(std::string_view bytes) {
  RETURN_IF_ERROR(out_.append(as_bytes(bytes)));
  written_ += bytes.size();
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, kPackBlock - block_.size());
    if (part.size() == kPackBlock) {
      hashes_.push_back(xxh3_64(part));
    } else if (block_ += part; block_.size() == kPackBlock) {
      hashes_.push_back(xxh3_64(block_));
      block_.clear();
    }
    bytes.remove_prefix(part.size());
  }
  return {};
}

Status EpisodePackWriter::add(std::string_view name, int64_t rows, std::span<const std::byte> numbers,
                              std::span<const CsvTexts> texts) {
  if (written_ == 0) RETURN_IF_ERROR(write(head_));
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      auto& codes = codes_of_[i];
      const auto [found, _] = codes.try_emplace(std::string(texts[i][row]), static_cast<uint32_t>(codes.size()));
      if (codes.size() > std::numeric_limits<uint32_t>::max()) {
        return fail(ErrorCode::kInvalidArgument, "column {} has more than {} distinct texts", columns_.texts[i],
                    std::numeric_limits<uint32_t>::max());
      }
      codes_[i].push_back(found->second);
    }
  }
  names_.emplace_back(name);
  first_rows_.push_back(first_rows_.back() + static_cast<uint64_t>(rows));
  return write(as_text(numbers));
}

Status EpisodePackWriter::finish() {
  if (written_ == 0) RETURN_IF_ERROR(write(head_));
  RETURN_IF_ERROR(write(std::string(aligned(written_) - written_, '\0')));
  for (const auto& codes : codes_) RETURN_IF_ERROR(write(as_text(std::as_bytes(std::span(codes)))));
  RETURN_IF_ERROR(write(std::string(aligned(written_) - written_, '\0')));
  if (!block_.empty()) hashes_.push_back(xxh3_64(block_));
  std::string index;
  for (const uint64_t hash : hashes_) put(index, hash);
  put(index, uint64_t{names_.size()});
  for (const uint64_t row : first_rows_) put(index, row);
  put_strings(index, names_);
  put_strings(index, columns_.numbers);
  put_strings(index, columns_.texts);
  for (const auto& codes : codes_of_) {
    std::vector<std::string> distinct(codes.size());
    for (const auto& [text, code] : codes) distinct[code] = text;
    put_strings(index, distinct);
  }
  const Hash128 hash = xxh3_128(index);
  std::string foot;
  put(foot, written_);
  put(foot, uint64_t{index.size()});
  put(foot, hash.high);
  put(foot, hash.low);
  foot.resize(kFootBytes - 16, '\0');
  put(foot, xxh3_64(foot));
  foot += kFootMagic;
  RETURN_IF_ERROR(out_.append(as_bytes(index)));
  RETURN_IF_ERROR(out_.append(as_bytes(foot)));
  written_ += index.size() + foot.size();
  return {};
}

Result<Hash128> episode_pack_identity(const RandomReader& file) {
  std::array<std::byte, kHeadBytes> head{};
  const bool fits = file.size() >= static_cast<int64_t>(head.size());
  if (fits) RETURN_IF_ERROR(file.read_at(0, head));
  if (!as_text(head).starts_with(kHeadMagic)) {
    return fail(ErrorCode::kCorruption, "{}: it does not begin as packed episodes do", file.name());
  }
  return Hash128{pack_value<uint64_t>(head, 24), pack_value<uint64_t>(head, 32)};
}

Result<std::unique_ptr<EpisodePack>> EpisodePack::parse(std::span<const std::byte> file, std::string source) {
  const auto bad = [&](std::string_view why) { return fail(ErrorCode::kCorruption, "{}: {}", source, why); };
  if (!as_text(file).starts_with(kHeadMagic)) return bad("it does not begin as packed episodes do");
  if (file.size() < kHeadBytes + kFootBytes) return bad("it is cut: not even head and foot fit into it");
  if (const auto version = pack_value<uint32_t>(file, 8); version != kPackVersion) {
    return fail(ErrorCode::kUnsupported,
                "{}: version {} of packed episodes; this build reads version {}, and a newer Millrace reads it", source,
                version, kPackVersion);
  }
  const auto foot = file.last(kFootBytes);
  if (!as_text(foot).ends_with(kFootMagic)) return bad("it is cut: its foot is missing");
  const size_t sealed = kFootBytes - 16, foot_at = file.size() - kFootBytes;
  if (xxh3_64(foot.first(sealed)) != pack_value<uint64_t>(foot, sealed)) return bad("its foot is damaged");
  const auto index_at = pack_value<uint64_t>(foot, 0), index_bytes = pack_value<uint64_t>(foot, 8);
  if (index_at < kHeadBytes || index_at > foot_at || index_bytes != foot_at - index_at)
    return bad("its foot is damaged");
  const auto index = file.subspan(index_at, index_bytes);
  if (xxh3_128(index) != Hash128{pack_value<uint64_t>(foot, 16), pack_value<uint64_t>(foot, 24)}) {
    return bad("its index is damaged");
  }
  std::unique_ptr<EpisodePack> pack(new EpisodePack);
  pack->file_ = file;
  pack->index_at_ = index_at;
  pack->identity_ = {pack_value<uint64_t>(file, 24), pack_value<uint64_t>(file, 32)};
  pack->source_ = std::move(source);
  RETURN_IF_ERROR(pack->read_index(index));
  return pack;
}

Status EpisodePack::read_index(std::span<const std::byte> index) {
  const auto bad = fail(ErrorCode::kCorruption, "{}: its index does not fit its numbers", source_);
  const size_t blocks = (index_at_ + kPackBlock - 1) / kPackBlock;
  IndexReader reader(index);
  uint64_t episodes = 0;
  if (!reader.take(hashes_, blocks) || !reader.take(episodes) || episodes >= index.size()) return bad;
  if (!reader.take(first_rows_, episodes + 1) || !reader.take(names_) || !reader.take(columns_.numbers) ||
      !reader.take(columns_.texts)) {
    return bad;
  }
  distinct_.resize(columns_.texts.size());
  for (auto& distinct : distinct_) {
    if (!reader.take(distinct)) return bad;
  }
  checked_ = std::make_unique<std::atomic<uint64_t>[]>(blocks / 64 + 1);
  RETURN_IF_ERROR(check_bytes(0, kHeadBytes));
  const auto number_bytes = pack_value<uint32_t>(file_, 12);
  columns_.is_float64 = number_bytes == 8;
  const uint64_t rows = first_rows_.back();
  const bool fits = reader.at_end() && names_.size() == episodes && std::ranges::is_sorted(first_rows_) &&
                    first_rows_.front() == 0 && (number_bytes == 4 || number_bytes == 8) &&
                    pack_value<uint64_t>(file_, 16) == columns_.numbers.size();
  // In steps, so that no product is larger than the file.
  const size_t row_bytes = columns_.row_bytes(), code_bytes = 4 * columns_.texts.size();
  if (!fits || (row_bytes > 0 && rows > index_at_ / row_bytes) || (code_bytes > 0 && rows > index_at_ / code_bytes)) {
    return bad;
  }
  codes_at_ = aligned(kHeadBytes + rows * row_bytes);
  if (aligned(codes_at_ + rows * code_bytes) != index_at_) return bad;
  numbers_ = file_.subspan(kHeadBytes, rows * row_bytes);
  return {};
}

Status EpisodePack::check_bytes(size_t begin, size_t end) const {
  for (size_t block = begin / kPackBlock; block * kPackBlock < end; ++block) {
    std::atomic<uint64_t>& word = checked_[block / 64];
    const uint64_t bit = uint64_t{1} << block % 64;
    if ((word.load(std::memory_order_relaxed) & bit) != 0) continue;
    const size_t at = block * kPackBlock;
    if (xxh3_64(file_.subspan(at, std::min(kPackBlock, index_at_ - at))) != hashes_[block]) {
      return fail(ErrorCode::kCorruption, "{}: bytes [{}, {}) are damaged: make the file again", source_, at,
                  std::min(at + kPackBlock, index_at_));
    }
    word.fetch_or(bit, std::memory_order_relaxed);
  }
  return {};
}

Status EpisodePack::check_rows(int64_t begin, int64_t end) const {
  const size_t row_bytes = columns_.row_bytes();
  if (begin == end || row_bytes == 0) return {};
  return check_bytes(kHeadBytes + static_cast<size_t>(begin) * row_bytes,
                     kHeadBytes + static_cast<size_t>(end) * row_bytes);
}

Result<CsvTexts> EpisodePack::texts(size_t column, int64_t begin, int64_t end) const {
  const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
  const size_t at = codes_at_ + 4 * (column * first_rows_.back() + first);
  RETURN_IF_ERROR(check_bytes(at, at + 4 * count));
  CsvTexts texts;
  for (size_t i = 0; i < count; ++i) {
    const auto code = pack_value<uint32_t>(file_, at + 4 * i);
    if (code >= distinct_[column].size()) {
      return fail(ErrorCode::kCorruption, "{}: row {} of column {} has no text", source_, first + i,
                  columns_.texts[column]);
    }
    texts.bytes += distinct_[column][code];
    texts.ends.push_back(texts.bytes.size());
  }
  return texts;
}

}  // namespace millrace::formats
