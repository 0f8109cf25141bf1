// SPDX-License-Identifier: Apache-2.0
#include "millrace/monitor/sinks.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "millrace/base/io/file_text.h"
#include "millrace/monitor/run.h"
#include "millrace/monitor/testing.h"
#include "millrace/monitor/text.h"

namespace millrace::monitor {
namespace {

constexpr Series kBusy{"millrace_gpu_busy_ratio", "busy"};
constexpr Series kBytes{"millrace_disk_read_bytes_total", "bytes", true};

class SinksTest : public FolderTest {
 protected:
  Sample sample() const {
    Sample made{.time_ns = 1'500'000'000, .host = "n,1", .values = {}, .missing = {}};
    made.add(kBytes, 7, {{"device", "a\"b"}});
    made.add(kBusy, 0.5, {{"gpu", "0"}});
    made.add(kBusy, 0.25, {{"gpu", "1"}});
    return made;
  }
  std::string path() const { return folder_ / "out.prom"; }
  std::string text() const { return read_text(path()).value_or("no file"); }
};

TEST_F(SinksTest, CsvHasALineAGpuAndContinuesATornFile) {
  const std::string header =
      "timestamp,index,utilization.gpu [%],memory.used [MiB],memory.total [MiB],temperature.gpu,power.draw [W],"
      "clocks.current.sm [MHz],host,\"millrace_disk_read_bytes_total{device=\"\"a\\\"\"b\"\"}\"\n";
  ASSERT_TRUE(csv_sink(path())->write(sample()));
  const std::string rows = "1970/01/01 00:00:01.500,0,50,,,,,,\"n,1\",7\n1970/01/01 00:00:01.500,1,25,,,,,,\"n,1\",7\n";
  EXPECT_EQ(text(), header + rows);
  put("out.prom", header + "1970/01/01 00:0");
  ASSERT_TRUE(csv_sink(path())->write(sample()));
  EXPECT_EQ(text(), header + "1970/01/01 00:0\n" + rows);
}

TEST_F(SinksTest, CsvLeavesAFileWithOtherColumnsAlone) {
  put("out.prom", "mine\n");
  const Status status = csv_sink(path())->write(sample());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(text(), "mine\n");
}

TEST_F(SinksTest, JsonLinesHoldAllSeries) {
  const auto sink = json_lines_sink(path());
  ASSERT_TRUE(sink->write(sample()));
  ASSERT_TRUE(sink->write(sample()));
  const std::string all = text();
  ASSERT_EQ(lines_of(all).size(), 2u);
  const auto line = nlohmann::json::parse(lines_of(all)[1]);
  EXPECT_EQ(line["host"], "n,1");
  EXPECT_EQ(line["values"]["millrace_gpu_busy_ratio{gpu=\"1\"}"], 0.25);
}

TEST_F(SinksTest, PrometheusGroupsNamesAndHasEachSeriesOnce) {
  Sample twice = sample();
  twice.add(kBytes, 8, {{"device", "a\"b"}});
  ASSERT_TRUE(prometheus_sink(path())->write(twice));
  EXPECT_EQ(text(),
            "# HELP millrace_disk_read_bytes_total bytes\n# TYPE millrace_disk_read_bytes_total counter\n"
            "millrace_disk_read_bytes_total{device=\"a\\\"b\"} 7\n"
            "# HELP millrace_gpu_busy_ratio busy\n# TYPE millrace_gpu_busy_ratio gauge\n"
            "millrace_gpu_busy_ratio{gpu=\"0\"} 0.5\nmillrace_gpu_busy_ratio{gpu=\"1\"} 0.25\n");
  EXPECT_EQ(names_in(folder_), std::vector<std::string>{"out.prom"});
}

TEST_F(SinksTest, TheMonitorNamesAMissingPartOnceAndStopsAtItsCount) {
  MonitorConfig config{.roots = {folder_ / "proc", folder_ / "sys"}, .nvml = "libmillrace-no-such.so.1"};
  config.interval = std::chrono::duration<double>(0.001);
  config.samples = 3;
  std::vector<std::unique_ptr<Sink>> sinks;
  sinks.push_back(json_lines_sink(path()));
  std::map<std::string, int> named;
  ASSERT_TRUE(run_monitor(config, sinks, [&](const std::string& part) { ++named[part]; }, {}));
  const std::string all = text();
  EXPECT_EQ(lines_of(all).size(), 3u);
  EXPECT_GE(named.size(), 3u);
  for (const auto& [part, times] : named) EXPECT_EQ(times, 1) << part;
}

}  // namespace
}  // namespace millrace::monitor
