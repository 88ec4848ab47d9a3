#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace phalanx {

/// A queue of work on a device. Stream 0 is the compute stream, where LibTorch's own operations
/// run.
struct Stream {
  int index = 0;
};

/// A point in a stream's queue.
struct Event {
  int stream = -1;  ///< -1: always passed
  int64_t position = 0;
};

/// A buffer that launched work reads or writes.
struct Access {
  at::Tensor buffer;
  bool write = false;
};

/// The five calls through which the engine orders all work, and nothing else. CUDA implements them
/// with streams and events; on the CPU they run at once; the recording device checks that every two
/// accesses of one buffer are ordered. One thread uses a device.
class Device {
 public:
  virtual ~Device() = default;
  Stream compute() const { return Stream{0}; }
  virtual Stream stream(std::string_view name) = 0;  ///< the same stream for the same name
  /// Runs `work` after everything launched on `stream` before.
  virtual void launch(Stream stream, std::string_view name, std::span<const Access> accesses,
                      std::function<void()> work) = 0;
  virtual Event record(Stream stream) = 0;
  /// Work launched on `stream` from now on runs after `event`.
  virtual void wait(Stream stream, const Event& event) = 0;
  /// Uninitialised memory of `bytes` (dtype uint8), first used by `stream`.
  virtual at::Tensor allocate(Stream stream, int64_t bytes, std::string_view name) = 0;
  /// Gives memory back: counts as a write on the stream that it was allocated for. The caller drops
  /// its reference.
  virtual void free(Stream stream, at::Tensor buffer) = 0;

  void launch(Stream stream, std::string_view name, std::initializer_list<Access> accesses,
              std::function<void()> work) {
    launch(stream, name, std::span<const Access>(accesses.begin(), accesses.size()),
           std::move(work));
  }
};

/// Whether released memory is filled with what is not a number, so that a read of it shows.
#ifdef PHALANX_DEBUG
inline constexpr bool poison_released = true;
#else
inline constexpr bool poison_released = false;
#endif

std::unique_ptr<Device> cpu_device(bool poison = poison_released);

/// Sets all bits, which is not a number in every floating type: whoever still reads sees it.
void poison_memory(const at::Tensor& buffer);

}  // namespace phalanx
