#include "phalanx/checkpoint/box.h"

#include <algorithm>
#include <limits>
#include <tuple>

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

void for_each_slice(const Box& box, int64_t most, const std::function<void(const Box&)>& use) {
  if (element_count(box.size) <= most) return use(box);
  size_t dim = 0;
  while (box.size[dim] == 1) ++dim;
  const int64_t row = element_count(box.size) / box.size[dim];
  const int64_t rows = std::max<int64_t>(1, most / row);
  for (int64_t first = 0; first < box.size[dim]; first += rows) {
    Box slice = box;
    slice.offset[dim] += first;
    slice.size[dim] = std::min(rows, box.size[dim] - first);
    for_each_slice(slice, most, use);
  }
}

namespace {

bool inside(const Box& box, const std::vector<int64_t>& shape) {
  if (box.offset.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t dim = 0; dim < shape.size(); ++dim)
    if (box.offset[dim] < 0 || box.size[dim] < 0 || box.size[dim] > shape[dim] ||
        box.offset[dim] > shape[dim] - box.size[dim])
      return false;
  return true;
}

// How many pairs of boxes, none of them empty, have rows in common along one dimension.
int64_t pairs_along(const std::vector<Box>& boxes, size_t dim) {
  std::vector<int64_t> begins, ends;
  for (const Box& box : boxes) {
    begins.push_back(box.offset[dim]);
    ends.push_back(box.offset[dim] + box.size[dim]);
  }
  std::sort(begins.begin(), begins.end());
  std::sort(ends.begin(), ends.end());
  int64_t pairs = 0;
  for (size_t begun = 0, ended = 0; begun < begins.size(); ++begun) {
    while (ends[ended] <= begins[begun]) ++ended;
    pairs += static_cast<int64_t>(begun - ended);
  }
  return pairs;
}

bool overlap(const Box& a, const Box& b) {
  for (size_t dim = 0; dim < a.offset.size(); ++dim)
    if (a.offset[dim] + a.size[dim] <= b.offset[dim] ||
        b.offset[dim] + b.size[dim] <= a.offset[dim])
      return false;
  return true;
}

// Two boxes that overlap. Compares those that meet along the dimension where the fewest do: boxes
// side by side, cut along any dimension, are no pairs there.
std::string overlap_defect(std::vector<Box>& boxes, size_t dims) {
  constexpr int64_t most_pairs = 20'000'000;  // about 6000 boxes that all meet
  size_t best = 0;
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (size_t dim = 0; dim < dims; ++dim)
    if (const int64_t pairs = pairs_along(boxes, dim); pairs < fewest) best = dim, fewest = pairs;
  if (fewest > most_pairs)
    return text(boxes.size(),
                " boxes are too many to be compared, since most of them meet along "
                "every dimension");
  std::sort(boxes.begin(), boxes.end(), [best](const Box& a, const Box& b) {
    return std::tie(a.offset[best], a.offset) < std::tie(b.offset[best], b.offset);
  });
  for (size_t i = 0; i < boxes.size(); ++i)
    for (size_t j = i + 1; j < boxes.size(); ++j) {
      if (boxes[j].offset[best] >= boxes[i].offset[best] + boxes[i].size[best]) break;
      if (overlap(boxes[i], boxes[j]))
        return text("boxes ", to_string(boxes[i]), " and ", to_string(boxes[j]), " overlap");
    }
  return "";
}

}  // namespace

std::string cover_defect(const std::vector<int64_t>& shape, std::vector<Box> boxes) {
  for (const Box& box : boxes) {
    if (!inside(box, shape))
      return text("box ", to_string(box), " is outside of shape ", shape_string(shape));
  }
  std::erase_if(boxes, [](const Box& box) { return element_count(box.size) == 0; });
  if (shape.empty()) {
    if (boxes.size() > 1) return text("a scalar is held ", boxes.size(), " times");
  } else if (const std::string defect = overlap_defect(boxes, shape.size()); !defect.empty()) {
    return defect;
  }
  int64_t missing = element_count(shape);
  for (const Box& box : boxes) missing -= element_count(box.size);
  return missing == 0 ? ""
                      : text(missing, " of the ", element_count(shape), " elements of shape ",
                             shape_string(shape), " are missing");
}

}  // namespace phalanx
