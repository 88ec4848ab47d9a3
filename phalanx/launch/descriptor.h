#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "phalanx/base/error.h"

namespace phalanx {

/// An open file descriptor, closed with its owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return number_; }
  bool open() const { return number_ >= 0; }
  void reset() {
    if (number_ >= 0) close(number_);
    number_ = -1;
  }

 private:
  int number_ = -1;
};

struct Pipe {
  Descriptor read, write;
};

/// Both ends are closed on exec.
inline Pipe make_pipe() {
  int ends[2];
  require(pipe2(ends, O_CLOEXEC) == 0, ExitCode::environment,
          "cannot make a pipe: ", std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

}  // namespace phalanx
