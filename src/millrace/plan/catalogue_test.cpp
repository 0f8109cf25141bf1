// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/catalogue.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "millrace/plan/detail/table.h"
#include "millrace/plan/instances.h"
#include "millrace/plan/prices.h"

namespace millrace::plan {
namespace {

using testing::HasSubstr;

std::string id_of(std::string_view name) {
  const auto found = find_gpu(name);
  return found ? found->id : "none";
}

TEST(PlanCatalogue, EveryFigureHasASourceAndEveryInstanceAGpu) {
  std::set<std::string> ids;
  for (const Gpu& gpu : gpus()) {
    EXPECT_TRUE(ids.insert(gpu.id).second) << gpu.id;
    EXPECT_EQ(id_of(gpu.id), gpu.id);
    EXPECT_EQ(id_of(gpu.name), gpu.id) << gpu.name;
    for (const Figure& figure : {gpu.memory_mib, gpu.tflops, gpu.bandwidth_gb_per_s}) {
      EXPECT_GT(figure.value, 0) << gpu.id;
      ASSERT_NE(figure.source, nullptr) << gpu.id;
      EXPECT_FALSE(figure.source->date.empty());
    }
  }
  for (const Instance& instance : instances()) {
    EXPECT_TRUE(instance.gpu_id.empty() || ids.contains(std::string(instance.gpu_id))) << instance.name;
    EXPECT_TRUE(instance.gpu_id.empty() || instance.gpus > 0) << instance.name;
    EXPECT_GT(instance.vcpus, 0) << instance.name;
    EXPECT_GT(instance.memory_mib, 0) << instance.name;
  }
}

std::vector<std::string_view> lines_of(std::string_view file) {
  std::vector<std::string_view> lines;
  for (; !file.empty(); file.remove_prefix(std::min(file.size(), lines.back().size() + 1)))
    lines.push_back(file.substr(0, file.find('\n')));
  std::erase_if(lines, [](std::string_view line) { return line.empty() || line.starts_with('#'); });
  return lines;
}

size_t columns_of(std::string_view line) {
  size_t columns = 1;
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    if (c == ',' && !quoted) ++columns;
  }
  EXPECT_FALSE(quoted) << line;
  return columns;
}

// The files are compiled in as they are: what is wrong with one shows here, also where assert() is compiled out.
TEST(PlanCatalogue, DataFilesAreTables) {
  for (const std::string_view file : {data::k_sources, data::k_gpus, data::k_instances, data::k_prices}) {
    const auto lines = lines_of(file);
    ASSERT_GT(lines.size(), 1U);
    for (const std::string_view line : lines) EXPECT_EQ(columns_of(line), columns_of(lines[0])) << line;
    const auto rows = data::rows_of(file, lines[0]);
    EXPECT_EQ(rows.size() + 1, lines.size());
    for (const data::Row& row : rows) EXPECT_EQ(row.size(), columns_of(lines[0])) << row[0];
  }
  EXPECT_THAT(data::rows_of("# about\na,b\n\"x, y\",\n1,2", "a,b"),
              testing::ElementsAre(testing::ElementsAre("x, y", ""), testing::ElementsAre("1", "2")));
}

TEST(PlanCatalogue, InstancesAreOneTable) {
  EXPECT_GT(instances().size(), 1000U);
  EXPECT_TRUE(std::is_sorted(instances().begin(), instances().end(),
                             [](const Instance& a, const Instance& b) { return a.name < b.name; }));
  const Instance* p5e = find_instance("p5e.48xlarge");
  ASSERT_NE(p5e, nullptr);
  EXPECT_EQ(std::tuple(p5e->vcpus, p5e->memory_mib, p5e->gpus, p5e->maker, p5e->gpu_id),
            std::tuple(192, 2048 * 1024, 8, Maker::kNvidia, "h200"));
  EXPECT_EQ(std::tuple(p5e->efa_interfaces, p5e->nvme_gb, p5e->network_mbps, p5e->arm64),
            std::tuple(32, 30400, 3'200'000, false));
  EXPECT_EQ(find_instance("g5g.xlarge")->arm64, true);
  EXPECT_EQ(find_instance("trn1.32xlarge")->maker, Maker::kAws);
  EXPECT_EQ(find_instance("dl2q.24xlarge")->maker, Maker::kOther);
  EXPECT_EQ(find_instance("p9.huge"), nullptr);
  EXPECT_EQ(find_gpu_instance("p4d.24xlarge")->gpu_id, "a100-40gb");
  EXPECT_EQ(find_gpu_instance("p9.huge").error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(find_gpu_instance("m5.large").error().message(), HasSubstr("has no GPU of the catalogue"));
}

TEST(PlanCatalogue, NamesOfDriversShopsAndSlurms) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"NVIDIA H100 80GB HBM3", "h100-sxm"},
      {"NVIDIA H100 NVL", "h100-nvl"},
      {"NVIDIA H100 PCIe", "h100-pcie"},
      {"NVIDIA A100-SXM4-40GB", "a100-40gb"},
      {"NVIDIA A100-SXM4-80GB", "a100-80gb"},
      {"NVIDIA A100 80GB PCIe", "a100-80gb"},
      {"gpul40s", "l40s"},
      {"gpu4090", "rtx4090"},
      {"NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"},
      {"Tesla T4", "t4"},
      {"Tesla V100-SXM2-32GB", "v100-32gb"},
      {"NVIDIA L4", "l4"},
      {"NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"},
      {"h200", "h200"},
      {"NVIDIA L40", "none"},
      {"a1000", "none"},
      {"", "none"},
      {"AMD Instinct MI300X OAM", "mi300x"},
      {"mi300a", "none"},
      {"NVIDIA GH200 480GB", "gh200"},
      {"NVIDIA GH200 144G HBM3e", "none"},
      {"NVIDIA RTX A6000", "a6000"},
      {"NVIDIA RTX 6000 Ada Generation", "none"},
      {"NVIDIA GeForce RTX 3090", "rtx3090"},
      {"NVIDIA GeForce RTX 3090 Ti", "none"},
      {"rtx5090", "rtx5090"},
      {"gpu2080", "rtx2080ti"},
      {"NVIDIA GeForce RTX 2080", "none"},
      {"NVIDIA GeForce RTX 2080 SUPER", "none"},
      {"NVIDIA GeForce RTX 4070 Ti", "none"},
      {"NVIDIA GeForce RTX 4090 Laptop GPU", "none"},
      {"mi250", "none"}};
  for (const auto& [name, id] : cases) EXPECT_EQ(id_of(name), id) << name;
  EXPECT_THAT(find_gpu("mi250").error().message(), HasSubstr("h100-nvl"));
}

