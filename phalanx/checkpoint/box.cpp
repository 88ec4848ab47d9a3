#include "phalanx/checkpoint/box.h"

#include <algorithm>

#include "phalanx/base/text.h"

namespace phalanx {

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box common;
  for (size_t dim = 0; dim < a.offset.size(); ++dim) {
    const int64_t begin = std::max(a.offset[dim], b.offset[dim]);
    const int64_t end = std::min(a.offset[dim] + a.size[dim], b.offset[dim] + b.size[dim]);
    if (begin >= end) return std::nullopt;
    common.offset.push_back(begin);
    common.size.push_back(end - begin);
  }
  return common;
}

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * shape[dim];
  return strides;
}

int64_t flat_index(const std::vector<int64_t>& coordinates, const std::vector<int64_t>& strides) {
  int64_t index = 0;
  for (size_t dim = 0; dim < coordinates.size(); ++dim) index += coordinates[dim] * strides[dim];
  return index;
}

std::string to_string(const Box& box) {
  if (box.offset.size() != box.size.size())  // from a broken manifest
    return text("offset [", join(box.offset), "] size [", join(box.size), "]");
  std::vector<std::string> slices;
  for (size_t dim = 0; dim < box.offset.size(); ++dim)
    slices.push_back(text(box.offset[dim], ":", box.offset[dim] + box.size[dim]));
  return "[" + join(slices, ",") + "]";
}

std::string shape_string(const std::vector<int64_t>& shape) { return "[" + join(shape) + "]"; }

namespace {

bool inside(const Box& box, const std::vector<int64_t>& shape) {
  if (box.offset.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t dim = 0; dim < shape.size(); ++dim)
    if (box.offset[dim] < 0 || box.size[dim] < 0 || box.size[dim] > shape[dim] ||
        box.offset[dim] > shape[dim] - box.size[dim])
      return false;
  return true;
}

}  // namespace

std::string cover_defect(const std::vector<int64_t>& shape, std::vector<Box> boxes) {
  int64_t volume = 0;
  for (const Box& box : boxes) {
    if (!inside(box, shape))
      return text("box ", to_string(box), " is outside of shape ", shape_string(shape));
    volume += element_count(box.size);
  }
  if (!shape.empty()) {
    // Boxes in the order of their first row: only those that begin before one ends can meet it.
    std::sort(boxes.begin(), boxes.end(),
              [](const Box& a, const Box& b) { return a.offset < b.offset; });
    for (size_t i = 0; i < boxes.size(); ++i)
      for (size_t j = i + 1; j < boxes.size(); ++j) {
        if (boxes[j].offset[0] >= boxes[i].offset[0] + boxes[i].size[0]) break;
        if (intersection(boxes[i], boxes[j]))
          return text("boxes ", to_string(boxes[i]), " and ", to_string(boxes[j]), " overlap");
      }
  } else if (boxes.size() > 1) {
    return text("a scalar is held ", boxes.size(), " times");
  }
  const int64_t missing = element_count(shape) - volume;
  return missing == 0 ? ""
                      : text(missing, " of the ", element_count(shape), " elements of shape ",
                             shape_string(shape), " are missing");
}

}  // namespace phalanx
