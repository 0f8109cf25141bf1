// SPDX-License-Identifier: Apache-2.0
#pragma once

// The Python class Tokenizer, for the modules that take one.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/python/errors.h"
#include "millrace/python/str_view.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::python {

// A Tokenizer and the encoders for the threads that call it. Encoders are kept, so that their word caches stay warm.
class PyTokenizer {
 public:
  // `source` is the file as the user named it, `place` its absolute path.
  PyTokenizer(std::shared_ptr<const tokenizer::Tokenizer> tokenizer, std::string source, std::string place)
      : tokenizer_(std::move(tokenizer)), source_(std::move(source)), place_(std::move(place)) {}

  const tokenizer::Tokenizer& get() const { return *tokenizer_; }
  const std::shared_ptr<const tokenizer::Tokenizer>& shared() const { return tokenizer_; }
  const std::string& source() const { return source_; }
  const std::string& place() const { return place_; }

  // Calls use(encoder), which may fail.
  template <class Use>
  [[nodiscard]] Status with_encoder(Use&& use) {
    std::unique_ptr<tokenizer::Encoder> encoder;
    {
      MutexLock lock(mutex_);
      if (!idle_.empty()) {
        encoder = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (!encoder) encoder = std::make_unique<tokenizer::Encoder>(tokenizer_);
    const Status status = use(*encoder);
    MutexLock lock(mutex_);
    idle_.push_back(std::move(encoder));
    return status;
  }

 private:
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::string source_, place_;
  Mutex mutex_;
  std::vector<std::unique_ptr<tokenizer::Encoder>> idle_ GUARDED_BY(mutex_);
};

}  // namespace millrace::python
