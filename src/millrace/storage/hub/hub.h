// SPDX-License-Identifier: Apache-2.0
#pragma once

// Repositories of the Hugging Face Hub, or of a server that speaks its interface, for reading. Thread-safe; usable
// after fork. docs/hub.md, docs/design/storage.md.
//
//  - The first request resolves the revision (a branch, a tag, a commit) to a commit; everything is read from it. A
//    process resolves a revision once: a branch that moves later is not followed.
//  - A key is the path of a file in the repository. A version is the Hub's hash of the content: the SHA-256 of a large
//    file (Git LFS, Xet), Git's SHA-1 of any other. So a version also proves the content of a copy (checksum()).
//  - A read of a whole file of at most 8 MiB is checked against its version; a copy checks files of any size.
//  - Large files come from the host to which the Hub redirects. Only the endpoint gets the token.
//  - A recursive listing holds all paths below its folder in memory (about 200 bytes each) and sorts them, because the
//    Hub promises no order.
//  - remove and all writes answer unsupported.

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/http/http.h"
#include "millrace/storage/storage.h"
#include "millrace/storage/web/retry.h"

namespace millrace {

struct HubRepo {
  enum class Kind { kModel, kDataset, kSpace };
  Kind kind = Kind::kModel;
  std::string id;  // "org/name"
  bool operator==(const HubRepo&) const = default;

  std::string url() const;             // "hf://datasets/org/name"
  std::string_view kind_name() const;  // "dataset"
};

struct HubOptions : web::RetryPolicy {
  std::string endpoint = "https://huggingface.co";  // without '/' at its end
  std::string token;                                // a secret: never in messages, sent only to the endpoint
  std::string token_from;                           // the variable or file that contained it
  http::ClientOptions client{.max_connections = 32};

  // Reads HF_ENDPOINT, HF_TOKEN, HUGGING_FACE_HUB_TOKEN, HF_TOKEN_PATH, HF_HOME, XDG_CACHE_HOME,
  // HF_HUB_DISABLE_IMPLICIT_TOKEN and HF_HUB_OFFLINE. The timeout is set by RetryPolicy::set_timeout. Errors:
  // invalid_argument; unsupported (HF_HUB_OFFLINE forbids requests).
  [[nodiscard]] static Result<HubOptions> from(const UrlOptions& options);
};

// The parts of hf://[datasets/|spaces/]org/name[@revision][/path].
struct HubUrl {
  HubRepo repo;
  std::string revision;  // empty: main. "%2F" is '/'; refs/pr/N and refs/convert/NAME need no encoding
  std::string path;      // without '/' at its ends; empty: the root
};
// Parses `rest`, the text after "hf://". Errors: invalid_argument.
[[nodiscard]] Result<HubUrl> parse_hub_url(std::string_view rest);

struct HubCommit {
  std::string id;                                              // 40 hexadecimal digits
  std::chrono::sys_time<std::chrono::nanoseconds> modified{};  // zero if the Hub does not tell it
};

struct HubRef {
  std::string name;  // "main", "v3.0"
  std::string commit;
  bool is_tag = false;
};

class HubStorage : public Storage {
 public:
  virtual const HubRepo& repo() const = 0;
  virtual const HubOptions& options() const = 0;
  // Returns the commit that everything is read from. Errors: not_found (also for a private repository; names what
  // exists instead, if known), permission_denied, unavailable, timeout, cancelled.
  [[nodiscard]] virtual Result<HubCommit> commit() = 0;
  // Sets the commit without asking the Hub. REQUIRES: nothing was read or listed yet.
  virtual void pin(const HubCommit& commit) = 0;
  // Returns the branches and tags. Errors: those of commit().
  [[nodiscard]] virtual Result<std::vector<HubRef>> refs() = 0;
  // Returns the ids of repositories of this kind and organisation with similar names, the nearest first. Empty if the
  // Hub tells none.
  virtual std::vector<std::string> similar_repos(size_t most) const = 0;
};

// Opens a repository without a request. `revision` empty: main. Errors: invalid_argument (an endpoint that is no URL,
// a bad name).
[[nodiscard]] Result<std::shared_ptr<HubStorage>> open_hub_storage(const HubRepo& repo, const std::string& revision,
                                                                   const HubOptions& options,
                                                                   std::stop_token stop = {});

}  // namespace millrace
