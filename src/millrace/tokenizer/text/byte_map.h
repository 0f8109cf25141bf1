// SPDX-License-Identifier: Apache-2.0
#pragma once

// The byte-level alphabet: how GPT-2 style files spell a token's bytes as printable characters. Bytes 33-126, 161-172
// and 174-255 stand for themselves; the other 68, ascending, are U+0100, U+0101, ... (a space is U+0120, "Ġ").
// Thread-safe.

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::tokenizer {

// Appends the bytes that `spelled` stands for. False, with `out` as it was, when a character is not of the alphabet.
bool append_bytes_of(std::string_view spelled, std::string& out);

// The same, written from `out` on, where there is room for spelled.size() bytes: the end of what is written, or
// nullptr.
char* write_bytes_of(std::string_view spelled, char* out);

// Appends the spelling of `bytes`.
void append_spelling_of(std::string_view bytes, std::string& out);

// The character that spells `byte`.
uint32_t spelled_character(uint8_t byte);

}  // namespace millrace::tokenizer
