// SPDX-License-Identifier: Apache-2.0
#include "millrace/bench/storage_bench.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <numeric>
#include <thread>

#include "millrace/base/text/units.h"
#include "millrace/bench/rank_io.h"

namespace millrace::bench {

namespace {

using Json = nlohmann::ordered_json;
using Until = RankIo::Until;

constexpr int64_t kPage = 4096, kBurstBlock = int64_t{4} << 20;
constexpr int64_t kLargestOfSweep = int64_t{16} << 20;  // 4 KiB, 64 KiB, 1 MiB, 16 MiB

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

struct Rank {
  int node = 0, rank = 0;  // of the node
  int partner = 0;         // the node whose files it reads
};

// A test: what each thread does, and what is counted.
struct Test {
  std::string name, unit = "B/s";
  int threads = 0;  // a node; the ranks unless another number is given
  int64_t request = 0;
  std::string sweep;  // as of TestResult
  int64_t place = 0;
  bool first_node_only = false;
  std::function<Status(RankIo&, const Rank&, const Until&)> body;
  std::function<std::string(const Rank&)> reads;    // the file or folder whose pages are dropped before; null: none
  std::function<bool(const Rank&)> is_counted;      // null: every thread
  std::function<std::string(const Rank&)> removes;  // a file that no round finds as the one before left it; may be null
};

class StorageBench {
 public:
  StorageBench(const StorageConfig& config, Meeting& meeting, const std::function<void(const TestResult&)>& take,
               const std::stop_token& stop)
      : config_(config), meeting_(meeting), take_(take), stop_(stop) {}

  Status run_mount(const std::string& mount, const std::string& folder) {
    mount_ = mount;
    folder_ = folder;
    direct_ = can_bypass_cache(folder + "/" + own_folder());
    if (config_.training) RETURN_IF_ERROR(run_training());
    if (config_.checkpoint) RETURN_IF_ERROR(run_checkpoint());
    if (config_.metadata) RETURN_IF_ERROR(run_metadata());
    if (config_.sweep) RETURN_IF_ERROR(run_sweep());
    return {};
  }

  std::string own_folder() const { return fmt::format("node-{}", meeting_.node()); }

 private:
  std::string path(const char* kind, int node, int rank) const {
    return fmt::format("{}/node-{}/{}-{}", folder_, node, kind, rank);
  }

  Test base(std::string name) const {
    Test test;
    test.name = std::move(name);
    test.threads = config_.ranks;
    test.request = config_.block_bytes;
    return test;
  }

