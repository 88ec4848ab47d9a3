#include "phalanx/shard/gradient_ring.h"

namespace phalanx {

GradientBuffer GradientBuffer::allocate(Communicator& group, Device& device, int64_t bytes) {
  GradientBuffer buffer;
  buffer.memory = group.allocate(bytes);
  device.launch(device.compute(), "allocate gradients", {{buffer.memory, true}}, [] {});
  return buffer;
}

void GradientBuffer::wait_idle(Device& device) {
  device.wait(device.compute(), issued);
  reduction.wait();
  reduction.wait_inputs();
  reduction = {};
}

GradientRing::GradientRing(Communicator& group, Device& device, int buffers, int64_t bytes)
    : group_(group), device_(device), bytes_(bytes) {
  for (int i = 0; i < buffers; ++i)
    buffers_.push_back(GradientBuffer::allocate(group, device, bytes));
}

GradientBuffer& GradientRing::take() {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    GradientBuffer& buffer = buffers_[next_];
    next_ = (next_ + 1) % buffers_.size();
    if (buffer.filling) continue;
    buffer.wait_idle(device_);
    buffer.filling = true;
    return buffer;
  }
  buffers_.push_back(GradientBuffer::allocate(group_, device_, bytes_));
  buffers_.back().filling = true;
  return buffers_.back();
}

void GradientRing::wait_idle() {
  for (size_t i = 0; i < buffers_.size(); ++i)
    buffers_[(next_ + i) % buffers_.size()].wait_idle(device_);
}

}  // namespace phalanx
