// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/exchange/exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/text/ascii.h"
#include "millrace/base/text/json_writer.h"
#include "millrace/base/thread/executor.h"
#include "millrace/checkpoint/exchange/cast.h"
#include "millrace/checkpoint/io/threads.h"
#include "millrace/checkpoint/io/write_window.h"
#include "millrace/checkpoint/records/boxes.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/records/ranges.h"
#include "millrace/checkpoint/tensor_file.h"

namespace millrace::checkpoint {

namespace {

constexpr std::string_view kOneFile = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::array<std::string_view, 10> kWeightEndings{".safetensors", ".index.json", ".bin",  ".pt",   ".pth",
                                                          ".h5",          ".msgpack",    ".onnx", ".gguf", ".distcp"};
constexpr int64_t kMostCompanionBytes = int64_t{256} << 20;  // a large tokenizer.json has 30 MB
constexpr int kBatches = 2;                                  // one is loaded while the other is written

bool is_prefix(const NameRule& rule) {
  return rule.from.ends_with('*');
}

// One file of an export: which stored tensor is which of its tensors.
struct FilePlan {
  std::string name;
  std::map<std::string, const StoredTensor*> tensors;  // by the name in the file
  int64_t data_bytes = 0;
};

// The dtype of a tensor in the exported file.
formats::Dtype exported_dtype(const StoredTensor& tensor, const ExportOptions& options) {
  return options.dtype && is_castable(tensor.dtype) ? *options.dtype : tensor.dtype;
}
int64_t exported_bytes(const StoredTensor& tensor, const ExportOptions& options) {
  const int64_t bits = formats::dtype_bits(tensor.dtype), wanted = formats::dtype_bits(exported_dtype(tensor, options));
  return bits == wanted ? tensor.bytes : tensor.bytes / (bits / 8) * (wanted / 8);
}

// "model.w" of entry "model" is "w"; nullopt: of another entry.
std::optional<std::string_view> name_in_entry(std::string_view name, std::string_view entry) {
  if (entry.empty()) return name;
  if (!name.starts_with(entry) || name.size() <= entry.size() || name[entry.size()] != '.') return std::nullopt;
  return name.substr(entry.size() + 1);
}

Error nothing_to_export(const Checkpoint& checkpoint, const std::string& entry) {
  std::set<std::string> entries;
  for (const StoredTensor& tensor : checkpoint.tensors()) entries.insert(tensor.name.substr(0, tensor.name.find('.')));
  return Error(ErrorCode::kNotFound, fmt::format("step {}: no tensors of the entry '{}' to export; it has {}",
                                                 checkpoint.info().step, entry, fmt::join(entries, ", ")));
}

Result<std::vector<FilePlan>> plan_files(const Checkpoint& checkpoint, const ExportOptions& options) {
  std::map<std::string, const StoredTensor*> chosen;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const auto inner = name_in_entry(tensor.name, options.entry);
    const auto name = inner ? options.names(*inner) : std::nullopt;
    if (!name) continue;
    const auto [other, fresh] = chosen.try_emplace(*name, &tensor);
    if (!fresh)
      return fail(ErrorCode::kInvalidArgument, "'{}' and '{}' would both be '{}'", other->second->name, tensor.name,
                  *name);
  }
  if (chosen.empty()) return tl::unexpected<Error>(nothing_to_export(checkpoint, options.entry));
  if (options.dtype && !is_castable(*options.dtype))
    return fail(ErrorCode::kInvalidArgument, "export: nothing is cast to {}; to F64, F32, F16 and BF16",
                formats::dtype_name(*options.dtype));
  std::vector<FilePlan> files(1);
  for (const auto& [name, tensor] : chosen) {
    const int64_t bytes = exported_bytes(*tensor, options);
    const bool full = files.back().data_bytes + bytes > options.max_file_bytes;
    if (full && !options.single_file && !files.back().tensors.empty()) files.emplace_back();
    files.back().tensors.emplace(name, tensor);
    files.back().data_bytes += bytes;
  }
  for (size_t i = 0; i < files.size() && !options.single_file; ++i) {
    files[i].name = files.size() == 1 ? std::string(kOneFile)
                                      : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
  }
  return files;
}

// "model-00001-of-00004.safetensors"
bool is_numbered_file(std::string_view name) {
  constexpr std::string_view kLike = "model-#####-of-#####.safetensors";
  return std::ranges::equal(name, kLike, [](char c, char like) { return like == '#' ? is_digit(c) : c == like; });
}

// The files that an earlier export left in `folder`, by name.
Result<std::vector<std::string>> earlier_export(const Location& folder) {
  const auto level = list_level(folder);
  if (!level && level.error().code() == ErrorCode::kNotFound) return std::vector<std::string>();
  if (!level) return tl::unexpected<Error>(level.error());
  std::vector<std::string> names;
  for (const ObjectInfo& object : level->objects) {
    if (object.key == kOneFile || object.key == kIndexName || is_numbered_file(object.key)) names.push_back(object.key);
  }
  return names;
}

Status remove_files(const Location& folder, const std::vector<std::string>& names) {
  std::vector<std::string> keys;
  for (const std::string& name : names) keys.push_back(folder.child(name).key);
  return keys.empty() ? Status() : folder.storage->remove(keys);
}

// Streams one file from the checkpoint: batches of neighbouring bytes, each loaded as boxes and written in pieces.
class FileExport {
 public:
  FileExport(const Checkpoint& checkpoint, const FilePlan& plan, const ExportOptions& options)
      : checkpoint_(checkpoint),
        plan_(plan),
        options_(options),
        executor_(helper_threads(options.threads), "mr-ckpt-cast") {}

