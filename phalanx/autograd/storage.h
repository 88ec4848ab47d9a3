#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace phalanx {

// Memory under a storage comes and goes while every tensor that aliases it stays: parameters,
// their views, and what autograd saved of them all share one StorageImpl, so they see the new
// memory, and no version counter moves.

/// Points `tensor`'s storage at `memory`, which lives on as long as the storage points there.
void attach_storage(const at::Tensor& tensor, const at::Tensor& memory);

/// Takes the memory away. Touching the tensor then throws with `why` (LibTorch 2.12 and newer;
/// before that the pointer is null).
void detach_storage(const at::Tensor& tensor, const std::string& why);

}  // namespace phalanx
