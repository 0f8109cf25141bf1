// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/loader.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "millrace/base/text/units.h"
#include "millrace/lerobot/row_source.h"
#include "millrace/loader/packed_batch.h"
#include "millrace/python/arrays.h"
#include "millrace/python/path_arg.h"
#include "millrace/python/python_rows.h"
#include "millrace/python/sample_fields.h"

namespace millrace::python {

namespace {

using loader::Batch;
using loader::Loader;
using loader::LoaderOptions;

struct PyLoader {
  nb::object fields;  // of samples of any kind, else None; the loader uses the tokenizers in it
  nb::list rows;      // objects that the loader calls, one a dataset, or None
  std::unique_ptr<Loader> loader;
  bool carry_state = false;  // in each batch
  bool carry_source = false;
  nb::object ring_memory = {};  // what keeps the loader's BatchRing alive
  std::shared_ptr<loader::BatchRing> ring = {};
  std::vector<loader::PackedBatch::Field> ring_fields = {};  // of the last batch in the ring, and as Python has them
  nb::object ring_layout = {};

  ~PyLoader() {
    const GilRelease release;  // its threads may be waiting to call such an object
    loader.reset();
  }
};

// One dataset of a mixture: its shards, the field of its ids.
using SourceArg = std::pair<std::vector<std::string>, std::string>;
// From this step on, these weights.
using PhaseArg = std::pair<int64_t, std::vector<double>>;

// NB_OBJECT: a dict whose type a checker knows.
class BatchDict : public nb::dict {
  NB_OBJECT_DEFAULT(BatchDict, nb::dict, "dict[str, typing.Any]", PyDict_Check)
};

loader::IdType parse_id_type(std::string_view name) {
  if (name == "int64") return loader::IdType::kInt64;
  if (name == "int32") return loader::IdType::kInt32;
  raise(Error(ErrorCode::kInvalidArgument, fmt::format("dtype is 'int64' or 'int32', not '{}'", name)));
}

// Milliseconds, and 1 at least where a time was asked for. What no wait can last is left to the loader to refuse.
std::chrono::milliseconds stall_of(double seconds) {
  constexpr double kMost = 1e12;
  if (!(seconds >= 0)) raise(Error(ErrorCode::kInvalidArgument, "stall_seconds is a number of seconds; 0: no limit"));
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(std::min(seconds * 1000, kMost))));
}

// What every loader is told of its order, its ranks and its batches.
struct OrderArgs {
  std::vector<PhaseArg> weights;
  std::string_view stop;
  std::optional<int64_t> batch_size, global_batch_size;
  bool shuffle = true;
  uint64_t seed = 0;
  int64_t rank = 0, world_size = 1;
  std::optional<int64_t> epochs;
  bool drop_last = true;
  std::string_view fill_last;
  bool uneven_ranks = false;
};

LoaderOptions options_of(OrderArgs args) {
  LoaderOptions options;
  for (auto& [step, values] : args.weights) options.weights.push_back({step, std::move(values)});
  options.mix_end = unwrap(order::parse_mix_end(args.stop));
  options.batch_size = args.batch_size.value_or(0);
  options.global_batch_size = args.global_batch_size.value_or(0);
  options.order.seed = args.seed;
  options.order.shuffle = args.shuffle;
  options.rank = args.rank;
  options.world_size = args.world_size;
  options.drop_last = args.drop_last;
  options.fill_last = unwrap(loader::parse_fill_last(args.fill_last));
  options.uneven_ranks = args.uneven_ranks;
  if (args.epochs && *args.epochs < 1) {
    raise(Error(ErrorCode::kInvalidArgument, "epochs is at least 1, or None for no end"));
  }
  options.epochs = args.epochs.value_or(0);
  return options;
}

