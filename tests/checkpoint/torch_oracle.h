#pragma once

// What torch_oracle.py wrote, for comparison with what our readers find.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/source.h"
#include "phalanx/device/dtype.h"

namespace phalanx::testing {

inline bool has_torch_in_python() {
  return std::system("ls -d " PHALANX_SOURCE_DIR
                     "/.venv/lib/*/site-packages/torch >/dev/null 2>&1") == 0;
}

/// torch_oracle.py's exit status and output.
inline std::pair<int, std::string> run_oracle(const std::string& what, const std::string& folder) {
  const std::string log = folder + "/" + what + ".log";
  const int status = std::system(text("OMP_NUM_THREADS=1 " PHALANX_SOURCE_DIR
                                      "/.venv/bin/python -W ignore " PHALANX_SOURCE_DIR
                                      "/tests/checkpoint/torch_oracle.py ",
                                      what, " '", folder, "' > '", log, "' 2>&1")
                                     .c_str());
  return {status, read_file(log, ExitCode::checkpoint)};
}

inline at::Tensor read_whole(const Source& source, const ManifestEntry& entry) {
  at::Tensor out = at::empty(entry.shape, scalar_type(entry.dtype));
  read_box(source, entry, whole_box(entry.shape), out);
  return out;
}

/// Compares all of a source with the oracle's NAME.json, bit for bit, whole and in boxes.
inline void expect_source(const Source& source, const std::string& json_path) {
  const auto listed = nlohmann::json::parse(read_file(json_path, ExitCode::checkpoint));
  EXPECT_EQ(source.manifest.run.step, listed["step"]);
  EXPECT_EQ(source.manifest.entries.size(), listed["tensors"].size());
  for (const auto& expected : listed["tensors"]) {
    SCOPED_TRACE(text(expected["name"], " ", expected["role"]));
    const ManifestEntry* found = nullptr;
    for (const auto& entry : source.manifest.entries)
      if (expected["name"] == entry.name && expected["role"] == entry.role) found = &entry;
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(expected["dtype"], name(found->dtype));
    ASSERT_EQ(expected["shape"], nlohmann::json(found->shape));
    const std::string bytes = read_file(expected["file"], ExitCode::checkpoint);
    at::Tensor whole = read_whole(source, *found);
    ASSERT_EQ(whole.nbytes(), bytes.size());
    EXPECT_TRUE(bytes.empty() ||
                std::memcmp(whole.const_data_ptr(), bytes.data(), bytes.size()) == 0);
    for (size_t dim = 0; dim < found->shape.size() && whole.numel() > 0; ++dim) {
      Box box = whole_box(found->shape);
      box.offset[dim] = found->shape[dim] / 3;
      box.size[dim] -= box.offset[dim];
      at::Tensor part = at::empty(box.size, whole.options());
      read_box(source, *found, box, part);
      EXPECT_TRUE(
          at::equal(part, whole.narrow(static_cast<int64_t>(dim), box.offset[dim], box.size[dim])));
    }
  }
}

/// The message of the Error that `work` throws; "" if none.
template <class Work>
std::string error_of(Work&& work) {
  try {
    work();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace phalanx::testing
