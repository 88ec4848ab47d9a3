#include "phalanx/checkpoint/saver.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/agree.h"
#include "phalanx/checkpoint/hash.h"
#include "phalanx/checkpoint/plan.h"
#include "phalanx/checkpoint/save_job.h"
#include "phalanx/checkpoint/space.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

void check_run(const RunState& run, const Storage& folder) {
  require(run.step >= 0 && run.consumed_samples >= 0, ExitCode::checkpoint, "cannot save step ",
          run.step, " after ", run.consumed_samples, " samples in ", folder.path(""));
  for (const auto& [key, value] : run.values)
    if (const double* number = std::get_if<double>(&value))
      require(std::isfinite(*number), ExitCode::checkpoint, "cannot save the value ", key, " = ",
              *number, " in ", folder.path(""), "; it must be finite");
  creation_time_after(0);  // an error if the clock is wrong, before anything is written
}

// How long a task that was cancelled may take to end.
milliseconds cancel_deadline(milliseconds deadline) {
  return std::min<milliseconds>(deadline, std::chrono::seconds(10));
}

}  // namespace

Saver::Saver(Communicator& world, const std::string& folder, SaveOptions options)
    : world_(world), options_(std::move(options)) {
  agree(world_, "folder", [&] {
    folder_ = open_storage(folder);
    if (!options_.local.empty()) {
      require(!is_url(options_.local), ExitCode::checkpoint, "checkpoint.local = ", options_.local,
              " must be a folder of this host");
      local_ = open_storage(local_place(options_.local, folder));
    }
    return std::string();
  });
}

Saver::~Saver() { discard(); }

void Saver::plan(std::span<const StateEntry> entries) {
  std::string description;
  const auto hashes = agree(world_, "plan", [&] {
    description = describe_entries(entries);
    return to_hex(hash_of(description.data(), static_cast<int64_t>(description.size())));
  });
  if (plan_ && hashes == described_) return;
  plan_ = std::make_shared<const SavePlan>(
      plan_save(agree(world_, "plan", [&] { return description; })));
  described_ = hashes;
}

// `resumed`: see prepare(); null where nothing is to be deleted.
void Saver::check_space(const std::string& what, const std::string* resumed) const {
  int64_t own = 0, all = 0;
  for (const auto& planned : plan_->parts) {
    const int64_t bytes = plan_->entries[planned.entry].parts[planned.part].bytes;
    all += bytes;
    if (planned.writer == world_.rank()) own += bytes;
  }
  if (local_) require_space(*local_, own, what);
  if (world_.rank() != 0) return;
  if (resumed) make_space(*folder_, all, options_.keep, options_.keep_every, *resumed);
  require_space(*folder_, all, what);
}

void Saver::prepare(std::span<const StateEntry> entries, const std::string& resumed) {
  plan(entries);
  const auto check = [&] {
    check_space("this run's state", &resumed);
    SaveJob nothing;
    nothing.plan = plan_;
    add_parts(nothing, entries);
    return std::string();
  };
  agree(world_, "space", check, disk_deadline);
}

// This rank's parts; with `async` a copy of them.
void Saver::add_parts(SaveJob& save, std::span<const StateEntry> entries) {
  for (const auto& planned : plan_->parts) {
    if (planned.writer != world_.rank()) continue;
    const ManifestEntry& entry = plan_->entries[planned.entry];
    const ManifestEntry::Part& part = entry.parts[planned.part];
    save.file.parts.push_back(
        {part_name(entry, part.box), entry.dtype, part.box.size, 0, part.bytes});
    save.tensors.push_back(entries[planned.own_entry].parts[planned.own_part].local.detach());
  }
  if (!options_.async) return;
  const int64_t bytes = save.file.bytes();
  if (!staging_.defined() || staging_.numel() < bytes) staging_ = at::empty({bytes}, at::kByte);
  int64_t offset = 0;
  for (size_t part = 0; part < save.tensors.size(); ++part) {
    const at::Tensor copy = staging_.narrow(0, offset, save.file.parts[part].bytes);
    copy_row_major(save.tensors[part], static_cast<char*>(copy.mutable_data_ptr()));
    offset += copy.numel();
    save.tensors[part] = copy;
  }
}

void Saver::begin(const RunState& run, std::span<const StateEntry> entries) {
  finish();
  plan(entries);
  const auto save = std::make_shared<SaveJob>();
  save->options = options_, save->folder = folder_, save->local = local_, save->plan = plan_;
  save->run = run, save->rank = world_.rank(), save->known = known_;
  save->file.name = state_file_name(world_.rank(), world_.size());
  save->file.step = run.step;
  save_ = save;
  try {
    const auto make = [&]() -> std::string {
      const std::string what = text("step ", run.step);
      if (world_.rank() == 0) check_run(run, *folder_);
      check_space(what, nullptr);
      if (world_.rank() == 0) {
        save->unfinished = folder_->begin(run.step);
        if (local_) save->local_unfinished = local_->begin(run.step);
      }
      add_parts(*save, entries);
      return nlohmann::json{save->unfinished, save->local_unfinished}.dump();
    };
    const auto told = agree(world_, "begin", make, disk_deadline);
    const auto names = nlohmann::json::parse(told[0]);
    save->unfinished = names[0].get<std::string>();
    save->local_unfinished = names[1].get<std::string>();
  } catch (...) {
    discard();
    throw;
  }
  save->file.read = [save = save.get()](size_t part, const UsePiece& use) {
    for_each_piece(save->tensors[part], use);
  };
  start(Phase::writing, [save](TaskProgress& progress) { return save->write(progress); });
}

