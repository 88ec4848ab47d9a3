#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "phalanx/base/descriptor.h"

namespace phalanx {

/// Memory shared between processes, mapped until destroyed.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Descriptor& descriptor, int64_t bytes);
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Anonymous shared memory of `bytes` zeros. It lives as long as a process maps or holds it, and
/// has no name in the file system, so nothing is left behind whatever dies when.
Descriptor make_segment(const std::string& name, int64_t bytes);

}  // namespace phalanx
