// SPDX-License-Identifier: Apache-2.0
#pragma once

// The Hub's HTTP interface: its URLs, and the meaning of its answers and errors. The functions that take a Client
// block. Thread-safe. The interface is the one that huggingface_hub uses. tests/services/hub_server.py implements it
// and is tested against that package.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/storage/hub/detail/client.h"
#include "millrace/storage/hub/hub.h"

namespace millrace::hub {

// A repository as seen through a client; `name` is for messages.
struct RepoView {
  Client& client;
  HubRepo repo;
  std::string name;  // "hf://datasets/org/name@v3.0"
  std::stop_token stop;
};

struct TreeEntry {
  std::string path;  // from the root of the repository; a folder ends in '/'
  int64_t size = 0;
  std::string version;  // see HubStorage
  std::chrono::sys_time<std::chrono::nanoseconds> modified{};
};

// Returns the URL of a file's content at a commit.
std::string file_url(const RepoView& view, std::string_view commit, std::string_view path);
// Returns the files below a folder if `recursive`; else the entries of the folder itself, with the times of changes.
// Sorted by path. `folder` has no '/' at its end. A missing folder is empty. Errors: those of Client::fetch; not_found
// (repository, commit), permission_denied, corruption (an answer that makes no sense).
[[nodiscard]] Result<std::vector<TreeEntry>> fetch_tree(const RepoView& view, std::string_view commit,
                                                        std::string_view folder, bool recursive);
[[nodiscard]] Result<HubCommit> fetch_commit(const RepoView& view, std::string_view revision);
[[nodiscard]] Result<std::vector<HubRef>> fetch_refs(const RepoView& view);
// Returns the ids of repositories of this kind and organisation.
[[nodiscard]] Result<std::vector<std::string>> search_repos(const RepoView& view, std::string_view text);

// Returns "abc" for "\"abc\"" and "W/\"abc\"".
std::string_view bare_etag(std::string_view etag);
// Returns the error for an answer other than 2xx. `name` is the requested object.
tl::unexpected<Error> error_of(const Answer& answer, const RepoView& view, std::string_view name);
// Returns the URL of the next page, the one with rel="next" in a Link header; empty when there is none.
std::string next_page(std::string_view link);

}  // namespace millrace::hub