  Status run_training() {
    Test write = base("write");
    write.removes = [this](const Rank& rank) { return path("stream", rank.node, rank.rank); };
    write.body = [this](RankIo& io, const Rank& rank, const Until& until) {
      return io.write(path("stream", rank.node, rank.rank), 0, config_.file_bytes, true, until);
    };
    RETURN_IF_ERROR(run(write));
    Test shared = base("write, shared file");
    shared.body = [this](RankIo& io, const Rank& rank, const Until& until) {
      const int64_t place = int64_t{rank.node} * config_.ranks + rank.rank;
      return io.write(folder_ + "/shared", place * config_.file_bytes, config_.file_bytes, false, until);
    };
    shared.removes = [this](const Rank&) { return folder_ + "/shared"; };
    RETURN_IF_ERROR(run(shared));
    if (meeting_.node() == 0) unlink((folder_ + "/shared").c_str());

    Test read = base("read, one stream");
    read.reads = [this](const Rank& rank) { return path("stream", rank.partner, rank.rank); };
    read.body = [this](RankIo& io, const Rank& rank, const Until& until) {
      return io.read(path("stream", rank.partner, rank.rank), until);
    };
    read.threads = 1;
    read.first_node_only = true;
    RETURN_IF_ERROR(run(read));
    // All ranks of one node read parts of one file: its stripes are all that they get.
    Test one_file = read;
    one_file.name = "read, one file";
    one_file.threads = config_.ranks;
    one_file.reads = [this](const Rank& rank) { return path("stream", rank.partner, 0); };
    one_file.body = [this](RankIo& io, const Rank& rank, const Until& until) {
      const int64_t blocks = config_.file_bytes / config_.block_bytes;
      const int64_t share = std::max<int64_t>(1, blocks / config_.ranks);
      const int64_t begin = rank.rank * share % blocks;
      return io.read_range(path("stream", rank.partner, 0), begin * config_.block_bytes, share * config_.block_bytes,
                           until);
    };
    RETURN_IF_ERROR(run(one_file));
    read.threads = config_.ranks;
    if (meeting_.nodes() > 1) {
      read.name = "read, one node";
      RETURN_IF_ERROR(run(read));
    }
    read.name = "read";
    read.first_node_only = false;
    RETURN_IF_ERROR(run(read));

    for (const int64_t bytes : {kPage, 32 * kPage}) RETURN_IF_ERROR(run(random_reads(bytes, config_.depth)));
    for (const int64_t bytes : {kPage, 32 * kPage}) RETURN_IF_ERROR(run(random_writes(bytes, config_.depth)));

    Test mixed = read;
    mixed.name = "read beside writes";
    mixed.threads = std::max(2, config_.ranks);
    mixed.is_counted = [](const Rank& rank) { return rank.rank % 2 == 0; };
    mixed.body = [this](RankIo& io, const Rank& rank, const Until& until) {
      const int file = rank.rank % config_.ranks;
      return rank.rank % 2 == 0 ? io.read(path("stream", rank.partner, file), until)
                                : io.write(path("beside", rank.node, file), 0, config_.file_bytes, true, until);
    };
    RETURN_IF_ERROR(run(mixed));
    remove_own("beside");

    // They are made here, and read as a loader does: whole, in random order, through the page cache.
    RETURN_IF_ERROR(make_small_files());
    Test small = base("read small files");
    small.request = config_.small_bytes;
    small.reads = [this](const Rank& rank) { return path("small", rank.partner, rank.rank); };
    small.body = [this](RankIo& io, const Rank& rank, const Until& until) {
      return io.read_files(path("small", rank.partner, rank.rank), config_.files, until);
    };
    RETURN_IF_ERROR(run(small));
    remove_own("small");
    remove_own("stream");
    return {};
  }

  Test random_reads(int64_t bytes, int depth) const {
    Test random = base("read random " + size_name(bytes));
    random.unit = "reads/s";
    random.threads = depth;
    random.request = bytes;
    random.reads = [this](const Rank& rank) { return path("stream", rank.partner, rank.rank % config_.ranks); };
    random.body = [this](RankIo& io, const Rank& rank, const Until& until) {
      return io.read_random(path("stream", rank.partner, rank.rank % config_.ranks), until);
    };
    return random;
  }

  // Into files of this node: nobody else writes there.
  Test random_writes(int64_t bytes, int depth) const {
    Test random = base("write random " + size_name(bytes));
    random.unit = "writes/s";
    random.threads = depth;
    random.request = bytes;
    random.body = [this](RankIo& io, const Rank& rank, const Until& until) {
      return io.write_random(path("stream", rank.node, rank.rank % config_.ranks), until);
    };
    return random;
  }

  // Random requests by how many are under way, then whole files by their size.
  Status run_sweep() {
    RETURN_IF_ERROR(make_streams());
    for (int depth = 1;; depth = std::min(4 * depth, config_.depth)) {
      for (Test test : {random_reads(kPage, depth), random_writes(kPage, depth)}) {
        test.name += fmt::format(", depth {}", depth);
        test.sweep = "depth";
        test.place = depth;
        RETURN_IF_ERROR(run(test));
      }
      if (depth == config_.depth) break;
    }
    remove_own("stream");
    constexpr int64_t kStep = 16;
    for (int64_t bytes = kPage; bytes <= std::min(config_.file_bytes, kLargestOfSweep); bytes *= kStep) {
      RETURN_IF_ERROR(run_files_of(bytes));
    }
    return {};
  }

