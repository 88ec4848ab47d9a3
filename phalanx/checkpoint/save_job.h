#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/plan.h"
#include "phalanx/checkpoint/saver.h"
#include "phalanx/checkpoint/state_file.h"

namespace phalanx {

/// What one rank does in one save, and all that it needs for that. Saver runs the functions on the
/// thread of its task, one at a time, and changes the fields while none runs. They communicate
/// nothing; Error as Storage says.
struct SaveJob {
  SaveOptions options;
  std::shared_ptr<Storage> folder, local;  // local: null without one
  std::shared_ptr<const SavePlan> plan;
  RunState run;
  int rank = 0;
  StateFile file;
  std::vector<at::Tensor> tensors;           // of the file's parts
  std::string unfinished, local_unfinished;  // folders that are written; "": none
  std::string local_name;                    // what is copied from the local folder
  std::vector<std::string> reports;          // of every rank's file
  KnownCheckpoints known;                    // rank 0: of the folder
  Manifest manifest;

  /// This rank's file, into the local folder if there is one; returns its report.
  std::string write(TaskProgress& progress);
  /// Rank 0: makes the local folder a checkpoint if all ranks wrote on this host; its name, else
  /// "".
  std::string publish_local(TaskProgress& progress);
  /// This rank's file, from the local folder to the shared one.
  std::string copy(TaskProgress& progress);
  /// Rank 0: makes the folder a checkpoint, deletes old ones; its name.
  std::string publish_folder(TaskProgress& progress);
  /// What is left where the local folder did not become a checkpoint. Ranks of a host may meet
  /// here.
  void remove_local();
  /// What is left of a save that failed.
  void discard();

 private:
  WriteOptions write_options() const { return {options.verify_after_save, options.retry_pause}; }
  void make_manifest(TaskProgress& progress);
};

}  // namespace phalanx