void init(PyLoader* self, OneOrManyPaths shards, int64_t seq_len, std::optional<int64_t> batch_size,
          std::optional<int64_t> global_batch_size, std::string_view collate, bool shuffle, uint64_t seed, int64_t rank,
          int64_t world_size, std::optional<int64_t> epochs, bool drop_last, std::string_view fill_last,
          bool uneven_ranks, int64_t pad_id, std::string_view dtype, int num_threads, int64_t memory_bytes,
          std::string ids_field, std::string_view tokenizer_hash, int64_t vocab_size, bool carry_state,
          bool carry_source, bool carry_documents, std::vector<SourceArg> sources, std::vector<PhaseArg> weights,
          std::string_view stop, std::string_view on_bad, int64_t max_bad, int64_t first_step, int64_t step_stride,
          std::string cache, std::string_view cache_bytes, double stall_seconds, std::string_view on_stall, bool numa,
          nb::object fields, nb::list rows, bool full_shuffle) {
  LoaderOptions options = options_of({std::move(weights), stop, batch_size, global_batch_size, shuffle, seed, rank,
                                      world_size, epochs, drop_last, fill_last, uneven_ranks});
  options.shards = to_paths(std::move(shards));
  for (auto& [paths, field] : sources) options.sources.push_back({std::move(paths), std::move(field)});
  options.seq_len = seq_len;
  options.collate = unwrap(loader::parse_collate(collate));
  options.id_type = parse_id_type(dtype);
  options.pad_id = pad_id;
  options.order.full = full_shuffle;
  options.threads = num_threads;
  options.memory_bytes = memory_bytes;
  options.ids_field = std::move(ids_field);
  if (!tokenizer_hash.empty()) {
    options.tokenizer_hash = hash128_from_hex(tokenizer_hash);
    if (!options.tokenizer_hash) raise(Error(ErrorCode::kInvalidArgument, "tokenizer_hash is 32 hexadecimal digits"));
  }
  options.vocab_size = vocab_size;
  options.documents = carry_documents;
  options.on_bad = unwrap(loader::parse_on_bad(on_bad));
  options.max_bad = max_bad;
  options.first_step = first_step;
  options.step_stride = step_stride;
  options.cache = std::move(cache);
  options.cache_bytes = unwrap(with_context(parse_bytes(cache_bytes), "cache_bytes"));
  options.stall = stall_of(stall_seconds);
  options.on_stall = unwrap(loader::parse_on_stall(on_stall));
  options.numa = numa;
  if (!fields.is_none()) options.fields = parse_fields(nb::cast<nb::list>(fields));
  if (options.is_mixture()) {
    for (size_t i = 0; i < std::min(rows.size(), options.sources.size()); ++i) {
      options.sources[i].open = open_rows(rows[i]);
    }
  } else if (rows.size() == 1) {
    options.open = open_rows(rows[0]);
  }
  new (self) PyLoader{std::move(fields), std::move(rows), unwrap(Loader::create(options)), carry_state, carry_source};
}

// A dataset by its name, what tells it from others, its episodes and their lengths.
using RowsArg = std::tuple<std::string, std::string, std::vector<int64_t>, std::vector<int64_t>>;

// Orders the rows of episodes; the batches are numbers of rows.
std::unique_ptr<PyLoader> row_reader(const std::vector<RowsArg>& datasets, std::vector<PhaseArg> weights,
                                     std::string_view stop, std::optional<int64_t> batch_size,
                                     std::optional<int64_t> global_batch_size, bool shuffle, uint64_t seed,
                                     int64_t rank, int64_t world_size, std::optional<int64_t> epochs, bool drop_last,
                                     std::string_view fill_last, bool uneven_ranks) {
  constexpr int64_t kNumberBytes = 64 << 20;
  LoaderOptions options = options_of({std::move(weights), stop, batch_size, global_batch_size, shuffle, seed, rank,
                                      world_size, epochs, drop_last, fill_last, uneven_ranks});
  options.seq_len = 1;
  options.threads = 1;
  options.memory_bytes = kNumberBytes;
  std::vector<loader::OpenSource> sources;
  for (const auto& [name, facts, episodes, lengths] : datasets) {
    options.shards.push_back(name);
    const lerobot::RowsToOrder rows{name, facts, episodes, lengths};
    sources.emplace_back([rows](const loader::SourceContext& /*context*/) { return lerobot::make_row_source(rows); });
  }
  auto created = unwrap(Loader::create(options, std::move(sources)));
  return std::unique_ptr<PyLoader>(new PyLoader{nb::none(), nb::list(), std::move(created), true, true});
}

