// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/loader.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "millrace/python/arrays.h"
#include "millrace/python/path_arg.h"

namespace millrace::python {

namespace {

using loader::Batch;
using loader::Loader;
using loader::LoaderOptions;

struct PyLoader {
  std::unique_ptr<Loader> loader;
  bool carry_state = false;  // in each batch
};

// NB_OBJECT: a dict whose type a checker knows.
class BatchDict : public nb::dict {
  NB_OBJECT_DEFAULT(BatchDict, nb::dict, "dict[str, numpy.typing.NDArray[numpy.int64]]", PyDict_Check)
};

loader::IdType parse_id_type(std::string_view name) {
  if (name == "int64") return loader::IdType::kInt64;
  if (name == "int32") return loader::IdType::kInt32;
  raise(Error(ErrorCode::kInvalidArgument, fmt::format("dtype is 'int64' or 'int32', not '{}'", name)));
}

void init(PyLoader* self, OneOrManyPaths shards, int64_t seq_len, std::optional<int64_t> batch_size,
          std::optional<int64_t> global_batch_size, std::string_view collate, bool shuffle, uint64_t seed, int64_t rank,
          int64_t world_size, std::optional<int64_t> epochs, bool drop_last, bool uneven_ranks, int64_t pad_id,
          std::string_view dtype, int num_threads, int64_t memory_bytes, std::string ids_field,
          std::string_view tokenizer_hash, int64_t vocab_size, bool carry_state, int64_t first_step,
          int64_t step_stride) {
  LoaderOptions options;
  options.shards = to_paths(std::move(shards));
  options.batch_size = batch_size.value_or(0);
  options.global_batch_size = global_batch_size.value_or(0);
  options.seq_len = seq_len;
  options.collate = unwrap(loader::parse_collate(collate));
  options.id_type = parse_id_type(dtype);
  options.pad_id = pad_id;
  options.order.seed = seed;
  options.order.shuffle = shuffle;
  options.rank = rank;
  options.world_size = world_size;
  options.drop_last = drop_last;
  if (epochs && *epochs < 1) raise(Error(ErrorCode::kInvalidArgument, "epochs is at least 1, or None for no end"));
  options.epochs = epochs.value_or(0);
  options.threads = num_threads;
  options.memory_bytes = memory_bytes;
  options.ids_field = std::move(ids_field);
  options.uneven_ranks = uneven_ranks;
  if (!tokenizer_hash.empty()) {
    options.tokenizer_hash = hash128_from_hex(tokenizer_hash);
    if (!options.tokenizer_hash) raise(Error(ErrorCode::kInvalidArgument, "tokenizer_hash is 32 hexadecimal digits"));
  }
  options.vocab_size = vocab_size;
  options.first_step = first_step;
  options.step_stride = step_stride;
  new (self) PyLoader{unwrap(Loader::create(options)), carry_state};
}

template <class Id>
nb::object array_of(const Batch& batch, const Batch::Array& array, const nb::capsule& owner) {
  const size_t shape[2] = {static_cast<size_t>(batch.rows), static_cast<size_t>(batch.seq_len)};
  // SAFETY: the loader filled this memory with Id, as batch.type says.
  return nb::cast(nb::ndarray<nb::numpy, Id>(reinterpret_cast<Id*>(array.data), 2, shape, owner));
}

BatchDict batch_dict(const Batch& batch, bool carry_state) {
  BatchDict d;
  const nb::capsule owner = keep_alive(batch.memory);
  for (const Batch::Array& array : batch.arrays) {
    d[nb::str(array.name.data(), array.name.size())] = batch.type == loader::IdType::kInt64
                                                           ? array_of<int64_t>(batch, array, owner)
                                                           : array_of<int32_t>(batch, array, owner);
  }
  if (carry_state) {
    d["loader_state"] = to_array(std::vector<int64_t>{static_cast<int64_t>(batch.epoch), batch.next_position});
  }
  return d;
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
    return batch_dict(*batch, self.carry_state);
  }
}

nb::object json_loads(const std::string& text) {
  return nb::module_::import_("json").attr("loads")(text);
}

void load_state_dict(PyLoader& self, nb::dict state) {
  const auto text = nb::cast<std::string>(nb::module_::import_("json").attr("dumps")(state));
  without_gil([&] { return self.loader->load_state(text); });
}

// The arguments, from which the same loader can be made at its beginning.
nb::dict config_of(PyLoader& self) {
  const LoaderOptions& o = self.loader->options();
  nb::dict config;
  config["shards"] = nb::cast(o.shards);
  config["seq_len"] = o.seq_len;
  config["batch_size"] = o.batch_size > 0 ? nb::cast(o.batch_size) : nb::none();
  config["global_batch_size"] = o.global_batch_size > 0 ? nb::cast(o.global_batch_size) : nb::none();
  config["collate"] = o.collate == loader::Collate::kPad ? "pad" : "pack";
  config["shuffle"] = o.order.shuffle;
  config["seed"] = o.order.seed;
  config["rank"] = o.rank;
  config["world_size"] = o.world_size;
  config["epochs"] = o.epochs > 0 ? nb::cast(o.epochs) : nb::none();
  config["drop_last"] = o.drop_last;
  config["pad_id"] = o.pad_id;
  config["dtype"] = o.id_type == loader::IdType::kInt64 ? "int64" : "int32";
  config["num_threads"] = o.threads;
  config["memory_bytes"] = o.memory_bytes;
  config["ids_field"] = o.ids_field;
  config["uneven_ranks"] = o.uneven_ranks;
  config["tokenizer_hash"] = o.tokenizer_hash ? to_hex(*o.tokenizer_hash) : std::string();
  config["vocab_size"] = o.vocab_size;
  config["carry_state"] = self.carry_state;
  config["first_step"] = o.first_step;
  config["step_stride"] = o.step_stride;
  return config;
}

nb::tuple pass_of(PyLoader& self) {
  const Loader::Pass pass = without_gil([&] { return self.loader->pass(); });
  return nb::make_tuple(pass.number, pass.over, pass.batches);
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
        d[nb::str(metric_defs()[i].name.data())] = self.loader->metrics().value(metric);
        break;
      default:
        break;
    }
  }
  d["prefetch_depth"] = self.loader->prefetch_depth();
  return d;
}

}  // namespace

