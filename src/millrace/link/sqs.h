// SPDX-License-Identifier: Apache-2.0
#pragma once

// Receives messages of an Amazon SQS queue, with the credentials and the signatures of S3 (docs/s3.md). A message that
// is received is hidden from others for a time, and comes again unless it is removed by then. Thread-safe; blocks.

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::link {

// The region that a host of SQS names; "" for another host.
std::string sqs_region(std::string_view host);

struct SqsMessage {
  std::string body;
  std::string handle;  // of this receipt; remove() takes it
};

class SqsQueue {
 public:
  // "https://sqs.eu-central-1.amazonaws.com/123456789012/queue", where requests go to. Another host's region is the one
  // of the environment. No request is made. Errors: invalid_argument (no URL of a queue, the environment).
  [[nodiscard]] static Result<std::unique_ptr<SqsQueue>> open(const std::string& url);
  ~SqsQueue();

  // Up to ten, as soon as there is one; none when there was none for `most`, at most 20 s. Errors: those of the
  // transport, permission_denied (also: no credentials), not_found (no such queue), unavailable.
  [[nodiscard]] Result<std::vector<SqsMessage>> receive(std::chrono::seconds most, const std::stop_token& stop);
  // Errors: as of receive(); unavailable also when the queue kept one of them.
  [[nodiscard]] Status remove(const std::vector<SqsMessage>& messages, const std::stop_token& stop);

 private:
  struct Impl;
  explicit SqsQueue(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::link
