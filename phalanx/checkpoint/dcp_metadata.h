#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "phalanx/checkpoint/manifest.h"

namespace phalanx {

/// A tensor of a PyTorch DCP folder, under the keys that PyTorch's users have for it.
struct DcpItem {
  std::vector<std::string> path;
  Dtype dtype;
  std::vector<int64_t> shape;
  std::vector<Box> chunks;
  const ManifestEntry* entry = nullptr;  ///< what it is made of; none: a scalar of value `step`
  int64_t step = 0;
};

/// Where a chunk's torch.save archive lies.
struct DcpPlace {
  std::string file;
  int64_t offset, bytes;
};

/// An attribute of our own beside those of PyTorch's Metadata, which passes it over: the names of
/// the items that are buffers. PyTorch itself does not tell them from parameters.
constexpr std::string_view dcp_buffers_field = "phalanx_buffers";

/// The pickle that is the folder's file `.metadata`. `places`: of each item's chunks.
std::string dcp_metadata(const std::vector<DcpItem>& items,
                         const std::vector<std::vector<DcpPlace>>& places);

}  // namespace phalanx