  Status run_files_of(int64_t bytes) {
    const int64_t files = std::clamp<int64_t>(config_.file_bytes / bytes, 1, config_.files);
    Test write = base("write files of " + size_name(bytes));
    write.request = std::gcd(bytes, config_.block_bytes);
    write.sweep = "size";
    write.place = bytes;
    write.body = [this, files, bytes](RankIo& io, const Rank& rank, const Until& until) {
      return io.write_whole(path("whole", rank.node, rank.rank), files, bytes, until);
    };
    Test read = write;
    read.name = "read files of " + size_name(bytes);
    read.reads = [this](const Rank& rank) { return path("whole", rank.partner, rank.rank); };
    read.body = [this, files](RankIo& io, const Rank& rank, const Until& until) {
      return io.read_whole(path("whole", rank.partner, rank.rank), files, until);
    };
    RETURN_IF_ERROR(run(write));
    RETURN_IF_ERROR(run(read));
    remove_own("whole");
    return {};
  }

  // The files of the ranks, whole, whatever time that takes.
  Status make_streams() {
    for (int rank = 0; rank < config_.ranks; ++rank) {
      RankIo io(config_.block_bytes, seed(rank), direct_);
      RETURN_IF_ERROR(io.write(path("stream", meeting_.node(), rank), 0, config_.file_bytes, true,
                               {Clock::time_point::max(), stop_}));
    }
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped while files were made");
    return {};
  }

  Status run_checkpoint() {
    Test write = base("checkpoint write");
    write.request = kBurstBlock;
    write.body = [this](RankIo& io, const Rank& rank, const Until& until) -> Status {
      const std::string file = path("ckpt", rank.node, rank.rank), beside = file + ".tmp";
      RETURN_IF_ERROR(io.write(beside, 0, config_.file_bytes, true, until));
      std::error_code error;
      std::filesystem::rename(beside, file, error);
      if (error) return tl::unexpected(errno_error(error.value(), "rename " + beside));
      return {};
    };
    RETURN_IF_ERROR(run(write));
    Test read = base("checkpoint read");
    read.request = kBurstBlock;
    read.reads = [this](const Rank& rank) { return path("ckpt", rank.partner, rank.rank); };
    read.body = [this](RankIo& io, const Rank& rank, const Until& until) {
      return io.read(path("ckpt", rank.partner, rank.rank), until);
    };
    RETURN_IF_ERROR(run(read));
    remove_own("ckpt");
    return {};
  }

  Status run_metadata() {
    Test create = base("create files");
    create.unit = "files/s";
    create.request = kPage;
    create.body = [this](RankIo& io, const Rank& rank, const Until& until) {
      return io.create_files(path("meta", rank.node, rank.rank), config_.files, until);
    };
    Test look = create;
    look.name = "stat files";
    look.request = 0;
    look.body = [this](RankIo& io, const Rank& rank, const Until& until) {
      return io.stat_files(path("meta", rank.partner, rank.rank), config_.files, until);
    };
    Test unlink_all = create;
    unlink_all.name = "unlink files";
    unlink_all.request = 0;
    unlink_all.body = [this](RankIo& io, const Rank& rank, const Until& until) {
      return io.unlink_files(path("meta", rank.node, rank.rank), config_.files, until);
    };
    RETURN_IF_ERROR(run_in_turns({create, look, unlink_all}));
    remove_own("meta");
    return {};
  }

  Status make_small_files() {
    for (int rank = 0; rank < config_.ranks; ++rank) {
      RankIo io(config_.small_bytes, seed(rank), false);
      RETURN_IF_ERROR(
          io.create_files(path("small", meeting_.node(), rank), config_.files, {Clock::time_point::max(), stop_}));
    }
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped while files were made");
    // Pages that are not written yet cannot be dropped.
    const int folder = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
      syncfs(folder);
      close(folder);
    }
    return {};
  }

  void remove_own(const char* kind) const {
    std::error_code error;
    for (int rank = 0; rank < std::max(2, config_.ranks); ++rank) {
      std::filesystem::remove_all(path(kind, meeting_.node(), rank), error);
    }
  }