// The arrays of token ids lie at equal distances. One array [arrays, rows, seq_len] is made for all, and they are views
// of it, since making an array from outside costs NumPy several times as much as a view.
template <class Id>
nb::object arrays_of(const Batch& batch, const nb::capsule& owner) {
  const size_t shape[3] = {batch.arrays.size(), static_cast<size_t>(batch.rows), static_cast<size_t>(batch.seq_len)};
  const int64_t distance = batch.arrays[1].data - batch.arrays[0].data;
  const int64_t strides[3] = {distance / static_cast<int64_t>(sizeof(Id)), batch.seq_len, 1};
  // SAFETY: the loader filled this memory with Id, as batch.type says.
  auto* const data = reinterpret_cast<Id*>(batch.arrays.front().data);
  return nb::cast(nb::ndarray<nb::numpy, Id>(data, 3, shape, owner, strides));
}

constexpr size_t kPlaceNumbers = 5;  // of a Batch::RowPlace

// [rows, 5]; read again by reject().
nb::object places_array(const Batch& batch) {
  std::vector<int64_t> numbers;
  for (const Batch::RowPlace& at : batch.places) {
    numbers.insert(numbers.end(), {at.source, static_cast<int64_t>(at.epoch), at.lane, at.block, at.index});
  }
  return nb::cast(to_array(std::move(numbers))).attr("reshape")(-1, kPlaceNumbers);
}

BatchDict batch_dict(const Batch& batch, const PyLoader& self) {
  BatchDict d;
  const nb::capsule owner = keep_alive(batch.memory);
  if (!batch.arrays.empty()) {
    const nb::object all =
        batch.type == loader::IdType::kInt64 ? arrays_of<int64_t>(batch, owner) : arrays_of<int32_t>(batch, owner);
    for (size_t i = 0; i < batch.arrays.size(); ++i) {
      const std::string_view name = batch.arrays[i].name;
      d[nb::str(name.data(), name.size())] = all[i];
    }
  }
  if (self.loader->options().has_fields()) add_columns(batch, d);
  if (!batch.cu_seqlens.empty()) {
    d["cu_seqlens"] = to_array(batch.cu_seqlens);
    d["max_seqlen"] = nb::cast(to_array(std::vector<int32_t>{batch.max_seqlen})).attr("reshape")(nb::tuple());
  }
  if (self.loader->options().fill_last != loader::FillLast::kNothing) {
    d["row_mask"] = nb::cast(to_array(batch.row_mask)).attr("view")("bool");
  }
  if (!batch.places.empty()) d["__places__"] = places_array(batch);
  if (self.carry_source) d["source"] = to_array(batch.sources);
  if (self.carry_state) {
    d["loader_state"] = to_array(std::vector<int64_t>{static_cast<int64_t>(batch.epoch), batch.next_position});
  }
  return d;
}

// Waits for the dataset to be opened, while looking for Ctrl-C.
void wait_until_open(PyLoader& self) {
  for (;;) {
    std::optional<Status> opened;
    {
      const GilRelease release;
      opened.emplace(self.loader->open(Clock::now() + kSignalPoll));
    }
    if (*opened || opened->error().code() != ErrorCode::kTimeout) return unwrap(*std::move(opened));
    check_signals();
  }
}

template <class Call>
auto when_open(PyLoader& self, Call&& call) {
  wait_until_open(self);
  return without_gil(std::forward<Call>(call));
}

BatchDict next(PyLoader& self) {
  for (;;) {
    std::optional<Result<std::optional<Batch>>> answer;
    {
      const GilRelease release;
      answer.emplace(self.loader->next(Clock::now() + kSignalPoll));
    }
    if (!*answer && answer->error().code() == ErrorCode::kTimeout) {
      check_signals();
      continue;
    }
    const auto batch = unwrap(std::move(*answer));
    if (!batch) throw nb::stop_iteration();
    return batch_dict(*batch, self);
  }
}

nb::object json_loads(const std::string& text) {
  return nb::module_::import_("json").attr("loads")(text);
}

// A batch in one piece, and the state behind it.
struct PackedWithState {
  loader::PackedBatch batch;
  order::LoaderState state;
};
struct RingBatch {
  PackedWithState packed;
  int64_t buffer = -1;
  nb::object layout;
};