  Result<int64_t> write(const Location& at, const std::stop_token& stop, Progress* progress) {
    std::vector<formats::TensorInfo> infos;
    int64_t widest = 0;  // stored bytes for each exported one, of tensors that are cast
    for (const auto& [name, tensor] : plan_.tensors) {
      const formats::Dtype dtype = exported_dtype(*tensor, options_);
      infos.push_back({.name = name, .dtype = dtype, .shape = tensor->shape});
      if (dtype != tensor->dtype)
        widest = std::max({widest, int64_t{1}, formats::dtype_bits(tensor->dtype) / formats::dtype_bits(dtype)});
    }
    ASSIGN_OR_RETURN(layout_, formats::layout_safetensors(std::move(infos), {{"format", "pt"}}));
    const int64_t bytes = layout_.header.data_offset + layout_.header.data_bytes;
    ASSIGN_OR_RETURN(const auto writer, at.storage->open_write(at.key, {.size_hint_bytes = bytes}));
    const int64_t piece = writer->part_bytes() != 0 ? writer->part_bytes() : kWriteBytes;
    const int64_t batch = std::max<int64_t>(options_.buffer_bytes / (kBatches + widest) / piece, 1) * piece;
    const int64_t buffer_bytes = std::min(batch, (bytes + piece - 1) / piece * piece);
    ASSIGN_OR_RETURN(const auto pool,
                     BufferPool::reserve(*MemoryBudget::process(), "export", (kBatches + widest) * buffer_bytes));
    if (widest > 0) {
      ASSIGN_OR_RETURN(uncast_, pool->acquire(static_cast<size_t>(widest * buffer_bytes), stop));
    }
    std::array<Buffer, kBatches> buffers;
    for (Buffer& buffer : buffers) {
      ASSIGN_OR_RETURN(buffer, pool->acquire(static_cast<size_t>(buffer_bytes), stop));
    }
    std::array<WriteWindow, kBatches> windows{WriteWindow(kMostWrites), WriteWindow(kMostWrites)};
    Status status;
    for (int64_t begin = 0, i = 0; begin < bytes && status; begin += batch, ++i) {
      WriteWindow& window = windows[static_cast<size_t>(i % kBatches)];
      const auto out =
          buffers[static_cast<size_t>(i % kBatches)].span().first(static_cast<size_t>(std::min(batch, bytes - begin)));
      status = window.drain();
      if (status) status = load(begin, out, stop);
      if (status) submit(*at.storage, *writer, begin, out, piece, window, stop);
      if (status && progress != nullptr) progress->add(std::ssize(out), 0);
    }
    for (WriteWindow& window : windows) {  // writes use the buffers until they have ended
      Status drained = window.drain();
      if (status) status = std::move(drained);
    }
    uncast_ = Buffer();
    RETURN_IF_ERROR(std::move(status));
    RETURN_IF_ERROR(writer->commit());
    return bytes;
  }

