#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/manifest.h"
#include "phalanx/checkpoint/storage.h"
#include "phalanx/checkpoint/task.h"
#include "phalanx/comm/communicator.h"

namespace phalanx {

struct SaveJob;
struct SavePlan;

struct SaveOptions {
  int keep = 2;                    ///< newest checkpoints that are kept; 0: all
  int64_t keep_every = 0;          ///< those of every so many steps are never deleted; 0: none
  bool async = false;              ///< save() returns when the state is copied
  bool verify_after_save = false;  ///< every rank reads its file back before it is published
  std::string local;               ///< of this host, saved to first (see local_place()); "": none
  /// Without a byte written, or a checkpoint read or deleted.
  std::chrono::milliseconds deadline{std::chrono::minutes(30)};
  std::chrono::milliseconds retry_pause{200};  ///< before an error that may pass is tried again
};

/// One save at a time, in steps that all ranks take together: each writes its file, on a thread of
/// its own that communicates nothing; rank 0 publishes; with a local folder each copies its file
/// and rank 0 publishes again. What Checkpointer and save_checkpoint() share. Every function that
/// is not const is a collective; a failure on any rank is the same Error on all of them.
class Saver {
 public:
  Saver(Communicator& world, const std::string& folder, SaveOptions options);
  ~Saver();

  /// Agrees on who writes what, takes the buffers of asynchronous saves, and compares the bytes
  /// wanted with those that are free. begin() does it too; only here checkpoints beyond `keep` are
  /// deleted if they take the space, but not the one at the path `resumed`.
  void prepare(std::span<const StateEntry> entries, const std::string& resumed);
  /// Starts a save; ends the one in flight before.
  void begin(const RunState& run, std::span<const StateEntry> entries);
  /// Takes the next step if all ranks have ended the last one; false if nothing is in flight.
  bool advance();
  void await_published();  ///< until the checkpoint is there, if only in the local folder
  void finish();           ///< until nothing is in flight
  /// Ends what is in flight without the other ranks; the checkpoint does not appear. A disk that
  /// does not answer is left alone: the next start removes what is there.
  void discard();

  bool in_flight() const { return phase_ != Phase::idle; }
  const std::string& newest() const { return newest_; }  ///< path of the last published; "": none

 private:
  enum class Phase { idle, writing, publishing, copying, publishing_copy };
  bool look();
  std::string result();
  void cancel();
  void abandon();
  void plan(std::span<const StateEntry> entries);
  void check_space(const std::string& what, const std::string* resumed) const;
  void add_parts(SaveJob& save, std::span<const StateEntry> entries);
  void start(Phase phase, std::function<std::string(TaskProgress&)> work);
  void next(const std::vector<std::string>& told);
  void await(bool copied_too);

  Communicator& world_;
  const SaveOptions options_;
  std::shared_ptr<Storage> folder_, local_;  // local_: null without one
  std::vector<std::string> described_;       // hash of every rank's entries, of which
  std::shared_ptr<const SavePlan> plan_;     // this is the plan
  at::Tensor staging_;                       // this rank's parts as its file has them
  std::string newest_;

  Phase phase_ = Phase::idle;
  std::shared_ptr<SaveJob> save_;  // in flight
  Task task_;
  int64_t progress_ = 0;  // of the task, and when it last changed
  std::chrono::steady_clock::time_point moved_, cancelled_;
  bool cancelling_ = false;  // since cancelled_
  bool stuck_ = false;       // this rank's disk took nothing for as long as `deadline`
  bool unanswered_ = false;  // a rank's task may run on: its disk did not let go of it
  KnownCheckpoints known_;   // rank 0: of the folder
};

}  // namespace phalanx
