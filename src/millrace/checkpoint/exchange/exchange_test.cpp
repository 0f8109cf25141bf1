// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/exchange/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "millrace/checkpoint/exchange/cast.h"
#include "millrace/checkpoint/records/boxes.h"
#include "millrace/checkpoint/records/ranges.h"
#include "millrace/checkpoint/tensor_file.h"
#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/parts_storage.h"

namespace millrace::checkpoint {
namespace {

using formats::Dtype;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

TEST(Ranges, AreTheirElementsInOrder) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {7}, {3, 4}, {2, 1, 5}, {3, 2, 2, 2}}) {
    Array array{Dtype::kU8, shape, ""};
    const int64_t count = volume(shape);
    for (int64_t i = 0; i < count; ++i) array.bytes += static_cast<char>(i);
    for (int64_t begin = 0; begin < count; ++begin) {
      for (int64_t end = begin + 1; end <= count; ++end) {
        std::string joined;
        const auto boxes = boxes_of_range(shape, begin, end);
        for (const Box& box : boxes) joined += cut(array, box);
        EXPECT_EQ(joined, array.bytes.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
        EXPECT_LE(boxes.size(), std::max<size_t>(2 * shape.size(), 2) - 1);
      }
    }
  }
}

NameMap map_of(std::vector<NameRule> rules) {
  return NameMap::create(std::move(rules)).value();
}

TEST(NameMap, TakesTheLongestRule) {
  const NameMap names = map_of({{"a.*", "x.*"}, {"a.b.*", "y.*"}, {"a.b.c", "z"}, {"drop.*", {}}, {"tail*", "*"}});
  EXPECT_EQ(names("a.1"), "x.1");
  EXPECT_EQ(names("a.b.1"), "y.1");
  EXPECT_EQ(names("a.b.c"), "z");
  EXPECT_EQ(names("drop.me"), std::nullopt);
  EXPECT_EQ(names("tail.q"), ".q");
  EXPECT_EQ(names("other"), "other");
  for (const NameRule& bad : {NameRule{"a*b", "c"}, {"a*", "c"}, {"a", "c*"}, {"a*", "*c"}})
    EXPECT_CODE(NameMap::create({bad}), ErrorCode::kInvalidArgument);
}

// A model saved by four ranks in bands, beside an optimizer.
struct Saved {
  Location root = memory_root();
  Arrays model;
  std::unique_ptr<Checkpoint> checkpoint;

  explicit Saved(uint64_t seed) {
    model = {{"model.a.weight", make_array(Dtype::kBF16, {33, 17, 5}, seed)},
             {"model.b", make_array(Dtype::kF32, {1000, 31}, seed + 1)},
             {"model.c.bias", make_array(Dtype::kF32, {3}, seed + 2)},
             {"model.d.mask", make_array(Dtype::kBool, {13}, seed + 3)},
             {"model.e", make_array(Dtype::kF64, {}, seed + 4)},
             {"model.f", make_array(Dtype::kF32, {0, 3}, seed + 5)}};
    Arrays all = model;
    all.emplace("optim.exp_avg", make_array(Dtype::kF32, {100}, seed + 6));
    std::mt19937_64 random(seed);
    const auto ranks = sharded_tensors(all, 4, random);
    std::vector<std::unique_ptr<Saver>> savers;
    std::vector<std::shared_ptr<PendingSave>> saves;
    for (int64_t rank = 0; rank < 4; ++rank) {
      savers.push_back(make_saver(root, {.rank = rank, .world_size = 4}));
      saves.push_back(savers.back()->save(1, ranks[static_cast<size_t>(rank)].tensors(), "{}", "null").value());
    }
    for (const auto& save : saves) EXPECT_OK(save->wait());
    checkpoint = Checkpoint::open(root, 1).value();
  }
};

std::string read_tensor(const TensorFile& file, const std::string& name) {
  const formats::TensorInfo* info = file.header().find(name);
  EXPECT_NE(info, nullptr) << name;
  std::string bytes(static_cast<size_t>(info->end - info->begin), '?');
  // SAFETY: std::byte may alias any object.
  const TensorToLoad target{name, box_of_all(info->shape), reinterpret_cast<std::byte*>(bytes.data())};
  EXPECT_OK(file.load({&target, 1}));
  return bytes;
}

