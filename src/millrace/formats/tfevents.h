// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes the records of TensorBoard's event files: Event protos with masked CRC-32C
// (tensorboard/compat/proto/event.proto). A file is the header record followed by events, each appended whole. Pure
// functions; thread-safe.

#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace millrace::formats {

// Returns the first record of a file. `time`: seconds since 1970.
std::string event_file_header(double time);
// Returns one record with values by tag.
std::string scalars_event(std::span<const std::pair<std::string, double>> values, double time, int64_t step);

}  // namespace millrace::formats
