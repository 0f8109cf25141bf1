// SPDX-License-Identifier: Apache-2.0
#pragma once

// The Hub's HTTP interface: which URL answers what, and what its answers and errors mean. The functions that take a
// Client block. Thread-safe. The interface is the one that huggingface_hub uses; tests/services/hub_server.py speaks it
// and is held against that package.

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
  std::string path;  // from the root of the repository; of a folder with '/' at its end
  int64_t size = 0;
  std::string version;  // see HubStorage
  std::chrono::sys_time<std::chrono::nanoseconds> modified{};
};

// The URL of a file's content at a commit.
std::string file_url(const RepoView& view, std::string_view commit, std::string_view path);
// If `recursive`, the files below a folder; else what the folder itself holds, with the times of changes. Sorted by
// path. `folder` is without '/' at its end; a missing one is empty. Errors: those of Client::fetch; not_found
// (repository, commit), permission_denied, corruption (an answer that makes no sense).
[[nodiscard]] Result<std::vector<TreeEntry>> fetch_tree(const RepoView& view, std::string_view commit,
                                                        std::string_view folder, bool recursive);
[[nodiscard]] Result<HubCommit> fetch_commit(const RepoView& view, std::string_view revision);
[[nodiscard]] Result<std::vector<HubRef>> fetch_refs(const RepoView& view);
// Ids of repositories of this kind and organisation.
[[nodiscard]] Result<std::vector<std::string>> search_repos(const RepoView& view, std::string_view text);

// "abc" of "\"abc\"" and "W/\"abc\"".
std::string_view bare_etag(std::string_view etag);
// The error that an answer other than 2xx means. `name` is what was asked for.
tl::unexpected<Error> error_of(const Answer& answer, const RepoView& view, std::string_view name);
// The next page: the URL with rel="next" of a Link header; empty when there is none.
std::string next_page(std::string_view link);

}  // namespace millrace::hub
