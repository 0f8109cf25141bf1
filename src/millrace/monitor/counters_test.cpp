// SPDX-License-Identifier: Apache-2.0
#include "millrace/monitor/counters.h"

#include <gmock/gmock.h>

#include "millrace/monitor/testing.h"

namespace millrace::monitor {
namespace {

class CountersTest : public FolderTest {
 protected:
  Sample read() const {
    Sample sample;
    const Roots roots{folder_ / "proc", folder_ / "sys"};
    read_node(roots, sample);
    read_clients(roots, sample);
    return sample;
  }
};

TEST_F(CountersTest, ReadsProcessorsPressureMemoryDisksAndNetwork) {
  put("proc/stat", "cpu  100 0 200 300 50 0 0 0 0 0\ncpu0 50 0 100 150 25 0 0 0\ncpu1 50 0 100 150 25 0 0 0\nctxt 9\n");
  put("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n");
  put("proc/pressure/io", "some avg10=0 avg60=0 avg300=0 total=2\nfull avg10=0 avg60=0 avg300=0 total=3000000\n");
  put("proc/pressure/memory", "");
  put("proc/meminfo", "MemTotal:  1000 kB\nMemAvailable:  400 kB\n");
  put("proc/diskstats", " 259 0 nvme0n1 1 0 8 5 2 0 16 7 0 250 12 0\n 7 0 loop0 1 0 8 5 2 0 16 7 0 250 12 0\n");
  put("proc/net/dev",
      "Inter-| Receive | Transmit\n face |bytes\n    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n"
      "  eth0:1000 5 1 2 0 0 0 0 700 4 3 4 0 0 0 0\n");
  const auto values = by_key(read());
  EXPECT_EQ(values.at("millrace_node_processors"), 2);
  EXPECT_EQ(values.at("millrace_node_cpu_seconds_total{mode=\"idle\"}") * sysconf(_SC_CLK_TCK), 300);
  EXPECT_EQ(values.at("millrace_node_pressure_seconds_total{resource=\"cpu\",kind=\"some\"}"), 1.5);
  EXPECT_EQ(values.at("millrace_node_pressure_seconds_total{resource=\"io\",kind=\"full\"}"), 3);
  EXPECT_EQ(values.at("millrace_node_memory_bytes{kind=\"available\"}"), 400 * 1024);
  EXPECT_EQ(values.at("millrace_disk_read_bytes_total{device=\"nvme0n1\"}"), 8 * 512);
  EXPECT_EQ(values.at("millrace_disk_written_bytes_total{device=\"nvme0n1\"}"), 16 * 512);
  EXPECT_EQ(values.at("millrace_disk_busy_seconds_total{device=\"nvme0n1\"}"), 0.25);
  EXPECT_FALSE(values.contains("millrace_disk_read_bytes_total{device=\"loop0\"}"));
  EXPECT_EQ(values.at("millrace_network_receive_bytes_total{device=\"eth0\"}"), 1000);
  EXPECT_EQ(values.at("millrace_network_transmit_bytes_total{device=\"eth0\"}"), 700);
  EXPECT_EQ(values.at("millrace_network_errors_total{device=\"eth0\"}"), 10);
  EXPECT_FALSE(values.contains("millrace_network_receive_bytes_total{device=\"lo\"}"));
}

TEST_F(CountersTest, TheLeastLimitAboveTheCgroupCountsAndFileCacheDoesNot) {
  put("proc/self/cgroup", "1:memory:/other\n0::/job/step\n");
  put("sys/fs/cgroup/job/memory.max", "5000\n");
  put("sys/fs/cgroup/job/step/memory.max", "max\n");
  put("sys/fs/cgroup/job/step/memory.current", "4000\n");
  put("sys/fs/cgroup/job/step/memory.stat", "anon 1\ninactive_file 1500\n");
  put("sys/fs/cgroup/job/step/memory.events", "oom 3\noom_kill 2\n");
  put("sys/fs/cgroup/job/step/cpu.stat", "usage_usec 5\nthrottled_usec 2500000\n");
  const auto values = by_key(read());
  EXPECT_EQ(values.at("millrace_cgroup_memory_bytes"), 2500);
  EXPECT_EQ(values.at("millrace_cgroup_memory_limit_bytes"), 5000);
  EXPECT_EQ(values.at("millrace_cgroup_oom_kills_total"), 2);
  EXPECT_EQ(values.at("millrace_cgroup_cpu_throttled_seconds_total"), 2.5);
}

TEST_F(CountersTest, TheFirstVersionOfCgroupsIsReadWhereTheSecondHasNoController) {
  put("proc/self/cgroup", "4:memory:/job\n0::/job\n");
  put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "4000\n");
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "6000\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 1000\n");
  const auto values = by_key(read());
  EXPECT_EQ(values.at("millrace_cgroup_memory_bytes"), 3000);
  EXPECT_EQ(values.at("millrace_cgroup_memory_limit_bytes"), 6000);
}

