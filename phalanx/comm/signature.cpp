#include "phalanx/comm/signature.h"

#include <c10/core/ScalarType.h>

#include "phalanx/base/text.h"

namespace phalanx {

const char* name(Collective collective) {
  switch (collective) {
    case Collective::none:
      return "nothing";
    case Collective::all_gather:
      return "all_gather";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::barrier:
      return "barrier";
  }
  return "?";
}

std::string describe(uint64_t number, const Signature& signature, const char* unit,
                     const char* purpose) {
  std::string result = text("call ", number, ", ", name(signature.collective));
  if (signature.collective == Collective::all_to_all)
    result += text(" of rows of ", signature.elements, " ",
                   c10::toString(static_cast<c10::ScalarType>(signature.dtype)));
  else if (signature.collective != Collective::barrier)
    result += text(" of ", signature.elements, " ",
                   c10::toString(static_cast<c10::ScalarType>(signature.dtype)));
  if (signature.root >= 0) result += text(" from rank ", signature.root);
  if (signature.collective == Collective::reduce_scatter ||
      signature.collective == Collective::all_reduce)
    result += signature.op == 0 ? " (sum)" : signature.op == 1 ? " (max)" : " (min)";
  if (signature.window) result += " into a window";
  return text(result, ", ", purpose, " of ", unit);
}

uint64_t hash_name(std::string_view name) {  // FNV-1a
  uint64_t value = 14695981039346656037u;
  for (unsigned char letter : name) value = (value ^ letter) * 1099511628211u;
  return value;
}

}  // namespace phalanx
