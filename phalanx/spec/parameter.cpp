#include "phalanx/spec/parameter.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "phalanx/base/error.h"

namespace phalanx {

int64_t element_count(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Box whole_box(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

ParameterSpec whole_parameter(std::string name, std::string hf_name, std::vector<int64_t> shape,
                              Kind kind, Init init) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.local_shape = shape;
  spec.pieces = {Piece{std::move(hf_name), shape, whole_box(shape), whole_box(shape)}};
  spec.kind = kind;
  spec.init = init;
  spec.decay = kind != Kind::bias && kind != Kind::norm;
  return spec;
}

namespace {

// `prefix` fixes the leading coordinates; [begin, end) counts inside the sub-tensor below it.
void add_boxes(const std::vector<int64_t>& shape, std::vector<int64_t>& prefix, int64_t begin,
               int64_t end, std::vector<Box>& boxes) {
  if (begin >= end) return;
  const size_t dim = prefix.size();
  int64_t row = 1;
  for (size_t i = dim + 1; i < shape.size(); ++i) row *= shape[i];
  auto emit = [&](int64_t first, int64_t count) {
    Box box;
    for (int64_t coordinate : prefix) box.offset.push_back(coordinate), box.size.push_back(1);
    box.offset.push_back(first), box.size.push_back(count);
    for (size_t i = dim + 1; i < shape.size(); ++i)
      box.offset.push_back(0), box.size.push_back(shape[i]);
    boxes.push_back(std::move(box));
  };
  auto descend = [&](int64_t index, int64_t from, int64_t to) {
    prefix.push_back(index);
    add_boxes(shape, prefix, from, to, boxes);
    prefix.pop_back();
  };
  int64_t first = begin / row, last = end / row;
  if (begin % row != 0) {
    descend(first, begin % row, std::min(row, end - first * row));
    ++first;
  }
  if (last > first) emit(first, last - first);
  if (end % row != 0 && last >= first) descend(last, 0, end % row);
}

}  // namespace

std::vector<Box> boxes_of_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end) {
  require(0 <= begin && begin <= end && end <= element_count(shape), ExitCode::usage, "range [",
          begin, ", ", end, ") leaves a tensor of ", element_count(shape), " elements");
  std::vector<Box> boxes;
  if (begin == end) return boxes;
  if (shape.empty()) return {Box{}};
  std::vector<int64_t> prefix;
  add_boxes(shape, prefix, begin, end, boxes);
  return boxes;
}

}  // namespace phalanx
