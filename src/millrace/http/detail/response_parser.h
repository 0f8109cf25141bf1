// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses the bytes of an answer by RFC 9112: heads, then a body that is counted, chunked, or as long as the connection.
// Does not know connections. Belongs to one thread at a time.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "millrace/http/detail/exchange.h"

namespace millrace::http {

class ResponseParser {
 public:
  // The exchange must not move while the parser is in use.
  explicit ResponseParser(Exchange& exchange) : exchange_(&exchange) {}

  // The next bytes, cut anywhere. False: the exchange has failed, see Exchange::failure(). REQUIRES: !done()
  bool take(std::string_view bytes);
  // Where the next bytes may be received directly, instead of take(); empty while they must be parsed.
  std::span<std::byte> room() const;
  // `size` bytes were received into room().
  void took_into_room(size_t size);
  // The connection ends here. False: too early.
  bool take_end();

  bool began() const { return began_; }
  bool done() const { return part_ == Part::kDone; }
  // Once done(): whether another answer may come behind this one.
  bool keeps_connection() const { return keeps_connection_; }

 private:
  enum class Part { kStatus, kHeaders, kCounted, kUntilEnd, kChunkSize, kChunk, kChunkEnd, kTrailers, kDone };

  bool take_beginning(std::string_view bytes);
  bool take_line(std::string_view line);
  bool end_head();
  bool begin_body(Part part, int64_t announced_bytes);
  bool take_chunk_size(std::string_view line);
  bool refuse(std::string_view text);

  Exchange* exchange_;
  Part part_ = Part::kStatus;
  bool began_ = false;
  bool keeps_connection_ = true;
  int64_t left_ = 0;          // bytes to come of the counted body, or of the chunk
  int64_t line_bytes_ = 0;    // of trailers, which the exchange's limits do not cover
  std::string part_of_line_;  // the beginning of a line whose end has not come
};

}  // namespace millrace::http
