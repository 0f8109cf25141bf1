// SPDX-License-Identifier: Apache-2.0
#include "millrace/episodes/episodes.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "millrace/episodes/convert.h"
#include "millrace/python/arrays.h"
#include "millrace/python/interruptible.h"
#include "millrace/python/path_arg.h"
#include "millrace/python/results.h"

namespace millrace::python {

namespace {

// Longer checks of a file run without the GIL.
constexpr int64_t kLongCheckBytes = 1 << 20;

// [rows, columns] over memory that `owner` keeps, read-only.
nb::object matrix_of(std::span<const std::byte> numbers, int64_t rows, const formats::EpisodeColumns& columns,
                     std::shared_ptr<const void> owner) {
  const size_t shape[2] = {static_cast<size_t>(rows), columns.numbers.size()};
  const nb::capsule keeper = keep_alive(std::move(owner));
  // NumPy takes no null pointer, also of an array without values.
  static constexpr double kNone = 0;
  const void* const data = numbers.empty() ? static_cast<const void*>(&kNone) : numbers.data();
  if (columns.is_float64) {
    return nb::ndarray<nb::numpy, const double>(static_cast<const double*>(data), 2, shape, keeper).cast();
  }
  return nb::ndarray<nb::numpy, const float>(static_cast<const float*>(data), 2, shape, keeper).cast();
}

nb::object rows_of(const nb::object& matrix, int64_t begin, int64_t end) {
  PyObject* const slice = PySequence_GetSlice(matrix.ptr(), begin, end);
  if (slice == nullptr) throw nb::python_error();
  return nb::steal(slice);
}

class PyEpisode {
 public:
  explicit PyEpisode(episodes::Episode episode)
      : episode_(std::move(episode)),
        numbers_(matrix_of(episode_.numbers, episode_.rows, *episode_.columns, episode_.owner)) {}

  const std::string& name() const { return episode_.name; }
  int64_t rows() const { return episode_.rows; }
  const formats::EpisodeColumns& columns() const { return *episode_.columns; }
  nb::object numbers() const { return numbers_; }

  nb::object column(const std::string& name) const {
    const auto& numbers = columns().numbers;
    if (const auto found = std::ranges::find(numbers, name); found != numbers.end()) {
      return numbers_[nb::make_tuple(nb::slice(nb::none(), nb::none(), nb::none()), found - numbers.begin())];
    }
    const auto& texts = columns().texts;
    const auto found = std::ranges::find(texts, name);
    if (found == texts.end()) throw nb::key_error(name.c_str());
    const formats::CsvTexts& cells = (*episode_.texts)[static_cast<size_t>(found - texts.begin())];
    nb::list list;
    for (size_t row = 0; row < cells.ends.size(); ++row) list.append(nb::cast(cells[row]));
    return list;
  }

 private:
  const episodes::Episode episode_;
  const nb::object numbers_;
};

class PyEpisodes {
 public:
  explicit PyEpisodes(const PathArg& path) : path_(path.text) {
    episodes_ = without_gil([&] { return episodes::open_episodes(path_); });
    if (episodes_->pack() != nullptr) {
      auto all = episodes_->all_rows();
      matrix_ = matrix_of(all.numbers, episodes_->pack()->rows(), columns(), std::move(all.owner));
    }
  }

  const std::string& path() const { return path_; }
  int64_t size() const { return episodes_->size(); }
  const formats::EpisodeColumns& columns() const { return episodes_->columns(); }
  const std::vector<std::string>& names() const { return episodes_->names(); }

