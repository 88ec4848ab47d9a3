#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/saver.h"

namespace phalanx {

std::string save_checkpoint(Communicator& world, const std::string& folder, const RunState& run,
                            std::span<const StateEntry> entries, int keep) {
  Saver saver(world, folder, {.keep = keep});
  saver.begin(run, entries);
  saver.finish();
  return saver.newest();
}

}  // namespace phalanx