// What is under millrace.Loader (python/millrace/loader.py, which has the arguments' meaning): no pass begins by
// itself.
void register_loader(nb::module_& m) {
  nb::class_<PyLoader>(m, "BatchReader", "Shards in, batches out; millrace.Loader is the way to use it. Thread-safe.")
      .def("__init__", &init, nb::arg("shards"), nb::kw_only(), nb::arg("seq_len"), nb::arg("batch_size") = nb::none(),
           nb::arg("global_batch_size") = nb::none(), nb::arg("collate") = "pad", nb::arg("shuffle") = true,
           nb::arg("seed") = 0, nb::arg("rank") = 0, nb::arg("world_size") = 1, nb::arg("epochs") = nb::none(),
           nb::arg("drop_last") = true, nb::arg("uneven_ranks") = false, nb::arg("pad_id") = 0,
           nb::arg("dtype") = "int64", nb::arg("num_threads") = 0, nb::arg("memory_bytes") = 0,
           nb::arg("ids_field") = "", nb::arg("tokenizer_hash") = "", nb::arg("vocab_size") = 0,
           nb::arg("carry_state") = false, nb::arg("first_step") = 0, nb::arg("step_stride") = 1)
      .def(
          "__iter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __iter__(self) -> BatchReader"))
      .def("__next__", &next)
      .def(
          "state_dict", [](PyLoader& self) { return json_loads(without_gil([&] { return self.loader->state(); })); },
          nb::sig("def state_dict(self) -> dict[str, typing.Any]"))
      .def(
          "state_behind",
          [](PyLoader& self, uint64_t epoch, int64_t next_position) {
            return json_loads(without_gil([&] { return self.loader->state_behind(epoch, next_position); }));
          },
          nb::arg("epoch"), nb::arg("next_position"),
          nb::sig("def state_behind(self, epoch: int, next_position: int) -> dict[str, typing.Any]"),
          "The state of whoever has used the batch whose 'loader_state' holds these two.")
      .def("load_state_dict", &load_state_dict, nb::arg("state"))
      .def(
          "start_pass",
          [](PyLoader& self, uint64_t number) { without_gil([&] { return self.loader->start_pass(number); }); },
          nb::arg("number"), "The next batch is the first of this pass.")
      .def("pass_info", &pass_of, nb::sig("def pass_info(self) -> tuple[int, bool, int]"),
           "Of the pass under way: its number, whether it is over, how many batches all of it has.")
      .def(
          "pass_batches",
          [](PyLoader& self, uint64_t number) {
            return without_gil([&] { return self.loader->pass_batches(number); });
          },
          nb::arg("number"))
      .def_prop_ro("epoch_units",
                   [](PyLoader& self) { return without_gil([&] { return self.loader->epoch_units(); }); })
      .def("stats", &stats, nb::sig("def stats(self) -> dict[str, float]"))
      .def("config", &config_of, nb::sig("def config(self) -> dict[str, typing.Any]"),
           "The arguments of the constructor.")
      .def("close", [](PyLoader& self) {
        const GilRelease release;
        self.loader->close();
      });
}

}  // namespace millrace::python
