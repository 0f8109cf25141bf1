// SPDX-License-Identifier: Apache-2.0
#pragma once

// Repositories of the Hugging Face Hub, or of a server that speaks its interface, for reading. Thread-safe; usable
// after fork. docs/hub.md, docs/design/storage.md.
//
//  - The first request resolves the revision (a branch, a tag, a commit) to a commit; everything is read from it. A
//    process resolves a revision once: a branch that moves later is not followed.
//  - A key is the path of a file in the repository. A version is what the Hub knows of the content: the SHA-256 of a
//    large file (Git LFS, Xet), Git's SHA-1 of any other. So it also proves what a copy holds (checksum()).
//  - A read of a whole file of at most 8 MiB is checked against it; a copy checks files of any size.
//  - Large files come from where the Hub redirects to. Only the endpoint gets the token.
//  - A recursive listing holds all paths below its folder in memory (some 200 bytes each) and sorts them, because the
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
  std::string token;                                // a secret: in no message, and sent to the endpoint alone
  std::string token_from;                           // the variable or file that it came from
  http::ClientOptions client{.max_connections = 32};

  // From HF_ENDPOINT, HF_TOKEN, HUGGING_FACE_HUB_TOKEN, HF_TOKEN_PATH, HF_HOME, XDG_CACHE_HOME,
  // HF_HUB_DISABLE_IMPLICIT_TOKEN and HF_HUB_OFFLINE; the timeout as RetryPolicy::set_timeout. Errors:
  // invalid_argument; unsupported (HF_HUB_OFFLINE forbids requests).
  [[nodiscard]] static Result<HubOptions> from(const UrlOptions& options);
};

// The parts of hf://[datasets/|spaces/]org/name[@revision][/path].
struct HubUrl {
  HubRepo repo;
  std::string revision;  // empty: main. "%2F" is '/'; refs/pr/N and refs/convert/NAME need no encoding
  std::string path;      // without '/' at its ends; empty: the root
};
// Errors: invalid_argument. `rest` is what follows "hf://".
[[nodiscard]] Result<HubUrl> parse_hub_url(std::string_view rest);

struct HubCommit {
  std::string id;                                              // 40 hexadecimal digits
  std::chrono::sys_time<std::chrono::nanoseconds> modified{};  // zero where the Hub does not tell it
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
  // The commit that everything is read from. Errors: not_found (also of a private repository, naming what is there
  // instead where that can be told), permission_denied, unavailable, timeout, cancelled.
  [[nodiscard]] virtual Result<HubCommit> commit() = 0;
  // Makes it `commit`, without asking the Hub. REQUIRES: nothing was read or listed yet.
  virtual void pin(const HubCommit& commit) = 0;
  // Branches and tags. Errors: as above.
  [[nodiscard]] virtual Result<std::vector<HubRef>> refs() = 0;
  // Ids of repositories of this kind and organisation whose names are like this one's, the nearest first. Empty where
  // the Hub tells none.
  virtual std::vector<std::string> similar_repos(size_t most) const = 0;
};

// No request is made. `revision` empty: main. Errors: invalid_argument (an endpoint that is no URL, a bad name).
[[nodiscard]] Result<std::shared_ptr<HubStorage>> open_hub_storage(const HubRepo& repo, const std::string& revision,
                                                                   const HubOptions& options,
                                                                   std::stop_token stop = {});

}  // namespace millrace
