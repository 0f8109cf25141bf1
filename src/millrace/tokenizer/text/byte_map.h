// SPDX-License-Identifier: Apache-2.0
#pragma once

// The byte-level alphabet, in which GPT-2 style files spell a token's bytes as printable characters. Bytes 33-126,
// 161-172 and 174-255 are spelled by the characters with the same number; the other 68, ascending, by U+0100, U+0101,
// ... (a space is U+0120, "Ġ"). Thread-safe.

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::tokenizer {

// Appends the bytes that `spelled` spells. Returns false and leaves `out` unchanged if a character is not in the
// alphabet.
bool append_bytes_of(std::string_view spelled, std::string& out);

// Writes these bytes to `out`, which has room for spelled.size() bytes. Returns the end of the written bytes, or
// nullptr.
char* write_bytes_of(std::string_view spelled, char* out);

// Appends the spelling of `bytes`.
void append_spelling_of(std::string_view bytes, std::string& out);

// Returns the character that spells `byte`.
uint32_t spelled_character(uint8_t byte);

}  // namespace millrace::tokenizer
