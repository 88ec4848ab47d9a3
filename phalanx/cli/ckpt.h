#pragma once

namespace phalanx::cli {

// The parts of `phalanx ckpt`, each a command of its own: argv[0] is the part's name. A new one is
// a file ckpt_NAME.cpp, a line here and a line in the table of ckpt.cpp.
int ckpt_copy(int argc, char** argv);
int ckpt_diff(int argc, char** argv);
int ckpt_export(int argc, char** argv);
int ckpt_import(int argc, char** argv);
int ckpt_inspect(int argc, char** argv);
int ckpt_verify(int argc, char** argv);

}  // namespace phalanx::cli