 private:
  // A batch's writes at once. A choice: more than a disk's queue needs.
  static constexpr int kMostWrites = 64;

  // A run of numbers that was loaded beside the file's bytes and is cast into them.
  struct Run {
    const std::byte* source;
    formats::Dtype from;
    std::byte* target;
    formats::Dtype to;
    int64_t count;
  };

  // Fills `out` with the file's bytes from `begin` on.
  Status load(int64_t begin, std::span<std::byte> out, const std::stop_token& stop) {
    const int64_t end = begin + std::ssize(out), data = layout_.header.data_offset;
    const auto& header = layout_.header_bytes;
    if (begin < data) std::memcpy(out.data(), header.data() + begin, static_cast<size_t>(std::min(end, data) - begin));
    std::vector<TensorToLoad> targets;
    std::vector<Run> runs;
    int64_t uncast_bytes = 0;
    for (const formats::TensorInfo& info : layout_.header.tensors) {
      const int64_t low = std::max(begin, data + info.begin), high = std::min(end, data + info.end);
      if (low >= high) continue;
      const StoredTensor& stored = *plan_.tensors.at(info.name);
      std::byte* to = out.data() + (low - begin);
      if (stored.dtype != info.dtype) {
        const int64_t count = (high - low) / (formats::dtype_bits(info.dtype) / 8);
        std::byte* const beside = uncast_.data() + uncast_bytes;
        runs.push_back({beside, stored.dtype, std::exchange(to, beside), info.dtype, count});
        uncast_bytes += count * (formats::dtype_bits(stored.dtype) / 8);
      }
      if (low == data + info.begin && high == data + info.end) {
        targets.push_back({stored.name, whole_box(info.shape), to});
        continue;
      }
      const int64_t bits = formats::dtype_bits(info.dtype);
      if (bits % 8 != 0)
        return fail(ErrorCode::kUnsupported, "tensor '{}' of {} is larger than half of the buffer of {} bytes",
                    stored.name, formats::dtype_name(info.dtype), options_.buffer_bytes);
      const int64_t size = bits / 8, first = low - data - info.begin;
      const int64_t stored_size = formats::dtype_bits(stored.dtype) / 8;
      std::byte* at = to;
      for (Box& box : boxes_of_range(info.shape, first / size, (high - data - info.begin) / size)) {
        const int64_t bytes = volume(box.shape) * stored_size;
        targets.push_back({stored.name, std::move(box), at});
        at += bytes;
      }
    }
    RETURN_IF_ERROR(checkpoint_.load(targets, options_.threads, stop));
    for (const Run& run : runs) cast_run(run);
    return {};
  }

  void cast_run(const Run& run) {
    constexpr int64_t kNumbers = 1 << 20;  // of one task
    const int64_t from_size = formats::dtype_bits(run.from) / 8, to_size = formats::dtype_bits(run.to) / 8;
    parallel_for(executor_, (run.count + kNumbers - 1) / kNumbers, [&](int64_t i) {
      const int64_t first = i * kNumbers;
      cast(run.source + first * from_size, run.from, run.target + first * to_size, run.to,
           std::min(kNumbers, run.count - first));
    });
  }

