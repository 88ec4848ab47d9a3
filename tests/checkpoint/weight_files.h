#pragma once

// Files of weights made by hand, good and bad.

#include <ATen/ATen.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "phalanx/base/text.h"
#include "phalanx/checkpoint/safetensors.h"
#include "phalanx/device/dtype.h"

namespace phalanx::testing {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

inline void write_text(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

inline void write_safetensors(const std::string& path, const NamedTensors& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors)
    infos.push_back({name, dtype_of(tensor), tensor.sizes().vec(), 0, int64_t(tensor.nbytes())});
  std::ofstream file(path, std::ios::binary);
  file << safetensors_header(infos, {{"format", "pt"}});
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor dense = tensor.contiguous();
    file.write(static_cast<const char*>(dense.const_data_ptr()), std::streamsize(dense.nbytes()));
  }
}

inline void write_index(const std::string& folder,
                        const std::map<std::string, std::string>& where) {
  write_text(folder + "/model.safetensors.index.json",
             nlohmann::json{{"metadata", {{"total_size", 0}}}, {"weight_map", where}}.dump());
}

}  // namespace phalanx::testing
