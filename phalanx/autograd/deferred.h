#pragma once

#include <functional>
#include <vector>

namespace phalanx {

/// While one is active, weight_gradient() queues its work here instead of running it: backward
/// becomes the input-gradient pass, run() the weight-gradient pass. Exact, and no GEMM runs twice
/// (zero-bubble schedules, Qi et al. 2023). One per process, not per thread: backward of CUDA
/// operations runs on the engine's own threads.
class DeferredGradients {
 public:
  DeferredGradients() = default;
  DeferredGradients(const DeferredGradients&) = delete;

  /// Makes this the active queue for a scope.
  class Scope {
   public:
    explicit Scope(DeferredGradients& queue);
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    DeferredGradients* before_;
  };

  static DeferredGradients* active();  ///< or null
  void push(std::function<void()> work) { queue_.push_back(std::move(work)); }
  void run();  ///< all queued work, in order; then empty
  bool empty() const { return queue_.empty(); }

 private:
  std::vector<std::function<void()>> queue_;
};

}  // namespace phalanx
