// SPDX-License-Identifier: Apache-2.0
// Which checkpoint a training may resume from. Folders of the real programs are in tests/e2e/test_ckpt_last_good.py.
#include "millrace/checkpoint/foreign/last_good.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/testing.h"

namespace millrace::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void put(const Location& root, const std::string& key, std::string_view text) {
  ASSERT_TRUE(write_object(*root.storage, root.child(key).key, text));
}

std::string safetensors_of(int64_t bytes) {
  std::string file =
      formats::layout_safetensors({{.name = "w", .dtype = formats::Dtype::kU8, .shape = {bytes}}}).value().header_bytes;
  return file.append(static_cast<size_t>(bytes), 'x');
}

void put_trainer(const Location& root, int64_t step, std::string_view weights) {
  const std::string folder = fmt::format("checkpoint-{}/", step);
  put(root, folder + "model.safetensors", weights);
  put(root, folder + "trainer_state.json", fmt::format("{{\"global_step\": {}}}", step));
}

void save_own(const Location& root, std::vector<int64_t> steps, const std::string& attempt = "r0000-test") {
  const auto saver = make_saver(root, {.attempt = attempt});
  for (const int64_t step : steps) EXPECT_OK(save_and_wait(*saver, step, arrays_of(step)));
}

std::vector<std::string> names(const std::vector<FoundCheckpoint>& found) {
  std::vector<std::string> names;
  for (const FoundCheckpoint& each : found) names.push_back(each.name);
  return names;
}

TEST(LastGood, TakesTheGreatestStepOfAllKinds) {
  const Location root = memory_root();
  EXPECT_FALSE(find_last_good(root).value().good);
  put_trainer(root, 9, safetensors_of(10));
  put_trainer(root, 10, safetensors_of(10));
  put(root, "checkpoint-best/model.safetensors", "no number, so no checkpoint");
  put(root, "runs/events", "nor this");
  auto last = find_last_good(root).value();
  EXPECT_EQ(last.good->name, "checkpoint-10");
  EXPECT_EQ(kind_name(last.good->kind), "trainer");
  EXPECT_THAT(last.passed_over, IsEmpty());
  save_own(root, {5, 20});
  last = find_last_good(root).value();
  EXPECT_EQ(last.good->name, "step-000000000020");
  EXPECT_EQ(last.good->kind, CheckpointKind::kMillrace);
}

TEST(LastGood, PassesOverEachDamage) {
  const Location root = memory_root();
  put_trainer(root, 1, safetensors_of(10));
  put_trainer(root, 2, safetensors_of(10).substr(0, 40));           // cut in the header
  put_trainer(root, 3, safetensors_of(10) + "more");                // longer than its header says
  put_trainer(root, 4, std::string(100, '\0'));                     // a power cut
  put_trainer(root, 5, "");                                         // the same
  put(root, "checkpoint-6/model.safetensors", safetensors_of(10));  // killed before the last file
  put_trainer(root, 7, safetensors_of(10));
  put(root, "checkpoint-7/trainer_state.json", R"({"global_step": 6})");  // another's
  put(root, "checkpoint-8/trainer_state.json", R"({"global_step": 8})");  // without weights
  const auto last = find_last_good(root).value();
  EXPECT_EQ(last.good->name, "checkpoint-1");
  EXPECT_THAT(names(last.passed_over), ElementsAre("checkpoint-8", "checkpoint-7", "checkpoint-6", "checkpoint-5",
                                                   "checkpoint-4", "checkpoint-3", "checkpoint-2"));
  EXPECT_THAT(last.passed_over[0].reason, HasSubstr("no weights"));
  EXPECT_THAT(last.passed_over[1].reason, HasSubstr("step 6"));
  EXPECT_THAT(last.passed_over[2].reason, HasSubstr("trainer_state.json is missing"));
  for (size_t i = 3; i < 7; ++i) EXPECT_THAT(last.passed_over[i].reason, HasSubstr("model.safetensors")) << i;
}