// Most batches have the layout of the one before, which is the same object then.
nb::object layout_of(PyLoader& self, const loader::PackedBatch& batch) {
  if (self.ring_layout.is_valid() && self.ring_fields == batch.fields) return self.ring_layout;
  nb::list fields;
  for (const auto& field : batch.fields) {
    nb::list shape;
    for (const int64_t size : field.shape) shape.append(size);
    fields.append(nb::make_tuple(nb::str(field.name.data(), field.name.size()),
                                 nb::str(field.dtype.data(), field.dtype.size()), nb::tuple(shape), field.offset));
  }
  self.ring_fields = batch.fields;
  self.ring_layout = nb::tuple(fields);
  return self.ring_layout;
}

// Nothing where no batch is ready, or at the end of a pass.
std::optional<PackedWithState> take_packed(PyLoader& self, bool may_wait) {
  const auto take = [&]() -> Result<std::optional<PackedWithState>> {
    ASSIGN_OR_RETURN(auto batch, may_wait ? self.loader->next(Clock::now() + kSignalPoll) : self.loader->try_next());
    if (!batch) return std::nullopt;
    ASSIGN_OR_RETURN(auto state, self.loader->position());
    const loader::PackedFields wanted{.sources = self.carry_source, .state = self.carry_state};
    return PackedWithState{loader::pack_batch(*std::move(batch), self.loader->options(), wanted), std::move(state)};
  };
  for (;;) {
    std::optional<Result<std::optional<PackedWithState>>> answer;
    {
      const GilRelease release;
      answer.emplace(take());
    }
    if (*answer || answer->error().code() != ErrorCode::kTimeout) return unwrap(*std::move(answer));
    check_signals();
  }
}

std::optional<RingBatch> next_in_ring(PyLoader& self, bool may_wait) {
  auto packed = take_packed(self, may_wait);
  if (!packed) {
    if (may_wait) throw nb::stop_iteration();
    return std::nullopt;
  }
  nb::object layout = layout_of(self, packed->batch);
  const int64_t buffer = self.ring != nullptr ? self.ring->number_of(packed->batch.data) : -1;
  return RingBatch{*std::move(packed), buffer, std::move(layout)};
}

nb::tuple ring_space(PyLoader& self, int64_t kept) {
  const Loader::RingSpace space = when_open(self, [&] { return self.loader->ring_space(kept); });
  return nb::make_tuple(space.buffer_bytes, space.buffers);
}

void use_ring(PyLoader& self, uintptr_t address, int64_t buffer_bytes, int64_t buffers, int64_t kept,
              nb::object owner) {
  // SAFETY: the caller says that this is memory of its own, which `owner` keeps alive.
  auto* const data = reinterpret_cast<std::byte*>(address);
  auto ring = unwrap(loader::BatchRing::create(data, buffer_bytes, buffers, kept));
  when_open(self, [&] { return self.loader->use_ring(ring); });
  self.ring = std::move(ring);
  self.ring_memory = std::move(owner);
}

// uint8 [bytes], the batch's memory.
nb::object ring_bytes(const RingBatch& self) {
  const loader::PackedBatch& batch = self.packed.batch;
  if (batch.memory == nullptr) raise(Error(ErrorCode::kInvalidArgument, "this batch was released"));
  const size_t shape[1] = {static_cast<size_t>(batch.bytes)};
  return nb::cast(
      nb::ndarray<nb::numpy, uint8_t>(reinterpret_cast<uint8_t*>(batch.data), 1, shape, keep_alive(batch.memory)));
}

void register_ring_batch(nb::module_& m) {
  nb::class_<RingBatch>(m, "RingBatch", "A batch of token ids in one piece of memory, which it keeps until release().")
      .def_ro("buffer", &RingBatch::buffer, "The number of its buffer in the ring; -1: other memory.")
      .def_ro("layout", &RingBatch::layout,
              nb::for_getter(nb::sig("def layout(self) -> tuple[tuple[str, str, tuple[int, ...], int], ...]")),
              "Of each field its name, dtype, shape and offset in bytes. The same object while nothing of it changes.")
      .def_prop_ro("bytes", [](const RingBatch& self) { return self.packed.batch.bytes; })
      .def(
          "release", [](RingBatch& self) { self.packed.batch.memory.reset(); },
          "Gives the memory back and keeps the state.")
      .def("array", &ring_bytes, nb::sig("def array(self) -> numpy.typing.NDArray[numpy.uint8]"))
      .def(
          "state_dict", [](const RingBatch& self) { return json_loads(order::serialize_state(self.packed.state)); },
          nb::sig("def state_dict(self) -> dict[str, typing.Any]"), "Returns the state after this batch.");
}

