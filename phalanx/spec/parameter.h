#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "phalanx/spec/dims.h"

namespace phalanx {

/// A rectangle in a tensor: where it starts and how large it is, per dimension.
struct Box {
  std::vector<int64_t> offset, size;
  bool operator==(const Box&) const = default;
};

/// A named part of a parameter. `name` and `global_shape` are those of the Hugging Face tensor;
/// `global` says which part of that tensor this is, `local` where it lies in the local parameter.
/// A fused q,k,v weight has three pieces; most parameters have one that covers everything.
struct Piece {
  std::string name;
  std::vector<int64_t> global_shape;
  Box global, local;
};

enum class Kind : uint8_t { weight, bias, norm, embedding, router, expert };

/// How the elements start: constant `value`, or normal with mean 0 and deviation `value`.
struct Init {
  enum class Rule : uint8_t { constant, normal } rule = Rule::normal;
  double value = 0.02;
};

/// One parameter as a rank holds it, before sharding over data-parallel ranks.
struct ParameterSpec {
  std::string name;  ///< "blocks.3.attention.qkv.weight"
  std::vector<int64_t> local_shape;
  std::vector<Piece> pieces;
  Kind kind = Kind::weight;
  Init init;
  bool trainable = true;
  bool decay = true;       ///< weight decay applies (matrices: yes; biases and norms: no)
  Dims sum_gradient_over;  ///< {tp}: saw a part of the sequence; {pp}: tied over stages
  Dims replicated_over;    ///< the clip norm and the checkpoint count an element once
  std::optional<std::string> tied_to;  ///< name of the parameter whose values it shares
};

int64_t element_count(const std::vector<int64_t>& shape);

/// A parameter with one piece that covers the whole Hugging Face tensor `hf_name`.
ParameterSpec whole_parameter(std::string name, std::string hf_name, std::vector<int64_t> shape,
                              Kind kind, Init init);

/// The box as it covers all of `shape`.
Box whole_box(const std::vector<int64_t>& shape);

/// Elements [begin, end) of a row-major tensor, in order, as the fewest boxes: a ragged head, whole
/// rows, a ragged tail, per dimension.
std::vector<Box> boxes_of_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

}  // namespace phalanx
