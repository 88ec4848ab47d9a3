#include "phalanx/device/memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <atomic>
#include <fstream>
#include <string>

namespace phalanx {
namespace {

/// Use now and its maximum, from any thread.
class Counter {
 public:
  void add(int64_t bytes) {
    const int64_t now = current_ += bytes;
    int64_t peak = peak_;
    while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
    }
  }
  void reset_peak() { peak_ = current_.load(); }
  MemoryUse use() const { return {current_, peak_}; }

 private:
  std::atomic<int64_t> current_{0}, peak_{0};
};

Counter tensors, rank;

void count(int64_t bytes) {
  tensors.add(bytes);
  rank.add(bytes);
}

void release(void* memory) {
  if (!memory) return;
  count(-static_cast<int64_t>(malloc_usable_size(memory)));
  c10::free_cpu(memory);
}

class CountingAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    void* memory = c10::alloc_cpu(bytes);
    if (memory) count(static_cast<int64_t>(malloc_usable_size(memory)));
    return {memory, memory, &release, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

void count_memory() {
  static CountingAllocator allocator;
  static const bool installed = (c10::SetCPUAllocator(&allocator, 1), true);
  static_cast<void>(installed);
}

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
}

MemoryUse tensor_memory() { return tensors.use(); }
MemoryUse rank_memory() { return rank.use(); }

void reset_peak_memory() {
  tensors.reset_peak();
  rank.reset_peak();
}

void charge_memory(int64_t bytes) { rank.add(bytes); }

int64_t proportional_set_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("Pss:")) return std::stoll(line.substr(4)) * 1024;
  return 0;
}

}  // namespace phalanx
