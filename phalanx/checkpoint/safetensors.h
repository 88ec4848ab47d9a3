#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "phalanx/base/files.h"
#include "phalanx/spec/dtype.h"

namespace phalanx {

// The safetensors format: 8 bytes with the length of a JSON header, the header {name: {dtype,
// shape, data_offsets}}, then the data without gaps. Offsets in the header count from the data.

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::float32;
  std::vector<int64_t> shape;
  int64_t offset = 0;  ///< in the file
  int64_t bytes = 0;
};

/// The bytes before the data, for tensors that follow each other in the order given; padded so that
/// the data begins at a multiple of 8. Fills the offsets in.
std::string safetensors_header(std::vector<TensorInfo>& tensors,
                               const std::map<std::string, std::string>& metadata);

/// Sorts tensors so that wide elements come first and all of a file is aligned; the order is kept
/// otherwise.
void wide_first(std::vector<TensorInfo>& tensors);

/// The tensors of a file, by offset, without those that `skip` names, whose types need not be known
/// here. Error(checkpoint) if the header lies: longer than the file or than 100 MB, unknown types,
/// sizes that do not fit the shape, gaps, overlaps, bytes behind the last tensor; and if the file
/// is something else (foreign_content()).
std::vector<TensorInfo> read_safetensors_header(
    const Reader& file, const std::function<bool(const std::string& name)>& skip = {});

/// What a file that begins with `head` is instead of weights: empty, a Git LFS pointer whose real
/// file was not downloaded, an HTML page. "" if none of these.
std::string foreign_content(std::string_view head);

}  // namespace phalanx