  uint64_t seed(int rank) const {
    return static_cast<uint64_t>(meeting_.node()) * 1000 + static_cast<uint64_t>(rank) + 1;
  }

  // A round to warm up, and then those that count.
  Status run(const Test& test) { return run_in_turns({test}); }

  // Rounds of several tests that need each other: create, stat, unlink.
  Status run_in_turns(const std::vector<Test>& tests) {
    std::vector<TestResult> results(tests.size());
    std::vector<std::vector<double>> slowest(tests.size());
    for (int round = 0; round <= config_.rounds; ++round) {
      for (size_t i = 0; i < tests.size(); ++i) {
        RETURN_IF_ERROR(run_round(tests[i], round, results[i], slowest[i]));
      }
    }
    if (meeting_.node() != 0) return {};
    for (size_t i = 0; i < tests.size(); ++i) {
      results[i].slowest_share = median_of(slowest[i]);
      take_(results[i]);
    }
    return {};
  }

  double drop_pages(const Test& test, const Rank& rank) const {
    if (!test.reads) return 0;
    const std::string target = test.reads(rank);
    std::error_code unknown;
    if (!std::filesystem::is_directory(target, unknown)) return drop_cache(target);
    double cached = 0;
    for (int64_t number = 0; number < config_.files; ++number) {
      const std::string file = target + "/" + std::to_string(number);
      if (access(file.c_str(), R_OK) == 0) cached += drop_cache(file);
    }
    return cached;
  }

  Status run_round(const Test& test, int round, TestResult& result, std::vector<double>& slowest) {
    struct Done {
      double begun = 0, ended = 0;
      RankOutcome outcome;
      Status status;
      bool is_counted = true;
    };
    const bool takes_part = meeting_.node() == 0 || !test.first_node_only;
    std::vector<Done> done(takes_part ? static_cast<size_t>(test.threads) : 0);
    std::vector<std::unique_ptr<RankIo>> ios;
    std::vector<Rank> ranks;
    double cached = 0, read_bytes = 0;
    const bool reads_cached = test.reads != nullptr && (!direct_ || test.name == "read small files");
    for (size_t i = 0; i < done.size(); ++i) {
      const int rank = static_cast<int>(i);
      ranks.push_back({meeting_.node(), rank, (meeting_.node() + 1) % meeting_.nodes()});
      done[i].is_counted = !test.is_counted || test.is_counted(ranks[i]);
      // stat and unlink move no bytes, and small files are read through the page cache.
      ios.push_back(std::make_unique<RankIo>(std::max(kPage, test.request),
                                             seed(rank) + static_cast<uint64_t>(round) * 1'000'000, direct_));
      if (reads_cached) cached += drop_pages(test, ranks[i]);
      if (test.removes) unlink(test.removes(ranks[i]).c_str());
    }
    ASSIGN_OR_RETURN(const double start, meeting_.agree(fmt::format("{}-{}", ++steps_, round), stop_));
    const Clock::time_point begin =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(start - wall_clock()));
    const Until until{begin + std::chrono::duration_cast<Clock::duration>(config_.test_seconds), stop_};
    {
      std::vector<Thread> threads;
      for (size_t i = 0; i < done.size(); ++i) {
        threads.emplace_back("mr-bench", [&, i] {
          std::this_thread::sleep_until(begin);
          done[i].begun = wall_clock();
          done[i].status = test.body(*ios[i], ranks[i], until);
          done[i].ended = wall_clock();
          done[i].outcome = ios[i]->take_outcome();
        });
      }
    }
    Json mine = {{"ranks", Json::array()}, {"seconds", Json::array()}, {"error", nullptr}};
    std::vector<float> seconds;
    for (Done& each : done) {
      if (!each.status && mine["error"].is_null()) mine["error"] = each.status.error().to_string();
      if (!each.is_counted) continue;
      mine["ranks"].push_back({each.begun, each.ended, each.outcome.bytes, each.outcome.operations});
      read_bytes += static_cast<double>(each.outcome.bytes);
      seconds.insert(seconds.end(), each.outcome.seconds.begin(), each.outcome.seconds.end());
    }
    std::sort(seconds.begin(), seconds.end());
    const auto quantile = [&](double share) {
      return seconds.empty()
                 ? 0.0
                 : static_cast<double>(seconds[static_cast<size_t>(share * static_cast<double>(seconds.size() - 1))]);
    };
    mine["seconds"] = {quantile(0.5), quantile(0.99)};
    mine["cached"] = reads_cached ? std::min(1.0, cached / std::max(read_bytes, 1.0)) : -1.0;
    ASSIGN_OR_RETURN(const std::vector<Json> all,
                     meeting_.gather(fmt::format("{}-{}-done", steps_, round), mine, stop_));
    for (const Done& each : done) RETURN_IF_ERROR(each.status);
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    if (meeting_.node() != 0) return {};
    for (size_t node = 0; node < all.size(); ++node) {
      if (!all[node]["error"].is_null()) {
        return fail(ErrorCode::kUnavailable, "node {}: {}", node, all[node]["error"].get<std::string>());
      }
    }
    if (round > 0) add_round(test, all, result, slowest);
    return {};
  }

