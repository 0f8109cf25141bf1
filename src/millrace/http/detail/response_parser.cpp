// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/detail/response_parser.h"

#include <algorithm>
#include <optional>

#include "millrace/base/text/strings.h"
#include "millrace/http/numbers.h"

namespace millrace::http {
namespace {

// Bounds on the memory that a hostile server can take: far above S3's heads, which stay below 16 KiB in all.
constexpr size_t kLineLimitBytes = 256 << 10;
constexpr int64_t kTrailerLimitBytes = 1 << 20;

// Calls `take` for each item of "4, gzip, 4". Stops, and gives false, when `take` gives false.
template <class Take>
bool for_each_item(std::string_view list, const Take& take) {
  for (;;) {
    const size_t comma = std::min(list.find(','), list.size());
    if (!take(trimmed(list.substr(0, comma), " \t"))) return false;
    if (comma == list.size()) return true;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace

bool ResponseParser::refuse(std::string_view text) {
  return exchange_->give_up(ErrorCode::kUnavailable, text);
}

// Refuses at once an answer that does not begin as HTTP/1: its first line may never end.
bool ResponseParser::take_beginning(std::string_view bytes) {
  constexpr std::string_view kBegin = "HTTP/1.";
  std::string seen = part_of_line_.substr(0, kBegin.size());
  seen += bytes.substr(0, kBegin.size() - seen.size());
  if (kBegin.starts_with(seen)) return true;
  const bool is_alert = seen.starts_with("\x15\x03");                           // RFC 8446, 5.1
  const bool is_frame = seen.size() > 3 && seen[0] == '\0' && seen[3] == '\4';  // SETTINGS, RFC 9113, 4.1
  if (seen.size() < 4 && (seen[0] == '\0' || seen == "\x15")) return true;      // may become an alert or a frame
  return exchange_->give_up(ErrorCode::kUnsupported,
                            is_alert   ? "the server speaks TLS at this port: its URL begins with https://"
                            : is_frame ? "the server speaks HTTP/2 only"
                                       : "the answer is not HTTP/1.1");
}

bool ResponseParser::take(std::string_view bytes) {
  began_ |= !bytes.empty();
  while (!bytes.empty()) {
    switch (part_) {
      case Part::kDone:  // bytes behind the answer
        keeps_connection_ = false;
        return true;
      case Part::kUntilEnd:
        return exchange_->take_body(bytes);
      case Part::kCounted:
      case Part::kChunk: {
        const auto size = static_cast<size_t>(std::min(std::ssize(bytes), left_));
        if (!exchange_->take_body(bytes.substr(0, size))) return false;
        bytes.remove_prefix(size);
        left_ -= static_cast<int64_t>(size);
        if (left_ == 0) part_ = part_ == Part::kCounted ? Part::kDone : Part::kChunkEnd;
        break;
      }
      default: {
        if (part_ == Part::kStatus && !take_beginning(bytes)) return false;
        const size_t end = bytes.find('\n');
        if (part_of_line_.size() + std::min(end, bytes.size()) > kLineLimitBytes) {
          return exchange_->give_up(ErrorCode::kResourceExhausted,
                                    fmt::format("a line of more than {} bytes", kLineLimitBytes));
        }
        if (end == bytes.npos) {
          part_of_line_ += bytes;
          return true;
        }
        std::string_view line = bytes.substr(0, end);
        if (!part_of_line_.empty()) line = part_of_line_ += line;
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (!take_line(line)) return false;
        part_of_line_.clear();
        bytes.remove_prefix(end + 1);
      }
    }
  }
  return true;
}

bool ResponseParser::take_line(std::string_view line) {
  switch (part_) {
    case Part::kStatus:
      part_ = Part::kHeaders;
      keeps_connection_ = !line.starts_with("HTTP/1.0");
      return exchange_->take_status(line);
    case Part::kHeaders:
      return line.empty() ? end_head() : exchange_->take_header(line);
    case Part::kChunkSize:
      return take_chunk_size(line);
    case Part::kChunkEnd:
      part_ = Part::kChunkSize;
      return line.empty() || refuse("a chunk is longer than it says");
    default:  // trailers must not replace headers
      line_bytes_ += std::ssize(line);
      if (line_bytes_ > kTrailerLimitBytes) return refuse("trailers without end");
      if (line.empty()) part_ = Part::kDone;
      return true;
  }
}

// Finds the length of the body, by RFC 9112, 6.3.
bool ResponseParser::end_head() {
  const Response& answer = exchange_->response();
  if (answer.status < 200) {
    part_ = Part::kStatus;
    return answer.status != 101 || refuse("the server switches to another protocol");
  }
  std::optional<int64_t> length;
  bool is_chunked = false, is_fine = true;
  for (const auto& [name, value] : answer.headers) {
    if (name == "content-length") {
      is_fine &= for_each_item(value, [&](std::string_view item) {
        const auto number = whole_number<int64_t>(item);
        const bool is_same = number && length.value_or(*number) == *number;
        length = number;
        return is_same;
      });
    } else if (name == "transfer-encoding") {
      is_chunked = equal_ignoring_case(value, "chunked");
      is_fine &= is_chunked;
    } else if (name == "connection") {
      for_each_item(value, [&](std::string_view item) {
        keeps_connection_ &= !equal_ignoring_case(item, "close");
        return true;
      });
    }
  }
  if (!is_fine) return refuse("the answer's head does not tell the length of its body");
  if (exchange_->request().method == Method::kHead || answer.status == 204 || answer.status == 304)
    return begin_body(Part::kDone, 0);
  if (is_chunked) {  // the chunks count; a length beside them may be a smuggling attempt
    keeps_connection_ &= !length;
    return begin_body(Part::kChunkSize, -1);
  }
  if (length) {
    left_ = *length;
    return begin_body(left_ > 0 ? Part::kCounted : Part::kDone, left_);
  }
  keeps_connection_ = false;
  return begin_body(Part::kUntilEnd, -1);
}

bool ResponseParser::begin_body(Part part, int64_t announced_bytes) {
  part_ = part;
  return exchange_->begin_body(announced_bytes);
}

bool ResponseParser::take_chunk_size(std::string_view line) {
  line = line.substr(0, line.find(';'));
  line = line.substr(0, line.find_last_not_of(" \t") + 1);
  const auto size = whole_number<int64_t>(line, 16);
  if (!size) return refuse("a chunk without its size");
  left_ = *size;
  part_ = left_ > 0 ? Part::kChunk : Part::kTrailers;
  return true;
}

std::span<std::byte> ResponseParser::room() const {
  if (part_ == Part::kCounted) {
    const auto room = exchange_->room();
    return room.first(std::min(room.size(), static_cast<size_t>(left_)));
  }
  return {};
}

void ResponseParser::took_into_room(size_t size) {
  exchange_->took_into_room(size);
  left_ -= static_cast<int64_t>(size);
  if (left_ == 0) part_ = Part::kDone;
}

bool ResponseParser::take_end() {
  keeps_connection_ = false;
  if (part_ == Part::kUntilEnd) {
    part_ = Part::kDone;
    return true;
  }
  if (!began_) return refuse("the connection was closed before an answer came");
  return refuse(fmt::format("the answer was cut after {}", exchange_->progress()));
}

}  // namespace millrace::http
