#include "phalanx/cli/ckpt.h"

#include "phalanx/cli/parts.h"

extern "C" int phalanx_command_ckpt(int argc, char** argv) {
  using namespace phalanx::cli;
  constexpr Part parts[] = {
      {"inspect", "step, versions and tensors of a checkpoint", ckpt_inspect},
      {"diff",
       "compares two checkpoints of any layout, tensor by tensor; exit code 1 if any differ",
       ckpt_diff},
      {"verify", "reads all of it and compares hashes; exit code 1 and what is wrong, if anything",
       ckpt_verify},
      {"copy", "copies a checkpoint to another folder or s3://bucket/prefix", ckpt_copy},
      {"export", "writes the weights in another program's form", ckpt_export},
      {"import", "makes a checkpoint of weights in another program's form", ckpt_import},
  };
  return run_part("ckpt", "Looks into checkpoints, verifies and converts them.", parts, argc, argv);
}
