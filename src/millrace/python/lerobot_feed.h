// SPDX-License-Identifier: Apache-2.0
#pragma once

// The Python object for the Feed of a robot dataset.

#include <memory>

#include "millrace/lerobot/feed.h"
#include "millrace/python/path_arg.h"
#include "millrace/python/stoppable_object.h"

namespace millrace::python {

class PyFeed {
 public:
  PyFeed(const PathArg& url, lerobot::FeedOptions options);
  ~PyFeed();
  PyFeed(const PyFeed&) = delete;
  PyFeed& operator=(const PyFeed&) = delete;
  nb::dict read(const std::vector<int64_t>& rows) const;

  const lerobot::Feed& feed() const { return *feed_; }
  const lerobot::Dataset& dataset() const { return feed_->source().dataset; }

 private:
  const StoppableObject object_;  // the feed needs its storage
  std::unique_ptr<lerobot::Feed> feed_;
};

}  // namespace millrace::python