  void add_round(const Test& test, const std::vector<Json>& nodes, TestResult& result,
                 std::vector<double>& slowest) const {
    double amount = 0, longest = 0, first = 0, last = 0, p50 = 0, least_rate = 0, most_rate = 0;
    int ranks = 0;
    for (const Json& node : nodes) {
      double begun = 0, ended = 0;
      for (const Json& rank : node["ranks"]) {
        const double from = rank[0].get<double>(), to = rank[1].get<double>();
        const double did = test.unit == "B/s" ? rank[2].get<double>() : rank[3].get<double>();
        begun = begun == 0 ? from : std::min(begun, from);
        ended = std::max(ended, to);
        first = first == 0 ? from : std::min(first, from);
        last = std::max(last, from);
        amount += did;
        const double rate = did / std::max(to - from, 1e-9);
        least_rate = ranks == 0 ? rate : std::min(least_rate, rate);
        most_rate = std::max(most_rate, rate);
        ++ranks;
      }
      longest = std::max(longest, ended - begun);  // by the node's own clock
      p50 = std::max(p50, node["seconds"][0].get<double>());
      result.p99_s = std::max(result.p99_s, node["seconds"][1].get<double>());
      result.cached = std::max(result.cached, node["cached"].get<double>());
    }
    result.p50_s = std::max(result.p50_s, p50);
    result.mount = mount_;
    result.test = test.name;
    result.unit = test.unit;
    result.nodes = meeting_.nodes();
    result.ranks = ranks;
    result.request_bytes = test.request;
    result.sweep = test.sweep;
    result.place = test.place;
    result.own_data = test.reads != nullptr && meeting_.nodes() == 1;
    result.rates.push_back(amount / std::max(longest, 1e-9));
    result.start_spread_s = std::max(result.start_spread_s, last - first);
    slowest.push_back(most_rate > 0 ? least_rate / most_rate : 1);
  }

  const StorageConfig& config_;
  Meeting& meeting_;
  const std::function<void(const TestResult&)>& take_;
  const std::stop_token& stop_;
  std::string mount_, folder_;
  bool direct_ = false;
  int steps_ = 0;
};

}  // namespace

std::string size_name(int64_t bytes) {
  constexpr int64_t kKiB = 1024, kMiB = int64_t{1} << 20;
  return bytes < kMiB ? fmt::format("{} KiB", bytes / kKiB) : fmt::format("{} MiB", bytes / kMiB);
}

int64_t bytes_needed(const StorageConfig& config, int nodes) {
  const int64_t ranks = int64_t{nodes} * std::max(2, config.ranks);
  // Streams with a shared file or writes beside them; then small files beside the streams.
  int64_t most = 0;
  if (config.training)
    most = ranks * config.file_bytes + ranks * std::max(config.file_bytes, config.files * config.small_bytes);
  if (config.checkpoint)
    most = std::max(most, ranks * config.file_bytes * 2);  // the last one stays until the next is whole
  if (config.metadata) most = std::max(most, ranks * config.files * kPage);
  if (config.sweep) most = std::max(most, ranks * config.file_bytes);
  return most;
}

