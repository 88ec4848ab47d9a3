#include "phalanx/checkpoint/task.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace phalanx {

struct Task::Shared {
  TaskProgress progress;
  std::mutex mutex;
  std::condition_variable ended;
  Status status = Status::running;
  std::string result;
  std::exception_ptr error;
  std::thread thread;

  void end(Status how) {
    std::lock_guard lock(mutex);
    status = how;
    ended.notify_all();
  }
};

Task::Task(std::function<std::string(TaskProgress&)> work) : shared_(std::make_shared<Shared>()) {
  const auto run = [shared = shared_, work = std::move(work)] {
    try {
      shared->result = work(shared->progress);
      shared->end(Status::done);
    } catch (...) {
      shared->error = std::current_exception();
      shared->end(Status::failed);
    }
  };
  try {
    shared_->thread = std::thread(run);
  } catch (const std::system_error&) {  // no thread to be had: as if the work had failed
    shared_->error = std::current_exception();
    shared_->end(Status::failed);
  }
}

Task::~Task() {
  if (!shared_) return;
  cancel();
  if (shared_->thread.joinable()) shared_->thread.join();
}

Task& Task::operator=(Task&& other) {
  std::swap(shared_, other.shared_);
  return *this;
}

Task::Status Task::status() const {
  if (!shared_) return Status::done;
  std::lock_guard lock(shared_->mutex);
  return shared_->status;
}

int64_t Task::progress() const { return shared_ ? shared_->progress.done.load() : 0; }

void Task::cancel() {
  if (shared_) shared_->progress.cancelled = true;
}

void Task::wait_for(std::chrono::microseconds time) const {
  if (!shared_) return;
  std::unique_lock lock(shared_->mutex);
  shared_->ended.wait_for(lock, time, [&] { return shared_->status != Status::running; });
}

std::string Task::result() {
  if (!shared_) return "";
  if (shared_->thread.joinable()) shared_->thread.join();
  const auto shared = std::exchange(shared_, nullptr);
  if (shared->error) std::rethrow_exception(shared->error);
  return std::move(shared->result);
}

void Task::abandon() {
  if (!shared_) return;
  shared_->thread.detach();
  shared_.reset();
}

}  // namespace phalanx
