// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/loader.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <variant>

#include "millrace/python/arrays.h"

namespace millrace::python {

namespace {

using loader::Batch;
using loader::Loader;
using loader::LoaderOptions;

using OneOrMany = std::variant<std::string, std::vector<std::string>>;

struct PyLoader {
  std::unique_ptr<Loader> loader;
};

loader::IdType parse_id_type(std::string_view name) {
  if (name == "int64") return loader::IdType::kInt64;
  if (name == "int32") return loader::IdType::kInt32;
  raise(Error(ErrorCode::kInvalidArgument, fmt::format("dtype is 'int64' or 'int32', not '{}'", name)));
}

void init(PyLoader* self, OneOrMany shards, int64_t seq_len, std::optional<int64_t> batch_size,
          std::optional<int64_t> global_batch_size, std::string_view collate, bool shuffle, uint64_t seed, int64_t rank,
          int64_t world_size, std::optional<int64_t> epochs, bool drop_last, int64_t pad_id, std::string_view dtype,
          int num_threads, int64_t memory_bytes, std::string ids_field) {
  LoaderOptions options;
  if (auto* one = std::get_if<std::string>(&shards)) {
    options.shards = {std::move(*one)};
  } else {
    options.shards = std::move(std::get<std::vector<std::string>>(shards));
  }
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
  new (self) PyLoader{unwrap(Loader::create(options))};
}

template <class Id>
nb::object array_of(const Batch& batch, const Batch::Array& array, const nb::capsule& owner) {
  const size_t shape[2] = {static_cast<size_t>(batch.rows), static_cast<size_t>(batch.seq_len)};
  // SAFETY: the loader filled this memory with Id, as batch.type says.
  return nb::cast(nb::ndarray<nb::numpy, Id>(reinterpret_cast<Id*>(array.data), 2, shape, owner));
}

nb::dict batch_dict(const Batch& batch) {
  nb::dict d;
  const nb::capsule owner = keep_alive(batch.memory);
  for (const Batch::Array& array : batch.arrays) {
    d[nb::str(array.name.data(), array.name.size())] = batch.type == loader::IdType::kInt64
                                                           ? array_of<int64_t>(batch, array, owner)
                                                           : array_of<int32_t>(batch, array, owner);
  }
  return d;
}

nb::dict next(PyLoader& self) {
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
    return batch_dict(*batch);
  }
}

nb::object json_loads(const std::string& text) {
  return nb::module_::import_("json").attr("loads")(text);
}

void load_state_dict(PyLoader& self, nb::dict state) {
  const auto text = nb::cast<std::string>(nb::module_::import_("json").attr("dumps")(state));
  without_gil([&] { return self.loader->load_state(text); });
}

// Pickling carries the configuration only: the copy starts at the beginning, with threads of its own.
nb::tuple reduce(nb::handle self) {
  const LoaderOptions& o = nb::cast<PyLoader&>(self).loader->options();
  nb::dict config;
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
  const nb::object make = nb::module_::import_("functools").attr("partial")(self.type(), **config);
  return nb::make_tuple(make, nb::make_tuple(nb::cast(o.shards)));
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

void register_loader(nb::module_& m) {
  nb::class_<PyLoader>(
      m, "Loader", nb::is_weak_referenceable(), nb::dynamic_attr(),
      "Shards in, batches out: C++ threads read, verify, decode and collate ahead of the training loop.\n\n"
      "Iterating gives dicts of NumPy arrays [rows, seq_len] that own their memory (no copies): 'input_ids', 'labels' "
      "(-100 on\n"
      "padding and where a sample's loss_mask.npy is 0; not shifted, as Hugging Face models expect) and "
      "'attention_mask' (pad) or 'position_ids' (pack; 0 at "
      "the start of\n"
      "each sample, whose first label is -100). The order of samples depends on the data, the seed and the epoch only, "
      "never on\n"
      "the number of ranks. One consumer at a time; use it in a `with` block or call close().")
      .def("__init__", &init, nb::arg("shards"), nb::kw_only(), nb::arg("seq_len"), nb::arg("batch_size") = nb::none(),
           nb::arg("global_batch_size") = nb::none(), nb::arg("collate") = "pad", nb::arg("shuffle") = true,
           nb::arg("seed") = 0, nb::arg("rank") = 0, nb::arg("world_size") = 1, nb::arg("epochs") = nb::none(),
           nb::arg("drop_last") = true, nb::arg("pad_id") = 0, nb::arg("dtype") = "int64", nb::arg("num_threads") = 0,
           nb::arg("memory_bytes") = 0, nb::arg("ids_field") = "",
           "Args:\n"
           "    shards: a folder that `prepare` wrote, a tar, a glob or brace pattern of tars, or a list of these.\n"
           "    seq_len: tokens in a row.\n"
           "    batch_size: rows for each rank; or global_batch_size: rows over all ranks.\n"
           "    collate: 'pad' (a row is one sample, cut or padded) or 'pack' (samples laid end to end, none lost).\n"
           "    epochs: None: no end.\n"
           "    drop_last: False: an epoch's last batch may be smaller, down to no rows on some ranks.\n"
           "    num_threads: 0: the CPUs of this process over its local ranks, at most 8.\n"
           "    memory_bytes: cap for reading ahead and for batches; 0: 1 GiB or a quarter of MILLRACE_MEMORY.\n"
           "Raises: ValueError. Files are opened by the first batch.")
      .def("__iter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__next__", &next, nb::sig("def __next__(self) -> dict[str, numpy.typing.NDArray]"),
           "Raises StopIteration behind the last epoch, CorruptionError for a damaged shard, FileNotFoundError, "
           "OSError\n"
           "(memory_bytes too small), Cancelled (closed).")
      .def(
          "state_dict", [](PyLoader& self) { return json_loads(without_gil([&] { return self.loader->state(); })); },
          nb::sig("def state_dict(self) -> dict"),
          "Where training stands, counted by what next() returned: a small dict that json can write, equal on all "
          "ranks.")
      .def("load_state_dict", &load_state_dict, nb::arg("state"),
           "Goes on from a state, at any world size and batch size. Raises ValueError naming what differs.")
      .def_prop_ro(
          "epoch_units", [](PyLoader& self) { return without_gil([&] { return self.loader->epoch_units(); }); },
          "Rows of the current epoch over all ranks.")
      .def("stats", &stats, nb::sig("def stats(self) -> dict[str, float]"),
           "Counters so far; docs/metrics.md names them.")
      .def(
          "close",
          [](PyLoader& self) {
            const GilRelease release;
            self.loader->close();
          },
          "Stops the threads and frees what was read ahead. Arrays that were returned stay valid.")
      .def("__reduce__", &reduce)
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](PyLoader& self, nb::args) {
        const GilRelease release;
        self.loader->close();
      });
}

}  // namespace millrace::python