void load_state_dict(PyLoader& self, nb::dict state) {
  const auto text = nb::cast<std::string>(nb::module_::import_("json").attr("dumps")(state));
  when_open(self, [&] { return self.loader->load_state(text); });
}

// The arguments, from which an equal loader can be made at its start.
nb::dict config_of(PyLoader& self) {
  const LoaderOptions& o = self.loader->options();
  nb::dict config;
  config["shards"] = nb::cast(o.shards);
  config["seq_len"] = o.seq_len;
  config["batch_size"] = o.batch_size > 0 ? nb::cast(o.batch_size) : nb::none();
  config["global_batch_size"] = o.global_batch_size > 0 ? nb::cast(o.global_batch_size) : nb::none();
  config["collate"] = nb::cast(loader::collate_name(o.collate));
  config["shuffle"] = o.order.shuffle;
  config["full_shuffle"] = o.order.full;
  config["seed"] = o.order.seed;
  config["rank"] = o.rank;
  config["world_size"] = o.world_size;
  config["epochs"] = o.epochs > 0 ? nb::cast(o.epochs) : nb::none();
  config["drop_last"] = o.drop_last;
  config["fill_last"] = nb::cast(loader::fill_last_name(o.fill_last));
  config["pad_id"] = o.pad_id;
  config["dtype"] = o.id_type == loader::IdType::kInt64 ? "int64" : "int32";
  config["num_threads"] = o.threads;
  config["memory_bytes"] = o.memory_bytes;
  config["ids_field"] = o.ids_field;
  config["uneven_ranks"] = o.uneven_ranks;
  config["tokenizer_hash"] = o.tokenizer_hash ? to_hex(*o.tokenizer_hash) : std::string();
  config["vocab_size"] = o.vocab_size;
  config["carry_state"] = self.carry_state;
  config["carry_source"] = self.carry_source;
  config["carry_documents"] = o.documents;
  std::vector<SourceArg> sources;
  for (const auto& source : o.sources) sources.emplace_back(source.shards, source.ids_field);
  config["sources"] = nb::cast(sources);
  std::vector<PhaseArg> weights;
  for (const auto& phase : o.weights) weights.emplace_back(phase.step, phase.weights);
  config["weights"] = nb::cast(weights);
  config["stop"] = nb::cast(order::mix_end_name(o.mix_end));
  config["on_bad"] = nb::cast(loader::on_bad_name(o.on_bad));
  config["max_bad"] = o.max_bad;
  config["first_step"] = o.first_step;
  config["step_stride"] = o.step_stride;
  config["cache"] = o.cache;
  config["cache_bytes"] = fmt::format("{}", o.cache_bytes);
  config["stall_seconds"] = std::chrono::duration<double>(o.stall).count();
  config["fields"] = self.fields;
  config["rows"] = self.rows;
  config["on_stall"] = nb::cast(loader::on_stall_name(o.on_stall));
  config["numa"] = o.numa;
  return config;
}

nb::tuple pass_of(PyLoader& self) {
  const loader::Pass pass = when_open(self, [&] { return self.loader->pass(); });
  return nb::make_tuple(pass.number, pass.over);
}

nb::list provenance(PyLoader& self, int64_t step, const std::vector<std::string>& states) {
  nb::list ranks;
  for (const auto& of_rank : when_open(self, [&] { return self.loader->provenance(step, states); })) {
    nb::list rows;
    for (const auto& row : of_rank) {
      nb::list parts;
      for (const auto& [source, shard, sample, begin, end, replaces] : row) {
        parts.append(nb::make_tuple(source, shard, sample, begin, end, replaces));
      }
      rows.append(std::move(parts));
    }
    ranks.append(std::move(rows));
  }
  return ranks;
}

nb::list quarantined(PyLoader& self) {
  nb::list units;
  for (const auto& unit : when_open(self, [&] { return self.loader->quarantined(); })) {
    units.append(nb::make_tuple(unit.source, unit.epoch, unit.reason));
  }
  return units;
}

