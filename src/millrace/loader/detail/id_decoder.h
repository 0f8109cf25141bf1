// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decodes token ids. A row holds the ids as uint32, and a bit for each id says whether it is learned.

#include <cstdint>
#include <memory>
#include <string>

#include "millrace/loader/detail/sample_decoder.h"

namespace millrace::loader {

// Makes the decoder. `field`: the field of a sample that holds the ids. `id_limit`: all ids must be lower; 0: no
// limit. Errors of decode(): corruption (a number of ids that differs from the index, no such field, a damaged mask),
// invalid_argument (an id at or above the limit).
std::unique_ptr<SampleDecoder> make_id_decoder(std::string field, int64_t id_limit);

}  // namespace millrace::loader
