// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/records/boxes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace millrace::checkpoint {

Box whole_box(std::span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size(), 0), std::vector<int64_t>(shape.begin(), shape.end())};
}

int64_t volume(std::span<const int64_t> shape) {
  int64_t product = 1;
  for (const int64_t dimension : shape) product *= dimension;
  return product;
}

namespace {

std::string box_text(const Box& box) {
  return fmt::format("offset [{}] shape [{}]", fmt::join(box.offset, ", "), fmt::join(box.shape, ", "));
}

// The dimension along which the boxes start at the most places.
size_t sweep_dimension(std::span<const Box* const> boxes, size_t dimensions) {
  size_t best = 0, most = 0;
  for (size_t d = 0; d < dimensions; ++d) {
    std::set<int64_t> starts;
    for (const Box* box : boxes) starts.insert(box->offset[d]);
    if (starts.size() > most) {
      most = starts.size();
      best = d;
    }
  }
  return best;
}

}  // namespace

Status check_inside(const Box& box, std::span<const int64_t> shape) {
  bool inside = box.offset.size() == shape.size() && box.shape.size() == shape.size();
  for (size_t d = 0; inside && d < shape.size(); ++d) {
    inside =
        box.offset[d] >= 0 && box.shape[d] >= 0 && box.shape[d] <= shape[d] && box.offset[d] <= shape[d] - box.shape[d];
  }
  if (inside) return {};
  return fail(ErrorCode::kInvalidArgument, "box {} is not inside shape [{}]", box_text(box), fmt::join(shape, ", "));
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box common;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    if (begin >= end) return std::nullopt;
    common.offset.push_back(begin);
    common.shape.push_back(end - begin);
  }
  return common;
}

Status check_tiling(std::span<const int64_t> shape, std::span<const Box* const> boxes) {
  const int64_t total = volume(shape);
  int64_t covered = 0;
  std::vector<const Box*> filled;
  for (const Box* box : boxes) {
    if (auto inside = check_inside(*box, shape); !inside)
      return fail(ErrorCode::kCorruption, "{}", inside.error().message());
    const int64_t elements = volume(box->shape);
    if (elements == 0) continue;
    if (elements > total - covered)
      return fail(ErrorCode::kCorruption, "boxes overlap: they hold more elements than the tensor, {}", total);
    covered += elements;
    filled.push_back(box);
  }
  if (covered < total)
    return fail(ErrorCode::kCorruption, "boxes leave a gap: they hold {} of {} elements", covered, total);
  if (filled.size() < 2) return {};

  const size_t d = sweep_dimension(filled, shape.size());
  std::sort(filled.begin(), filled.end(), [&](const Box* a, const Box* b) { return a->offset[d] < b->offset[d]; });
  for (size_t i = 0; i < filled.size(); ++i) {
    const int64_t end = filled[i]->offset[d] + filled[i]->shape[d];
    for (size_t j = i + 1; j < filled.size() && filled[j]->offset[d] < end; ++j) {
      if (intersect(*filled[i], *filled[j]))
        return fail(ErrorCode::kCorruption, "boxes overlap: {} and {}", box_text(*filled[i]), box_text(*filled[j]));
    }
  }
  return {};
}

BoxCopy::BoxCopy(const Box& common, const Box& from, const Box& to, int64_t element_bytes) : run_bytes_(element_bytes) {
  int64_t from_stride = element_bytes, to_stride = element_bytes;
  bool in_run = true;  // the dimensions behind this one are whole in both boxes
  for (size_t d = common.shape.size(); d-- > 0;) {
    from_begin_ += (common.offset[d] - from.offset[d]) * from_stride;
    to_begin_ += (common.offset[d] - to.offset[d]) * to_stride;
    if (in_run) {
      run_bytes_ *= common.shape[d];
      in_run = common.shape[d] == from.shape[d] && common.shape[d] == to.shape[d];
    } else {
      outer_.insert(outer_.begin(), {common.shape[d], from_stride, to_stride});
      runs_ *= common.shape[d];
    }
    from_stride *= from.shape[d];
    to_stride *= to.shape[d];
  }
}

int64_t BoxCopy::from_offset(int64_t run) const {
  int64_t offset = from_begin_;
  for (size_t d = outer_.size(); d-- > 0; run /= outer_[d].size) offset += run % outer_[d].size * outer_[d].from_stride;
  return offset;
}

// The first run that ends behind `begin`, or runs_. Runs ascend in `from`.
int64_t BoxCopy::first_run_behind(int64_t begin) const {
  int64_t low = 0, high = runs_;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (from_offset(middle) + run_bytes_ > begin) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

bool BoxCopy::touches(int64_t begin, int64_t end) const {
  const int64_t run = first_run_behind(begin);
  return run < runs_ && from_offset(run) < end;
}

void BoxCopy::copy(int64_t begin, std::span<const std::byte> chunk, std::byte* to) const {
  const int64_t end = begin + static_cast<int64_t>(chunk.size());
  int64_t run = first_run_behind(begin);
  std::vector<int64_t> index(outer_.size());
  int64_t from_at = from_begin_, to_at = to_begin_;
  int64_t rest = run;
  for (size_t d = outer_.size(); d-- > 0; rest /= outer_[d].size) {
    index[d] = rest % outer_[d].size;
    from_at += index[d] * outer_[d].from_stride;
    to_at += index[d] * outer_[d].to_stride;
  }
  for (; run < runs_ && from_at < end; ++run) {
    const int64_t low = std::max(from_at, begin), high = std::min(from_at + run_bytes_, end);
    std::memcpy(to + to_at + (low - from_at), chunk.data() + (low - begin), static_cast<size_t>(high - low));
    for (size_t d = outer_.size(); d-- > 0;) {
      from_at += outer_[d].from_stride;
      to_at += outer_[d].to_stride;
      if (++index[d] < outer_[d].size) break;
      index[d] = 0;
      from_at -= outer_[d].size * outer_[d].from_stride;
      to_at -= outer_[d].size * outer_[d].to_stride;
    }
  }
}

}  // namespace millrace::checkpoint
