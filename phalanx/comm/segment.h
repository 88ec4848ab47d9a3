#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace phalanx {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor();
  int get() const { return value_; }
  explicit operator bool() const { return value_ >= 0; }

 private:
  int value_ = -1;
};

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
  /// Gives the pages of a range back to the system, in every process that maps them.
  void discard(int64_t offset, int64_t bytes);

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Anonymous shared memory of `bytes` zeros. It lives as long as a process maps or holds it, and
/// has no name in the file system, so nothing is left behind whatever dies when.
Descriptor make_segment(const std::string& name, int64_t bytes);

}  // namespace phalanx