  static void submit(Storage& storage, Writer& writer, int64_t begin, std::span<const std::byte> bytes, int64_t piece,
                     WriteWindow& window, const std::stop_token& stop) {
    for (int64_t at = 0; at < std::ssize(bytes); at += piece) {
      window.acquire();
      const auto size = static_cast<size_t>(std::min(piece, std::ssize(bytes) - at));
      const Operation write{.what = WriteRange{&writer, begin + at, bytes.subspan(static_cast<size_t>(at), size)},
                            .stop = stop};
      storage.submit({&write, 1}, window);
    }
  }

  const Checkpoint& checkpoint_;
  const FilePlan& plan_;
  const ExportOptions& options_;
  Executor executor_;
  Buffer uncast_;  // what is cast, as it is stored
  formats::SafetensorsLayout layout_;
};

std::string index_text(const std::vector<FilePlan>& files) {
  std::map<std::string, std::string> places;
  int64_t bytes = 0;
  for (const FilePlan& file : files) {
    bytes += file.data_bytes;
    for (const auto& [name, tensor] : file.tensors) places.emplace(name, file.name);
  }
  JsonWriter out;
  out.open('{');
  out.key("metadata").open('{');
  out.key("total_size").number(bytes);
  out.close('}');
  out.key("weight_map").open('{');
  for (const auto& [name, file] : places) {
    out.text_key(name);
    out.text(file);
  }
  out.close('}');
  out.close('}');
  return out.take() + "\n";
}

// A run of rows of one tensor of a file, or all of it.
struct Slice {
  const TensorFile* file = nullptr;
  const formats::TensorInfo* info = nullptr;
  std::string name;  // in the checkpoint
  Box box;
  int64_t bytes = 0;
};
using SliceList = std::vector<Slice>;

// Deals the tensors out to parts of at most `most` bytes. A tensor that is larger is cut into rows.
class PartPlan {
 public:
  explicit PartPlan(int64_t most) : most_(most) {}

  void add(const TensorFile& file, const formats::TensorInfo& info, const std::string& name) {
    const int64_t bytes = info.end - info.begin;
    const bool may_cut = !info.shape.empty() && bytes > 0 && formats::dtype_bits(info.dtype) % 8 == 0;
    const int64_t rows = may_cut ? info.shape[0] : 1;
    for (int64_t row = 0; row < rows;) {
      const int64_t row_bytes = bytes / rows;
      const int64_t room = may_cut ? (most_ - bytes_) / std::max<int64_t>(row_bytes, 1) : 0;
      const bool fits = bytes_ + (rows - row) * row_bytes <= most_;
      if (!fits && !parts_.back().empty() && (bytes <= most_ || room <= 0)) {
        parts_.emplace_back();
        bytes_ = 0;
        continue;
      }
      const int64_t count = fits ? rows - row : std::clamp<int64_t>(room, 1, rows - row);
      Slice slice{&file, &info, name, whole_box(info.shape), count * row_bytes};
      if (may_cut) {
        slice.box.offset[0] = row;
        slice.box.shape[0] = count;
      }
      bytes_ += slice.bytes;
      parts_.back().push_back(std::move(slice));
      row += count;
    }
  }
  const std::vector<SliceList>& parts() const { return parts_; }