nb::list damaged_shards(PyLoader& self) {
  nb::list shards;
  for (const auto& shard : when_open(self, [&] { return self.loader->damaged_shards(); })) {
    shards.append(nb::make_tuple(shard.source, shard.shard, shard.samples, shard.reason));
  }
  return shards;
}

using RejectedArg = std::pair<std::vector<int64_t>, std::string>;

void reject(PyLoader& self, const std::vector<RejectedArg>& rows) {
  std::vector<std::pair<Batch::RowPlace, std::string>> rejected;
  for (const auto& [at, reason] : rows) {
    if (at.size() != kPlaceNumbers) raise(Error(ErrorCode::kInvalidArgument, "a place has five numbers"));
    rejected.emplace_back(Batch::RowPlace{at[0], static_cast<uint64_t>(at[1]), at[2], at[3], at[4]}, reason);
  }
  unwrap(self.loader->reject(rejected));
}

nb::dict stats(PyLoader& self) {
  nb::dict d;
  for (size_t i = 0; i < metric_defs().size(); ++i) {
    const auto metric = static_cast<Metric>(i);
    switch (metric) {
      case Metric::kReadBytes:
      case Metric::kReadSeconds:
      case Metric::kDecodeSeconds:
      case Metric::kCollateSeconds:
      case Metric::kSamples:
      case Metric::kTokens:
      case Metric::kTruncatedTokens:
      case Metric::kBatches:
      case Metric::kBatchCopies:
      case Metric::kWaitSeconds:
      case Metric::kCacheHitBytes:
      case Metric::kCacheCheckedBytes:
      case Metric::kCacheMissBytes:
      case Metric::kCacheDamaged:
        d[nb::str(metric_defs()[i].name.data())] = self.loader->metrics().value(metric);
        break;
      default:
        break;
    }
  }
  d["prefetch_depth"] = self.loader->prefetch_depth();
  d["ready_batches"] = self.loader->ready_batches();
  return d;
}

}  // namespace