// Tensors that cross the borders of small batches, each held against one cast of the whole.
TEST(Export, CastsFloatingPointTensorsOnly) {
  Arrays arrays{{"model.wide", make_array(Dtype::kF32, {1500, 401}, 1)},
                {"model.half", make_array(Dtype::kF16, {700'001}, 2)},
                {"model.double", make_array(Dtype::kF64, {90'000, 3}, 3)},
                {"model.ids", make_array(Dtype::kI64, {50'000}, 4)},
                {"model.scalar", make_array(Dtype::kF32, {}, 5)}};
  const Location root = memory_root();
  EXPECT_OK(save_and_wait(*make_saver(root), 1, arrays));
  const auto checkpoint = Checkpoint::open(root, 1).value();
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32, Dtype::kF64}) {
    SCOPED_TRACE(formats::dtype_name(dtype));
    const auto service = std::make_shared<PartsService>();
    service->part_bytes = 1 << 20;
    const Location out = root_of(make_parts_storage(service), "out.safetensors");
    const auto files =
        export_safetensors(*checkpoint, out, {.buffer_bytes = 1, .dtype = dtype, .single_file = true, .threads = 2});
    ASSERT_TRUE(files) << explain(files);
    const auto file = TensorFile::open(out);
    ASSERT_TRUE(file) << explain(file);
    for (const auto& [name, array] : arrays) {
      std::string expected = array.bytes;
      const bool is_cast = is_castable(array.dtype);
      if (is_cast) {
        const int64_t count = std::ssize(array.bytes) / (formats::dtype_bits(array.dtype) / 8);
        expected.assign(static_cast<size_t>(count * formats::dtype_bits(dtype) / 8), '?');
        // SAFETY: std::byte may alias any object.
        cast(reinterpret_cast<const std::byte*>(array.bytes.data()), array.dtype,
             reinterpret_cast<std::byte*>(expected.data()), dtype, count);
      }
      EXPECT_EQ((*file)->header().find(name.substr(6))->dtype, is_cast ? dtype : array.dtype) << name;
      EXPECT_TRUE(read_tensor(**file, name.substr(6)) == expected) << name;
    }
  }
  EXPECT_CODE(export_safetensors(*checkpoint, memory_root(), {.dtype = Dtype::kI8}), ErrorCode::kInvalidArgument);
}

TEST(Export, AssemblesFilesByRangesOfAnySize) {
  const Saved saved(1);
  for (const int64_t buffer : {int64_t{1}, int64_t{64} << 20}) {  // the smallest is two pieces
    const Location out = root_of(make_memory_storage("test"), "out");
    const auto files = export_safetensors(*saved.checkpoint, out, {.max_file_bytes = 100'000, .buffer_bytes = buffer});
    ASSERT_TRUE(files) << explain(files);
    ASSERT_THAT(*files, SizeIs(3));
    const auto index = nlohmann::json::parse(*read_object(*out.storage, "out/model.safetensors.index.json"));
    int64_t bytes = 0;
    for (const auto& [name, array] : saved.model) {
      const std::string inner = name.substr(6);
      const auto file = TensorFile::open(out.child(index["weight_map"][inner].get<std::string>()));
      ASSERT_TRUE(file) << explain(file);
      EXPECT_EQ(read_tensor(**file, inner), array.bytes);
      EXPECT_EQ((*file)->header().find(inner)->shape, array.shape);
      bytes += std::ssize(array.bytes);
    }
    EXPECT_EQ(index["weight_map"].size(), saved.model.size()) << "not the optimizer";
    EXPECT_EQ(index["metadata"]["total_size"], bytes);
  }
}

TEST(Export, OfATensorOfManyPieces) {
  // Each piece but the first begins in the middle of a row, and of the stored boxes, which are columns.
  const Array big = make_array(Dtype::kF32, {1531, 4099}, 7);
  const Location root = memory_root();
  std::vector<std::unique_ptr<Saver>> savers;
  std::vector<std::shared_ptr<PendingSave>> saves;
  for (int64_t rank = 0; rank < 2; ++rank) {
    RankTensors tensors;
    tensors.add("model.big", big, {{0, rank * 2050}, {1531, rank == 0 ? 2050 : 2049}});
    savers.push_back(make_saver(root, {.rank = rank, .world_size = 2}));
    saves.push_back(savers.back()->save(1, tensors.tensors(), "{}", "null").value());
  }
  for (const auto& save : saves) EXPECT_OK(save->wait());
  const auto checkpoint = Checkpoint::open(root, 1).value();
  const Location out = root_of(make_memory_storage("test"), "big.safetensors");
  const auto files = export_safetensors(*checkpoint, out, {.buffer_bytes = 16 << 20, .single_file = true});
  ASSERT_TRUE(files) << explain(files);
  EXPECT_EQ(read_tensor(*TensorFile::open(out).value(), "big"), big.bytes);
}

TEST(Export, RenamesLeavesOutAndRefuses) {
  const Saved saved(2);
  const Location out = root_of(make_memory_storage("test"), "m.safetensors");
  ExportOptions options{.names = map_of({{"a.*", "first.*"}, {"d.*", {}}}), .single_file = true};
  ASSERT_TRUE(export_safetensors(*saved.checkpoint, out, options));
  const auto file = TensorFile::open(out).value();
  std::vector<std::string> names;
  for (const auto& tensor : file->header().tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, testing::UnorderedElementsAre("first.weight", "b", "c.bias", "e", "f"));
  options.names = map_of({{"a.weight", "b"}});
  const auto clash = export_safetensors(*saved.checkpoint, out, options);
  EXPECT_CODE(clash, ErrorCode::kInvalidArgument);
  EXPECT_THAT(clash.error().to_string(), HasSubstr("'model.a.weight' and 'model.b' would both be 'b'"));
  const auto none = export_safetensors(*saved.checkpoint, out, {.entry = "ema"});
  EXPECT_CODE(none, ErrorCode::kNotFound);
  EXPECT_THAT(none.error().to_string(), HasSubstr("it has model, optim"));
}

TEST(Export, DamageLeavesNoFile) {
  const Saved saved(3);
  for (const std::string& key : keys_below(saved.root)) {
    if (!key.ends_with(".safetensors")) continue;
    const std::string path = saved.root.child(key).key;
    std::string content = *read_object(*saved.root.storage, path);
    content.back() ^= 1;
    ASSERT_TRUE(write_object(*saved.root.storage, path, content));
  }
  const Location out = root_of(make_memory_storage("test"), "out");
  EXPECT_CODE(export_safetensors(*saved.checkpoint, out, {.entry = ""}), ErrorCode::kCorruption);
  EXPECT_THAT(keys_below(out), SizeIs(0));
}

TEST(Import, CutsTensorsIntoPartsAndComesBackEqual) {
  const Saved saved(4);
  const Location out = root_of(make_memory_storage("test"), "out");
  ASSERT_TRUE(export_safetensors(*saved.checkpoint, out, {.max_file_bytes = 100'000}));
  const auto files = find_safetensors(out);
  ASSERT_TRUE(files) << explain(files);
  ASSERT_THAT(*files, SizeIs(3));
  for (const int64_t part : {int64_t{1}, int64_t{999}, int64_t{50'000}, int64_t{1} << 30}) {
    const Location root = memory_root();
    const auto info = import_safetensors(*files, root, {.step = 5, .part_bytes = part});
    ASSERT_TRUE(info) << explain(info);
    EXPECT_EQ(info->world_size > 1, part < 1 << 30) << part;
    EXPECT_OK(load_and_compare(root, 5, saved.model));
    EXPECT_OK(Checkpoint::open(root, 5).value()->verify());
    EXPECT_CODE(import_safetensors(*files, root, {.step = 5}), ErrorCode::kAlreadyExists);
    EXPECT_CODE(import_safetensors(*files, memory_root(), {.names = map_of({{"a.weight", "b"}})}),
                ErrorCode::kInvalidArgument);
  }
  const auto state = nlohmann::json::parse([&] {
    const Location root = memory_root();
    EXPECT_OK(import_safetensors(*files, root, {}));
    return Checkpoint::open(root, 0).value()->state();
  }());
  EXPECT_EQ(state["state"]["model"]["state"]["$dict"][0],
            nlohmann::json::parse(R"(["a.weight", {"$tensor": "model.a.weight"}])"));
}

TEST(Import, SaysWhatElseIsThere) {
  const auto storage = make_memory_storage("test");
  const auto says = [&](const std::string& folder, const std::string& file) {
    EXPECT_OK(write_object(*storage, folder + "/" + file, "x"));
    const auto found = find_safetensors(root_of(storage, folder));
    EXPECT_CODE(found, ErrorCode::kInvalidArgument);
    return found ? "" : found.error().to_string();
  };
  EXPECT_THAT(says("ds", "global_step100/mp_rank_00_model_states.pt"), HasSubstr("zero_to_fp32.py"));
  EXPECT_THAT(says("dcp", ".metadata"), HasSubstr("--from dcp"));
  EXPECT_THAT(says("bin", "pytorch_model.bin"), HasSubstr("--from torch"));
  EXPECT_THAT(says("other", "readme.txt"), HasSubstr("no safetensors files"));
  EXPECT_CODE(find_safetensors(root_of(storage, "nowhere")), ErrorCode::kNotFound);
  EXPECT_OK(write_object(*storage, "index/model.safetensors.index.json", R"({"weight_map": {"a": "../x"}})"));
  EXPECT_CODE(find_safetensors(root_of(storage, "index")), ErrorCode::kCorruption);
}

TEST(Companions, AreAllButWeights) {
  const auto storage = make_memory_storage("test");
  for (const std::string name :
       {"config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"})
    EXPECT_OK(write_object(*storage, "in/" + name, name));
  const auto copied = copy_companions(root_of(storage, "in"), root_of(storage, "out"));
  ASSERT_TRUE(copied) << explain(copied);
  EXPECT_THAT(*copied, ElementsAre("config.json", "tokenizer.json"));
  EXPECT_EQ(*read_object(*storage, "out/config.json"), "config.json");
}

}  // namespace
}  // namespace millrace::checkpoint