 private:
  const int64_t most_;
  int64_t bytes_ = 0;  // of the last part
  std::vector<SliceList> parts_ = std::vector<SliceList>(1);
};

Status load_part(const SliceList& part, std::span<std::byte> memory, std::vector<TensorToSave>& tensors, int threads,
                 const std::stop_token& stop) {
  std::map<const TensorFile*, std::vector<TensorToLoad>> targets;
  int64_t at = 0;
  for (const Slice& slice : part) {
    std::byte* const data = memory.data() + at;
    targets[slice.file].push_back({slice.info->name, slice.box, data});
    tensors.push_back({slice.name, slice.info->dtype, slice.info->shape, slice.box, data});
    at += (slice.bytes + 63) / 64 * 64;
  }
  for (const auto& [file, wanted] : targets) RETURN_IF_ERROR(file->load(wanted, threads, stop));
  return {};
}

int64_t memory_of(const SliceList& part) {
  constexpr int64_t kPageBytes = 4096;
  int64_t bytes = 1;
  for (const Slice& slice : part) bytes += (slice.bytes + 63) / 64 * 64;
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// The state as millrace.torch reads it: {ENTRY: an object with these tensors}.
std::string state_text(const std::string& entry, const std::vector<std::string>& names) {
  JsonWriter out;
  out.open('{');
  out.key("format").text("millrace.torch");
  out.key("state").open('{');
  if (!entry.empty()) {
    out.text_key(entry);
    out.open('{');
    out.key("$object").text("imported");
    out.key("state").open('{');
    out.key("$dict").open('[');
    for (const std::string& name : names) {
      out.open('[');
      out.text(std::string_view(name).substr(entry.size() + 1));
      out.open('{');
      out.key("$tensor").text(name);
      out.close('}');
      out.close(']');
    }
    out.close(']');
    out.close('}');
    out.close('}');
  }
  out.close('}');
  out.key("version").number(1);
  out.close('}');
  return out.take();
}

// Saves all parts, one after the other, the first one last, which commits.
Status save_parts(const std::vector<SliceList>& parts, const Location& root, const ImportOptions& options,
                  const std::string& state, const std::stop_token& stop, Progress* progress) {
  SaverOptions saving{.world_size = static_cast<int64_t>(parts.size()), .threads = options.threads};
  ASSIGN_OR_RETURN(saving.attempt, make_equal_attempt(root));
  for (size_t rank = parts.size(); rank-- > 0;) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "import: stopped");
    const SliceList& part = parts[rank];
    const int64_t bytes = memory_of(part);
    ASSIGN_OR_RETURN(const auto pool, BufferPool::reserve(*MemoryBudget::process(), "import", bytes));
    ASSIGN_OR_RETURN(const Buffer memory, pool->acquire(static_cast<size_t>(bytes), stop));
    std::vector<TensorToSave> tensors;
    RETURN_IF_ERROR(load_part(part, memory.span(), tensors, options.threads, stop));
    saving.rank = static_cast<int64_t>(rank);
    ASSIGN_OR_RETURN(const auto saver, Saver::create(root, saving));
    ASSIGN_OR_RETURN(const auto pending, saver->save_part(options.step, tensors, "null"));
    RETURN_IF_ERROR(pending->wait());
    if (progress != nullptr) progress->add(bytes, std::ssize(part));
    if (rank == 0) RETURN_IF_ERROR(saver->commit(options.step, state));
  }
  return {};
}

Result<std::vector<Location>> files_of_index(const Location& folder) {
  const Location at = folder.child(kIndexName);
  ASSIGN_OR_RETURN(const std::string text, read_object(*at.storage, at.key));
  simdjson::dom::parser parser;
  simdjson::dom::object map;
  if (parser.parse(text)["weight_map"].get(map) != simdjson::SUCCESS)
    return fail(ErrorCode::kCorruption, "{}: it has no \"weight_map\"", at.url);
  std::set<std::string> names;
  for (const auto field : map) {
    std::string_view name;
    if (field.value.get(name) != simdjson::SUCCESS || name.empty() || name.find('/') != name.npos)
      return fail(ErrorCode::kCorruption, "{}: the place of '{}' is no name of a file", at.url, field.key);
    names.emplace(name);
  }
  std::vector<Location> files;
  for (const std::string& name : names) files.push_back(folder.child(name));
  return files;
}

