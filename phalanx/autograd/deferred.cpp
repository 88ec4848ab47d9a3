#include "phalanx/autograd/deferred.h"

#include <utility>

#include "phalanx/autograd/op.h"

namespace phalanx {
namespace {

DeferredGradients* active_queue = nullptr;

}  // namespace

DeferredGradients* DeferredGradients::active() { return active_queue; }

DeferredGradients::Scope::Scope(DeferredGradients& queue)
    : before_(std::exchange(active_queue, &queue)) {}

DeferredGradients::Scope::~Scope() { active_queue = before_; }

void DeferredGradients::run() {
  GradMode no_grad(false);
  // Work may not queue more: the queue of this pass is fixed once the input-gradient pass ended.
  for (auto& work : std::exchange(queue_, {})) work();
}

}  // namespace phalanx
