// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/tensor_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/parts_storage.h"

namespace millrace::checkpoint {
namespace {

using formats::Dtype;
using testing::HasSubstr;

std::string load_box(const TensorFile& file, const std::string& name, const Array& array, const Box& box) {
  std::string bytes(static_cast<size_t>(formats::tensor_bytes(array.dtype, box.shape).value()), '?');
  // SAFETY: std::byte may alias any object.
  const TensorToLoad target{name, box, reinterpret_cast<std::byte*>(bytes.data())};
  EXPECT_OK(file.load({&target, 1}, 2));
  return bytes;
}

// Across pieces of a write and parts of an upload, whole and in part.
TEST(TensorFile, ComesBackFromEveryStorage) {
  const TempDir directory;
  Arrays arrays = small_arrays(3);
  arrays["large"] = make_array(Dtype::kU8, {3, 3'100'001}, 5);
  for (const Location& root :
       {memory_root(), local_root(directory.path()), root_of(make_parts_storage(std::make_shared<PartsService>()))}) {
    const Location at = root.child("x.safetensors");
    const RankTensors tensors = whole_tensors(arrays);
    EXPECT_OK(save_tensors(at, tensors.tensors(), {.metadata = {{"format", "pt"}}, .threads = 2}));
    const auto file = TensorFile::open(at);
    ASSERT_TRUE(file) << explain(file);
    EXPECT_EQ((*file)->header().metadata.at("format"), "pt");
    for (const auto& [name, array] : arrays)
      EXPECT_EQ(load_box(**file, name, array, box_of_all(array.shape)), array.bytes) << name;
    const Box part{{1, 3'000'000}, {2, 100'001}};
    EXPECT_EQ(load_box(**file, "large", arrays["large"], part), cut(arrays["large"], part));
  }
}

TEST(TensorFile, HasTheReferencesBytesAndNoPadding) {
  const Location at = memory_root().child("x");
  const RankTensors tensors = whole_tensors({{"b", {Dtype::kU8, {3}, "abc"}}});
  EXPECT_OK(save_tensors(at, tensors.tensors(), {}));
  EXPECT_EQ(read_object(*at.storage, at.key).value(),
            std::string("8\0\0\0\0\0\0\0", 8) + R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}   )" + "abc");
}

TEST(TensorFile, WhatCannotBeDoneIsSaid) {
  const Location at = memory_root().child("x");
  const RankTensors tensors = whole_tensors({{"b", {Dtype::kU8, {3}, "abc"}}, {"q", {Dtype::kF4, {4}, "ab"}}});
  EXPECT_OK(save_tensors(at, tensors.tensors(), {}));
  const auto file = TensorFile::open(at).value();
  std::byte data[8];
  const auto load = [&](const TensorToLoad& target) { return file->load({&target, 1}); };
  EXPECT_CODE(load({"c", {{0}, {3}}, data}), ErrorCode::kNotFound);
  EXPECT_CODE(load({"b", {{1}, {3}}, data}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(load({"q", {{0}, {2}}, data}), ErrorCode::kUnsupported);
  EXPECT_CODE(TensorFile::open(at.child("y")), ErrorCode::kNotFound);
  RankTensors half;
  half.add("b", {Dtype::kU8, {3}, "abc"}, {{0}, {2}});
  EXPECT_CODE(save_tensors(at, half.tensors(), {}), ErrorCode::kInvalidArgument);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_CODE(save_tensors(at, tensors.tensors(), {}, stop.get_token()), ErrorCode::kCancelled);
  EXPECT_EQ(TensorFile::open(at).value()->header().tensors.size(), 2U) << "the old file stays";
}

}  // namespace
}  // namespace millrace::checkpoint
