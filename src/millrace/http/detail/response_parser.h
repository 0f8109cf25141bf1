// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses the bytes of an answer by RFC 9112: heads, then a body that is counted, chunked, or ends with the connection.
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

  // Takes the next bytes, cut at any place. Returns false when the exchange has failed; see Exchange::failure().
  // REQUIRES: !done()
  bool take(std::string_view bytes);
  // Returns the memory into which the next bytes may be received directly, instead of take(); empty while they must be
  // parsed.
  std::span<std::byte> room() const;
  // Call when `size` bytes were received into room().
  void took_into_room(size_t size);
  // Call when the connection has ended. Returns false when it ended too early.
  bool take_end();

  bool began() const { return began_; }
  bool done() const { return part_ == Part::kDone; }
  // Once done(): whether another answer may follow on this connection.
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
  int64_t line_bytes_ = 0;    // bytes of trailers, which the exchange's limits do not cover
  std::string part_of_line_;  // the beginning of a line that is not complete yet
};

}  // namespace millrace::http
