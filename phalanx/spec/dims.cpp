#include "phalanx/spec/dims.h"

#include "phalanx/base/text.h"

namespace phalanx {

const char* name(Dim dim) {
  switch (dim) {
    case Dim::pp:
      return "pp";
    case Dim::dp_replicate:
      return "dp_replicate";
    case Dim::dp_shard:
      return "dp_shard";
    case Dim::cp:
      return "cp";
    case Dim::tp:
      return "tp";
    case Dim::edp:
      return "edp";
    case Dim::ep:
      return "ep";
    case Dim::etp:
      return "etp";
  }
  return "?";
}

std::vector<Dim> Dims::list() const {
  std::vector<Dim> dims;
  for (uint8_t i = 0; i <= static_cast<uint8_t>(Dim::etp); ++i)
    if (contains(static_cast<Dim>(i))) dims.push_back(static_cast<Dim>(i));
  return dims;
}

std::string Dims::name() const {
  std::vector<std::string> names;
  for (Dim dim : list()) names.push_back(phalanx::name(dim));
  return join(names, ".");
}

}  // namespace phalanx
