#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "phalanx/device/device.h"

namespace phalanx {

/// Runs on the CPU and finds orderings that a GPU would need and nobody asked for. Every stream has
/// a vector clock; two accesses of one buffer, one of them a write, must be ordered by events. Work
/// on side streams runs as early as legal (when it is launched) or as late (when something that
/// waits for it runs), so that wrong values show as well. Accesses of LibTorch's own operations are
/// seen through its operator callbacks and count for the compute stream, if the thread that made
/// the device runs them (a transport's own threads may copy with them). Freed memory is kept until
/// the device goes, so that a use after the free is seen. One at a time.
class RecordingDevice final : public Device {
 public:
  enum class Side { early, late };
  explicit RecordingDevice(Side side);
  ~RecordingDevice() override;

  Stream stream(std::string_view name) override;
  void launch(Stream stream, std::string_view name, std::span<const Access> accesses,
              std::function<void()> work) override;
  Event record(Stream stream) override;
  void wait(Stream stream, const Event& event) override;
  at::Tensor allocate(Stream stream, int64_t bytes, std::string_view name) override;
  void free(Stream stream, at::Tensor buffer) override;
  using Device::launch;

  /// Whether work launched on `stream` from now on runs after `event` without a further wait.
  bool ordered(Stream stream, const Event& event) const;
  /// One sentence per access that is not ordered after an earlier one, or comes after a free.
  const std::vector<std::string>& races() const { return races_; }
  /// Accesses of LibTorch's operations to buffers that this device knows.
  int64_t operator_accesses() const { return operator_accesses_; }
  /// Called for every argument of every LibTorch operation.
  void on_operator(const at::Tensor& tensor, bool write, const char* name);

 private:
  using Clock = std::vector<int64_t>;
  struct Use {
    int stream = -1;
    int64_t time = 0;
    std::string what;
  };
  struct Buffer {
    std::string name;
    int64_t bytes;
    bool freed = false;
    Use write;
    std::map<int, Use> reads;  ///< since that write, the last of each stream
  };
  struct Queue {
    std::string name;
    Clock clock;
    std::deque<std::function<void()>> waiting;
    int64_t done = 0;
  };
  struct Recorded {
    Clock clock;
    int64_t upto;
  };

  void know(const at::Tensor& tensor, std::string_view name, int stream);
  /// All known buffers that the tensor lies in; how many there are.
  int touch(const at::Tensor& tensor, int stream, bool write, std::string_view what);
  void touch(Buffer& buffer, int stream, bool write, std::string_view what);
  void enqueue(int stream, std::function<void()> work);
  void run(int stream, int64_t upto);

  Side side_;
  std::vector<Queue> queues_;
  std::map<char*, Buffer> buffers_;  // which do not overlap
  std::vector<at::Tensor> freed_;
  std::vector<Recorded> events_;
  std::vector<std::string> races_;
  int64_t operator_accesses_ = 0;
  bool inside_launch_ = false;
  uint64_t callback_ = 0;
  std::thread::id thread_ = std::this_thread::get_id();
};

}  // namespace phalanx
