// SPDX-License-Identifier: Apache-2.0
#include "millrace/order/pass_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <variant>
#include <vector>

#include "millrace/base/testing.h"

namespace millrace::order {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kBatches = 3;  // of each pass

struct Batch {
  int64_t pass = 0;
  int number = 0;
  bool operator==(const Batch&) const = default;
};
void PrintTo(const Batch& batch, std::ostream* out) {
  *out << "batch " << batch.number << " of pass " << batch.pass;
}
using Batches = std::vector<Batch>;

Batches whole(int64_t pass) {
  return {{pass, 0}, {pass, 1}, {pass, 2}};
}
Batches rest(int64_t pass) {
  return {{pass, 1}, {pass, 2}};
}

// A reader of passes of three batches, driven as PassIterator of python/millrace/loader.py drives one.
class Reader {
 public:
  explicit Reader(bool is_endless = false) : machine(is_endless) {}

  AskPosition where() {
    return [this] {
      EXPECT_FALSE(machine.is_endless()) << "asked an endless loader for its position";
      return PassPosition{number, given == kBatches};
    };
  }
  std::optional<Batch> take() {
    if (given == kBatches && !machine.is_endless()) {
      machine.ended();
      return std::nullopt;
    }
    machine.gave();
    if (given == kBatches) number += 1, given = 0;
    return Batch{number, given++};
  }
  void begin(std::optional<int64_t> pass) {
    if (!pass) return;
    number = *pass;
    given = 0;
    machine.began();
  }
  // next(loader)
  std::optional<Batch> next() {
    begin(machine.next_begins());
    return take();
  }
  // A `for` that is left after `most` batches, or goes on to the end of the pass.
  Batches loop(size_t most = SIZE_MAX) {
    Batches got;
    begin(machine.for_begins(where()));
    auto batch = take();
    while (batch) {
      got.push_back(*batch);
      if (got.size() == most) break;
      machine.for_goes_on();
      batch = take();
    }
    return got;
  }
  // A further batch of the `for` that began last.
  std::optional<Batch> go_on() {
    machine.for_goes_on();
    return take();
  }
  void load(int64_t pass, int batches) {
    number = pass;
    given = batches;
    machine.loaded();
  }
  bool set_epoch(int64_t pass) { return machine.ask(pass, where()); }

  PassMachine machine;
  int64_t number = 0;
  int given = 0;
};

struct Loop {
  size_t most = SIZE_MAX;
};
struct Next {};
struct GoOn {};
struct Load {
  int64_t pass;
  int given;
};
struct SetEpoch {
  int64_t pass;
};
using Call = std::variant<Loop, Next, GoOn, Load, SetEpoch>;

// The batches that the call gives.
Batches run(Reader& reader, const Call& call) {
  const auto list = [](std::optional<Batch> batch) { return batch ? Batches{*batch} : Batches{}; };
  if (const auto* loop = std::get_if<Loop>(&call)) return reader.loop(loop->most);
  if (std::holds_alternative<Next>(call)) return list(reader.next());
  if (std::holds_alternative<GoOn>(call)) return list(reader.go_on());
  if (const auto* load = std::get_if<Load>(&call)) reader.load(load->pass, load->given);
  if (const auto* epoch = std::get_if<SetEpoch>(&call)) reader.set_epoch(epoch->pass);
  return {};
}

// Calls in order, and what the last one gives.
struct Row {
  const char* name;
  std::vector<Call> calls;
  Batches expected;
};
const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
      {"the first for begins at the start", {Loop{}}, whole(0)},
      {"the next for begins the next pass", {Loop{}, Loop{}}, whole(1)},
      {"also when the one before was left early", {Loop{2}, Loop{}}, whole(1)},
      {"also when it was left at its last batch", {Loop{3}, Loop{}}, whole(1)},
      {"a for continues after next()", {Next{}, Loop{}}, rest(0)},
      {"next() continues after a for", {Loop{1}, Next{}}, {{0, 1}}},
      {"next() at the end of a pass stays there", {Loop{}, Next{}, Next{}}, {}},
      {"and a for after it begins the next", {Loop{}, Next{}, Loop{}}, whole(1)},
      {"a for continues from a state", {Load{2, 1}, Loop{}}, rest(2)},
      {"a state from the end of a pass means the next one", {Load{2, 3}, Loop{}}, whole(3)},
      {"a state beats what a for before it left", {Loop{1}, Load{4, 1}, Loop{}}, rest(4)},
      {"the second for after a state begins a pass", {Load{2, 1}, Loop{}, Loop{}}, whole(3)},
      {"a state inside a for, too", {Loop{1}, Load{2, 1}, GoOn{}, Loop{}}, whole(3)},
      {"set_epoch names the pass", {SetEpoch{5}, Loop{}}, whole(5)},
      {"of next(), too", {SetEpoch{5}, Next{}}, {{5, 0}}},
      {"the last set_epoch counts", {SetEpoch{5}, SetEpoch{3}, Loop{}}, whole(3)},
      {"it holds once", {SetEpoch{5}, Loop{}, Loop{}}, whole(6)},
      {"it goes back, too", {Loop{}, SetEpoch{0}, Loop{}}, whole(0)},
      {"a state takes it back", {SetEpoch{5}, Load{2, 1}, Loop{}}, rest(2)},
      {"after a state it changes nothing", {Load{2, 1}, SetEpoch{0}, Loop{}}, rest(2)},
      {"until a batch was given", {Load{2, 1}, Next{}, SetEpoch{0}, Loop{}}, whole(0)},
  };
  return rows;
}

