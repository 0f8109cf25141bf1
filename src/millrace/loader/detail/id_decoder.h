// SPDX-License-Identifier: Apache-2.0
#pragma once

// The decoder of token ids. A row holds the ids as uint32, and a bit beside each says whether it is learned.

#include <cstdint>
#include <memory>
#include <string>

#include "millrace/loader/detail/sample_decoder.h"

namespace millrace::loader {

// `field` of a sample holds the ids. Those from `id_limit` on are an error; 0: none is. decode() errors: corruption
// (other than the indexed number of ids, no such field, a damaged mask), invalid_argument (an id at or above the
// limit).
std::unique_ptr<SampleDecoder> make_id_decoder(std::string field, int64_t id_limit);

}  // namespace millrace::loader