// The base of millrace.Loader (python/millrace/loader.py explains the arguments). No pass begins by itself.
void register_loader(nb::module_& m) {
  register_ring_batch(m);
  nb::class_<PyLoader>(m, "BatchReader", "Shards in, batches out; use millrace.Loader. Thread-safe.")
      .def("__init__", &init, nb::arg("shards"), nb::kw_only(), nb::arg("seq_len"), nb::arg("batch_size") = nb::none(),
           nb::arg("global_batch_size") = nb::none(), nb::arg("collate") = "pad", nb::arg("shuffle") = true,
           nb::arg("seed") = 0, nb::arg("rank") = 0, nb::arg("world_size") = 1, nb::arg("epochs") = nb::none(),
           nb::arg("drop_last") = true, nb::arg("fill_last") = "", nb::arg("uneven_ranks") = false,
           nb::arg("pad_id") = 0, nb::arg("dtype") = "int64", nb::arg("num_threads") = 0, nb::arg("memory_bytes") = 0,
           nb::arg("ids_field") = "", nb::arg("tokenizer_hash") = "", nb::arg("vocab_size") = 0,
           nb::arg("carry_state") = false, nb::arg("carry_source") = false, nb::arg("carry_documents") = false,
           nb::arg("sources") = std::vector<SourceArg>(), nb::arg("weights") = std::vector<PhaseArg>(),
           nb::arg("stop") = "endless", nb::arg("on_bad") = "raise", nb::arg("max_bad") = 1000,
           nb::arg("first_step") = 0, nb::arg("step_stride") = 1, nb::arg("cache") = "", nb::arg("cache_bytes") = "0",
           nb::arg("stall_seconds") = 120.0, nb::arg("on_stall") = "warn", nb::arg("numa") = true,
           nb::arg("fields") = nb::none(), nb::arg("rows") = nb::list(), nb::arg("full_shuffle") = false)
      .def(
          "__iter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __iter__(self) -> BatchReader"))
      .def("__next__", &next)
      .def("ring_space", &ring_space, nb::arg("kept"), nb::sig("def ring_space(self, kept: int) -> tuple[int, int]"),
           "The bytes of a buffer and the number of buffers that batches may be written into, where up to `kept` are "
           "held at once.")
      .def("use_ring", &use_ring, nb::arg("address"), nb::arg("buffer_bytes"), nb::arg("buffers"), nb::arg("kept"),
           nb::arg("owner"), "From now on batches are written into these buffers, which `owner` keeps alive.")
      .def("next_in_ring", &next_in_ring, nb::arg("may_wait"),
           "Returns the next batch in one piece of memory. may_wait=False: returns None if no batch is ready.")
      .def(
          "state_dict",
          [](PyLoader& self) { return json_loads(when_open(self, [&] { return self.loader->state(); })); },
          nb::sig("def state_dict(self) -> dict[str, typing.Any]"))
      .def(
          "state_behind",
          [](PyLoader& self, uint64_t epoch, int64_t next_position) {
            return json_loads(when_open(self, [&] { return self.loader->state_behind(epoch, next_position); }));
          },
          nb::arg("epoch"), nb::arg("next_position"),
          nb::sig("def state_behind(self, epoch: int, next_position: int) -> dict[str, typing.Any]"),
          "Returns the state after the batch whose 'loader_state' holds these two numbers.")
      .def("load_state_dict", &load_state_dict, nb::arg("state"))
      .def(
          "start_pass",
          [](PyLoader& self, uint64_t number) { when_open(self, [&] { return self.loader->start_pass(number); }); },
          nb::arg("number"), "Makes the next batch the first one of this pass.")
      .def("pass_info", &pass_of, nb::sig("def pass_info(self) -> tuple[int, bool]"),
           "Returns the number of the current pass, and whether it is over.")
      .def(
          "pass_batches",
          [](PyLoader& self, uint64_t number) {
            return when_open(self, [&] { return self.loader->pass_batches(number); });
          },
          nb::arg("number"))
      .def(
          "set_weights",
          [](PyLoader& self, std::vector<double> weights) {
            when_open(self, [&] { return self.loader->set_weights(std::move(weights)); });
          },
          nb::arg("weights"), "Uses these weights of a mixture from the next batch on.")
      .def("provenance", &provenance, nb::arg("step"), nb::arg("states"),
           nb::sig("def provenance(self, step: int, states: collections.abc.Sequence[str]) -> "
                   "list[list[list[tuple[int, str, int, int, int, str]]]]"))
      .def("quarantined", &quarantined, nb::sig("def quarantined(self) -> list[tuple[int, int, str]]"))
      .def("damaged_shards", &damaged_shards, nb::sig("def damaged_shards(self) -> list[tuple[int, str, int, str]]"),
           "Tars without an index that are damaged: dataset, URL, samples that are read, reason.")
      .def("reject", &reject, nb::arg("rows"),
           "Rows that are bad: of each its line of '__places__' and the reason. From the next load_state_dict() on "
           "others take their places.")
      .def_prop_ro("step", [](PyLoader& self) { return when_open(self, [&] { return self.loader->step(); }); })
      .def(
          "skip",
          [](PyLoader& self, int64_t begin, int64_t end) {
            when_open(self, [&] { return self.loader->skip(begin, end); });
          },
          nb::arg("begin"), nb::arg("end"), "Leaves out steps [begin, end).")
      .def_prop_ro("epoch_units",
                   [](PyLoader& self) { return when_open(self, [&] { return self.loader->epoch_units(); }); })
      .def("stats", &stats, nb::sig("def stats(self) -> dict[str, float]"))
      .def("config", &config_of, nb::sig("def config(self) -> dict[str, typing.Any]"),
           "Returns the arguments of the constructor.")
      .def("close", [](PyLoader& self) {
        const GilRelease release;
        self.loader->close();
      });
  m.def("row_reader", &row_reader, nb::arg("datasets"), nb::kw_only(), nb::arg("weights") = std::vector<PhaseArg>(),
        nb::arg("stop") = "endless", nb::arg("batch_size") = nb::none(), nb::arg("global_batch_size") = nb::none(),
        nb::arg("shuffle") = true, nb::arg("seed") = 0, nb::arg("rank") = 0, nb::arg("world_size") = 1,
        nb::arg("epochs") = nb::none(), nb::arg("drop_last") = true, nb::arg("fill_last") = "",
        nb::arg("uneven_ranks") = false,
        "A BatchReader whose batches are numbers of rows of episodes; millrace.lerobot.Loader is the way to use "
        "it.");
}

}  // namespace millrace::python
