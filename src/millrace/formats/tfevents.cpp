// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/tfevents.h"

#include <cstring>
#include <string_view>

#include "millrace/base/hash/crc32c.h"

namespace millrace::formats {

namespace {

void put_varint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

template <class T>
void put_fixed(T value, std::string& out) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);  // x86-64 and aarch64 are little-endian, as the format is
  out.append(bytes, sizeof value);
}

void put_text(char tag, std::string_view text, std::string& out) {
  out += tag;
  put_varint(text.size(), out);
  out += text;
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

void put_record(std::string_view event, std::string& out) {
  std::string length;
  put_fixed(static_cast<uint64_t>(event.size()), length);
  out += length;
  put_fixed(masked_crc(length), out);
  out += event;
  put_fixed(masked_crc(event), out);
}

}  // namespace

// Tags are field number and wire type: Event {1 double wall_time, 2 int64 step, 3 string file_version, 5 Summary},
// Summary {1 Value}, Value {1 string tag, 2 float simple_value}.
std::string event_file_header(double time) {
  std::string event, record;
  event += '\x09';
  put_fixed(time, event);
  put_text('\x1a', "brain.Event:2", event);
  put_record(event, record);
  return record;
}

std::string scalars_event(std::span<const std::pair<std::string, double>> values, double time, int64_t step) {
  std::string summary, event, record;
  for (const auto& [tag, number] : values) {
    std::string value;
    put_text('\x0a', tag, value);
    value += '\x15';
    put_fixed(static_cast<float>(number), value);
    put_text('\x0a', value, summary);
  }
  event += '\x09';
  put_fixed(time, event);
  event += '\x10';
  put_varint(static_cast<uint64_t>(step), event);
  put_text('\x2a', summary, event);
  put_record(event, record);
  return record;
}

}  // namespace millrace::formats
