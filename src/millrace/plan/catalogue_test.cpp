// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/catalogue.h"

#include <gmock/gmock.h>

#include <set>

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
    EXPECT_TRUE(ids.contains(std::string(instance.gpu_id))) << instance.id;
    EXPECT_TRUE(find_instance(instance.id));
  }
  EXPECT_EQ(find_instance("p9.huge").error().code(), ErrorCode::kNotFound);
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
      {"mi300x", "none"}};
  for (const auto& [name, id] : cases) EXPECT_EQ(id_of(name), id) << name;
  EXPECT_THAT(find_gpu("mi300x").error().message(), HasSubstr("h100-nvl"));
}

TEST(PlanCatalogue, MigSlicesAreShares) {
  const auto slice = find_gpu("h100-nvl:1g.12gb");
  ASSERT_TRUE(slice) << slice.error().to_string();
  EXPECT_EQ(slice->memory_mib.value, 11978);
  EXPECT_NEAR(slice->tflops.value, 835.0 / 7, 1e-9);
  EXPECT_EQ(id_of("h100_3g.40gb"), "h100-sxm:3g.40gb");
  EXPECT_EQ(id_of("a100-40gb:1g.5gb"), "a100-40gb:1g.5gb");
  EXPECT_EQ(id_of("h200_1g.18gb"), "h200:1g.18gb");
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