TEST(PassMachine, GivesWhatTheTableSays) {
  for (const Row& row : table()) {
    SCOPED_TRACE(row.name);
    Reader reader;
    Batches last;
    for (const Call& call : row.calls) last = run(reader, call);
    EXPECT_EQ(last, row.expected);
  }
}

TEST(PassMachine, AnEndlessLoaderContinues) {
  Batches expected;
  for (const int64_t pass : {0, 1, 2, 3, 4}) {
    for (const Batch& batch : whole(pass)) expected.push_back(batch);
  }
  for (const size_t left : {1, 2, 3}) {
    Reader reader(/*is_endless=*/true);
    Batches got;
    for (int round = 0; round < 4; ++round) {
      for (const Batch& batch : reader.loop(left)) got.push_back(batch);
    }
    EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin())) << left;
    EXPECT_EQ(got.size(), 4 * left);
    EXPECT_TRUE(reader.set_epoch(7));
    EXPECT_EQ(reader.next(), expected[4 * left]);
    EXPECT_EQ(reader.machine.next_start(reader.where()), (NextStart{std::nullopt, 0}));
  }
}

TEST(PassMachine, ReportsAnEpochThatALoadedStateContradicts) {
  const auto agrees = [](int64_t epoch, int given) {
    Reader reader;
    reader.load(2, given);
    return reader.set_epoch(epoch);
  };
  EXPECT_TRUE(agrees(2, 1));
  EXPECT_FALSE(agrees(3, 1));
  EXPECT_TRUE(agrees(3, 3));
  EXPECT_FALSE(agrees(1, 1));
}

TEST(PassMachine, KnowsLengthsAndStatesBetweenPasses) {
  Reader reader;
  const PassMachine& machine = reader.machine;
  const auto where = reader.where();
  EXPECT_EQ(machine.following(where), 0);
  EXPECT_EQ(machine.pass_of_length(where), 0);
  reader.loop(3);  // the last batch was given, but nobody was told that it was the last
  EXPECT_EQ(machine.following(where), 1);
  EXPECT_EQ(machine.pass_of_length(where), 0);
  EXPECT_EQ(machine.pass_of_state(where), std::nullopt);
  EXPECT_EQ(reader.next(), std::nullopt);
  EXPECT_EQ(machine.following(where), 1);
  EXPECT_EQ(machine.pass_of_length(where), 1);
  EXPECT_EQ(machine.pass_of_state(where), 1);
  reader.set_epoch(6);
  EXPECT_EQ(machine.following(where), 6);
  EXPECT_EQ(machine.pass_of_length(where), 6);
}

TEST(PassMachine, APassThatHasBegunIsNotOver) {
  Reader reader;
  reader.loop();
  reader.load(2, 1);
  EXPECT_EQ(reader.next(), (Batch{2, 1}));
  EXPECT_EQ(reader.next(), (Batch{2, 2}));
  EXPECT_EQ(reader.machine.pass_of_length(reader.where()), 2);
  EXPECT_EQ(reader.machine.pass_of_state(reader.where()), std::nullopt);
  EXPECT_EQ(reader.next(), std::nullopt);
  reader.machine.began();
  EXPECT_EQ(reader.machine.pass_of_length([] { return PassPosition{3, true}; }), 3);  // a pass without a batch
}

TEST(PassMachine, CountsEachNewPosition) {
  Reader reader;
  std::vector<int64_t> counts = {reader.machine.moves()};
  for (const Call& call : std::vector<Call>{Next{}, Load{1, 0}, SetEpoch{1}, Loop{}, Loop{}}) {
    run(reader, call);
    counts.push_back(reader.machine.moves());
  }
  EXPECT_THAT(counts, ElementsAre(0, 0, 1, 1, 1, 2));
  EXPECT_TRUE(reader.machine.is_touched());
}

// Random histories: a worker that follows next_start() begins where the loader itself would.
TEST(PassMachine, TellsWorkersWhatAForWouldDo) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    Reader reader;
    for (uint64_t n = random() % 6; n > 0; --n) {
      const auto pass = static_cast<int64_t>(random() % 4);
      const auto given = static_cast<int>(random() % 4);
      constexpr size_t kLeft[] = {1, 2, 3, SIZE_MAX};
      const Call calls[] = {Loop{kLeft[random() % 4]}, Next{}, Load{pass, given}, SetEpoch{pass}};
      run(reader, calls[random() % 4]);
    }
    const NextStart start = reader.machine.next_start(reader.where());
    const auto begun = pass_of_worker(start, {std::nullopt, -1}, false, reader.where());
    ASSERT_TRUE(begun.has_value());
    const Batch first = *begun ? Batch{**begun, 0} : Batch{reader.number, reader.given};
    ASSERT_THAT(reader.loop(1), ElementsAre(first)) << "round " << round;
  }
}

TEST(PassMachine, AWorkerContinuesWithThePassAfterItsLast) {
  const auto where = [] {
    ADD_FAILURE() << "the reader need not be asked";
    return PassPosition{};
  };
  EXPECT_EQ(*pass_of_worker({0, 4}, {3, 4}, false, where), 3);
  EXPECT_EQ(*pass_of_worker({0, 5}, {3, 4}, false, where), 0);  // the loader has moved since
  EXPECT_EQ(*pass_of_worker({std::nullopt, 5}, {3, 4}, true, where), std::nullopt);
  const auto unknown = pass_of_worker({std::nullopt, 4}, {1, 4}, true, where);
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(unknown.error().message(), HasSubstr("only they know how far it came"));
}

}  // namespace
}  // namespace millrace::order
