#pragma once

#include <vector>

#include "phalanx/autograd/parameter.h"

namespace phalanx {

/// Writes the initial values of elements [begin, end) of the flattened local parameter to the first
/// end - begin elements of `out` (contiguous). Values are counter-based, keyed by (seed, Hugging
/// Face name of the piece, element index in the Hugging Face tensor), so that every layout starts
/// from the same model.
void initialize(const ParameterSpec& parameter, uint64_t seed, int64_t begin, int64_t end,
                const at::Tensor& out);

/// Gives parameters plain memory and their initial values: a model without an engine, on one rank.
/// Gradients go to `.grad`.
void allocate_and_initialize(const std::vector<Parameter>& parameters, uint64_t seed);

}  // namespace phalanx