  PyEpisode episode(int64_t i) const {
    const int64_t at = checked_index(i);
    return PyEpisode(without_gil([&] { return episodes_->episode(at); }));
  }
  nb::object window(int64_t i, int64_t start, int64_t rows) const {
    const int64_t at = checked_index(i);
    const formats::EpisodePack* const pack = episodes_->pack();
    if (pack == nullptr) {
      const auto episode = without_gil([&] { return episodes_->episode(at); });
      check_window(i, start, rows, episode.rows);
      return rows_of(matrix_of(episode.numbers, episode.rows, columns(), episode.owner), start, start + rows);
    }
    const auto first = static_cast<int64_t>(pack->first_rows()[static_cast<size_t>(at)]);
    check_window(i, start, rows, static_cast<int64_t>(pack->first_rows()[static_cast<size_t>(at) + 1]) - first);
    check_rows(*pack, first + start, rows);
    return rows_of(matrix_, first + start, first + start + rows);
  }
  // The rows of a packed file as one matrix.
  nb::object numbers() const {
    if (episodes_->pack() == nullptr) {
      throw nb::attribute_error("numbers: a tree of NPZ files is no one matrix; take an episode, or pack them");
    }
    check_rows(*episodes_->pack(), 0, episodes_->pack()->rows());
    return matrix_;
  }
  bool is_packed() const { return episodes_->pack() != nullptr; }
  // `tell(opened, all)` while NPZ files are opened; None: nothing is told.
  nb::ndarray<nb::numpy, int64_t> read_lengths(const nb::object& tell) const {
    Progress progress;
    int64_t told = -1;
    const auto watch = [&] {
      const int64_t opened = progress.snapshot().items;
      if (tell.is_none() || opened == std::exchange(told, opened)) return;
      tell(opened, size());
    };
    const auto first = interruptible<std::vector<uint64_t>>(
        [&](std::stop_token stop) { return episodes_->first_rows(&progress, stop); }, watch);
    std::vector<int64_t> lengths;
    for (size_t i = 1; i < first.size(); ++i) lengths.push_back(static_cast<int64_t>(first[i] - first[i - 1]));
    return to_array(std::move(lengths));
  }

 private:
  int64_t checked_index(int64_t i) const {
    const int64_t at = i < 0 ? i + size() : i;
    if (at < 0 || at >= size()) {
      throw nb::index_error(fmt::format("episode {}: {} has {}", i, path_, size()).c_str());
    }
    return at;
  }
  void check_window(int64_t i, int64_t start, int64_t rows, int64_t length) const {
    if (start >= 0 && rows >= 0 && start <= length && rows <= length - start) return;
    throw nb::index_error(fmt::format("{} rows from row {} of episode {}: it has {}", rows, start, i, length).c_str());
  }
  void check_rows(const formats::EpisodePack& pack, int64_t begin, int64_t rows) const {
    if (rows * static_cast<int64_t>(columns().row_bytes()) > kLongCheckBytes) {
      without_gil([&] { return pack.check_rows(begin, begin + rows); });
    } else {
      unwrap(pack.check_rows(begin, begin + rows));
    }
  }

