#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "phalanx/base/files.h"

namespace phalanx {

using UsePiece = std::function<void(const char* bytes, int64_t count)>;

/// Passes the row-major bytes of `tensor` to `use`, from start to end. What lies contiguously in
/// the memory of the CPU is passed from where it is, the rest through a small buffer. Runs no
/// LibTorch operation on CPU tensors: any thread may call it.
void for_each_piece(const at::Tensor& tensor, const UsePiece& use);

/// Passes bytes [offset, offset + bytes) of a file to `use`, at most 4 MiB at once.
void for_each_piece(const Reader& file, int64_t offset, int64_t bytes, const UsePiece& use);

/// Copies the row-major bytes of `tensor` to `out`, with the threads of LibTorch.
void copy_row_major(const at::Tensor& tensor, char* out);

}  // namespace phalanx