// What a folder without safetensors files is, as far as its names tell.
Error not_safetensors(const Location& at, const Level& level) {
  const auto has = [&](std::string_view part) {
    const auto named = [&](const auto& name) { return name.find(part) != name.npos; };
    return std::any_of(level.objects.begin(), level.objects.end(), [&](const auto& o) { return named(o.key); }) ||
           std::any_of(level.directories.begin(), level.directories.end(), named);
  };
  std::string reason = "there are no safetensors files";
  if (has("mp_rank_") || has("zero_pp_rank_") || has("global_step")) {
    reason =
        "it is a DeepSpeed checkpoint: its own zero_to_fp32.py DIR OUTPUT --safe_serialization writes safetensors "
        "files, which can be imported";
  } else if (has(".metadata")) {
    reason = "it is a checkpoint of torch.distributed.checkpoint: import it with --from dcp";
  } else if (has("pytorch_model") || has(".pt") || has(".pth") || has(".bin")) {
    reason = "it has weights that torch.save wrote: import each file with --from torch";
  }
  return Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", at.url, reason));
}

}  // namespace

Result<NameMap> NameMap::create(std::vector<NameRule> rules) {
  for (const NameRule& rule : rules) {
    const size_t star = rule.from.find('*');
    const bool bad = (star != rule.from.npos && star + 1 != rule.from.size()) ||
                     (rule.to && (rule.to->find('*') != rule.to->npos) != is_prefix(rule)) ||
                     (rule.to && is_prefix(rule) && rule.to->find('*') + 1 != rule.to->size());
    if (bad)
      return fail(ErrorCode::kInvalidArgument, "rule \"{}\": \"{}\": a '*' stands at the end of both, or of none",
                  rule.from, rule.to.value_or("null"));
  }
  NameMap map;
  map.rules_ = std::move(rules);
  std::stable_sort(map.rules_.begin(), map.rules_.end(), [](const NameRule& a, const NameRule& b) {
    return is_prefix(a) != is_prefix(b) ? is_prefix(b) : a.from.size() > b.from.size();
  });
  return map;
}

std::optional<std::string> NameMap::operator()(std::string_view name) const {
  for (const NameRule& rule : rules_) {
    const std::string_view from(rule.from);
    if (!is_prefix(rule)) {
      if (name == from) return rule.to;
      continue;
    }
    const std::string_view begin = from.substr(0, from.size() - 1);
    if (!name.starts_with(begin)) continue;
    if (!rule.to) return std::nullopt;
    return rule.to->substr(0, rule.to->size() - 1) + std::string(name.substr(begin.size()));
  }
  return std::string(name);
}

Result<std::vector<ExportedFile>> export_safetensors(const Checkpoint& checkpoint, const Location& at,
                                                     const ExportOptions& options, std::stop_token stop,
                                                     Progress* progress) {
  ASSIGN_OR_RETURN(const std::vector<FilePlan> files, plan_files(checkpoint, options));
  int64_t bytes = 0;
  for (const FilePlan& file : files) bytes += file.data_bytes;
  if (progress != nullptr) progress->set_totals(bytes, std::ssize(files));
  // Readers prefer one file to many, and many are read by their index. So an index leaves before a file that it names
  // is replaced, and other files of an earlier export leave before the new index arrives.
  std::vector<std::string> stale;
  if (!options.single_file) {
    ASSIGN_OR_RETURN(stale, earlier_export(at));
  }
  if (files.size() > 1 && std::erase(stale, kIndexName) > 0) {
    RETURN_IF_ERROR(remove_files(at, {std::string(kIndexName)}));
  }
  std::vector<ExportedFile> written;
  for (const FilePlan& file : files) {
    std::erase(stale, file.name);
    const Location target = options.single_file ? at : at.child(file.name);
    FileExport one(checkpoint, file, options);
    ASSIGN_OR_RETURN(const int64_t size, with_context(one.write(target, stop, progress), "export to " + target.url));
    written.push_back({file.name, static_cast<int64_t>(file.tensors.size()), size});
    if (progress != nullptr) progress->add(0, 1);
  }
  RETURN_IF_ERROR(remove_files(at, stale));
  if (files.size() > 1) {
    const Location index = at.child(kIndexName);
    RETURN_IF_ERROR(write_object(*index.storage, index.key, index_text(files)));
  }
  return written;
}

