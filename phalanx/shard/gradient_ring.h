#pragma once

#include <ATen/core/Tensor.h>

#include <deque>

#include "phalanx/comm/communicator.h"
#include "phalanx/device/device.h"

namespace phalanx {

/// A whole-unit gradient buffer and the reduction that reads it. Peers read it in place, so it is
/// busy until they have.
struct GradientBuffer {
  at::Tensor memory;     ///< bytes, from Communicator::allocate
  Handle reduction;      ///< of the last reduction that read it
  Event issued;          ///< of that reduction, on the reduce stream
  bool filling = false;  ///< a unit of a ring writes it, whose reduction is not issued yet

  /// Collective over `group`. The device learns of the memory, so that it can check accesses.
  static GradientBuffer allocate(Communicator& group, Device& device, int64_t bytes);

  /// Returns when this rank's result is there and peers have read the buffer. This rank's own part
  /// comes first: two ranks that each wait for the other to read would wait for ever.
  void wait_idle(Device& device);
};

/// Gradient buffers that units take in turns: with two, one is filled while the other is reduced.
/// The ring grows where more units are being filled at once: each is used several times in one
/// forward, or several have inputs that need no gradient.
class GradientRing {
 public:
  /// `bytes`: of the largest unit. Collective over `group`.
  GradientRing(Communicator& group, Device& device, int buffers, int64_t bytes);
  GradientBuffer& take();  ///< the next buffer that is not being filled, idle. Collective.
  void wait_idle();        ///< every reduction is done

 private:
  Communicator& group_;
  Device& device_;
  int64_t bytes_;
  std::deque<GradientBuffer> buffers_;  // units point at theirs
  size_t next_ = 0;
};

}  // namespace phalanx
