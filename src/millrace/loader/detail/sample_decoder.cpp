// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/sample_decoder.h"

#include "millrace/loader/detail/id_decoder.h"
#include "millrace/loader/detail/record.h"

namespace millrace::loader {

std::unique_ptr<SampleDecoder> make_decoder(const LoaderOptions& options, const order::SampleSource& source) {
  if (options.has_fields()) return make_record_decoder(*options.fields);
  return make_id_decoder(std::string(source.token_ids().value_or(order::TokenIds()).field), options.vocab_size);
}

}  // namespace millrace::loader
