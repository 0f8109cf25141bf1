// SPDX-License-Identifier: Apache-2.0
#pragma once

// Notices of a bucket: which keys may have changed. They are hints: lost, doubled and unordered ones do no harm,
// because each path is asked for on both sides, and sweeps go on. Two forms are read: the HTTP push of Ceph's gateway,
// whose keys are plain, and the records that AWS sends through SNS and SQS, whose keys are form-encoded.

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

// "s3://bucket/a/b": the bucket and "a/b/". Empty where the URL has no bucket.
std::pair<std::string, std::string> bucket_and_prefix(std::string_view url);

// The notices in one message; a test event has none. Errors: corruption (no records of a bucket).
[[nodiscard]] Result<std::vector<Notice>> parse_notices(std::string_view message);

// Passes notices on to subscribers. Thread-safe; must outlive its subscribers' use of it.
class NoticeBoard {
 public:
  // `on_path` gets what follows the prefix; it must be brief.
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

// Takes POSTs of notices at `address` (http::Listener::open) and posts them on `board`, which outlives the listener.
// With a `secret`, notices without it are answered with 403.
[[nodiscard]] Result<std::unique_ptr<http::Listener>> listen_for_notices(const std::string& address,
                                                                         const std::string& secret, NoticeBoard& board);

// Receives notices of `buckets` from `queue` and posts them on `board`, until it is stopped. What was posted is removed
// from the queue. Other messages stay for whom they are meant for; `on_note` says so once, and that the queue cannot be
// read, once for each reason. Blocks.
void read_queue(SqsQueue& queue, const std::set<std::string>& buckets, NoticeBoard& board,
                const std::function<void(const std::string&)>& on_note, const std::stop_token& stop);

}  // namespace millrace::link