TEST(PlanCatalogue, MigSlicesAreShares) {
  const auto slice = find_gpu("h100-nvl:1g.12gb");
  ASSERT_TRUE(slice) << slice.error().to_string();
  EXPECT_EQ(slice->memory_mib.value, 11978);
  EXPECT_NEAR(slice->tflops.value, 835.0 / 7, 1e-9);
  EXPECT_EQ(id_of("h100_3g.40gb"), "h100-sxm:3g.40gb");
  EXPECT_EQ(id_of("a100-40gb:1g.5gb"), "a100-40gb:1g.5gb");
  EXPECT_EQ(id_of("h200_1g.18gb"), "h200:1g.18gb");
  EXPECT_EQ(id_of("gh200:1g.12gb"), "gh200:1g.12gb");
  EXPECT_EQ(id_of("1g.12gb"), "none");
  EXPECT_EQ(id_of("l40s:1g.6gb"), "none");
  EXPECT_EQ(id_of("h100-nvl:5g.60gb"), "none");
  const auto whole = find_gpu("h100-nvl");
  EXPECT_EQ(mig_slices(*whole).size(), 6U);
  EXPECT_TRUE(mig_slices(*find_gpu("t4")).empty());
  for (const Gpu& each : mig_slices(*whole)) EXPECT_EQ(id_of(each.id), each.id);
}

TEST(PlanCatalogue, Ranking) {
  const std::vector<Gpu> all(gpus().begin(), gpus().end());
  for (const Measure by : {Measure::kTflops, Measure::kMemory, Measure::kBandwidth}) {
    EXPECT_EQ(ranked(all, by).size(), all.size());
  }
  EXPECT_EQ(ranked(all, Measure::kMemory)[0].id, "b300");
  EXPECT_EQ(ranked(all, Measure::kTflops).back().id, "rtx2080ti");
  EXPECT_EQ(ranked(all, Measure::kBandwidth).back().id, "l4");
}

TEST(PlanPrices, ABookIsDated) {
  const auto book = parse_prices(R"({"date": "2026-01-31", "source": "quote", "prices": [
    {"item": "p5e.48xlarge", "usd_per_hour": 40, "region": "us-east-2"},
    {"item": "p5e.48xlarge", "usd_per_hour": 24, "purchase": "spot"},
    {"item": "gpu4090", "gpus": 8, "usd_per_hour": 4}]})");
  ASSERT_TRUE(book) << book.error().to_string();
  EXPECT_EQ(book->name(), "quote, 2026-01-31");
  EXPECT_EQ(find_price(*book, "p5e.48xlarge")->usd_per_gpu_hour(), 3);
  EXPECT_EQ(find_price(*book, "p5e.48xlarge", "us-east-2")->usd_per_hour, 40);
  EXPECT_EQ(find_price(*book, "gpu4090")->usd_per_gpu_hour(), 0.5);
  EXPECT_FALSE(find_price(*book, "gpu4090", "", "spot"));
  EXPECT_FALSE(find_price(*book, "p4d.24xlarge"));
  EXPECT_NEAR(find_price(builtin_prices(), "p5e.48xlarge", "ap-southeast-3")->usd_per_gpu_hour(), 4.325, 1e-9);
  for (const char* bad :
       {"", "[]", "{}", R"({"date": "x"})", R"({"date": "x", "prices": [1]})",
        R"({"date": "x", "prices": [{"item": "a"}]})", R"({"date": "x", "prices": [{"item": "a", "usd_per_hour": 1}]})",
        R"({"date": "x", "prices": [{"item": "a", "gpus": 1, "usd_per_hour": -1}]})"}) {
    EXPECT_EQ(parse_prices(bad).error().code(), ErrorCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace millrace::plan
