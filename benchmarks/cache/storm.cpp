// SPDX-License-Identifier: Apache-2.0
#include "storm.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <span>

#include "millrace/cache/start_delay.h"
#include "millrace/order/order.h"
#include "millrace/storage/s3/client/concurrency_limiter.h"
#include "millrace/storage/s3/client/service.h"

namespace millrace::storm {

namespace {

using Time = Clock::time_point;

// The server: one prefix of S3 (see cache/start_delay.cpp for the rate), and round trips and connections as they are
// within a region (AWS: 10 to 200 ms to the first byte, 85 to 90 MB/s a connection).
constexpr double kRate = 5500;
constexpr double kBurst = 550;  // requests that may come at once
constexpr double kFirstByte_s = 0.03;
constexpr double kRefusal_s = 0.01;
constexpr double kConnectionRate = 85e6;
constexpr double kNodeRate = 12.5e9;  // bytes a second of a node's network: 100 Gbit/s
constexpr int64_t kBlock = 256 << 10;
constexpr int64_t kFill = 4 << 20;
constexpr int64_t kIndexRow = 28;  // bytes a sample (docs/format/shard_index.md)

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

// What is asked for in one request. Equal for equal content, so that a node knows what it has.
struct Ask {
  enum class Kind { kList, kHead, kGet } kind = Kind::kGet;
  int64_t object = 0;
  int64_t offset = 0;
  int64_t bytes = 0;
  auto operator<=>(const Ask&) const = default;
};

constexpr int64_t kManifest = -1;

// Requests that wait for each other: a step begins when the one before it has ended.
using Steps = std::vector<std::set<Ask>>;

std::set<Ask> range_of(int64_t object, int64_t begin, int64_t end, bool in_blocks) {
  if (in_blocks) {
    begin = begin / kBlock * kBlock;
    end = (end + kBlock - 1) / kBlock * kBlock;
  }
  std::set<Ask> asks;
  for (int64_t at = begin; at < end; at += kFill) asks.insert({Ask::Kind::kGet, object, at, std::min(kFill, end - at)});
  return asks;
}

// What one rank needs for its first batch, which is at these positions.
Steps steps_of(const Setting& setting, const order::EpochOrder& order, std::span<const int64_t> positions) {
  std::set<std::pair<int64_t, int64_t>> blocks;
  for (const int64_t position : positions) {
    const auto place = order.place(position);
    blocks.emplace(place.lane, place.block);
  }
  Steps steps(5);
  if (setting.with_cache) {
    steps[0].insert({Ask::Kind::kHead, kManifest, 0, 0});
    steps[1].insert({Ask::Kind::kGet, kManifest, 0, 100 * setting.shards});
  } else {
    for (int64_t page = 0; page * 1000 < setting.shards; ++page)
      steps[0].insert({Ask::Kind::kList, kManifest, page, 0});
  }
  for (const auto& [lane, number] : blocks) {
    for (const order::Window& window : order.block(lane, number).windows) {
      const int64_t index = setting.shards + window.shard;
      steps[2].insert({Ask::Kind::kHead, index, 0, 0});
      steps[2].insert({Ask::Kind::kHead, window.shard, 0, 0});
      steps[3].insert({Ask::Kind::kGet, index, 0, setting.shard_samples * kIndexRow});
      steps[4].merge(range_of(window.shard, window.first * setting.sample_bytes,
                              (window.first + window.samples) * setting.sample_bytes, setting.with_cache));
    }
  }
  return steps;
}

class Simulation {
 public:
  explicit Simulation(const Setting& setting) : setting_(setting) {}

  Outcome run() {
    const order::EpochOrder order = make_order();
    // The positions of all ranks, rank after rank.
    const int64_t world = setting_.nodes * setting_.node_ranks;
    positions_ = rank_positions(order, 0, std::min(world * setting_.rank_batch, order.units()), 0, 1);
    for (int64_t node = 0; node < setting_.nodes; ++node) add_node(order, node);
    for (; !events_.empty(); events_.pop()) {
      now_ = events_.top().first;
      const std::shared_ptr<std::function<void()>> event = events_.top().second;
      (*event)();
    }
    return std::move(outcome_);
  }

 private:
  // A process that asks: a rank, or, with the cache, the ranks of a node, which ask for each block once.
  struct Asker {
    Steps steps;
    size_t step = 0;
    size_t open = 0;  // requests of the step that have not ended
    std::unique_ptr<s3::ConcurrencyLimiter> limiter;
    Time network_free{};
  };
  using Event = std::pair<Time, std::shared_ptr<std::function<void()>>>;
  struct Later {
    bool operator()(const Event& a, const Event& b) const { return a.first > b.first; }
  };

