// SPDX-License-Identifier: Apache-2.0
#pragma once

// A folder that gets its final name once it is complete. A killed run leaves TARGET.partial, and the next run of the
// same work continues there. Private to this room. Thread-safe, except finish().

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/storage/url.h"

namespace millrace::lerobot {

class PartialFolder {
 public:
  // Opens TARGET.partial. `identity` names the work: equal identities make equal files. Errors: already_exists (the
  // target exists, or TARGET.partial holds other work), those of writing.
  [[nodiscard]] static Result<std::unique_ptr<PartialFolder>> open(const std::string& target,
                                                                   const std::string& identity);

  using Make = std::function<Result<std::vector<std::byte>>()>;
  // Writes the bytes that `make` returns, unless the file exists. A file exists either whole or not at all. Returns
  // true if this call wrote the file. Errors: those of `make` and of writing.
  [[nodiscard]] Result<bool> put(const std::string& path, const Make& make);
  bool has(const std::string& path) const;

  // Makes all files durable and gives the folder its name. Errors: already_exists, those of the storage.
  [[nodiscard]] Status finish();

  bool is_new() const { return is_new_; }  // whether no earlier run began the folder
  const Location& root() const { return root_; }

 private:
  std::string target_, partial_;
  Location root_;
  bool is_new_ = false;
  Mutex mutex_;
  std::vector<std::string> written_ GUARDED_BY(mutex_);  // keys
};

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

}  // namespace millrace::lerobot