Result<std::vector<std::string>> copy_companions(const Location& from, const Location& to) {
  ASSIGN_OR_RETURN(const Level level, list_level(from));
  std::vector<std::string> copied;
  for (const ObjectInfo& object : level.objects) {
    const auto is_weights = [&](std::string_view ending) { return object.key.ends_with(ending); };
    if (std::any_of(kWeightEndings.begin(), kWeightEndings.end(), is_weights)) continue;
    ASSIGN_OR_RETURN(const std::string content,
                     read_object(*from.storage, from.child(object.key).key, kMostCompanionBytes));
    const Location target = to.child(object.key);
    RETURN_IF_ERROR(write_object(*target.storage, target.key, content));
    copied.push_back(object.key);
  }
  if (copied.empty()) return fail(ErrorCode::kNotFound, "{}: no config or tokenizer files there", from.url);
  return copied;
}

Result<StepInfo> import_safetensors(std::span<const Location> files, const Location& root, const ImportOptions& options,
                                    std::stop_token stop, Progress* progress) {
  const Location manifest = step_location(root, options.step).child(kManifestName);
  if (const auto there = manifest.storage->stat(manifest.key); there)
    return fail(ErrorCode::kAlreadyExists, "{}: it has a step {} already", root.url, options.step);
  std::vector<std::unique_ptr<TensorFile>> opened;
  PartPlan plan(options.part_bytes);
  std::map<std::string, std::string> sources;  // name -> file
  int64_t bytes = 0;
  for (const Location& at : files) {
    ASSIGN_OR_RETURN(auto file, TensorFile::open(at));
    for (const formats::TensorInfo& info : file->header().tensors) {
      const auto inner = options.names(info.name);
      if (!inner) continue;
      const std::string name = options.entry.empty() ? *inner : options.entry + "." + *inner;
      const auto [other, fresh] = sources.try_emplace(name, at.url);
      if (!fresh)
        return fail(ErrorCode::kInvalidArgument, "tensor '{}' comes from {} and from {}", name, other->second, at.url);
      plan.add(*file, info, name);
      bytes += info.end - info.begin;
    }
    opened.push_back(std::move(file));
  }
  if (sources.empty()) return fail(ErrorCode::kInvalidArgument, "no tensors to import");
  if (progress != nullptr) progress->set_totals(bytes, std::ssize(sources));
  std::vector<std::string> names;
  for (const auto& [name, file] : sources) names.push_back(name);
  RETURN_IF_ERROR(save_parts(plan.parts(), root, options, state_text(options.entry, names), stop, progress));
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::open(root, options.step));
  return checkpoint->info();
}

Result<std::vector<Location>> find_safetensors(const Location& at) {
  if (at.key.ends_with(".safetensors")) return std::vector{at};
  ASSIGN_OR_RETURN(const Level level, list_level(at));
  std::vector<Location> files;
  bool indexed = false;
  for (const ObjectInfo& object : level.objects) {
    indexed = indexed || object.key == kIndexName;
    if (object.key.ends_with(".safetensors")) files.push_back(at.child(object.key));
  }
  if (indexed) return files_of_index(at);
  if (!files.empty()) return files;
  if (level.objects.empty() && level.directories.empty())
    return fail(ErrorCode::kNotFound, "{}: no such folder, or an empty one", at.url);
  return tl::unexpected<Error>(not_safetensors(at, level));
}

}  // namespace millrace::checkpoint