void Saver::start(Phase phase, std::function<std::string(TaskProgress&)> work) {
  phase_ = phase;
  task_ = work ? Task(std::move(work)) : Task();
  progress_ = 0;
  moved_ = Clock::now();
  cancelling_ = stuck_ = unanswered_ = false;
}

void Saver::cancel() {
  task_.cancel();
  if (!cancelling_) cancelled_ = Clock::now();
  cancelling_ = true;
}

// It still has the parts that it writes, so the next save takes other memory.
void Saver::abandon() {
  task_.abandon();
  staging_.reset();
  unanswered_ = true;
}

// Whether the phase is over on all ranks. If one failed or is stuck all cancel theirs; a disk may
// keep a task that was cancelled for ever, so they are waited for only a while.
bool Saver::look() {
  enum : int64_t { working, stuck, late, ended, failed };
  int64_t mine = ended;
  const auto status = task_.status();
  if (status == Task::Status::failed) mine = failed;
  if (status == Task::Status::running) {
    if (const int64_t progress = task_.progress(); progress != progress_)
      progress_ = progress, moved_ = Clock::now();
    if (!cancelling_ && Clock::now() - moved_ > options_.deadline) stuck_ = true;
    const bool too_late =
        cancelling_ && Clock::now() - cancelled_ > cancel_deadline(options_.deadline);
    mine = too_late ? late : stuck_ ? stuck : working;
  }
  at::Tensor all = at::empty({world_.size()}, at::kLong);
  const at::Tensor own = at::full({1}, mine, at::kLong);
  const Handle handle = world_.all_gather(all, own, {"checkpoint", "progress"});
  handle.wait();
  handle.wait_inputs();
  const int64_t* states = all.const_data_ptr<int64_t>();
  const auto any = [&](int64_t state) {
    return std::find(states, states + world_.size(), state) != states + world_.size();
  };
  if (any(stuck) || any(late)) unanswered_ = true;
  if (any(failed) || any(stuck) || any(late)) cancel();
  return any(late) || !(any(working) || any(stuck));
}

// What this rank says about the phase that is over. If its task still runs, another rank failed or
// this one is stuck.
std::string Saver::result() {
  const bool runs = task_.status() == Task::Status::running;
  if (runs) abandon();
  require(!stuck_, ExitCode::checkpoint, "saving step ", save_->run.step, " in ", folder_->path(""),
          " got no further for ",
          std::chrono::duration_cast<std::chrono::seconds>(options_.deadline).count(),
          " s; the disk or the server does not answer");
  return runs ? "" : task_.result();
}

bool Saver::advance() {
  if (!save_) return false;
  if (!look()) return true;
  try {
    next(agree(world_, "save", [&] { return result(); }));
  } catch (...) {
    discard();
    throw;
  }
  return save_ != nullptr;
}

// All ranks have ended the phase; `told` is what they say.
void Saver::next(const std::vector<std::string>& told) {
  const auto save = save_;
  const bool first = world_.rank() == 0;
  const auto publish_folder = [save](TaskProgress& progress) {
    return save->publish_folder(progress);
  };
  if (phase_ == Phase::writing) {
    save->reports = told;
    save->tensors.clear();
    if (!first)
      start(Phase::publishing, {});
    else if (local_)
      start(Phase::publishing,
            [save](TaskProgress& progress) { return save->publish_local(progress); });
    else
      start(Phase::publishing, publish_folder);
  } else if (phase_ == Phase::publishing && local_) {
    save->local_name = save->local_unfinished;
    if (!told[0].empty()) {
      save->local_name = told[0];
      newest_ = local_->path(told[0]);
      save->local_unfinished.clear();
    }
    start(Phase::copying, [save](TaskProgress& progress) { return save->copy(progress); });
  } else if (phase_ == Phase::copying) {
    start(Phase::publishing_copy, [save, first](TaskProgress& progress) {
      save->remove_local();
      return first ? save->publish_folder(progress) : "";
    });
  } else {
    newest_ = folder_->path(told[0]);
    known_ = save->known;
    save->unfinished.clear();
    save_.reset();
    start(Phase::idle, {});
  }
}

void Saver::discard() {
  const auto patience = cancel_deadline(options_.deadline);
  cancel();
  task_.wait_for(patience);
  if (task_.status() == Task::Status::running) abandon();
  const auto save = std::exchange(save_, nullptr);
  const bool removes = save && !unanswered_;
  start(Phase::idle, {});
  known_.clear();
  if (!removes) return;
  Task removal([save](TaskProgress&) {
    save->discard();
    return std::string();
  });
  removal.wait_for(patience);
  if (removal.status() == Task::Status::running) removal.abandon();
}

void Saver::await(bool copied_too) {
  microseconds pause(50);
  while (save_ && (copied_too || phase_ < Phase::copying)) {
    const Phase before = phase_;
    if (!advance() || phase_ != before) continue;
    if (task_.status() == Task::Status::running)
      task_.wait_for(pause);
    else
      std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, microseconds(20'000));
  }
}

void Saver::await_published() { await(false); }
void Saver::finish() { await(true); }

}  // namespace phalanx
