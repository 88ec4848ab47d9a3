#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "phalanx/spec/parameter.h"

namespace phalanx {

/// What two boxes of one tensor have in common; none if nothing.
std::optional<Box> intersection(const Box& a, const Box& b);

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& shape);
int64_t flat_index(const std::vector<int64_t>& coordinates, const std::vector<int64_t>& strides);

/// "[0:16,3:4]", as in Python; "[]" for a scalar.
std::string to_string(const Box& box);
std::string shape_string(const std::vector<int64_t>& shape);  ///< "[2, 3]"

/// Passes boxes of at most `most` elements to `use`, in row-major order, that together are `box`,
/// cut along the outermost dimensions.
void for_each_slice(const Box& box, int64_t most, const std::function<void(const Box&)>& use);

/// What is wrong with these boxes as a partition of a tensor of `shape`: one outside of it, two
/// that overlap, elements that none holds. Empty if nothing.
std::string cover_defect(const std::vector<int64_t>& shape, std::vector<Box> boxes);

}  // namespace phalanx