// As Python's json module writes it.
TEST(LastGood, ReadsPythonsNumbers) {
  const Location root = memory_root();
  put_trainer(root, 3, safetensors_of(10));
  put(root, "checkpoint-3/trainer_state.json",
      R"({"log_history": [{"grad_norm": NaN, "loss": Infinity, "name": "NaN \"Infinity"}, {"loss": -Infinity}], )"
      R"("best": 1.5e300, "global_step": 3})");
  put(root, "checkpoint-3/tokenizer_config.json", R"({"model_max_length": 1000000000000000019884624838656})");
  const auto last = find_last_good(root).value();
  ASSERT_TRUE(last.good) << last.passed_over.at(0).reason;
  EXPECT_EQ(last.good->name, "checkpoint-3");
  for (const std::string_view damage : {"NaM", "1-", "12345678901234567890123.", R"("NaN)", "{", "Infinit", "01"}) {
    put(root, "checkpoint-3/tokenizer_config.json", fmt::format("{{\"a\": {}}}", damage));
    EXPECT_FALSE(find_last_good(root).value().good) << damage;
  }
}

TEST(LastGood, OwnStepsAreHeldAgainstTheirManifest) {
  const Location root = memory_root();
  save_own(root, {1, 2, 3, 4});
  const std::string attempt = "/r0000-test/";
  put(root, step_name(4) + attempt + RankPlaces::of_new(1).file(0), "cut");
  const std::vector<std::string> gone = {root.child(step_name(3) + attempt + RankPlaces::of_new(1).record(0)).key};
  EXPECT_OK(root.storage->remove(gone));
  put(root, step_name(5) + attempt + RankPlaces::of_new(1).file(0), "not committed");
  const auto last = find_last_good(root).value();
  EXPECT_EQ(last.good->step, 2);
  ASSERT_THAT(names(last.passed_over), ElementsAre(step_name(5), step_name(4), step_name(3)));
  EXPECT_THAT(last.passed_over[0].reason, HasSubstr("manifest.json is missing"));
  EXPECT_THAT(last.passed_over[1].reason, HasSubstr("rank-00000-of-00001.safetensors: it has 3 bytes"));
  EXPECT_THAT(last.passed_over[2].reason, HasSubstr("part-00000-of-00001.json: it is missing"));
}

TEST(LastGood, OwnStepsThatWereLeftBehindAreNoCandidates) {
  const Location root = memory_root();
  save_own(root, {1, 2, 3});
  const auto saver = make_saver(root, {.attempt = "r0001-test"});
  saver->continue_from(Lineage{{"r0000-test", 1}});
  EXPECT_OK(save_and_wait(*saver, 2, arrays_of(2)));
  const auto last = find_last_good(root).value();
  EXPECT_EQ(last.good->step, 2);
  ASSERT_EQ(last.passed_over.size(), 1u);
  EXPECT_THAT(last.passed_over[0].reason, HasSubstr("left behind"));
}

TEST(ListSteps, ShowsFilesThatDoNotAgreeWithTheManifest) {
  const Location root = memory_root();
  save_own(root, {1, 2});
  const std::string file = step_name(2) + "/r0000-test/" + RankPlaces::of_new(1).file(0);
  put(root, file, "cut");
  EXPECT_FALSE(list_steps(root).value()[1].any_damage()) << "nobody asked";
  auto steps = list_steps(root, {.check_sizes = true}).value();
  EXPECT_FALSE(steps[0].any_damage());
  ASSERT_TRUE(steps[1].file_damage);
  EXPECT_THAT(steps[1].file_damage->message(), HasSubstr(file));
  const std::vector<std::string> gone = {root.child(file).key};
  EXPECT_OK(root.storage->remove(gone));
  EXPECT_TRUE(list_steps(root, {.check_sizes = true}).value()[1].file_damage);
  EXPECT_FALSE(list_steps(root, {.check_sizes = true, .missing_is_damage = false}).value()[1].file_damage);
}

TEST(ListSteps, SaysWhoWroteAStep) {
  const Location root = memory_root();
  save_own(root, {1});
  const auto steps = list_steps(root).value();
  ASSERT_TRUE(steps[0].writer);
  EXPECT_EQ(steps[0].writer->host, host_name());
  EXPECT_FALSE(steps[0].writer->user.empty());
  EXPECT_FALSE(steps[0].writer->version.empty());
}

}  // namespace
}  // namespace millrace::checkpoint
