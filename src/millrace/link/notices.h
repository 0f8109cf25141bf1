// SPDX-License-Identifier: Apache-2.0
#pragma once

// Notices of a bucket: keys that may have changed. They are hints. Lost, duplicate and unordered notices do no harm,
// because both sides are asked about each path, and sweeps continue. Two forms are supported: the HTTP push of Ceph's
// gateway, whose keys are plain, and the records that AWS sends through SNS and SQS, whose keys are form-encoded.

#include <functional>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/http/listener.h"
#include "millrace/link/sqs.h"

namespace millrace::link {

struct Notice {
  std::string bucket, key;
  std::string secret;  // "opaqueData" of Ceph's gateway
};

// Splits "s3://bucket/a/b" into the bucket and "a/b/". Empty if the URL has no bucket.
std::pair<std::string, std::string> bucket_and_prefix(std::string_view url);

// Returns the notices in one message; a test event has none. Errors: corruption (no records of a bucket).
[[nodiscard]] Result<std::vector<Notice>> parse_notices(std::string_view message);

// Passes notices on to subscribers. Thread-safe. Must outlive all use by its subscribers.
class NoticeBoard {
 public:
  // Calls `on_path` with the part of each key after the prefix. `on_path` must return quickly.
  void subscribe(std::string bucket, std::string prefix, std::function<void(const std::string& path)> on_path);
  void post(const Notice& notice);

 private:
  struct Subscriber {
    std::string bucket, prefix;
    std::function<void(const std::string&)> on_path;
  };
  Mutex mutex_;
  std::vector<Subscriber> subscribers_ GUARDED_BY(mutex_);
};

// Accepts POSTs of notices at `address` (http::Listener::open) and posts them on `board`, which must outlive the
// listener. With a `secret`, answers notices without it with 403.
[[nodiscard]] Result<std::unique_ptr<http::Listener>> listen_for_notices(const std::string& address,
                                                                         const std::string& secret, NoticeBoard& board);

// Receives notices of `buckets` from `queue` and posts them on `board`, until it is stopped. Removes posted notices
// from the queue; other messages stay for their own receivers. Calls `on_note` once about such messages, and once for
// each reason why the queue cannot be read. Blocks.
void read_queue(SqsQueue& queue, const std::set<std::string>& buckets, NoticeBoard& board,
                const std::function<void(const std::string&)>& on_note, const std::stop_token& stop);

}  // namespace millrace::link