  const std::string path_;
  std::shared_ptr<const episodes::Episodes> episodes_;
  nb::object matrix_;  // of a packed file
};

formats::CsvOptions csv_options(const std::optional<std::string>& delimiter, std::string_view decimal,
                                std::string_view header, std::string_view empty, std::vector<std::string> text) {
  formats::CsvOptions options;
  if (delimiter && delimiter->size() != 1) throw nb::value_error("delimiter: expected one character");
  if (decimal != "." && decimal != ",") throw nb::value_error("decimal: expected '.' or ','");
  if (header != "auto" && header != "yes" && header != "no") {
    throw nb::value_error("header: expected 'auto', 'yes' or 'no'");
  }
  if (empty != "error" && empty != "nan") throw nb::value_error("empty: expected 'error' or 'nan'");
  if (delimiter) options.delimiter = delimiter->front();
  options.decimal = decimal.front();
  options.header = header == "yes"  ? formats::CsvHeader::kYes
                   : header == "no" ? formats::CsvHeader::kNo
                                    : formats::CsvHeader::kAuto;
  options.empty_is_nan = empty == "nan";
  options.text_columns = std::move(text);
  return options;
}

bool is_float64(std::string_view dtype) {
  if (dtype != "float32" && dtype != "float64") throw nb::value_error("dtype: expected 'float32' or 'float64'");
  return dtype == "float64";
}

EpisodesResult convert_episodes_py(PathArg source, std::string_view to, std::optional<PathArg> out, bool compress,
                                   std::string_view dtype, std::optional<std::string> delimiter,
                                   std::string_view decimal, std::string_view header, std::string_view empty,
                                   std::vector<std::string> text, int threads, bool dry_run) {
  if (to != "npz" && to != "packed") throw nb::value_error("to: expected 'npz' or 'packed'");
  episodes::ConvertOptions options;
  options.to = to == "packed" ? episodes::ConvertTo::kPacked : episodes::ConvertTo::kNpz;
  options.output = out ? out->text : "";
  options.compress = compress;
  options.is_float64 = is_float64(dtype);
  options.csv = csv_options(delimiter, decimal, header, empty, std::move(text));
  options.threads = threads;
  options.dry_run = dry_run;
  const auto report = interruptible<episodes::ConvertReport>([&](std::stop_token stop) {
    options.stop = std::move(stop);
    return episodes::convert_episodes(source.text, options);
  });
  EpisodesResult d;
  d["output"] = report.output;
  d["files"] = report.files;
  d["converted"] = report.converted;
  d["kept"] = report.kept;
  d["rows"] = report.rows;
  d["input_bytes"] = report.input_bytes;
  d["output_bytes"] = report.output_bytes;
  nb::list failed, kinds, rounded;
  for (const auto& each : report.failed) {
    nb::dict file;
    file["file"] = each.url;
    file["error"] = each.error.to_string();
    failed.append(file);
  }
  for (const auto& each : report.kinds) {
    nb::dict kind;
    kind["columns"] = each.numbers;
    kind["text_columns"] = each.texts;
    kind["files"] = each.files;
    kind["first"] = each.first;
    kinds.append(kind);
  }
  for (const auto& each : report.rounded) {
    nb::dict column;
    column["column"] = each.column;
    column["file"] = each.url;
    column["row"] = each.row;
    column["files"] = each.files;
    rounded.append(column);
  }
  d["failed"] = failed;
  d["kinds"] = kinds;
  d["rounded"] = rounded;
  return d;
}

PyEpisode read_csv_py(PathArg path, std::string_view dtype, std::optional<std::string> delimiter,
                      std::string_view decimal, std::string_view header, std::string_view empty,
                      std::vector<std::string> text) {
  const formats::CsvOptions options = csv_options(delimiter, decimal, header, empty, std::move(text));
  const bool wide = is_float64(dtype);
  return PyEpisode(without_gil([&] { return episodes::read_csv_episode(path.text, wide, options); }));
}

nb::object dtype_of(const formats::EpisodeColumns& columns) {
  return nb::module_::import_("numpy").attr("dtype")(columns.is_float64 ? "float64" : "float32");
}

constexpr const char* kMatrixType = "def numbers(self) -> numpy.typing.NDArray[numpy.floating]";

void register_classes(nb::module_& m) {
  nb::class_<PyEpisode>(m, "Episode", "The rows of one episode.")
      .def("__len__", &PyEpisode::rows)
      .def("__getitem__", &PyEpisode::column, nb::arg("column"),
           nb::sig("def __getitem__(self, column: str) -> numpy.typing.NDArray[numpy.floating] | list[str]"),
           "A column by its name: an array [rows] of a number column, a list of a text column. Raises: KeyError.")
      .def_prop_ro("name", &PyEpisode::name, "Below the dataset's folder, without the ending.")
      .def_prop_ro("numbers", &PyEpisode::numbers, nb::sig(kMatrixType),
                   "float32 or float64 [rows, columns], read-only.")
      .def_prop_ro(
          "columns", [](const PyEpisode& e) { return e.columns().numbers; }, "Names of the columns of `numbers`.")
      .def_prop_ro("text_columns", [](const PyEpisode& e) { return e.columns().texts; }, "Names of the text columns.");
  nb::class_<PyEpisodes>(
      m, "Episodes",
      "The episodes of a packed file, of a folder with episodes.mrpack, or of NPZ files of convert: one,\n"
      "those of a folder or those of a pattern. Files are mapped. Thread-safe; usable after fork;\n"
      "pickled as its path.\n\n"
      "Raises: FileNotFoundError, millrace.CorruptionError, NotImplementedError (a URL of another\n"
      "    machine; NPZ files of other programs).")
      .def(nb::init<const PathArg&>(), nb::arg("path"))
      .def("__len__", &PyEpisodes::size)
      .def("__getitem__", &PyEpisodes::episode, nb::arg("i"),
           "The episode; negative numbers count from the end. Raises: IndexError, millrace.CorruptionError.")
      .def("window", &PyEpisodes::window, nb::arg("i"), nb::arg("start"), nb::arg("rows"),
           nb::sig("def window(self, i: int, start: int, rows: int) -> numpy.typing.NDArray[numpy.floating]"),
           "Rows [start, start + rows) of the number columns of episode i: [rows, columns], read-only, without a\n"
           "copy.\n\n"
           "Raises: IndexError (the episode does not have these rows), millrace.CorruptionError.")
      .def_prop_ro("path", &PyEpisodes::path)
      .def_prop_ro(
          "names",
          [](const PyEpisodes& self) {
            nb::typed<nb::list, nb::str> names;
            for (const std::string& name : self.names()) names.append(path_text(name));
            return names;
          },
          "Of each episode, below the dataset's folder, without the ending.")
      .def_prop_ro(
          "lengths", [](const PyEpisodes& self) { return self.read_lengths(nb::none()); }, nb::rv_policy::move,
          nb::sig("def lengths(self) -> numpy.typing.NDArray[numpy.int64]"),
          "int64 [len(self)]: rows of each episode. Opens every NPZ file.")
      .def("read_lengths", &PyEpisodes::read_lengths, nb::arg("progress").none(), nb::rv_policy::move,
           nb::sig("def read_lengths(self, progress: collections.abc.Callable[[int, int], object] | None) -> "
                   "numpy.typing.NDArray[numpy.int64]"),
           "`lengths`; `progress(opened, all)` is called while files are opened, and what it raises ends that.")
      .def_prop_ro("is_packed", &PyEpisodes::is_packed, "Whether one packed file holds all episodes.")
      .def_prop_ro("numbers", &PyEpisodes::numbers, nb::sig(kMatrixType),
                   "Of a packed file: the rows of all episodes one behind the other, [rows, columns], read-only.\n"
                   "Raises: AttributeError (NPZ files).")
      .def_prop_ro(
          "columns", [](const PyEpisodes& e) { return e.columns().numbers; }, "Names of the number columns.")
      .def_prop_ro(
          "text_columns", [](const PyEpisodes& e) { return e.columns().texts; }, "Names of the text columns.")
      .def_prop_ro(
          "dtype", [](const PyEpisodes& e) { return dtype_of(e.columns()); },
          nb::sig("def dtype(self) -> numpy.dtype[numpy.floating]"), "Of the numbers: float32 or float64.")
      .def("__reduce__", [](nb::handle self) {
        return nb::make_tuple(self.type(), nb::make_tuple(nb::cast<const PyEpisodes&>(self).path()));
      });
}

}  // namespace

void register_episodes(nb::module_& m) {
  register_classes(m);
  m.def("read_csv_episode", &read_csv_py, nb::arg("path"), nb::kw_only(), nb::arg("dtype") = "float32",
        nb::arg("delimiter") = nb::none(), nb::arg("decimal") = ".", nb::arg("header") = "auto",
        nb::arg("empty") = "error", nb::arg("text") = std::vector<std::string>(),
        "One CSV file as arrays. Numbers are what float() makes of csv.reader's cells, then rounded to dtype; the\n"
        "arguments are those of convert.\n\n"
        "Raises: millrace.CorruptionError (with file:line:column), FileNotFoundError, ValueError.");
  m.def("convert_episodes", &convert_episodes_py, nb::arg("source"), nb::kw_only(), nb::arg("to") = "npz",
        nb::arg("out") = nb::none(), nb::arg("compress") = false, nb::arg("dtype") = "float32",
        nb::arg("delimiter") = nb::none(), nb::arg("decimal") = ".", nb::arg("header") = "auto",
        nb::arg("empty") = "error", nb::arg("text") = std::vector<std::string>(), nb::arg("threads") = 0,
        nb::arg("dry_run") = false,
        "Converts CSV episodes; the same as `millrace episodes convert`. Files that are converted already are kept.\n\n"
        "Args:\n"
        "    source: a folder, a CSV file or a pattern; also s3://.\n"
        "    to: 'npz' (a file for each CSV file) or 'packed' (one file for all).\n"
        "    out: the folder of NPZ files, or the packed file. None: beside the CSV files.\n"
        "    compress: NPZ members by deflate; they cannot be mapped.\n"
        "    dtype: of the numbers, 'float32' or 'float64'.\n"
        "    delimiter: None: the commonest of , ; | and tab in the header.\n"
        "    decimal: '.' or ','.\n"
        "    header: 'yes', 'no' (columns c0, c1, ...) or 'auto': refuse a first row that looks like data.\n"
        "    empty: 'nan' takes an empty cell of a number column as NaN.\n"
        "    text: columns that are text, whatever their cells look like.\n"
        "    threads: 0: one for each CPU.\n"
        "    dry_run: read and check every file, and write none.\n"
        "Returns: a dict: converted, kept, failed (a list of file and error), rows, output_bytes, kinds, rounded, ...\n"
        "Raises: FileNotFoundError (no CSV file), FileExistsError (the packed file's name is taken), OSError (no\n"
        "    space). Errors of single files are in `failed`.");
}

}  // namespace millrace::python