  order::EpochOrder make_order() const {
    const std::vector<int64_t> samples(static_cast<size_t>(setting_.shards), setting_.shard_samples);
    const auto options = order::resolve_options({.seed = 1}, setting_.shards * setting_.shard_samples, 0);
    auto table = order::WindowTable::create(samples, options.window_samples, false);
    if (!table) std::abort();
    auto order = order::EpochOrder::create(std::make_shared<const order::WindowTable>(*std::move(table)), options, 0);
    if (!order) std::abort();
    return *std::move(order);
  }

  void add_node(const order::EpochOrder& order, int64_t node) {
    Steps node_steps(5);
    for (int64_t rank = 0; rank < setting_.node_ranks; ++rank) {
      Steps steps = steps_of(setting_, order, positions_of(node * setting_.node_ranks + rank));
      if (!setting_.with_cache) {
        add_asker(std::move(steps), Clock::duration(0), 1);
        continue;
      }
      for (size_t i = 0; i < steps.size(); ++i) node_steps[i].merge(steps[i]);
    }
    if (setting_.with_cache) add_asker(std::move(node_steps), cache::start_delay(node), setting_.node_ranks);
  }

  std::span<const int64_t> positions_of(int64_t rank) const {
    const int64_t world = setting_.nodes * setting_.node_ranks, count = std::ssize(positions_);
    const int64_t begin = rank * count / world, end = (rank + 1) * count / world;
    return std::span(positions_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }

  void add_asker(Steps steps, Clock::duration delay, int64_t processes) {
    auto asker = std::make_shared<Asker>();
    asker->steps = std::move(steps);
    const s3::RequestLimits limits;
    asker->limiter = std::make_unique<s3::ConcurrencyLimiter>(
        s3::RequestLimits{.max_under_way = limits.max_under_way * static_cast<int>(processes)});
    at(Time() + delay, [this, asker] { begin_step(asker); });
  }

  void begin_step(const std::shared_ptr<Asker>& asker) {
    while (asker->step < asker->steps.size() && asker->steps[asker->step].empty()) ++asker->step;
    if (asker->step == asker->steps.size()) return has_ended();
    const std::set<Ask>& asks = asker->steps[asker->step++];
    asker->open = asks.size();
    for (const Ask& ask : asks) asker->limiter->enter(ask.bytes, [this, asker, ask](Time) { send(asker, ask, 0); });
  }

  void send(const std::shared_ptr<Asker>& asker, const Ask& ask, int refusals) {
    count(outcome_.requests_a_second, 1);
    tokens_ = std::min(kBurst, tokens_ + std::chrono::duration<double>(now_ - refilled_).count() * kRate);
    refilled_ = now_;
    if (tokens_ < 1) {
      ++outcome_.refused;
      return at(now_ + seconds(kRefusal_s), [this, asker, ask, refusals] {
        asker->limiter->slow_down(now_);
        at(now_ + s3::wait_before(refusals + 1), [this, asker, ask, refusals] { send(asker, ask, refusals + 1); });
      });
    }
    tokens_ -= 1;
    ++outcome_.wanted;
    outcome_.lists += ask.kind == Ask::Kind::kList;
    const auto bytes = static_cast<double>(ask.bytes);
    asker->network_free = std::max(asker->network_free, now_) + seconds(bytes / kNodeRate);
    const Time arrived = std::max(now_ + seconds(kFirstByte_s + bytes / kConnectionRate), asker->network_free);
    at(arrived, [this, asker, ask] {
      outcome_.bytes += ask.bytes;
      count(outcome_.bytes_a_second, ask.bytes);
      asker->limiter->leave();
      if (--asker->open == 0) begin_step(asker);
    });
  }

  void has_ended() {
    const double time = std::chrono::duration<double>(now_.time_since_epoch()).count();
    if (outcome_.first_s == 0) outcome_.first_s = time;
    outcome_.all_s = std::max(outcome_.all_s, time);
  }

  void count(std::vector<int64_t>& by_second, int64_t amount) const {
    const auto second =
        static_cast<size_t>(std::chrono::duration_cast<std::chrono::seconds>(now_.time_since_epoch()).count());
    if (by_second.size() <= second) by_second.resize(second + 1);
    by_second[second] += amount;
  }

  void at(Time time, std::function<void()> event) {
    events_.emplace(time, std::make_shared<std::function<void()>>(std::move(event)));
  }

  const Setting setting_;
  std::vector<int64_t> positions_;
  Outcome outcome_;
  Time now_{};
  double tokens_ = kBurst;
  Time refilled_{};
  std::priority_queue<Event, std::vector<Event>, Later> events_;
};

}  // namespace

Outcome simulate(const Setting& setting) {
  return Simulation(setting).run();
}

}  // namespace millrace::storm
