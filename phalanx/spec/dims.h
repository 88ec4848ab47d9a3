#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace phalanx {

/// The named dimensions of the mesh, outermost first. Experts see the ranks of
/// dp_shard x cp x tp as edp x ep x etp.
enum class Dim : uint8_t { pp, dp_replicate, dp_shard, cp, tp, edp, ep, etp };

const char* name(Dim dim);

/// A set of dimensions, folded together when it names a group.
class Dims {
 public:
  constexpr Dims() = default;
  constexpr Dims(std::initializer_list<Dim> dims) {
    for (Dim dim : dims) bits_ |= bit(dim);
  }
  constexpr bool contains(Dim dim) const { return bits_ & bit(dim); }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const Dims&) const = default;
  constexpr auto operator<=>(const Dims&) const = default;
  std::vector<Dim> list() const;  ///< outermost first
  std::string name() const;       ///< "dp_replicate.dp_shard"

 private:
  static constexpr uint8_t bit(Dim dim) { return uint8_t(1u << static_cast<uint8_t>(dim)); }
  uint8_t bits_ = 0;
};

}  // namespace phalanx