TEST_F(CountersTest, RdmaCountsWordsOfFourBytesAndLeavesTextOut) {
  const std::string port = "sys/class/infiniband/efa_0/ports/1/";
  put(port + "counters/port_rcv_data", "100\n");
  put(port + "counters/port_xmit_data", "N/A (not supported)\n");
  put(port + "hw_counters/rdma_read_bytes", "77\n");
  const auto values = by_key(read());
  EXPECT_EQ(values.at("millrace_rdma_receive_bytes_total{device=\"efa_0\",port=\"1\"}"), 400);
  EXPECT_FALSE(values.contains("millrace_rdma_transmit_bytes_total{device=\"efa_0\",port=\"1\"}"));
  EXPECT_EQ(values.at("millrace_rdma_hardware_total{device=\"efa_0\",port=\"1\",counter=\"rdma_read_bytes\"}"), 77);
}

TEST_F(CountersTest, ReadsNfsAndLustreClients) {
  put("proc/self/mountstats",
      "device /dev/sda mounted on / with fstype ext4\n"
      "device nas:/x mounted on /home with fstype nfs4 statvers=1.1\n"
      "\tbytes:\t1 2 3 4 5000 6000 7 8\n\t        READ: 10 11 1 100 200 30 40 2500\n");
  put("sys/kernel/debug/lustre/llite/fsx-1/stats",
      "snapshot_time 1.0 secs.nsecs\nread_bytes 4 samples [bytes] 1 9 5000\nopen 3 samples [reqs]\n");
  const auto values = by_key(read());
  EXPECT_EQ(values.at("millrace_nfs_read_bytes_total{mount=\"/home\"}"), 5000);
  EXPECT_EQ(values.at("millrace_nfs_written_bytes_total{mount=\"/home\"}"), 6000);
  EXPECT_EQ(values.at("millrace_nfs_operations_total{mount=\"/home\",operation=\"READ\"}"), 10);
  EXPECT_EQ(values.at("millrace_nfs_operation_seconds_total{mount=\"/home\",operation=\"READ\"}"), 2.5);
  EXPECT_EQ(values.at("millrace_nfs_timeouts_total{mount=\"/home\",operation=\"READ\"}"), 1);
  EXPECT_EQ(values.at("millrace_lustre_read_bytes_total{target=\"fsx-1\"}"), 5000);
  EXPECT_EQ(values.at("millrace_lustre_operations_total{target=\"fsx-1\",operation=\"open\"}"), 3);
}

TEST_F(CountersTest, AnEmptyNodeNamesWhatIsMissing) {
  const Sample sample = read();
  EXPECT_TRUE(sample.values.empty());
  EXPECT_THAT(sample.missing, testing::Contains(testing::HasSubstr("PSI")));
  EXPECT_THAT(sample.missing, testing::Contains(testing::HasSubstr("cgroup")));
  EXPECT_THAT(sample.missing, testing::Contains(testing::HasSubstr("EFA")));
}

}  // namespace
}  // namespace millrace::monitor
