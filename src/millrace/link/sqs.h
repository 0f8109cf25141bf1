// SPDX-License-Identifier: Apache-2.0
#pragma once

// Receives messages of an Amazon SQS queue, with the credentials and signatures of S3 (docs/s3.md). A received message
// is hidden from others for a time, and is delivered again unless it is removed by then. Thread-safe; blocks.

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::link {

// Returns the region in an SQS host name; "" for another host.
std::string sqs_region(std::string_view host);

struct SqsMessage {
  std::string body;
  std::string handle;  // handle of this receipt, for remove()
};

class SqsQueue {
 public:
  // Opens a queue by its URL, "https://sqs.eu-central-1.amazonaws.com/123456789012/queue", without a request. For a
  // host that names no region, uses the region of the environment. Errors: invalid_argument (not the URL of a queue,
  // the environment).
  [[nodiscard]] static Result<std::unique_ptr<SqsQueue>> open(const std::string& url);
  ~SqsQueue();

  // Returns up to ten messages, as soon as there is one; none if none came within `most`, which is at most 20 s.
  // Errors: those of the transport, permission_denied (also: no credentials), not_found (no such queue), unavailable.
  [[nodiscard]] Result<std::vector<SqsMessage>> receive(std::chrono::seconds most, const std::stop_token& stop);
  // Removes messages from the queue. Errors: as for receive(); unavailable also when the queue kept one of them.
  [[nodiscard]] Status remove(const std::vector<SqsMessage>& messages, const std::stop_token& stop);

 private:
  struct Impl;
  explicit SqsQueue(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::link