Status check_space(const StorageConfig& config, int nodes) {
  const int64_t needed = bytes_needed(config, nodes);
  if (needed > config.limit_bytes) {
    return fail(ErrorCode::kResourceExhausted, "this test would take {}, and --limit is {}; lower --size or --files",
                format_bytes(needed), format_bytes(config.limit_bytes));
  }
  for (const std::string& mount : config.mounts) {
    struct statvfs figures{};
    if (statvfs(mount.c_str(), &figures) != 0) return tl::unexpected(errno_error(errno, "statvfs " + mount));
    const double free = static_cast<double>(figures.f_bavail) * static_cast<double>(figures.f_frsize);
    if (static_cast<double>(needed) > free / 2) {
      return fail(ErrorCode::kResourceExhausted,
                  "{}: this test would take {}, more than half of the {} that are free; lower --size or --files", mount,
                  format_bytes(needed), format_bytes(static_cast<int64_t>(free)));
    }
  }
  return {};
}

Status run_storage_bench(const StorageConfig& config, Meeting& meeting,
                         const std::function<void(const TestResult&)>& take, const std::stop_token& stop) {
  StorageBench bench(config, meeting, take, stop);
  for (const std::string& folder : config.folders) {
    std::error_code error;
    std::filesystem::create_directories(folder + "/" + bench.own_folder(), error);
    if (error) return tl::unexpected(errno_error(error.value(), "mkdir " + folder));
  }
  for (size_t i = 0; i < config.folders.size(); ++i) {
    RETURN_IF_ERROR(bench.run_mount(config.mounts[i], config.folders[i]));
  }
  return {};
}

double TestResult::median() const {
  return median_of(rates);
}
double TestResult::least() const {
  return rates.empty() ? 0 : *std::min_element(rates.begin(), rates.end());
}
double TestResult::most() const {
  return rates.empty() ? 0 : *std::max_element(rates.begin(), rates.end());
}

Json TestResult::to_json() const {
  return {{"type", "bench_storage"},
          {"mount", mount},
          {"test", test},
          {"unit", unit},
          {"nodes", nodes},
          {"ranks", ranks},
          {"request_bytes", request_bytes},
          {"median", median()},
          {"least", least()},
          {"most", most()},
          {"rounds", rates},
          {"slowest_share", slowest_share},
          {"start_spread_s", start_spread_s},
          {"p50_s", p50_s},
          {"p99_s", p99_s},
          {"cached", cached < 0 ? Json(nullptr) : Json(cached)},
          {"own_data", own_data},
          {"sweep", sweep.empty() ? Json(nullptr) : Json(sweep)},
          {"place", sweep.empty() ? Json(nullptr) : Json(place)}};
}

TestResult result_of(const Json& object) {
  TestResult result;
  result.mount = object.value("mount", "");
  result.test = object.value("test", "");
  result.unit = object.value("unit", "");
  result.nodes = object.value("nodes", 1);
  result.ranks = object.value("ranks", 1);
  result.request_bytes = object.value("request_bytes", int64_t{0});
  result.rates = object.value("rounds", std::vector<double>());
  result.slowest_share = object.value("slowest_share", 1.0);
  result.start_spread_s = object.value("start_spread_s", 0.0);
  result.p50_s = object.value("p50_s", 0.0);
  result.p99_s = object.value("p99_s", 0.0);
  const auto cached = object.find("cached");
  result.cached = cached != object.end() && cached->is_number() ? cached->get<double>() : -1;
  result.own_data = object.value("own_data", false);
  const auto sweep = object.find("sweep");
  if (sweep != object.end() && sweep->is_string()) {
    result.sweep = sweep->get<std::string>();
    result.place = object.value("place", int64_t{0});
  }
  return result;
}

}  // namespace millrace::bench
